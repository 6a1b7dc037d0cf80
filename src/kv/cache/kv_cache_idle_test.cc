// What may come takes nothing that is asked for.
#include <gtest/gtest.h>

#include <vector>

#include "kv/kv_test_support.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

std::vector<KvLayerShape> full_layer() { return {{1, 4, 0}}; }

int matched(TestCache& test, const Tokens& tokens) { return test.cache.peek(tokens, {}, static_cast<int>(tokens.size())); }

void compute(TestCache& test, BlockTable& table, const Tokens& tokens) {
  (void)test.cache.match(table, tokens, {}, static_cast<int>(tokens.size()));
  const int begin = table.num_computed(), end = static_cast<int>(tokens.size());
  ASSERT_TRUE(test.cache.extend(table, end));
  test.write(table, tokens, begin, end);
  test.cache.publish(table, tokens, end);
  EXPECT_TRUE(test.holds(table, tokens, end));
}

void run(TestCache& test, const Tokens& tokens, bool borrows = false) {
  BlockTable table;
  if (borrows) table.borrow();
  compute(test, table, tokens);
  test.cache.release(table);
}

// Of two the one that was used last stays: the one that was borrowed has not been used.
TEST(KvCacheIdle, WhatIsBorrowedIsNotUsed) {
  for (const EvictionKind kind : {EvictionKind::kLru, EvictionKind::kDensity}) {
    for (const bool borrows : {true, false}) {
      TestCache test(full_layer(), 5, kind);
      run(test, counting(32));
      run(test, counting(32, 100));
      run(test, counting(32), borrows);
      EXPECT_EQ(test.cache.histograms().reuse_gap.num_observed(), borrows ? 0u : 2u);
      run(test, counting(32, 200));
      EXPECT_EQ(matched(test, counting(32, 100)) == 32, borrows);
      EXPECT_EQ(matched(test, counting(32)) == 32, !borrows);
    }
  }
}

// It goes on in a block that is not full, which is then its own.
TEST(KvCacheIdle, WhatIsBorrowedMayGrow) {
  TestCache test(full_layer(), 8);
  run(test, counting(40));
  run(test, counting(60), true);
  EXPECT_EQ(matched(test, counting(60)), 60);
  run(test, counting(60));
  test.cache.clear();
  EXPECT_EQ(test.cache.stats().num_cached, 0);
}

// Whoever uses a block while it is lent has used it.
TEST(KvCacheIdle, WhoUsesWhatIsLentUsesIt) {
  for (const EvictionKind kind : {EvictionKind::kLru, EvictionKind::kDensity}) {
    TestCache test(full_layer(), 5, kind);
    run(test, counting(32));
    run(test, counting(32, 100));
    BlockTable lent, used;
    lent.borrow();
    EXPECT_EQ(test.cache.match(lent, counting(32), {}, 32), 32);
    EXPECT_EQ(test.cache.match(used, counting(32), {}, 32), 32);
    test.cache.release(lent);
    test.cache.release(used);
    run(test, counting(32, 200));
    EXPECT_EQ(matched(test, counting(32)), 32);
  }
}

TEST(KvCacheIdle, GivesUpTheEndOfASequenceAsFarAsItIsAskedTo) {
  TestCache test(full_layer(), 8);
  run(test, counting(90));
  EXPECT_EQ(test.cache.num_tokens_for_free(40), 64);
  EXPECT_EQ(test.cache.num_blocks_to_go_on(40, 65), 3);
  test.cache.give_up(counting(90), {}, 40, 4);
  EXPECT_EQ(matched(test, counting(90)), 64);
  EXPECT_EQ(test.cache.stats().num_cached, 4);
  EXPECT_EQ(test.cache.stats().num_evicted, 0u) << "nobody needed the room yet";
  EXPECT_EQ(test.cache.histograms().lifetime.num_observed(), 0u);
  EXPECT_EQ(test.cache.num_tokens_for_free(40), 96);
  test.cache.give_up(counting(90), {}, 40, 8);
  EXPECT_EQ(matched(test, counting(90)), 48) << "what is kept ends in the third block";
}

TEST(KvCacheIdle, GivesUpNothingThatOthersNeed) {
  TestCache test(full_layer(), 20);
  const Tokens other = joined(counting(48), counting(32, 500));
  run(test, counting(96));
  run(test, other);
  test.cache.give_up(counting(96), {}, 0, 20);
  EXPECT_EQ(matched(test, counting(96)), 48) << "the other one goes on there";
  EXPECT_EQ(matched(test, other), 80);
  ASSERT_TRUE(test.cache.pin(other, {}, 1'000'000));
  test.cache.give_up(other, {}, 0, 20);
  EXPECT_EQ(matched(test, other), 80) << "it is pinned";
  test.clock.advance_ns(2'000'000);
  BlockTable table;
  compute(test, table, other);
  test.cache.give_up(other, {}, 0, 20);
  EXPECT_EQ(matched(test, other), 80) << "it is in use";
  test.cache.release(table);
  test.cache.give_up(other, {}, 0, 20);
  EXPECT_EQ(matched(test, other), 0);
  EXPECT_EQ(test.cache.stats().num_cached, 0);
}

TEST(KvCacheIdle, GivesUpTheWindowsWithTheRest) {
  TestCache test({{1, 4, 0}, {1, 4, 16}}, 20);
  run(test, counting(96));
  EXPECT_EQ(test.cache.stats().num_cached, 12);
  test.cache.give_up(counting(96), {}, 40, 14);
  EXPECT_EQ(test.cache.stats().num_cached, 6);
}

}  // namespace
}  // namespace larder
