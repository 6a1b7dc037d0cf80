#include "kv/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kv/kv_test_support.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

std::vector<KvLayerShape> full_layers(int count = 1) {
  return std::vector<KvLayerShape>(static_cast<std::size_t>(count), KvLayerShape{1, 4, 0});
}

// A sequence that has matched what it can and computed the rest, num_computed tokens in all.
struct Load {
  Load(TestCache& owner, Tokens all, int num_computed, std::string_view salt = {})
      : test(owner), tokens(std::move(all)) {
    num_matched = test.cache.match(table, tokens, salt, num_computed);
    EXPECT_TRUE(test.holds(table, tokens, num_matched));
    compute(num_computed);
  }
  ~Load() { test.cache.release(table); }
  void compute(int num_computed) {
    const int begin = table.num_computed();
    ASSERT_TRUE(test.cache.extend(table, num_computed));
    test.write(table, tokens, begin, num_computed);
    test.cache.publish(table, tokens, num_computed);
    EXPECT_TRUE(test.holds(table, tokens, num_computed));
  }
  TestCache& test;
  Tokens tokens;
  BlockTable table;
  int num_matched = 0;
};

int matched(TestCache& test, const Tokens& tokens, std::string_view salt = {}) {
  return test.cache.peek(tokens, salt, static_cast<int>(tokens.size()));
}

TEST(KvCache, FindsAPrefixToTheToken) {
  TestCache test(full_layers(), 32);
  {
    Load run(test, counting(40), 40);
  }
  EXPECT_EQ(matched(test, counting(40)), 40);
  EXPECT_EQ(matched(test, counting(100)), 40);
  EXPECT_EQ(matched(test, counting(7)), 7);
  EXPECT_EQ(matched(test, joined(counting(21), {500, 501})), 21);
  EXPECT_EQ(matched(test, joined(counting(16), {500, 501})), 16);
  EXPECT_EQ(matched(test, {1, 2, 3}), 0);
  EXPECT_EQ(test.cache.peek(counting(40), {}, 39), 39);
  EXPECT_EQ(test.cache.peek(counting(40), {}, 0), 0);
}

TEST(KvCache, FindsWhatARunningSequenceHasComputed) {
  TestCache test(full_layers(), 32);
  Load first(test, counting(64), 21);
  EXPECT_EQ(matched(test, counting(64)), 21);
  first.compute(22);
  EXPECT_EQ(matched(test, counting(64)), 22);
  first.compute(60);
  Load second(test, joined(counting(50), {900, 901, 902}), 53);
  EXPECT_EQ(second.num_matched, 50);
  EXPECT_EQ(second.table.blocks(0)[2], first.table.blocks(0)[2]);
  EXPECT_NE(second.table.blocks(0)[3], first.table.blocks(0)[3]);
  EXPECT_TRUE(test.holds(first.table, first.tokens, 60));
}

TEST(KvCache, SaltsShareNothing) {
  TestCache test(full_layers(), 32);
  {
    Load run(test, counting(40), 40, "alice");
  }
  EXPECT_EQ(matched(test, counting(40), "alice"), 40);
  EXPECT_EQ(matched(test, counting(40), "bob"), 0);
  EXPECT_EQ(matched(test, counting(40)), 0);
}

TEST(KvCache, TakesAnIdlePartialBlockWithoutACopy) {
  TestCache test(full_layers(), 32);
  BlockId last;
  {
    Load run(test, counting(20), 20);
    last = run.table.blocks(0)[1];
  }
  Load next(test, counting(30), 30);
  EXPECT_EQ(next.num_matched, 20);
  EXPECT_EQ(next.table.blocks(0)[1], last);
  EXPECT_EQ(matched(test, counting(40)), 30);
}

