// Who gets the buffers, against tiers that answer when they are told to.
#include "kv/tiers/tier_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kv/cache/leaving_blocks.h"
#include "kv/tiers/fake_tier.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/late_device.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

// A loader with two buffers of one block each, over two tiers.
class TierLoaderTest : public ::testing::Test {
 protected:
  static constexpr int kNumStored = 12;

  TierLoaderTest() {
    for (const TierBlock& block : test_chain(1, kNumStored))
      EXPECT_TRUE(put_block(near_, block, layout_.block_size_bytes()));
  }
  ~TierLoaderTest() override {
    near_.answer();
    far_.answer();
  }

  // Of the first num_blocks that a tier has.
  std::uint64_t start(TierLoader& loader, int num_blocks, int tier) {
    std::vector<LoadBlock> blocks;
    for (int i = 0; i < num_blocks; ++i)
      blocks.push_back({.block = test_block(1, i), .target = BlockId{i}, .tier = tier});
    return loader.start(std::move(blocks));
  }
  // Those that have ended.
  static std::vector<std::uint64_t> poll(TierLoader& loader) {
    std::vector<EndedLoad> ended;
    loader.poll(ended);
    std::vector<std::uint64_t> ids;
    for (const EndedLoad& load : ended) ids.push_back(load.id);
    return ids;
  }

  KvLayout layout_{std::vector{KvLayerShape{64, 1024}}};
  KvStorage storage_{layout_, kNumStored};
  FakeStore store_;  // of both
  FakeTier near_{store_}, far_{store_};
};

TEST_F(TierLoaderTest, LoadsTakeTurns) {
  const std::vector<KvTier*> tiers{&near_};
  TierLoader loader(tiers, storage_, layout_.block_size_bytes(), 0);
  const std::uint64_t long_one = start(loader, kNumStored, 0);
  const std::uint64_t second = start(loader, 4, 0);
  const std::uint64_t third = start(loader, 1, 0);
  std::vector<std::uint64_t> order;
  for (int i = 0; i < 20; ++i) {
    near_.answer();
    for (const std::uint64_t id : poll(loader)) order.push_back(id);
  }
  EXPECT_EQ(order, (std::vector{third, second, long_one}));
}

TEST_F(TierLoaderTest, NoTierWaitsForASlowerOne) {
  const std::vector<KvTier*> tiers{&near_, &far_};
  TierLoader loader(tiers, storage_, layout_.block_size_bytes(), 0);
  for (int i = 0; i < 3; ++i) start(loader, kNumStored, 1);
  const std::uint64_t near_one = start(loader, 3, 0);
  std::vector<std::uint64_t> order;
  for (int i = 0; i < 3; ++i) {
    near_.answer();
    for (const std::uint64_t id : poll(loader)) order.push_back(id);
  }
  EXPECT_EQ(order, std::vector{near_one});
  for (int i = 0; i < 3 * kNumStored; ++i) {
    far_.answer();
    for (const std::uint64_t id : poll(loader)) order.push_back(id);
  }
  EXPECT_EQ(order.size(), 4u);
}

TEST_F(TierLoaderTest, ATierThatHangsEndsWhatWaitsForIt) {
  const std::vector<KvTier*> tiers{&near_, &far_};
  constexpr std::int64_t kPatienceNs = 30 * kNsPerSecond;
  TierLoader loader(tiers, storage_, layout_.block_size_bytes(), 0, kPatienceNs);
  far_.read_seconds = 100;  // said that it would be slow
  const std::uint64_t half = start(loader, 3, 0);
  near_.answer();
  EXPECT_TRUE(poll(loader).empty());  // one is there, the second asked for
  const std::uint64_t waiting = start(loader, 3, 0);
  const std::uint64_t other = start(loader, 1, 1);
  std::vector<EndedLoad> ended;
  loader.poll(ended, steady_now_ns() + kPatienceNs);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].id + ended[1].id, half + waiting);
  EXPECT_EQ(ended[0].id == half ? ended[0].num_loaded : ended[1].num_loaded, 1);
  EXPECT_TRUE(ended[0].is_faulty && ended[1].is_faulty);
  // Its blocks are somebody else's by now: what comes late does not go there.
  const auto theirs = test_bytes(test_block(2, 0), layout_.block_size_bytes());
  storage_.write_block(BlockId{1}, theirs);
  near_.answer();
  far_.answer();
  EXPECT_EQ(poll(loader), std::vector{other});
  EXPECT_TRUE(std::ranges::equal(storage_.read_block(BlockId{1}), theirs));
  // And the tier is used again.
  const std::uint64_t again = start(loader, 1, 0);
  near_.answer();
  EXPECT_EQ(poll(loader), std::vector{again});
}

