// Loads and writes behind, against a tier that answers when it is told to.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kv/kv_test_support.h"
#include "kv/fake_tier.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

// One full layer; or one full and two that slide over 20 tokens, in groups of one layer.
std::vector<KvLayerShape> full_layer() { return {KvLayerShape{1, 4, 0}}; }
std::vector<KvLayerShape> sliding_layers() {
  return {KvLayerShape{1, 4, 0}, KvLayerShape{1, 4, 20}, KvLayerShape{1, 4, 20}};
}

// A cache over stores that outlive it.
struct Server {
  Server(std::vector<KvLayerShape> shapes, int num_blocks, std::vector<FakeStore*> stores)
      : test(std::move(shapes), num_blocks, make_tiers(stores)) {}
  ~Server() {
    for (FakeTier* tier : fakes) tier->answer();
  }

  std::vector<std::unique_ptr<KvTier>> make_tiers(const std::vector<FakeStore*>& stores) {
    std::vector<std::unique_ptr<KvTier>> tiers;
    for (FakeStore* store : stores) {
      tiers.push_back(std::make_unique<FakeTier>(*store));
      fakes.push_back(static_cast<FakeTier*>(tiers.back().get()));
    }
    return tiers;
  }

  // Matches, loads what there is, computes the rest. Returns how much was computed.
  int run(const Tokens& tokens, std::string_view salt = {}) {
    BlockTable table;
    const int most = static_cast<int>(tokens.size()) - 1;
    int num_known = test.cache.match(table, tokens, salt, most);
    EXPECT_TRUE(test.holds(table, tokens, num_known));
    for (int end = most; end > num_known && test.cache.begin_load(table, tokens, end);) {
      const LoadedTokens loaded = finish(table, tokens, salt);
      EXPECT_LT(loaded.end, end + kBlockSize);
      end = loaded.end;
      num_known = loaded.num_matched;
      EXPECT_EQ(table.num_computed(), num_known);
      EXPECT_TRUE(test.holds(table, tokens, num_known));
    }
    compute(table, tokens);
    test.cache.poll_tiers();
    test.cache.release(table);
    return static_cast<int>(tokens.size()) - num_known;
  }

  LoadedTokens finish(BlockTable& table, const Tokens& tokens, std::string_view salt = {}) {
    for (int round = 0; round < 1000; ++round) {
      for (FakeTier* tier : fakes) tier->answer();
      for (const EndedLoad& ended : test.cache.poll_tiers()) {
        EXPECT_EQ(ended.id, table.load_id());
        return test.cache.finish_load(table, tokens, salt, ended);
      }
    }
    ADD_FAILURE() << "the load does not end";
    return {};
  }

  void compute(BlockTable& table, const Tokens& tokens) {
    const int begin = table.num_computed();
    const int end = static_cast<int>(tokens.size());
    ASSERT_TRUE(test.cache.extend(table, end));
    test.write(table, tokens, begin, end);
    test.cache.publish(table, tokens, end);
    EXPECT_TRUE(test.holds(table, tokens, end));
  }

  std::vector<FakeTier*> fakes;
  TestCache test;
};

TEST(KvCacheTiers, ARestartComputesOnlyTheLastBlock) {
  FakeStore store;
  {
    Server first(full_layer(), 16, {&store});
    EXPECT_EQ(first.run(counting(100)), 100);
    EXPECT_EQ(store.blocks.size(), 6u);
    EXPECT_FALSE(first.test.cache.has_unsaved());
  }
  Server second(full_layer(), 16, {&store});
  EXPECT_EQ(second.run(counting(100)), 4);
  EXPECT_EQ(second.run(counting(100)), 1);                 // in the pool, to the token
  EXPECT_EQ(second.fakes[0]->num_puts, 0);                 // what came from there is there
  EXPECT_EQ(second.test.cache.stats().num_held, 0);
}

TEST(KvCacheTiers, APeekAfterARestartSeesWhatTiersHave) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(100), "a");
  const Server second(full_layer(), 16, {&store});
  EXPECT_EQ(second.test.cache.peek_tiers(counting(100), "a", 99), 96);
  EXPECT_EQ(second.test.cache.peek_tiers(counting(100), "b", 99), 0);
}

