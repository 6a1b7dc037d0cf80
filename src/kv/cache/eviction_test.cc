#include "kv/cache/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kv/cache/density_policy.h"
#include "kv/cache/index_lists.h"
#include "kv/cache/indexed_heap.h"
#include "kv/cache/lru_policy.h"
#include "kv/cache/pins.h"
#include "kv/kv_test_support.h"

namespace larder {
namespace {

TEST(IndexedHeap, GivesTheSmallestOfWhatIsThere) {
  IndexedHeap heap(64);
  std::set<std::pair<double, int>> reference;
  std::vector<double> keys(64);
  std::mt19937 random(3);
  for (int step = 0; step < 5000; ++step) {
    const int item = static_cast<int>(random() % 64);
    auto& key = keys[static_cast<std::size_t>(item)];
    if (heap.contains(item)) {
      heap.remove(item);
      reference.erase({key, item});
    } else {
      key = static_cast<double>(random() % 20);
      heap.push(item, key);
      reference.insert({key, item});
    }
    if (step % 100 == 0) {
      reference.clear();
      for (int other = 0; other < 64; ++other) {
        double& changed = keys[static_cast<std::size_t>(other)];
        changed = std::fmod(changed * 7 + other, 23);
        if (heap.contains(other)) reference.insert({changed, other});
      }
      heap.update([&](int other) { return keys[static_cast<std::size_t>(other)]; });
    }
    ASSERT_EQ(heap.empty(), reference.empty());
    if (!heap.empty()) {
      ASSERT_EQ(heap.top(), reference.begin()->second);
    }
  }
}

TEST(IndexLists, KeepTheirOrder) {
  IndexLists lists(2, 8);
  lists.push_back(0, 1);
  lists.push_back(0, 2);
  lists.push_front(0, 3);
  lists.push_back(1, 4);
  lists.remove(0, 1);
  lists.replace(0, 3, 5);
  EXPECT_EQ(lists.front(0), 5);
  lists.remove(0, 5);
  EXPECT_EQ(lists.front(0), 2);
  lists.remove(0, 2);
  EXPECT_TRUE(lists.empty(0));
  EXPECT_EQ(lists.front(1), 4);
}

TEST(LruPolicy, HighPriorityCountsAsLater) {
  LruPolicy policy(4);
  for (int index = 0; index < 4; ++index) {
    policy.give_back(BlockId{index}, {.keeps_longer = index == 0});
    policy.offer(BlockId{index});
  }
  EXPECT_EQ(policy.next(), BlockId{1});
  policy.take(BlockId{1});
  EXPECT_EQ(policy.next(), BlockId{2});
  policy.forget(BlockId{2});
  policy.withdraw(BlockId{3});
  EXPECT_EQ(policy.next(), BlockId{0});
  policy.forget(BlockId{0});
  EXPECT_EQ(policy.next(), BlockId::kNone);
}

TEST(DensityPolicy, OlderGoesFirstBeforeAnythingIsKnown) {
  DensityPolicy policy(4);
  for (int index = 0; index < 4; ++index) {
    policy.give_back(BlockId{index}, {});
    policy.offer(BlockId{index});
  }
  for (int index = 0; index < 4; ++index) {
    EXPECT_EQ(policy.next(), BlockId{index});
    policy.forget(BlockId{index});
  }
}

TEST(DensityPolicy, WhatIsUsedOftenAndWhatIsOfHighPriorityStays) {
  DensityPolicy policy(4);
  for (int use = 0; use < 3; ++use) {
    if (use > 0) policy.take(BlockId{0});
    policy.give_back(BlockId{0}, {});
  }
  policy.give_back(BlockId{1}, {.keeps_longer = true});
  policy.give_back(BlockId{2}, {});
  for (int index = 0; index < 3; ++index) policy.offer(BlockId{index});
  EXPECT_EQ(policy.next(), BlockId{2});
}

// A block that goes on where one ends that is used every so often is expected back as soon.
TEST(DensityPolicy, WhatFollowsHasTheRhythmOfWhatItFollows) {
  constexpr int kNumBlocks = 64;
  DensityPolicy policy(kNumBlocks);
  // Block 0 is used at every 32nd block given back; what is met once never comes back.
  std::uint64_t fresh = 1000;
  for (int round = 0; round < 400; ++round) {
    if (round == 0)
      policy.name(BlockId{0}, 1);
    else
      policy.take(BlockId{0});
    policy.give_back(BlockId{0}, {});
    for (int index = 3; index < 34; ++index) {
      if (round > 0) policy.forget(BlockId{index});
      policy.name(BlockId{index}, fresh++);
      policy.give_back(BlockId{index}, {});
    }
  }
  policy.take(BlockId{0});
  policy.follow(BlockId{1}, BlockId{0});
  policy.name(BlockId{1}, fresh++);
  policy.name(BlockId{2}, fresh++);
  policy.give_back(BlockId{1}, {});
  policy.give_back(BlockId{2}, {});
  policy.offer(BlockId{1});
  policy.offer(BlockId{2});
  EXPECT_EQ(policy.next(), BlockId{2});
}

// A ghost gives its history back: the block has been used twice now, the other once.
TEST(DensityPolicy, RemembersWhatWent) {
  DensityPolicy policy(4);
  policy.name(BlockId{0}, 77);
  policy.give_back(BlockId{0}, {});
  policy.forget(BlockId{0});
  policy.name(BlockId{0}, 77);
  policy.give_back(BlockId{0}, {});
  policy.name(BlockId{1}, 78);
  policy.give_back(BlockId{1}, {});
  policy.offer(BlockId{0});
  policy.offer(BlockId{1});
  EXPECT_EQ(policy.next(), BlockId{1});
}

// Random uses with repeated and clashing keys: nothing is lost, and only what was offered goes.
TEST(DensityPolicy, OffersAreKept) {
  constexpr int kNumBlocks = 40;
  DensityPolicy policy(kNumBlocks);
  enum class State { kInUse, kIdle, kOffered };
  std::vector<State> states(kNumBlocks, State::kInUse);
  std::mt19937 random(11);
  for (int step = 0; step < 200'000; ++step) {
    const BlockId block{static_cast<int>(random() % kNumBlocks)};
    State& state = states[static_cast<std::size_t>(to_index(block))];
    if (state == State::kInUse) {
      if (random() % 2 == 0) policy.name(block, random() % 60'000);
      policy.give_back(block, {random() % 5 == 0, random() % 9 == 0});
      state = State::kIdle;
    } else if (random() % 3 == 0) {
      if (random() % 2 == 0)
        policy.take(block);
      else
        policy.forget(block);
      state = State::kInUse;
    } else if (state == State::kIdle) {
      policy.offer(block);
      state = State::kOffered;
    } else {
      policy.withdraw(block);
      state = State::kIdle;
    }
    const BlockId next = policy.next();
    const auto num_offered = std::ranges::count(states, State::kOffered);
    ASSERT_EQ(next == BlockId::kNone, num_offered == 0);
    if (next != BlockId::kNone) {
      ASSERT_EQ(states[static_cast<std::size_t>(to_index(next))], State::kOffered);
    }
  }
}

TEST(Pins, EarliestFirstAndDeepestOfThose) {
  Pins pins(8);
  pins.pin(BlockId{1}, 100, 1);
  pins.pin(BlockId{2}, 100, 2);
  pins.pin(BlockId{3}, 50, 3);
  pins.pin(BlockId{1}, 40, 1);  // shorter than it has
  EXPECT_EQ(pins.num_pinned(), 3);
  EXPECT_EQ(pins.first_idle(), BlockId::kNone);
  pins.set_idle(BlockId{1}, true);
  pins.set_idle(BlockId{2}, true);
  EXPECT_EQ(pins.first_idle(), BlockId{2});
  EXPECT_EQ(pins.first_expired(49), BlockId::kNone);
  EXPECT_EQ(pins.first_expired(50), BlockId{3});
  pins.unpin(BlockId{3});
  EXPECT_EQ(pins.first_expired(99), BlockId::kNone);
  EXPECT_EQ(pins.first_expired(100), BlockId{2});
}

// Prompts as lists of blocks; one block of the pool each.
class SmallReplay {
 public:
  SmallReplay(EvictionKind eviction, int num_blocks)
      : test_({{1, 2, 0}}, num_blocks, eviction) {}

  void request(const std::vector<int>& blocks) {
    std::vector<TokenId> tokens;
    for (const int block : blocks) tokens.insert(tokens.end(), kBlockSize, block);
    const int num_tokens = static_cast<int>(tokens.size());
    BlockTable table;
    num_hits_ += test_.cache.match(table, tokens, "", num_tokens) / kBlockSize;
    ASSERT_TRUE(test_.cache.extend(table, num_tokens));
    test_.cache.publish(table, tokens, num_tokens);
    test_.cache.release(table);
  }
  int num_hits() const { return num_hits_; }

 private:
  TestCache test_;
  int num_hits_ = 0;
};

template <class Load>
void expect_no_worse_than_lru(Load load, double least_ratio) {
  SmallReplay lru(EvictionKind::kLru, 100);
  SmallReplay density(EvictionKind::kDensity, 100);
  load(lru);
  load(density);
  EXPECT_GE(density.num_hits(), lru.num_hits() * least_ratio) << lru.num_hits();
  EXPECT_GT(density.num_hits(), 0);
}

TEST(Eviction, ALoopThatDoesNotFit) {
  const auto load = [](SmallReplay& cache) {
    for (int round = 0; round < 60; ++round) {
      for (int prompt = 0; prompt < 50; ++prompt) {
        cache.request({prompt * 3, prompt * 3 + 1, prompt * 3 + 2});
      }
    }
  };
  SmallReplay cache(EvictionKind::kDensity, 100);
  load(cache);
  EXPECT_GT(cache.num_hits(), 60 * 150 / 4);
  expect_no_worse_than_lru(load, 1);
}

TEST(Eviction, AHotSetBesideAScan) {
  expect_no_worse_than_lru(
      [](SmallReplay& cache) {
        std::mt19937 random(5);
        int fresh = 1'000'000;
        for (int i = 0; i < 4000; ++i) {
          if (i % 2 == 0) {
            const int prompt = static_cast<int>(random() % 12);
            cache.request({prompt * 4, prompt * 4 + 1, prompt * 4 + 2, prompt * 4 + 3});
          } else {
            std::vector<int> scan;
            for (int block = 0; block < 20; ++block) scan.push_back(fresh++);
            cache.request(scan);
          }
        }
      },
      1.5);
}

TEST(Eviction, ZipfsLaw) {
  expect_no_worse_than_lru(
      [](SmallReplay& cache) {
        std::mt19937 random(6);
        for (int i = 0; i < 8000; ++i) {
          const double uniform = static_cast<double>(random()) / 4294967296.0;
          const int prompt = static_cast<int>(std::pow(400, uniform));
          cache.request({prompt * 2, prompt * 2 + 1});
        }
      },
      1);
}

TEST(Eviction, PrioritySurvivesWhatWouldEvictOthers) {
  for (const EvictionKind eviction : {EvictionKind::kLru, EvictionKind::kDensity}) {
    TestCache test({{1, 2, 0}}, 20, eviction);
    const auto serve = [&](int first, bool keeps_longer) {
      const std::vector<TokenId> tokens(kBlockSize * 4, first);
      BlockTable table;
      const int num_matched = test.cache.match(table, tokens, "", kBlockSize * 4);
      if (keeps_longer) table.keep_longer();
      EXPECT_TRUE(test.cache.extend(table, kBlockSize * 4));
      test.cache.publish(table, tokens, kBlockSize * 4);
      test.cache.release(table);
      return num_matched;
    };
    serve(1, true);
    serve(2, false);
    for (int other = 3; other < 8; ++other) serve(other, false);
    EXPECT_EQ(serve(1, false), kBlockSize * 4);
    EXPECT_EQ(serve(2, false), 0);
  }
}

class PinTest : public testing::Test {
 protected:
  static constexpr std::int64_t kSecond = 1'000'000'000;

  // Four blocks. ttl_s 0 = not pinned.
  int serve(int first, int ttl_s) {
    const std::vector<TokenId> tokens(kBlockSize * 4, first);
    BlockTable table;
    const int num_matched = test_.cache.match(table, tokens, "", kBlockSize * 4);
    EXPECT_TRUE(test_.cache.extend(table, kBlockSize * 4));
    test_.cache.publish(table, tokens, kBlockSize * 4);
    const auto pinned = std::span(tokens).first(num_pinned_tokens_);
    if (ttl_s > 0) pinned_ = test_.cache.pin(pinned, "", ttl_s * kSecond);
    test_.cache.release(table);
    return num_matched;
  }

  TestCache test_{{{1, 2, 0}}, 20};
  std::size_t num_pinned_tokens_ = kBlockSize * 4;
  bool pinned_ = false;
};

TEST_F(PinTest, StaysUntilItsTimeIsUp) {
  serve(1, 10);
  EXPECT_TRUE(pinned_);
  EXPECT_EQ(test_.cache.stats().num_pinned, 4);
  for (int other = 2; other < 50; ++other) serve(other, 0);
  EXPECT_EQ(serve(1, 0), kBlockSize * 4);
  test_.clock.advance_ns(10 * kSecond);
  for (int other = 2; other < 50; ++other) serve(other, 0);
  EXPECT_EQ(test_.cache.stats().num_pinned, 0);
  EXPECT_EQ(serve(1, 0), 0);
}

TEST_F(PinTest, MoreThanTheShareIsRefused) {
  serve(1, 10);
  serve(2, 10);
  EXPECT_TRUE(pinned_);
  serve(3, 10);
  EXPECT_FALSE(pinned_);
  EXPECT_EQ(test_.cache.stats().num_pinned, 8);
  serve(1, 20);  // already pinned: longer now
  EXPECT_TRUE(pinned_);
  test_.clock.advance_ns(10 * kSecond);
  serve(3, 10);
  EXPECT_TRUE(pinned_);
  EXPECT_EQ(test_.cache.stats().num_pinned, 8);
}

TEST_F(PinTest, GivesWayWhereNothingElseIsLeft) {
  serve(1, 20);
  serve(2, 10);
  const std::vector<TokenId> tokens(kBlockSize * 18, 9);
  BlockTable table;
  EXPECT_EQ(test_.cache.match(table, tokens, "", kBlockSize * 18), 0);
  EXPECT_TRUE(test_.cache.extend(table, kBlockSize * 18));
  test_.cache.release(table);
  // What would have expired first is gone, and of the other the deepest.
  EXPECT_EQ(test_.cache.stats().num_pinned, 2);
  EXPECT_EQ(test_.cache.peek(std::vector<TokenId>(kBlockSize * 4, 1), "", 64), kBlockSize * 2);
  EXPECT_EQ(test_.cache.peek(std::vector<TokenId>(kBlockSize * 4, 2), "", 64), 0);
  test_.cache.clear();
  EXPECT_EQ(test_.cache.stats().num_pinned, 0);
}

TEST_F(PinTest, KeepsTheBlocksOfItsTokensOnly) {
  num_pinned_tokens_ = kBlockSize + 1;
  serve(1, 10);
  EXPECT_EQ(test_.cache.stats().num_pinned, 2);
  for (int other = 2; other < 50; ++other) serve(other, 0);
  EXPECT_EQ(serve(1, 0), kBlockSize * 2);
}

// Their leaf was up for eviction, what it hangs on was not.
TEST_F(PinTest, KeepsBlocksThatNobodyHolds) {
  serve(1, 0);
  EXPECT_TRUE(test_.cache.pin(std::vector<TokenId>(kBlockSize * 4, 1), "", 10 * kSecond));
  EXPECT_EQ(test_.cache.stats().num_pinned, 4);
  for (int other = 2; other < 50; ++other) serve(other, 0);
  EXPECT_EQ(test_.cache.peek(std::vector<TokenId>(kBlockSize * 4, 1), "", 64), kBlockSize * 4);
  test_.clock.advance_ns(10 * kSecond);
  for (int other = 2; other < 50; ++other) serve(other, 0);
  EXPECT_EQ(serve(1, 0), 0);
}

// The last block that was pinned turns out to be known.
TEST_F(PinTest, GoesToTheBlockThatIsKeptOfTwoEqualOnes) {
  serve(1, 0);
  const std::vector<TokenId> tokens(kBlockSize * 4, 1);
  for (const int num_tokens : {kBlockSize * 2, kBlockSize + 5}) {
    BlockTable table;
    ASSERT_EQ(test_.cache.match(table, tokens, "", kBlockSize + 4), kBlockSize + 4);
    ASSERT_TRUE(test_.cache.extend(table, kBlockSize * 2));
    test_.cache.publish(table, tokens, kBlockSize + 5);
    EXPECT_TRUE(test_.cache.pin(std::span(tokens).first(kBlockSize + 5), "", 10 * kSecond));
    test_.cache.publish(table, tokens, num_tokens);
    test_.cache.release(table);
    EXPECT_EQ(test_.cache.stats().num_pinned, 2) << num_tokens;
    for (int other = 2; other < 50; ++other) serve(other, 0);
    EXPECT_GE(test_.cache.peek(tokens, "", kBlockSize * 4), kBlockSize + 5);
    test_.clock.advance_ns(10 * kSecond);
    serve(2, 0);
    EXPECT_EQ(test_.cache.stats().num_pinned, 0);
    serve(1, 0);
  }
}

// A pin keeps what a continuation sees: the window's blocks, too.
TEST(Pin, KeepsTheWindow) {
  TestCache test({{1, 2, 0}, {1, 2, 20}}, 60);
  const std::vector<TokenId> tokens(kBlockSize * 8, 1);
  const int num_tokens = kBlockSize * 8;
  BlockTable table;
  EXPECT_EQ(test.cache.match(table, tokens, "", num_tokens), 0);
  ASSERT_TRUE(test.cache.extend(table, num_tokens));
  test.cache.publish(table, tokens, num_tokens);
  EXPECT_TRUE(test.cache.pin(tokens, "", 1000));
  EXPECT_EQ(test.cache.stats().num_pinned, 8 + 2);
  test.cache.release(table);
  for (int other = 2; other < 40; ++other) {
    const std::vector<TokenId> filler(kBlockSize * 8, other);
    EXPECT_EQ(test.cache.match(table, filler, "", num_tokens), 0);
    ASSERT_TRUE(test.cache.extend(table, num_tokens));
    test.cache.publish(table, filler, num_tokens);
    test.cache.release(table);
  }
  EXPECT_EQ(test.cache.peek(tokens, "", num_tokens), num_tokens);
}

// Also of a place that the sequence's window has left: its blocks are idle by then.
TEST(Pin, KeepsTheWindowOfAnEarlierPlace) {
  for (const bool is_pinned : {true, false}) {
    TestCache test({{1, 2, 0}, {1, 2, 20}}, 60);
    const std::vector<TokenId> tokens(kBlockSize * 8, 1);
    const int num_tokens = kBlockSize * 8, num_kept = kBlockSize * 4 + 3;
    const auto serve = [&](const std::vector<TokenId>& prompt) {
      BlockTable table;
      EXPECT_EQ(test.cache.match(table, prompt, "", num_tokens), 0);
      for (int end = kBlockSize; end <= num_tokens; end += kBlockSize) {
        EXPECT_TRUE(test.cache.extend(table, end));
        test.cache.publish(table, prompt, end);
      }
      return table;
    };
    BlockTable first = serve(tokens);
    // Of the window of 20 before position 67 block 3, and the block that the position is in.
    if (is_pinned) {
      EXPECT_TRUE(test.cache.pin(std::span(tokens).first(num_kept), "", 1000));
    }
    EXPECT_EQ(test.cache.stats().num_pinned, is_pinned ? 5 + 2 : 0);
    test.cache.release(first);
    for (int other = 2; other < 40; ++other) {
      BlockTable filler = serve(std::vector<TokenId>(kBlockSize * 8, other));
      test.cache.release(filler);
    }
    EXPECT_EQ(test.cache.peek(tokens, "", num_kept), is_pinned ? num_kept : 0);
  }
}

// Once a block of that window has gone, nothing could go on there.
TEST(Pin, IsRefusedWhereABlockOfTheWindowIsGone) {
  TestCache test({{1, 2, 0}, {1, 2, 20}}, 15);
  const std::vector<TokenId> tokens(kBlockSize * 8, 1);
  BlockTable table;
  EXPECT_EQ(test.cache.match(table, tokens, "", 0), 0);
  for (int end = kBlockSize; end <= kBlockSize * 8; end += kBlockSize) {
    ASSERT_TRUE(test.cache.extend(table, end));
    test.cache.publish(table, tokens, end);
  }
  ASSERT_EQ(test.cache.stats().num_evicted, 1u);
  EXPECT_FALSE(test.cache.pin(std::span(tokens).first(kBlockSize), "", 1000));
  EXPECT_EQ(test.cache.stats().num_pins_refused, 1u);
  EXPECT_EQ(test.cache.stats().num_pinned, 0);
  EXPECT_TRUE(test.cache.pin(std::span(tokens).first(kBlockSize * 4), "", 1000));
  EXPECT_EQ(test.cache.stats().num_pinned, 4 + 2);
  test.cache.release(table);
}

}  // namespace
}  // namespace larder
