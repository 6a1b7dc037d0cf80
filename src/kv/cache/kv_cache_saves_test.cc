// Writes behind, and what tiers hear of what the pool has.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kv/cache/kv_cache_tiers_test_support.h"
#include "kv/tiers/host_tier.h"

namespace larder {
namespace {

// Between two steps it is offered to each of them, though the first takes all it can.
TEST(KvCacheSaves, NoTierKeepsAnotherFromItsBlocks) {
  constexpr int kNumBlocks = 12;
  FakeStore near, far;
  Server server({KvLayerShape{64, 1024, 0}}, kNumBlocks, {&near, &far});
  ASSERT_EQ(server.test.layout.block_size_bytes(), 4 << 20);
  const Tokens tokens = counting(kNumBlocks * kBlockSize);
  BlockTable table;
  ASSERT_EQ(server.test.cache.match(table, tokens, {}, kNumBlocks * kBlockSize - 1), 0);
  server.compute(table, tokens);
  for (const int num_saved : {8, 12}) {
    server.test.cache.poll_tiers();
    EXPECT_EQ(server.fakes[0]->num_puts, num_saved);
    EXPECT_EQ(server.fakes[1]->num_puts, num_saved);
  }
  server.test.cache.release(table);
}

TEST(KvCacheSaves, WhatTheNearerTierHadTheOtherGets) {
  FakeStore disk, remote;
  Server(full_layer(), 16, {&disk}).run(counting(100));
  Server second(full_layer(), 16, {&disk, &remote});
  EXPECT_EQ(second.run(counting(100)), 4);
  second.test.cache.poll_tiers();
  EXPECT_EQ(remote.blocks.size(), 6u);
}

TEST(KvCacheSaves, WhatATierLostIsOfferedBeforeItIsEvicted) {
  FakeStore store;
  Server server(full_layer(), 8, {&store});
  server.run(counting(100));
  EXPECT_EQ(store.blocks.size(), 6u);
  store.blocks.clear();
  server.run(counting(100, 1000));
  EXPECT_EQ(server.run(counting(100)), 4);
}

TEST(KvCacheSaves, WhatAVagueTierKnowsToHaveLostIsOfferedBeforeItIsEvicted) {
  FakeStore store;
  Server server(full_layer(), 8, {&store});
  server.fakes[0]->is_vague = true;
  server.run(counting(100));
  store.blocks.clear();
  server.run(counting(100, 1000));
  EXPECT_EQ(server.run(counting(100)), 4);
}

TEST(KvCacheSaves, TiersHearOfAPoolsHitsAndGetWhatTheyLost) {
  FakeStore store, other;
  Server server(full_layer(), 32, {&store, &other});
  const auto run_after = [&](std::int64_t seconds) {
    server.test.clock.advance_ns(seconds * 1'000'000'000);
    EXPECT_EQ(server.run(counting(100)), 1);
    server.test.cache.poll_tiers();
  };
  EXPECT_EQ(server.run(counting(100)), 100);
  run_after(1);
  EXPECT_EQ(server.fakes[0]->num_touches, 0);  // not after each use
  run_after(10);
  run_after(1);
  EXPECT_EQ(server.fakes[0]->num_touches, 6);
  EXPECT_EQ(server.fakes[1]->num_touches, 6);
  store.blocks.erase(store.blocks.begin());
  run_after(10);
  EXPECT_EQ(store.blocks.size(), 6u);
  EXPECT_EQ(server.fakes[0]->num_puts, 7);
  EXPECT_EQ(server.fakes[1]->num_puts, 6);
}

TEST(KvCacheSaves, WhatATierLosesAgainAndAgainItGetsEverLater) {
  FakeStore store;
  Server server(full_layer(), 32, {&store});
  server.run(counting(100));
  std::vector<int> given_at;  // in intervals
  for (int i = 1; i <= 20; ++i) {
    store.blocks.clear();
    server.test.clock.advance_ns(10'000'000'000);
    EXPECT_EQ(server.run(counting(100)), 1);
    if (!store.blocks.empty()) given_at.push_back(i);
  }
  // Missed one interval after it was given: at once, then after 2 intervals, 4, 8.
  EXPECT_EQ(given_at, (std::vector<int>{1, 4, 9, 18}));
  EXPECT_EQ(server.fakes[0]->num_puts, 5 * 6);
  store.blocks.clear();
  server.test.cache.clear();
  EXPECT_EQ(store.blocks.size(), 6u);
}

// Whoever is to load a prompt does not wait for as long.
TEST(KvCacheSaves, WhatWasLostMoreThanOnceIsThereForThoseWhoAreToLoadIt) {
  FakeStore store;
  Server server(full_layer(), 32, {&store});
  server.fakes[0]->others_read = true;
  const Tokens tokens = counting(100);
  server.run(tokens);
  for (const bool is_given_at_once : {true, false}) {
    store.blocks.clear();
    server.test.clock.advance_ns(10'000'000'000);
    server.run(tokens);
    ASSERT_EQ(store.blocks.size(), is_given_at_once ? 6u : 0u);
  }
  BlockTable table;
  ASSERT_EQ(server.test.cache.match(table, tokens, {}, 99), 99);
  for (int i = 0; i < 2; ++i) {  // the second time all of it is in line
    ShareMark mark = server.test.cache.share(table);
    EXPECT_FALSE(server.test.cache.is_shared(mark));
    EXPECT_EQ(server.test.cache.stats().num_unsaved, 6);
  }
  ShareMark mark = server.test.cache.share(table);
  server.test.cache.poll_tiers();
  EXPECT_TRUE(server.test.cache.is_shared(mark));
  EXPECT_EQ(store.blocks.size(), 6u);
  EXPECT_EQ(server.fakes[0]->num_puts, 3 * 6);
  server.test.cache.release(table);
}

TEST(KvCacheSaves, EachTierHearsOfHitsAtItsOwnInterval) {
  FakeStore store, other;
  Server server(full_layer(), 32, {&store, &other});
  server.fakes[1]->interval_ns = 60'000'000'000;
  server.run(counting(100));
  for (int i = 0; i < 12; ++i) {
    server.test.clock.advance_ns(10'000'000'000);
    EXPECT_EQ(server.run(counting(100)), 1);
  }
  EXPECT_EQ(server.fakes[0]->num_touches, 12 * 6);
  EXPECT_EQ(server.fakes[1]->num_touches, 2 * 6);
}

TEST(KvCacheSaves, TiersHearOfWhatIsNeverIdle) {
  FakeStore store;
  Server server(full_layer(), 32, {&store});
  const Tokens shared = counting(96);
  server.run(shared);
  // Each takes over before the last one ends.
  BlockTable last;
  for (int i = 1; i <= 10; ++i) {
    server.test.clock.advance_ns(5'000'000'000);
    Tokens tokens = shared;
    tokens.push_back(1000 * i);
    BlockTable table;
    EXPECT_EQ(server.test.cache.match(table, tokens, {}, 96), 96);
    server.compute(table, tokens);
    server.test.cache.release(last);
    last = std::move(table);
  }
  EXPECT_EQ(server.fakes[0]->num_touches, 5 * 6);
  server.test.cache.release(last);
}

TEST(KvCacheSaves, TiersHearOfWhatALongSequenceUses) {
  FakeStore store;
  Server server(sliding_layers(), 64, {&store});
  Tokens tokens = counting(104);
  BlockTable table;
  EXPECT_EQ(server.test.cache.match(table, tokens, {}, 103), 0);
  server.compute(table, tokens);
  server.test.cache.poll_tiers();
  const auto go_on = [&](std::int64_t seconds) {
    server.test.clock.advance_ns(seconds * 1'000'000'000);
    tokens.push_back(500);
    server.compute(table, tokens);
  };
  go_on(9);
  EXPECT_EQ(server.fakes[0]->num_touches, 0);
  // The full layer's 6 blocks, and of each sliding one those that it sees.
  go_on(1);
  const int num_seen = 6 + 2 * 1;
  EXPECT_EQ(server.fakes[0]->num_touches, num_seen);
  for (int i = 0; i < 4; ++i) go_on(5);
  EXPECT_EQ(server.fakes[0]->num_touches, 3 * num_seen);
  server.test.cache.release(table);
}

// While a tier takes nothing, what stays in the pool stays in line.
TEST(KvCacheSaves, BlocksThatAreHeldWaitHoweverManyCome) {
  FakeStore store;
  Server server(full_layer(), 16, {&store});
  server.fakes[0]->refuses = true;
  BlockTable table;
  EXPECT_EQ(server.test.cache.match(table, counting(64), {}, 63), 0);
  server.compute(table, counting(64));
  for (int i = 1; i <= 20; ++i) server.run(counting(100, 1000 * i));
  server.fakes[0]->refuses = false;
  server.test.cache.poll_tiers();
  server.test.cache.release(table);
  Server second(full_layer(), 16, {&store});
  EXPECT_EQ(second.run(counting(65)), 1);
}

TEST(KvCacheSaves, ATierThatTakesNothingGetsItLater) {
  FakeStore store;
  Server server(full_layer(), 16, {&store});
  server.fakes[0]->refuses = true;
  server.run(counting(100));
  EXPECT_TRUE(store.blocks.empty());
  EXPECT_TRUE(server.test.cache.has_unsaved());
  server.fakes[0]->refuses = false;
  server.test.cache.poll_tiers();
  EXPECT_EQ(store.blocks.size(), 6u);
  EXPECT_FALSE(server.test.cache.has_unsaved());
}

TEST(KvCacheSaves, BlocksEvictedWhileTheTierTakesNothingAreCounted) {
  for (const auto& shapes : {full_layer(), sliding_layers()}) {
    const std::size_t num_groups = shapes.size();
    FakeStore store;
    Server server(shapes, static_cast<int>(8 * num_groups), {&store});
    server.fakes[0]->refuses = true;
    server.run(counting(100));
    for (int i = 0; i < 50; ++i) server.test.cache.poll_tiers();
    EXPECT_EQ(server.test.tiers->stats()[0].num_refused, 0u);  // it waits
    server.run(counting(100, 1000));
    EXPECT_GT(server.test.cache.stats().num_evicted_unsaved, 0u);
    server.test.cache.clear();
    // Each once: two sequences have 6 complete blocks in each group.
    EXPECT_EQ(server.test.cache.stats().num_evicted_unsaved, 12 * num_groups);
    EXPECT_EQ(server.test.tiers->stats()[0].num_refused, 12 * num_groups);
  }
}

TEST(KvCacheSaves, OnlyWhatNoTierHasIsCountedAsUnsaved) {
  FakeStore near, far;
  Server server(full_layer(), 8, {&near, &far});
  server.fakes[0]->refuses = true;
  server.run(counting(100));
  server.test.cache.clear();
  EXPECT_EQ(server.test.cache.stats().num_evicted_unsaved, 0u) << "the other one has them";
  EXPECT_EQ(server.test.tiers->stats()[0].num_refused, 6u);
  server.fakes[1]->refuses = true;
  server.run(counting(100, 1000));
  server.test.cache.clear();
  EXPECT_EQ(server.test.cache.stats().num_evicted_unsaved, 6u) << "each once";
  EXPECT_EQ(server.test.tiers->stats()[0].num_refused, 12u);
  EXPECT_EQ(server.test.tiers->stats()[1].num_refused, 6u);
}

// The host's memory takes what it is offered, and keeps of a chain that is too long the beginning.
TEST(KvCacheSaves, WhatFoundNoRoomInItsTierIsCountedAsUnsaved) {
  const KvLayout layout(full_layer());
  std::vector<std::unique_ptr<KvTier>> tiers;
  tiers.push_back(std::make_unique<HostTier>(4 * layout.block_size_bytes(), layout.block_size_bytes(), nullptr));
  TestCache test(full_layer(), 8, std::move(tiers));
  BlockTable table;
  ASSERT_EQ(test.cache.match(table, counting(100), {}, 99), 0);
  ASSERT_TRUE(test.cache.extend(table, 100));
  test.write(table, counting(100), 0, 100);
  test.cache.publish(table, counting(100), 100);
  test.cache.poll_tiers();
  test.cache.release(table);
  test.cache.clear();
  EXPECT_EQ(test.tiers->stats()[0].num_stored, 4);
  EXPECT_EQ(test.cache.stats().num_evicted_unsaved, 2u);
}

TEST(KvCacheSaves, WhatATierTookIsNotCountedAsUnsavedWhileItIsOff) {
  FakeStore store;
  Server server(full_layer(), 8, {&store});
  server.run(counting(100));
  server.fakes[0]->is_out = server.fakes[0]->refuses = true;
  server.fakes[0]->num_offers = 0;
  server.run(counting(100, 1000));  // in the room of the first, which the tier has
  const std::uint64_t num_evicted = server.test.cache.stats().num_evicted;
  EXPECT_GE(num_evicted, 6u);
  EXPECT_EQ(server.fakes[0]->num_offers, 0);
  EXPECT_EQ(server.test.cache.stats().num_evicted_unsaved, 0u);
  server.run(counting(100, 2000));
  EXPECT_GT(server.test.cache.stats().num_evicted_unsaved, 0u);
}

}  // namespace
}  // namespace larder