TEST(KvCache, EqualBlocksOfTwoRunningSequencesBecomeOne) {
  TestCache test(full_layers(), 32);
  BlockTable left, right;
  const Tokens tokens = counting(48);
  EXPECT_EQ(test.cache.match(left, tokens, {}, 48), 0);
  EXPECT_EQ(test.cache.match(right, tokens, {}, 48), 0);
  for (BlockTable* table : {&left, &right}) {
    ASSERT_TRUE(test.cache.extend(*table, 24));
    test.write(*table, tokens, 0, 24);
    test.cache.publish(*table, tokens, 24);
  }
  EXPECT_EQ(left.blocks(0)[0], right.blocks(0)[0]);
  EXPECT_NE(left.blocks(0)[1], right.blocks(0)[1]);
  EXPECT_EQ(test.cache.stats().num_held, 3);
  for (BlockTable* table : {&left, &right}) {
    ASSERT_TRUE(test.cache.extend(*table, 32));
    test.write(*table, tokens, 24, 32);
    test.cache.publish(*table, tokens, 32);
  }
  EXPECT_EQ(left.blocks(0)[1], right.blocks(0)[1]);
  EXPECT_EQ(test.cache.stats().num_held, 2);
  EXPECT_EQ(test.cache.stats().num_slots_used, 32);
  test.cache.release(left);
  EXPECT_EQ(test.cache.stats().num_held, 2);
  test.cache.release(right);
  EXPECT_EQ(test.cache.stats().num_held, 0);
  EXPECT_EQ(test.cache.stats().num_cached, 2);
}

TEST(KvCache, ForkSharesUntilWritten) {
  TestCache test(full_layers(2), 32);
  Load run(test, counting(100), 20);
  BlockTable other = test.cache.fork(run.table);
  EXPECT_EQ(test.cache.stats().num_held, 2);
  EXPECT_EQ(test.cache.num_blocks_needed(other, 21), 1);
  EXPECT_EQ(test.cache.num_blocks_needed(other, 20), 0);
  const Tokens other_tokens = joined(counting(20), counting(30, 700));
  ASSERT_TRUE(test.cache.extend(other, 30));
  EXPECT_EQ(test.cache.stats().num_copied_on_write, 1u);
  test.write(other, other_tokens, 20, 30);
  test.cache.publish(other, other_tokens, 30);
  run.compute(30);
  EXPECT_EQ(test.cache.stats().num_copied_on_write, 1u);
  EXPECT_TRUE(test.holds(other, other_tokens, 30));
  EXPECT_EQ(matched(test, other_tokens), 30);
  EXPECT_EQ(matched(test, run.tokens), 30);
  test.cache.release(other);
}

TEST(KvCache, TheForkedFromMayWriteFirst) {
  TestCache test(full_layers(), 32);
  Load run(test, counting(100), 20);
  BlockTable other = test.cache.fork(run.table);
  run.compute(25);
  const Tokens other_tokens = joined(counting(20), counting(30, 700));
  ASSERT_TRUE(test.cache.extend(other, 34));
  test.write(other, other_tokens, 20, 34);
  test.cache.publish(other, other_tokens, 34);
  EXPECT_TRUE(test.holds(run.table, run.tokens, 25));
  EXPECT_TRUE(test.holds(other, other_tokens, 34));
  EXPECT_EQ(matched(test, other_tokens), 34);
  EXPECT_EQ(matched(test, run.tokens), 25);
  test.cache.release(other);
}

TEST(KvCache, EvictsTheLeastRecentlyUsedLeavesFirst) {
  TestCache test(full_layers(), 6, EvictionKind::kLru);
  {
    Load run(test, counting(48), 48);
  }
  {
    Load run(test, joined(counting(16), counting(32, 500)), 48);
  }
  // Idle now: 0 shared; 1 and 2 of the first; 1 and 2 of the second. One block is free.
  EXPECT_EQ(test.cache.stats().num_cached, 5);
  {
    Load run(test, counting(32, 900), 32);
  }
  EXPECT_EQ(matched(test, counting(48)), 32);
  EXPECT_EQ(matched(test, joined(counting(16), counting(32, 500))), 48);
  EXPECT_EQ(test.cache.stats().num_evicted, 1u);
  {
    Load run(test, counting(32, 2000), 32);
  }
  EXPECT_EQ(matched(test, counting(48)), 16);
  EXPECT_EQ(matched(test, joined(counting(16), counting(32, 500))), 32);
}