TEST(KvCacheTiers, TheLastTokenIsNeverLoaded) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(64));
  Server second(full_layer(), 16, {&store});
  EXPECT_EQ(second.run(counting(64)), 16);
}

TEST(KvCacheTiers, OtherSaltsFindNothing) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(64), "a");
  Server second(full_layer(), 16, {&store});
  EXPECT_EQ(second.run(counting(64), "b"), 64);
  EXPECT_EQ(second.run(counting(64)), 64);
  EXPECT_EQ(second.run(counting(65), "a"), 1);
}

TEST(KvCacheTiers, WhatWasEvictedIsLoadedAgain) {
  FakeStore store;
  Server server(full_layer(), 8, {&store});
  EXPECT_EQ(server.run(counting(100)), 100);
  EXPECT_EQ(server.run(counting(100, 1000)), 100);
  EXPECT_EQ(server.run(counting(100)), 4);
  EXPECT_GT(server.test.cache.stats().num_evicted, 0u);
  EXPECT_EQ(server.test.cache.stats().num_evicted_unsaved, 0u);
}

TEST(KvCacheTiers, ASharedPartOfABlockMakesWayForTheWholeOne) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(80));
  Server second(full_layer(), 16, {&store});
  Tokens other = counting(80);
  other.resize(25);
  other.push_back(999);
  EXPECT_EQ(second.run(other), 10);  // 16 from the tier
  // 25 of it match in the pool, 64 in the tier.
  EXPECT_EQ(second.run(counting(80)), 16);
}

TEST(KvCacheTiers, WindowsAreLoadedWhereTheyAreSeen) {
  FakeStore store;
  Server(sliding_layers(), 64, {&store}).run(counting(200));
  EXPECT_EQ(store.blocks.size(), 3u * 12u);
  Server second(sliding_layers(), 64, {&store});
  EXPECT_EQ(second.run(counting(200)), 8);
  // 12 full blocks; of the two sliding groups only the last 20 tokens: 2 blocks each.
  EXPECT_EQ(second.test.cache.stats().num_cached, 12 + 2 * 2 + 3);
}

// What a load leaves out since no later token sees it is not taken yet, either.
TEST(KvCacheTiers, ALoadClaimsWhatItDoesNotHold) {
  FakeStore store;
  Server(sliding_layers(), 64, {&store}).run(counting(200));
  Server second(sliding_layers(), 64, {&store});
  const Tokens tokens = counting(400);
  BlockTable table;
  EXPECT_EQ(second.test.cache.match(table, tokens, {}, 399), 0);
  const auto num_claimed = [&] { return second.test.cache.num_blocks_to_reach(table, 400, 64); };
  const std::int64_t most = num_claimed();
  ASSERT_TRUE(second.test.cache.begin_load(table, tokens, 399));
  EXPECT_EQ(num_claimed(), most - (12 + 2 * 2));
  EXPECT_EQ(second.finish(table, tokens).num_matched, 192);
  EXPECT_EQ(num_claimed(), most - (12 + 2 * 2));
  second.test.cache.release(table);
}

// What others hold takes no room. The tokens are told that came back since the tier had their window.
TEST(KvCacheTiers, LoadsTheWindowOfAPrefixThatIsInUse) {
  FakeStore store;
  Server(sliding_layers(), 64, {&store}).run(counting(200));
  Server second(sliding_layers(), 12 + 2 * 2 + 2 * 2, {&store});
  const Tokens tokens = counting(193), fork = counting(97);
  BlockTable longer, shorter;
  EXPECT_EQ(second.test.cache.match(longer, tokens, {}, 192), 0);
  ASSERT_TRUE(second.test.cache.begin_load(longer, tokens, 192));
  EXPECT_EQ(second.finish(longer, tokens).num_matched, 192);
  EXPECT_EQ(second.test.cache.match(shorter, fork, {}, 96), 0);
  ASSERT_TRUE(second.test.cache.begin_load(shorter, fork, 96));
  const LoadedTokens loaded = second.finish(shorter, fork);
  EXPECT_EQ(loaded.num_matched, 96);
  EXPECT_EQ(loaded.num_by_tier, std::vector<int>{2 * kBlockSize});
  EXPECT_TRUE(second.test.holds(shorter, fork, 96));
  second.test.cache.release(longer);
  second.test.cache.release(shorter);
}

