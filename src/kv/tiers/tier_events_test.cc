#include "kv/tiers/tier_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kv/tiers/disk_tier.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

constexpr std::int64_t kBlockBytes = 5000;

// What a router knows of a tier: it goes by a digest's last 8 bytes, and knows a block by the one before it.
class Router {
 public:
  explicit Router(KvMedium medium) : medium_(medium) {}

  void hear(KvTier& tier) {
    for (const KvEvent& event : tier.take_events()) {
      EXPECT_EQ(event.medium, medium_);
      switch (event.kind) {
        case KvEvent::Kind::kStored:
          EXPECT_TRUE(event.is_first || blocks_.contains(name(event.parent, event.group)) ||
                      blocks_.contains(name(event.parent, 0)));
          blocks_[name(event.digest, event.group)] = event;
          break;
        case KvEvent::Kind::kRemoved: blocks_.erase(name(event.digest, event.group)); break;
        case KvEvent::Kind::kCleared: blocks_.clear(); break;
      }
    }
  }
  bool knows(const TierBlock& block) const {
    const auto found = blocks_.find(name(block.digest, block.group));
    if (found == blocks_.end()) return false;
    const KvEvent& event = found->second;
    EXPECT_EQ(event.tokens, block.tokens);
    EXPECT_EQ(event.parent, block.parent);
    EXPECT_EQ(event.salt, block.salt);
    EXPECT_EQ(event.is_first, block.parent == block.salt);
    return true;
  }
  std::size_t num_known() const { return blocks_.size(); }

 private:
  using Name = std::pair<std::uint64_t, int>;
  static Name name(const Digest& digest, int group) {
    std::uint64_t end;
    std::memcpy(&end, digest.data() + digest.size() - sizeof end, sizeof end);
    return {end, group};
  }

  const KvMedium medium_;
  std::map<Name, KvEvent> blocks_;
};

// What the tier has, the router knows, and nothing else.
void expect_agreement(const Router& router, const KvTier& tier, const std::vector<TierBlock>& blocks) {
  std::size_t num_present = 0;
  for (const TierBlock& block : blocks) {
    const bool is_present = tier.presence(block) == TierPresence::kPresent;
    num_present += is_present ? 1 : 0;
    EXPECT_EQ(router.knows(block), is_present);
  }
  EXPECT_EQ(router.num_known(), num_present);
}

TEST(TierEvents, OfTheHostTier) {
  HostTier tier(6 * kBlockBytes, kBlockBytes, nullptr);
  put_all(tier, test_chain(9, 1), kBlockBytes);
  EXPECT_FALSE(tier.has_events());  // nobody wants to know
  tier.record_events();
  Router router(KvMedium::kHost);
  auto blocks = test_chain(1, 4);
  for (const TierBlock& block : test_chain(2, 4)) blocks.push_back(block);
  for (TierBlock& block : test_chain(3, 2)) blocks.push_back((block.group = 1, block));
  for (int round = 0; round < 3; ++round) {
    put_all(tier, blocks, kBlockBytes);
    EXPECT_TRUE(tier.has_events());
    router.hear(tier);
    EXPECT_FALSE(tier.has_events());
    expect_agreement(router, tier, blocks);  // what was there before was never told of
    std::ranges::rotate(blocks, blocks.begin() + 4);
  }
  EXPECT_EQ(tier.presence(test_block(9, 0)), TierPresence::kAbsent);
  EXPECT_GT(tier.stats().num_evicted, 0u);
}

class DiskTierEvents : public testing::Test {
 protected:
  std::unique_ptr<DiskTier> open(int tell_after_ms) const {
    DiskTierConfig config;
    config.directory = dir_.path();
    config.size_bytes = std::int64_t{4} << 20;
    config.tell_after_ms = tell_after_ms;
    return std::make_unique<DiskTier>(config, test_format(kBlockBytes));
  }
  // Until all is told.
  static void hear_all(Router& router, DiskTier& tier) {
    wait_until([&] {
      router.hear(tier);
      return !tier.has_events();
    });
    router.hear(tier);
  }

