// Loads, against a tier that answers when it is told to.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kv/cache/kv_cache_tiers_test_support.h"

namespace larder {
namespace {

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

// Each is looked for once or twice, not anew from every end that sees a hole.
TEST(KvCacheTiers, AWindowThatIsNowhereCostsNoMoreQuestions) {
  for (const bool is_vague : {false, true}) {
    FakeStore store;
    Server(sliding_layers(), 1000, {&store}).run(counting(4001));
    std::erase_if(store.blocks, [](const auto& entry) { return entry.first.second == 1; });
    Server second(sliding_layers(), 1000, {&store});
    second.fakes[0]->is_vague = is_vague;
    const int before = second.fakes[0]->num_asked;
    EXPECT_GT(second.run(counting(4001)), 3900);
    EXPECT_LT(second.fakes[0]->num_asked - before, 8 * 250);
  }
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

// The kept group's blocks are here, but a continuation inside them would see blocks of a window that nobody has.
TEST(KvCacheTiers, NothingIsPromisedInsideAWindowThatSlid) {
  for (const double read_seconds : {0.0, 1e12}) {
    FakeStore store;
    Server server(sliding_layers(), 40, {&store});
    server.fakes[0]->is_vague = server.fakes[0]->refuses = true;
    server.fakes[0]->read_seconds = read_seconds;
    server.run(counting(200));
    server.run(counting(140, 500));
    Tokens tokens = counting(100);
    for (const TokenId token : counting(40, 2000)) tokens.push_back(token);
    BlockTable table;
    EXPECT_EQ(server.test.cache.match(table, tokens, {}, 139), 0);
    const LoadPlan plan = server.test.cache.begin_load(table, tokens, 139);
    EXPECT_EQ(plan.has_begun, read_seconds == 0.0);
    EXPECT_EQ(plan.sure_end, 0);
    server.test.cache.release(table);
  }
}

// Want of room is not a question of cost.
TEST(KvCacheTiers, WhatFindsNoRoomIsNotPromised) {
  FakeStore store;
  Server(sliding_layers(), 60, {&store}).run(counting(100));
  const KvLayout layout(sliding_layers());
  Server second(sliding_layers(), static_cast<int>(layout.num_blocks_for(112, 8)), {&store});
  second.test.tiers->set_seconds_per_token(1);
  BlockTable first, table;
  EXPECT_EQ(second.test.cache.match(first, counting(48), {}, 48), 0);
  for (int end = 8; end <= 48; end += 8) {
    ASSERT_TRUE(second.test.cache.extend(first, end));
    second.test.write(first, counting(48), end - 8, end);
    second.test.cache.publish(first, counting(48), end);
  }
  second.test.cache.release(first);
  EXPECT_EQ(second.test.cache.match(table, counting(100), {}, 99), 48);
  const LoadPlan plan = second.test.cache.begin_load(table, counting(100), 99);
  EXPECT_FALSE(plan.has_begun);
  EXPECT_EQ(plan.sure_end, 0);
  second.test.cache.release(table);
}

// What else failed meanwhile is not this load's, and what went for others' room is nobody's failure.
TEST(KvCacheTiers, ALoadThatComesShortIsATiersFailureIfItSaysSo) {
  for (const bool lies : {false, true}) {
    FakeStore store;
    Server(full_layer(), 16, {&store}).run(counting(100));
    Server second(full_layer(), 16, {&store});
    FakeTier& tier = *second.fakes[0];
    BlockTable table;
    ASSERT_EQ(second.test.cache.match(table, counting(100), {}, 99), 0);
    ASSERT_TRUE(second.test.cache.begin_load(table, counting(100), 99));
    for (const auto& [key, bytes] : store.blocks) tier.lost.insert(key);
    tier.lies = lies;
    ++tier.num_corrupt;
    const LoadedTokens loaded = second.finish(table, counting(100));
    EXPECT_EQ(loaded.num_matched, 0);
    EXPECT_EQ(loaded.failed_end, lies ? 96 : 0);
    second.test.cache.release(table);
  }
}

// A tier that takes nothing for a while is read all the same: what it does not have has been given up.
TEST(KvCacheTiers, APauseOfWritesIsNoFailureToRead) {
  for (const bool is_out : {false, true}) {
    FakeStore store;
    Server server(full_layer(), 8, {&store});
    server.run(counting(49));
    server.run(counting(120, 1000));  // takes the whole pool
    store.blocks.clear();
    server.fakes[0]->pauses_writes = true;
    server.fakes[0]->is_out = is_out;
    BlockTable table;
    EXPECT_EQ(server.test.cache.match(table, counting(49), {}, 48), 0);
    std::vector<MissedSpan> missed;
    server.test.cache.explain_miss(table, counting(48), missed);
    ASSERT_EQ(missed.size(), 1u);
    EXPECT_EQ(missed[0].cause, is_out ? MissCause::kTierFailed : MissCause::kEvicted);
    server.test.cache.release(table);
  }
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