TEST(KvCacheTiers, AHoleInAWindowEndsTheLoadBeforeIt) {
  FakeStore store;
  Server(sliding_layers(), 64, {&store}).run(counting(200));
  // Position 176 sees blocks 9 and 10 of the sliding groups; block 10 of one of them is gone.
  std::erase_if(store.blocks, [n = 0](const auto& entry) mutable {
    return entry.first.second == 1 && ++n % 3 == 0;
  });
  Server second(sliding_layers(), 64, {&store});
  const int num_computed = second.run(counting(200));
  EXPECT_GT(num_computed, 8);
  EXPECT_EQ(second.run(counting(200)), 1);
}

TEST(KvCacheTiers, ABlockThatIsGoneAfterAllEndsTheLoadThere) {
  for (const bool slides : {false, true}) {
    for (int victim = 0; victim < 12; ++victim) {
      FakeStore store;
      const auto shapes = slides ? sliding_layers() : full_layer();
      Server(shapes, 64, {&store}).run(counting(200));
      Server second(shapes, 64, {&store});
      auto entry = store.blocks.begin();
      std::advance(entry, victim);
      second.fakes[0]->lost.insert(entry->first);
      const int num_computed = second.run(counting(200));
      EXPECT_GE(num_computed, 8);
      EXPECT_EQ(second.run(counting(200)), 1);
      EXPECT_EQ(second.test.cache.stats().num_held, 0);
    }
  }
}

TEST(KvCacheTiers, ACancelledLoadGoesNowhere) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(200));
  Server second(full_layer(), 16, {&store});
  BlockTable table;
  EXPECT_EQ(second.test.cache.match(table, counting(200), {}, 199), 0);
  ASSERT_TRUE(second.test.cache.begin_load(table, counting(200), 199));
  EXPECT_TRUE(table.is_loading());
  second.test.cache.release(table);
  EXPECT_EQ(second.test.cache.stats().num_held, 0);
  // Its blocks are another's by the time that the tier answers.
  EXPECT_EQ(second.run(counting(200, 5000)), 200);
  for (FakeTier* tier : second.fakes) tier->answer();
  EXPECT_TRUE(second.test.cache.poll_tiers().empty());
  EXPECT_EQ(second.run(counting(200, 5000)), 1);
}

TEST(KvCacheTiers, ComputesWhereThatIsCheaper) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(100));
  Server second(full_layer(), 16, {&store});
  second.test.tiers->set_seconds_per_token(0.01);
  second.fakes[0]->read_seconds = 0.97;  // for 96 tokens
  EXPECT_EQ(second.run(counting(100)), 100);
  second.test.cache.clear();
  second.fakes[0]->read_seconds = 0.95;
  EXPECT_EQ(second.run(counting(100)), 4);
}

TEST(KvCacheTiers, WhatIsNotSureToBeThereKeepsOutNothing) {
  FakeStore disk, remote;
  Server(full_layer(), 16, {&disk}).run(counting(100));
  for (const bool is_slow : {true, false}) {
    Server second(full_layer(), 16, {&disk, &remote});
    second.fakes[1]->is_vague = true;
    second.test.tiers->set_seconds_per_token(0.01);
    second.fakes[1]->read_seconds = is_slow ? 10 : 0;
    BlockTable other, table;
    EXPECT_EQ(second.test.cache.match(other, counting(100, 1000), {}, 99), 0);
    // Of the 12 blocks, 9 find room.
    ASSERT_TRUE(second.test.cache.extend(other, is_slow ? 0 : 100));
    EXPECT_EQ(second.test.cache.match(table, counting(200), {}, 199), 0);
    ASSERT_TRUE(second.test.cache.begin_load(table, counting(200), 199)) << is_slow;
    EXPECT_EQ(second.finish(table, counting(200)).num_matched, 96);
    second.test.cache.release(table);
    second.test.cache.release(other);
  }
}