  TempDir dir_;
};

TEST_F(DiskTierEvents, WhatIsWrittenAndWhatGoesForIt) {
  const auto tier = open(kNeverMs);
  tier->record_events();
  Router router(KvMedium::kDisk);
  std::vector<TierBlock> blocks;
  for (int chain = 0; chain < 30; ++chain) {
    for (const TierBlock& block : test_chain(chain, 50)) blocks.push_back(block);
    put_all(*tier, std::span(blocks).last(50), kBlockBytes);
    hear_all(router, *tier);
  }
  expect_agreement(router, *tier, blocks);
  EXPECT_GT(tier->stats().num_evicted, 100u);
  EXPECT_GT(router.num_known(), 100u);
}

TEST_F(DiskTierEvents, OfWhatItHeldAtStartParentsComeFirst) {
  std::vector<TierBlock> blocks;
  for (int chain = 0; chain < 3; ++chain)
    for (const TierBlock& block : test_chain(chain, 150)) blocks.push_back(block);
  {
    const auto tier = open(kNeverMs);
    // From the ends on, in batches: where a block lies says nothing of what it follows.
    for (std::size_t i = blocks.size(); i > 0; i -= 50) put_all(*tier, std::span(blocks).subspan(i - 50, 50), kBlockBytes);
  }
  const auto tier = open(0);
  EXPECT_FALSE(tier->has_events());
  tier->record_events();
  Router router(KvMedium::kDisk);
  hear_all(router, *tier);
  EXPECT_EQ(router.num_known(), 450u);
  expect_agreement(router, *tier, blocks);
}

// Of two groups, the second of which has a window: no prompt comes past the block that is missing.
TEST_F(DiskTierEvents, WhatFollowsAGapIsNotTold) {
  std::vector<TierBlock> before, behind;
  for (const int index : {0, 1, 2}) before.push_back(test_block(1, index));
  before.push_back(test_block(1, 2, 1));
  before.push_back(test_block(1, 3, 1));
  for (const int index : {5, 6}) behind.push_back(test_block(1, index, 1));
  for (const int index : {4, 5, 6, 7, 8}) behind.push_back(test_block(1, index));
  {
    const auto tier = open(kNeverMs);
    // Each for itself: they lie in the file in this order.
    for (const TierBlock& block : behind) put_all(*tier, {&block, 1}, kBlockBytes);
    put_all(*tier, before, kBlockBytes);
  }
  const auto tier = open(0);
  tier->record_events();
  Router router(KvMedium::kDisk);
  hear_all(router, *tier);
  EXPECT_EQ(tier->stats().num_stored, static_cast<std::int64_t>(before.size() + behind.size()));
  expect_agreement(router, *tier, before);
  // What is stored anew is told again.
  put_all(*tier, std::vector{test_block(1, 3), test_block(2, 0)}, kBlockBytes);
  hear_all(router, *tier);
  EXPECT_TRUE(router.knows(test_block(1, 3)));
  EXPECT_EQ(router.num_known(), before.size() + 2);
}