TEST(KvCache, ShortageChangesNothing) {
  TestCache test(full_layers(), 4);
  Load run(test, counting(80), 40);
  const std::vector<BlockId> before(run.table.blocks(0).begin(), run.table.blocks(0).end());
  EXPECT_EQ(test.cache.num_blocks_available(), 1);
  EXPECT_FALSE(test.cache.extend(run.table, 65));
  EXPECT_EQ(before, std::vector<BlockId>(run.table.blocks(0).begin(), run.table.blocks(0).end()));
  EXPECT_EQ(test.cache.num_blocks_available(), 1);
  run.compute(64);
  // Nothing is left to copy a shared part into: the match ends at the block.
  BlockTable other;
  const Tokens tokens = joined(counting(37), {900});
  EXPECT_EQ(test.cache.match(other, tokens, {}, 38), 32);
  test.cache.release(other);
  EXPECT_TRUE(test.holds(run.table, run.tokens, 64));
}

TEST(KvCache, ClearForgetsOnlyWhatIsIdle) {
  TestCache test(full_layers(), 16);
  {
    Load run(test, counting(40, 900), 40);
  }
  Load run(test, counting(40), 20);
  test.cache.clear();
  EXPECT_EQ(matched(test, counting(40, 900)), 0);
  EXPECT_EQ(matched(test, counting(40)), 20);
  EXPECT_EQ(test.cache.num_blocks_available(), 14);
  run.compute(40);
  EXPECT_EQ(matched(test, counting(40)), 40);
}

TEST(KvCache, CountsUsedSlots) {
  TestCache test(full_layers(), 16);
  {
    Load run(test, counting(40), 20);
    EXPECT_EQ(test.cache.stats().num_slots_held, 32);
    EXPECT_EQ(test.cache.stats().num_slots_used, 20);
  }
  EXPECT_EQ(test.cache.stats().num_slots_used, 0);
  Load again(test, counting(40), 40);
  EXPECT_EQ(test.cache.stats().num_slots_used, 40);
}

// Layers: full, and two with a window of 24, in three groups.
std::vector<KvLayerShape> sliding_layers() { return {{1, 4, 0}, {1, 4, 24}, {1, 4, 24}}; }

TEST(KvCacheWindow, GivesPassedBlocksBackAndStillFindsThem) {
  TestCache test(sliding_layers(), 64);
  ASSERT_EQ(test.layout.num_groups(), 3);
  Load run(test, counting(100), 80);
  // A query at 80 sees positions 57 and later: blocks 3 and 4 of sliding groups, all 5 of the full
  // one.
  EXPECT_EQ(run.table.blocks(1)[2], BlockId::kNone);
  EXPECT_NE(run.table.blocks(1)[3], BlockId::kNone);
  EXPECT_EQ(test.cache.stats().num_held, 5 + 2 * 2);
  EXPECT_EQ(test.cache.stats().num_cached, 2 * 3);
  EXPECT_EQ(matched(test, joined(counting(30), {900})), 30);
  Load other(test, joined(counting(30), counting(20, 900)), 40);
  EXPECT_EQ(other.num_matched, 30);
}

TEST(KvCacheWindow, EndsAMatchWhereTheWindowHasAGap) {
  TestCache test(sliding_layers(), 5 + 4 + 6 + 1);
  Load run(test, counting(100), 80);
  EXPECT_EQ(matched(test, counting(33)), 33);
  // Two blocks for a stranger evict the first idle ones: block 0 of the sliding groups.
  BlockTable stranger;
  EXPECT_EQ(test.cache.match(stranger, counting(3, 900), {}, 3), 0);
  ASSERT_TRUE(test.cache.extend(stranger, 3));
  // Block 0 is seen by queries before 16 + 23.
  EXPECT_EQ(matched(test, counting(33)), 0);
  EXPECT_EQ(matched(test, counting(38)), 0);
  EXPECT_EQ(matched(test, counting(39)), 39);
  EXPECT_EQ(matched(test, counting(60)), 60);
  test.cache.release(stranger);
}