TEST(KvCacheTiers, TheNearestTierAnswersAndGetsWhatItMissed) {
  FakeStore disk, remote;
  Server(full_layer(), 16, {&disk, &remote}).run(counting(100));
  EXPECT_EQ(disk.blocks.size(), 6u);
  EXPECT_EQ(remote.blocks.size(), 6u);
  FakeStore empty;
  Server second(full_layer(), 16, {&empty, &remote});
  second.fakes[1]->is_vague = true;
  EXPECT_EQ(second.run(counting(100)), 4);
  second.test.cache.poll_tiers();
  EXPECT_EQ(empty.blocks.size(), 6u);
  EXPECT_EQ(second.fakes[1]->num_puts, 0);
}

TEST(KvCacheTiers, AVagueTierThatHasNothingCostsNothingButTheQuestion) {
  FakeStore store;
  for (const auto& shapes : {full_layer(), sliding_layers()}) {
    Server server(shapes, 64, {&store});
    server.fakes[0]->is_vague = true;
    server.fakes[0]->refuses = true;
    EXPECT_EQ(server.run(counting(100)), 100);
    EXPECT_EQ(server.run(counting(100)), 1);
    EXPECT_EQ(server.test.cache.stats().num_held, 0);
  }
}

// Windows are asked for at the end of all that might be there, and again at the end of what is.
TEST(KvCacheTiers, AVagueTierThatHasLessGivesAllThatItHas) {
  for (const auto& shapes : {full_layer(), sliding_layers()}) {
    FakeStore store;
    Server(shapes, 64, {&store}).run(counting(200));
    Server second(shapes, 64, {&store});
    second.fakes[0]->is_vague = true;
    EXPECT_EQ(second.run(counting(400)), 400 - 192);
    EXPECT_EQ(second.test.cache.stats().num_held, 0);
  }
}

TEST(KvCacheTiers, WindowsAreLookedForInFewLoads) {
  FakeStore store;
  Server(sliding_layers(), 400, {&store}).run(counting(1600));
  const auto erase_windows = [&](int first, int end) {
    Digest digest = salt_digest({});
    for (int index = 0; index < end; ++index) {
      digest = chain_digest(digest, counting(kBlockSize, index * kBlockSize));
      for (int group = 1; group < 3 && index >= first; ++group) store.blocks.erase({digest, group});
    }
  };
  const auto expect = [&](int num_tokens, int num_found, int num_loads) {
    Server second(sliding_layers(), 400, {&store});
    second.fakes[0]->is_vague = second.fakes[0]->refuses = true;
    EXPECT_EQ(second.run(counting(num_tokens)), num_tokens - num_found);
    EXPECT_EQ(second.fakes[0]->num_gets, num_loads);
  };
  erase_windows(30, 100);
  expect(1600, 22 * kBlockSize, 5);
  erase_windows(0, 28);  // what a continuation at 30 sees stays
  expect(500, 30 * kBlockSize, 2);
}

// What a load brought was not used before its sequence goes on with it.
TEST(KvCacheTiers, ALoadThatBringsLessUsesNothingTwice) {
  FakeStore store;
  Server(full_layer(), 64, {&store}).run(counting(200));
  Server second(full_layer(), 64, {&store});
  second.fakes[0]->is_vague = true;
  EXPECT_EQ(second.run(counting(400)), 400 - 192);
  EXPECT_EQ(second.test.cache.histograms().reuse_gap.num_observed(), 0u);
}

TEST(KvCacheTiers, ALoadThatBringsNothingLeavesTheSharedPartOfABlock) {
  FakeStore store;
  Server server(full_layer(), 32, {&store});
  server.fakes[0]->is_vague = true;
  server.fakes[0]->refuses = true;
  server.run(counting(80));
  Tokens other = counting(37);
  for (const TokenId token : counting(40, 1000)) other.push_back(token);
  EXPECT_EQ(server.run(other), 40);
}