TEST_F(DiskTierEvents, WhatFollowsAnUnreadableHeaderIsNotTold) {
  const auto blocks = test_chain(1, 6);
  for (const TierBlock& block : blocks) put_all(*open(kNeverMs), {&block, 1}, kBlockBytes);
  const auto tier = open(0);
  tier->record_events();
  std::fstream file(dir_.segments().front(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(kSegmentPageBytes + 3 * kRecordHeaderSizeBytes + 40).put('x');
  file.close();
  Router router(KvMedium::kDisk);
  hear_all(router, *tier);
  EXPECT_TRUE(router.knows(blocks[2]));
  EXPECT_EQ(router.num_known(), 3u);
}

TEST_F(DiskTierEvents, WhatGoesBeforeItIsToldOfIsNotTold) {
  const auto old = test_chain(1, 400);
  { put_all(*open(kNeverMs), old, kBlockBytes); }
  const auto tier = open(200);
  tier->record_events();
  Router router(KvMedium::kDisk);
  std::vector<TierBlock> blocks = old;
  for (int chain = 2; chain < 20; ++chain) {
    const auto more = test_chain(chain, 50);
    put_all(*tier, more, kBlockBytes);
    blocks.insert(blocks.end(), more.begin(), more.end());
  }
  KvEvents told;
  wait_until([&] {
    const KvEvents more = tier->take_events();
    told.insert(told.end(), more.begin(), more.end());
    return !tier->has_events();
  });
  EXPECT_GT(tier->stats().num_evicted, 0u);
  // What a router believes in the end: the last word on each.
  std::map<Digest, const TierBlock*> named;
  for (const TierBlock& block : blocks) named[BlockKey(block.digest, 0).digest_end()] = &block;
  std::map<const TierBlock*, KvEvent::Kind> last_word;
  for (const KvEvent& event : told) last_word[named.at(BlockKey(event.digest, 0).digest_end())] = event.kind;
  for (const auto& [block, kind] : last_word)
    EXPECT_EQ(kind == KvEvent::Kind::kStored, tier->presence(*block) == TierPresence::kPresent);
}

// A damaged store may say so.
TEST(DiskIndexOrder, OfBlocksThatFollowEachOtherEndsSomewhere) {
  DiskIndex index;
  index.add_segment(100);
  const auto key = [](int i) { return BlockKey(test_digest(static_cast<std::uint64_t>(i)), 0); };
  std::vector<std::pair<int, int>> links = {{1, 2}, {2, 3}, {3, 1}, {4, 4}, {7, 6}, {6, 5}, {5, 90}, {8, 3}};
  for (std::uint64_t age = 1; const auto& [block, parent] : links)
    ASSERT_TRUE(index.store(*index.take_free(), key(block), key(parent), age++));
  const std::vector<SlotId> order = index.parents_first();
  EXPECT_EQ(order.size(), links.size());
  const auto place = [&](int block) { return std::ranges::find(order, *index.find(key(block))) - order.begin(); };
  EXPECT_LT(place(5), place(6));
  EXPECT_LT(place(6), place(7));
  EXPECT_LT(place(3), place(8));
}

TEST(TierEvents, WithoutRoomAllIsForgotten) {
  TierEvents events;
  events.note_stored(test_block(1, 0));
  EXPECT_TRUE(events.empty());
  events.record(KvMedium::kDisk);
  for (std::size_t i = 0; i < TierEvents::kMost; ++i) events.note_stored(test_block(1, static_cast<int>(i)));
  EXPECT_EQ(events.take().size(), TierEvents::kMost);
  EXPECT_TRUE(events.empty());
  for (std::size_t i = 0; i <= TierEvents::kMost; ++i) events.note_removed(BlockKey(test_digest(i), 3));
  events.note_stored(test_block(2, 0));
  const KvEvents taken = events.take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].kind, KvEvent::Kind::kCleared);
  EXPECT_EQ(taken[1].digest, test_block(2, 0).digest);
  EXPECT_TRUE(events.empty());
}

TEST(BlockKeys, HaveTheirGroupAndTheEndOfTheirDigest) {
  const Digest digest = test_digest(7);
  for (const int group : {0, 1, 255, 65535}) {
    const BlockKey key(digest, group);
    EXPECT_EQ(key.group(), group);
    const Digest end = key.digest_end();
    EXPECT_TRUE(std::equal(end.end() - 8, end.end(), digest.end() - 8));
  }
  EXPECT_NE(BlockKey(digest, 0), BlockKey(digest, 1));
  EXPECT_NE(BlockKey(digest, 0), BlockKey(test_digest(8), 0));
}

}  // namespace
}  // namespace larder