// Its answer would be waited for in vain, at the latest by the loader's end.
TEST_F(TierLoaderTest, ATierWithoutMemoryHasAnswered) {
  const std::vector<KvTier*> tiers{&near_, &far_};
  TierLoader loader(tiers, storage_, layout_.block_size_bytes(), 0);
  near_.lacks_memory = true;
  EXPECT_NO_THROW(start(loader, 3, 0));
  std::vector<EndedLoad> ended;
  EXPECT_NO_THROW(loader.poll(ended));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].num_loaded, 0);
  EXPECT_TRUE(ended[0].is_faulty);
  near_.lacks_memory = false;
  near_.answers_at_once = true;
  const std::uint64_t again = start(loader, 1, 0);
  EXPECT_EQ(poll(loader), std::vector{again});
}

// The same tiers, before a device.
class TierLoaderDeviceTest : public TierLoaderTest {
 protected:
  bool has(int block, int chain) {
    const auto expected = test_bytes(test_block(chain, block), layout_.block_size_bytes());
    return std::ranges::equal(on_device_.read_block(BlockId{block}), expected);
  }

  LateDevice device_;
  KvStorage on_device_{layout_, kNumStored, &device_};
};

TEST_F(TierLoaderDeviceTest, ALoadEndsWhenItsBlocksHaveBeenCopied) {
  const std::vector<KvTier*> tiers{&near_};
  TierLoader loader(tiers, on_device_, layout_.block_size_bytes(), 0);
  const std::uint64_t id = start(loader, 3, 0);
  for (int i = 0; i < 5; ++i) {
    near_.answer();
    EXPECT_TRUE(poll(loader).empty());
  }
  EXPECT_EQ(device_.num_late(), 2u) << "both buffers are being copied from";
  device_.copy_next();
  device_.copy_next();
  EXPECT_TRUE(poll(loader).empty());
  near_.answer();
  EXPECT_TRUE(poll(loader).empty());
  device_.copy_next();
  EXPECT_EQ(poll(loader), std::vector{id});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(has(i, 1)) << i;
}

TEST_F(TierLoaderDeviceTest, WhatIsBeingCopiedIsWaitedForBeforeItsTargetsAreFree) {
  const std::vector<KvTier*> tiers{&near_, &far_};
  constexpr std::int64_t kPatienceNs = 30 * kNsPerSecond;
  const std::int64_t block_bytes = layout_.block_size_bytes();
  TierLoader loader(tiers, on_device_, block_bytes, 6 * block_bytes, kPatienceNs);
  const std::uint64_t cancelled = start(loader, 1, 0);
  near_.answer();
  EXPECT_TRUE(poll(loader).empty());
  EXPECT_EQ(device_.num_late(), 1u);
  loader.cancel(cancelled);
  EXPECT_EQ(device_.num_late(), 0u);
  EXPECT_TRUE(poll(loader).empty());
  // One whose tier does not answer another counts what it has.
  const std::uint64_t half = start(loader, 4, 0);
  near_.answer();
  EXPECT_TRUE(poll(loader).empty());
  EXPECT_EQ(device_.num_late(), 2u);
  start(loader, 1, 0);
  std::vector<EndedLoad> ended;
  loader.poll(ended, steady_now_ns() + 2 * kPatienceNs);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].id, half);
  EXPECT_EQ(ended[0].num_loaded, 2);
  EXPECT_EQ(ended[1].num_loaded, 0);
  EXPECT_EQ(device_.num_late(), 0u);
  near_.answer();
}