TEST(KvCacheTiers, OnlyWhatATierIsKnownToHaveIsPromised) {
  FakeStore store;
  Server(full_layer(), 16, {&store}).run(counting(100));
  for (const bool is_vague : {false, true}) {
    Server second(full_layer(), 16, {&store});
    second.fakes[0]->is_vague = is_vague;
    BlockTable table;
    EXPECT_EQ(second.test.cache.match(table, counting(100), {}, 99), 0);
    const LoadPlan plan = second.test.cache.begin_load(table, counting(100), 99);
    EXPECT_TRUE(plan.has_begun);
    EXPECT_EQ(plan.sure_end, is_vague ? 0 : 96);
    second.test.cache.release(table);
  }
}

TEST(KvCacheTiers, WhatTheNearerTierHadTheOtherGets) {
  FakeStore disk, remote;
  Server(full_layer(), 16, {&disk}).run(counting(100));
  Server second(full_layer(), 16, {&disk, &remote});
  EXPECT_EQ(second.run(counting(100)), 4);
  second.test.cache.poll_tiers();
  EXPECT_EQ(remote.blocks.size(), 6u);
}

TEST(KvCacheTiers, WhatATierLostIsOfferedBeforeItIsEvicted) {
  FakeStore store;
  Server server(full_layer(), 8, {&store});
  server.run(counting(100));
  EXPECT_EQ(store.blocks.size(), 6u);
  store.blocks.clear();
  server.run(counting(100, 1000));
  EXPECT_EQ(server.run(counting(100)), 4);
}

TEST(KvCacheTiers, WhatAVagueTierKnowsToHaveLostIsOfferedBeforeItIsEvicted) {
  FakeStore store;
  Server server(full_layer(), 8, {&store});
  server.fakes[0]->is_vague = true;
  server.run(counting(100));
  store.blocks.clear();
  server.run(counting(100, 1000));
  EXPECT_EQ(server.run(counting(100)), 4);
}

TEST(KvCacheTiers, TiersHearOfAPoolsHitsAndGetWhatTheyLost) {
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

TEST(KvCacheTiers, WhatATierLosesAgainAndAgainItGetsEverLater) {
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

TEST(KvCacheTiers, EachTierHearsOfHitsAtItsOwnInterval) {
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

TEST(KvCacheTiers, TiersHearOfWhatIsNeverIdle) {
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

TEST(KvCacheTiers, TiersHearOfWhatALongSequenceUses) {
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
TEST(KvCacheTiers, BlocksThatAreHeldWaitHoweverManyCome) {
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

TEST(KvCacheTiers, ATierThatTakesNothingGetsItLater) {
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

TEST(KvCacheTiers, BlocksEvictedWhileTheTierTakesNothingAreCounted) {
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

TEST(KvCacheTiers, WhatATierTookIsNotCountedAsUnsavedWhileItIsOff) {
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

// Many sequences at once, restarts, holes, cancellations: what is found has the right bits always.
TEST(KvCacheTiers, RandomLoadsHoldTheRightBits) {
  for (const bool slides : {false, true}) {
    std::mt19937 random(slides ? 7 : 3);
    FakeStore store;
    for (int restart = 0; restart < 12; ++restart) {
      Server server(slides ? sliding_layers() : full_layer(), slides ? 90 : 40, {&store});
      FakeTier& tier = *server.fakes[0];
      tier.answers_at_once = restart % 2 == 0;
      tier.is_vague = restart % 3 == 0;
      for (int i = 0; i < 60; ++i) {
        tier.refuses = random() % 8 == 0;
        tier.lost.clear();
        for (const auto& [key, bytes] : store.blocks) {
          if (random() % 40 == 0) tier.lost.insert(key);
        }
        Tokens tokens = counting(1 + static_cast<int>(random() % 20) * 16);
        const std::size_t parts_at = random() % tokens.size();
        const int branch = static_cast<int>(random() % 3);
        for (std::size_t p = parts_at; p < tokens.size(); ++p) tokens[p] += 1000 * branch;
        if (random() % 5 == 0) {
          BlockTable table;
          static_cast<void>(server.test.cache.match(table, tokens, {}, 300));
          static_cast<void>(server.test.cache.begin_load(table, tokens, 300));
          if (random() % 2 == 0) tier.answer();
          server.test.cache.release(table);
        } else {
          server.run(tokens);
        }
      }
      EXPECT_EQ(server.test.cache.stats().num_held, 0);
    }
  }
}

}  // namespace
}  // namespace larder