TEST(KvCacheWindow, RecomputedBlocksFillTheGap) {
  TestCache test(sliding_layers(), 19);
  Load run(test, counting(100), 80);
  {
    BlockTable stranger;
    EXPECT_EQ(test.cache.match(stranger, counting(3, 900), {}, 3), 0);
    ASSERT_TRUE(test.cache.extend(stranger, 20));
    test.cache.release(stranger);
  }
  ASSERT_EQ(matched(test, counting(33)), 0);
  Load again(test, counting(20), 20);
  EXPECT_EQ(again.num_matched, 0);
  EXPECT_EQ(again.table.blocks(0)[0], run.table.blocks(0)[0]);
  EXPECT_EQ(matched(test, counting(33)), 33);
}

TEST(KvCacheWindow, EachBlockEvictedForRoomHasHadALifetime) {
  TestCache test({KvLayerShape{1, 4, 0}, KvLayerShape{1, 4, 20}, KvLayerShape{1, 4, 20}}, 64);
  for (int i = 0; i < 12; ++i) {
    Load run(test, counting(100, 1000 * i), 100);
  }
  const std::uint64_t num_evicted = test.cache.stats().num_evicted;
  EXPECT_GT(num_evicted, 7u);
  const KvHistograms& histograms = test.cache.histograms();
  EXPECT_EQ(histograms.lifetime.num_observed(), num_evicted);
  EXPECT_EQ(histograms.idle_before_evict.num_observed(), num_evicted);
  ASSERT_GT(test.cache.stats().num_cached, 0);
  test.cache.clear();
  EXPECT_EQ(test.cache.stats().num_cached, 0);
  EXPECT_EQ(test.cache.stats().num_evicted, num_evicted) << "on demand, not for room";
  EXPECT_EQ(histograms.lifetime.num_observed(), num_evicted);
  EXPECT_EQ(histograms.idle_before_evict.num_observed(), num_evicted);
}

TEST(KvCacheWindow, AModelWithSlidingLayersOnlyWorks) {
  TestCache test({{1, 4, 24}, {1, 4, 24}}, 16);
  ASSERT_EQ(test.layout.num_groups(), 1);
  {
    Load run(test, counting(100), 80);
  }
  EXPECT_EQ(matched(test, counting(100)), 80);
  Load again(test, counting(100), 90);
  EXPECT_EQ(again.num_matched, 80);
}

TEST(KvCacheWindow, FarGoalsCountTheWindowOnly) {
  TestCache test(sliding_layers(), 64);
  BlockTable table;
  EXPECT_EQ(test.cache.match(table, counting(10), {}, 10), 0);
  EXPECT_EQ(test.cache.num_blocks_to_reach(table, 160, 16), 10 + 2 * 4);
  EXPECT_EQ(test.cache.num_blocks_needed(table, 160), 30);
  test.cache.release(table);
}

// A request's own window may be narrower than a layer's.
TEST(KvCache, HoldsNoMoreThanTheNarrowerWindowSees) {
  const AttentionSpan span{.window = 32, .num_sinks = 16};
  constexpr int kStep = 8;
  TestCache test({KvLayerShape{1, 4, 0}, KvLayerShape{1, 4, 300}}, 64);
  std::vector<TokenId> tokens(600);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
  BlockTable table;
  EXPECT_EQ(test.cache.match(table, tokens, {}, 599, span), 0);
  const std::int64_t most = test.layout.num_blocks_for(KvCache::num_endless_tokens(span, kStep), kStep);
  for (int end = kStep; end <= 600; end += kStep) {
    ASSERT_TRUE(test.cache.extend(table, end));
    test.cache.publish(table, tokens, end);
    ASSERT_LE(test.cache.stats().num_held, most) << end;
  }
  test.cache.release(table);
}

}  // namespace
}  // namespace larder