// Piece by piece, in order, several on their way at a time; and a slot is not written while it is read.
TEST_F(TierLoaderDeviceTest, WhatIsLentIsCopiedBeside) {
  const std::int64_t block_bytes = layout_.block_size_bytes();
  const int num_in_piece = static_cast<int>((std::int64_t{64} << 20) / block_bytes);
  const int num_blocks = 9 * num_in_piece;
  KvStorage storage(layout_, num_blocks, &device_);
  HostTier lender(num_blocks * block_bytes, block_bytes, &device_);
  for (const TierBlock& block : test_chain(1, num_blocks)) EXPECT_TRUE(put_block(lender, block, block_bytes));
  const std::vector<KvTier*> tiers{&lender};
  TierLoader loader(tiers, storage, block_bytes, 0);
  const std::uint64_t id = start(loader, num_blocks, 0);
  EXPECT_EQ(device_.num_late(), 8u);
  device_.copy_next();
  EXPECT_TRUE(poll(loader).empty());
  EXPECT_EQ(device_.num_late(), 8u);
  EXPECT_EQ(lender.stats().num_read, static_cast<std::uint64_t>(num_in_piece));
  // Takes the place of the chain's last block, which is being read.
  const TierBlock other = test_block(2, 0);
  KvStorage others(layout_, 1, &device_);
  others.write_block(BlockId{0}, test_bytes(other, block_bytes));
  LeavingBlocks leaving(others);
  EXPECT_TRUE(lender.put_filled(other, [&](std::span<std::byte> to) { leaving.add(BlockId{0}, to); }));
  leaving.start(lender);
  EXPECT_EQ(lender.stats().num_evicted, 1u);
  EXPECT_EQ(device_.num_late(), 9u);
  device_.finish_copies_beside();
  EXPECT_TRUE(leaving.have_left());
  EXPECT_EQ(lender.stats().num_written, static_cast<std::uint64_t>(num_blocks) + 1);
  EXPECT_EQ(poll(loader), std::vector{id});
  for (const int i : {num_in_piece, num_blocks - 1}) {
    const auto expected = test_bytes(test_block(1, i), block_bytes);
    EXPECT_TRUE(std::ranges::equal(storage.read_block(BlockId{i}), expected)) << i;
  }
  EXPECT_EQ(lender.stats().bytes_read, num_blocks * block_bytes);
}

// Several blocks at once, and never more of them than a poll() may.
TEST_F(TierLoaderTest, WhatIsLentGoesStraightIntoStorage) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
  const std::int64_t block_bytes = layout_.block_size_bytes();
  const int num_at_once = static_cast<int>(kMostBytes / block_bytes);
  const int num_blocks = 2 * num_at_once + 2;
  KvStorage storage(layout_, num_blocks + 1);
  HostTier lender(num_blocks * block_bytes, block_bytes, nullptr);
  for (const TierBlock& block : test_chain(1, num_blocks)) EXPECT_TRUE(put_block(lender, block, block_bytes));
  const std::vector<KvTier*> tiers{&lender};
  TierLoader loader(tiers, storage, block_bytes, 0);
  int num_woken = 0;
  loader.set_wake([&] { ++num_woken; });
  const std::uint64_t id = start(loader, num_blocks + 1, 0);  // the last one is not there
  EXPECT_EQ(num_woken, 1);
  std::vector<EndedLoad> ended;
  loader.poll(ended);
  EXPECT_TRUE(ended.empty());
  EXPECT_EQ(lender.stats().num_read, static_cast<std::uint64_t>(num_at_once));
  loader.poll(ended);
  EXPECT_EQ(lender.stats().num_read, static_cast<std::uint64_t>(2 * num_at_once));
  EXPECT_EQ(num_woken, 3) << "each time there was more to do";
  loader.poll(ended);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, id);
  EXPECT_EQ(ended[0].num_loaded, num_blocks);
  EXPECT_EQ(lender.stats().bytes_read, num_blocks * block_bytes);
  for (const int i : {0, num_at_once, num_blocks - 1})
    EXPECT_TRUE(std::ranges::equal(storage.read_block(BlockId{i}), test_bytes(test_block(1, i), block_bytes))) << i;
}

TEST_F(TierLoaderTest, LoadsShareWhatIsLentBetweenTwoPolls) {
  const std::int64_t block_bytes = layout_.block_size_bytes();
  const int num_at_once = static_cast<int>((std::int64_t{64} << 20) / block_bytes);
  KvStorage storage(layout_, num_at_once);
  HostTier lender(num_at_once * block_bytes, block_bytes, nullptr);
  for (const TierBlock& block : test_chain(1, num_at_once)) EXPECT_TRUE(put_block(lender, block, block_bytes));
  const std::vector<KvTier*> tiers{&lender};
  TierLoader loader(tiers, storage, block_bytes, 0);
  start(loader, num_at_once, 0);
  start(loader, 1, 0);
  EXPECT_EQ(poll(loader).size(), 1u);
  EXPECT_EQ(lender.stats().num_read, static_cast<std::uint64_t>(num_at_once));
  EXPECT_EQ(poll(loader).size(), 1u);
  EXPECT_EQ(lender.stats().num_read, static_cast<std::uint64_t>(num_at_once + 1));
}

}  // namespace
}  // namespace larder
