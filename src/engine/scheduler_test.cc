#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_test_support.h"

namespace larder {
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  TinyModel model_{"tiny_llama"};

  int blocks_for(int num_tokens) const {
    return static_cast<int>(model_.layout.num_blocks_for(num_tokens, 512));
  }
};

TEST_F(SchedulerTest, ManyRequestsOnABudgetForFewAllFinish) {
  // A sequence of 100 + 60 tokens takes 10 blocks: there is room for 8 at once.
  Rig rig(model_, {.num_blocks = 80, .max_batch_tokens = 64});
  for (std::uint32_t i = 0; i < 64; ++i) rig.add(random_tokens(100, i), greedy(60));
  int most_running = 0;
  while (rig.step()) {
    most_running = std::max(most_running, rig.scheduler.num_running());
    const KvStats stats = rig.cache.stats();
    ASSERT_LE(stats.num_held, 80);
  }
  for (std::uint64_t id = 1; id <= 64; ++id) {
    EXPECT_EQ(rig.heard.at({id, 0}).tokens.size(), 60u) << id;
    EXPECT_EQ(rig.heard.at({id, 0}).finish, FinishReason::kLength);
  }
  EXPECT_GE(most_running, 8);
  EXPECT_LE(most_running, 12);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  EXPECT_EQ(rig.cache.stats().num_slots_used, 0);
  EXPECT_FALSE(rig.scheduler.has_work());
}

TEST_F(SchedulerTest, ALongPromptDoesNotStallThoseThatDecode) {
  Rig rig(model_, {.max_batch_tokens = 64, .max_prefill_tokens = 16});
  std::vector<std::uint64_t> decoding;
  for (std::uint32_t i = 0; i < 8; ++i) {
    decoding.push_back(rig.add(random_tokens(10, i), greedy(60)));
  }
  for (int i = 0; i < 6; ++i) rig.step();
  const int before = rig.num_steps;
  const std::uint64_t id = rig.add(random_tokens(200, 99), greedy(5));
  while (rig.heard[{id, 0}].tokens.empty()) {
    const int num_computed = rig.num_computed;
    ASSERT_TRUE(rig.step());
    EXPECT_LE(rig.num_computed - num_computed, 8 + 16);
  }
  EXPECT_EQ(rig.num_steps - before, (200 + 15) / 16);
  for (const std::uint64_t each : decoding) {
    const std::vector<int>& steps = rig.heard.at({each, 0}).steps;
    for (std::size_t i = 1; i < steps.size(); ++i) EXPECT_EQ(steps[i], steps[i - 1] + 1);
  }
}

TEST_F(SchedulerTest, WhoAsksForLittleDoesNotWaitForWhoAsksForMuch) {
  for (const int num_at_once : {1, 4}) {
    Rig rig(model_, {.max_batch_tokens = 64, .max_sequences = num_at_once});
    rig.tenant = 1;
    for (std::uint32_t i = 0; i < 30; ++i) rig.add(random_tokens(100, i), greedy(8));
    for (int i = 0; i < 40; ++i) rig.step();
    const int before = rig.num_steps;
    rig.tenant = 2;
    const std::uint64_t first = rig.add(random_tokens(100, 100), greedy(8));
    const std::uint64_t second = rig.add(random_tokens(100, 101), greedy(8));
    rig.tenant = 1;
    const std::uint64_t last = rig.add(random_tokens(100, 102), greedy(8));
    rig.run();
    const auto first_step = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.front(); };
    // Those who run come to their end; then it is the other one's turn, and then every second one's.
    EXPECT_LE(first_step(first) - before, 2 * 10 + 2);
    EXPECT_LE(first_step(second) - before, 4 * 10 + 2);
    for (const auto& [request, heard] : rig.heard) EXPECT_LE(heard.steps.front(), first_step(last)) << request.first;
  }
}

// A turn costs what answers have had on average, at first a guess of 128 tokens: then two short prompts cost more than
// one long one.
TEST_F(SchedulerTest, AnswersThatAStopStringEndsCountInTurns) {
  for (const bool has_answered : {false, true}) {
    Rig rig(model_, {.max_sequences = 1});
    for (std::uint32_t i = 0; i < 30 && has_answered; ++i) {
      const std::uint64_t id = rig.add(random_tokens(10, 100 + i), greedy(50));
      rig.step();
      rig.step();
      rig.scheduler.cancel_choice(id, 0);
      EXPECT_EQ((rig.heard[{id, 0}]).tokens.size(), 2u);
    }
    const std::uint64_t running = rig.add(random_tokens(10, 1), greedy(5));
    rig.step();
    rig.tenant = 1;
    for (std::uint32_t i = 0; i < 2; ++i) rig.add(random_tokens(10, 10 + i), greedy(1));
    const std::uint64_t third = rig.add(random_tokens(10, 12), greedy(1));
    rig.tenant = 2;
    rig.add(random_tokens(100, 20), greedy(1));
    const std::uint64_t second = rig.add(random_tokens(100, 21), greedy(1));
    rig.run();
    const auto first_step = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.front(); };
    EXPECT_LT(first_step(running), first_step(third));
    EXPECT_EQ(first_step(third) < first_step(second), has_answered);
  }
}

TEST_F(SchedulerTest, TinyPromptsShareSteps) {
  Rig rig(model_, {.max_step_slowdown = 2});
  rig.add(random_tokens(10, 1), greedy(200));
  for (int i = 0; i < 4; ++i) rig.step();
  const int num_before = rig.num_steps;
  for (std::uint32_t i = 0; i < 40; ++i) rig.add(random_tokens(4, 10 + i), greedy(1));
  rig.run();
  int last = 0;
  for (std::uint64_t id = 2; id < 42; ++id)
    last = std::max(last, rig.heard.at({id, 0}).steps.front());
  EXPECT_LE(last - num_before, 30) << "not a step each";
}

TEST_F(SchedulerTest, AChunkTakesFewRowsOfLogits) {
  Rig rig(model_, {.max_step_slowdown = 2});
  rig.add(random_tokens(10, 1), greedy(200));
  for (int i = 0; i < 4; ++i) rig.step();
  SamplingParams params = greedy(1);
  params.num_prompt_logprobs = 0;
  const std::uint64_t id = rig.add(random_tokens(100, 2), params);
  std::size_t most_rows = 0;
  while (rig.heard[{id, 0}].tokens.empty()) {
    ASSERT_TRUE(rig.step());
    if (!rig.scheduler.chunk().empty())
      most_rows = std::max(most_rows, rig.scheduler.chunk().batch.logit_rows().size());
  }
  EXPECT_GT(rig.num_chunks, 0);
  EXPECT_LE(most_rows, 8u);
  EXPECT_EQ((rig.heard[{id, 0}]).prompt_logprobs.size(), 99u);
}

TEST_F(SchedulerTest, BesideDecodesAChunkHasNoMoreTokensThanPromptsMayHave) {
  Rig rig(model_, {.max_prefill_tokens = 5, .max_step_slowdown = 2});
  rig.add(random_tokens(10, 1), greedy(200));
  for (int i = 0; i < 4; ++i) rig.step();
  const std::uint64_t id = rig.add(random_tokens(100, 2), greedy(1));
  int most_tokens = 0;
  while (rig.heard[{id, 0}].tokens.empty()) {
    ASSERT_TRUE(rig.step());
    if (!rig.scheduler.chunk().empty()) most_tokens = std::max(most_tokens, rig.scheduler.chunk().batch.num_tokens());
  }
  EXPECT_EQ(most_tokens, 5);
}

// Alone nobody waits for its last layer.
TEST_F(SchedulerTest, AChunkAloneTakesAllRowsOfLogits) {
  Rig rig(model_, {.max_step_slowdown = 2, .token_ns = 10'000'000});
  rig.add(random_tokens(100, 1), greedy(1));
  rig.run();
  SamplingParams params = greedy(1);
  params.num_prompt_logprobs = 0;
  const std::uint64_t id = rig.add(random_tokens(200, 2), params);
  rig.step();
  ASSERT_FALSE(rig.scheduler.chunk().empty());
  EXPECT_EQ(rig.scheduler.chunk().batch.logit_rows().size(), 64u);
  rig.run();
  EXPECT_EQ((rig.heard[{id, 0}]).prompt_logprobs.size(), 199u);
}

TEST_F(SchedulerTest, AllAdvanceWhereNotAllFitIntoAStep) {
  for (const RigConfig& config :
       {RigConfig{.max_batch_tokens = 4}, RigConfig{.max_batch_tokens = 64, .max_logit_rows = 4},
        RigConfig{.max_batch_tokens = 1}, RigConfig{.max_logit_rows = 1}}) {
    Rig rig(model_, config);
    for (std::uint32_t i = 0; i < 12; ++i) rig.add(random_tokens(20, i), greedy(12));
    rig.add(random_tokens(9, 70), greedy(12), 6);
    while (rig.step()) {
      ASSERT_LE(rig.most_tokens, config.max_batch_tokens);
      ASSERT_LT(rig.num_steps, 1000);
    }
    for (const auto& [key, heard] : rig.heard) EXPECT_EQ(heard.tokens.size(), 12u);
    EXPECT_EQ(rig.heard.size(), 18u);
  }
}

TEST_F(SchedulerTest, SomebodyAdvancesWhereThoseWhoseTurnItIsLoseTheirPlace) {
  // The choices part in blocks of their own, and half of those whose turn it is find none.
  Rig rig(model_, {.num_blocks = 15, .max_logit_rows = 4});
  const std::uint64_t id = rig.add(random_tokens(176, 1), greedy(20), 8);
  rig.run();
  EXPECT_FALSE(rig.scheduler.has_work());
  for (int choice = 0; choice < 8; ++choice)
    EXPECT_EQ(rig.heard[std::pair(id, choice)].tokens.size(), 20u) << choice;
}

// One decodes in a step. Four ahead of a prompt take a block each of those that it counted on; the fifth, whose turn comes
// then, gives up what it has for the prompt, which is still short of one and gives way itself.
TEST_F(SchedulerTest, SomebodyAdvancesWhereAPromptTakesTheirPlaceInVain) {
  for (int num_blocks = 18; num_blocks < 24; ++num_blocks) {
    Rig rig(model_, {.num_blocks = num_blocks, .max_prefill_tokens = 48, .max_logit_rows = 2});
    for (std::uint32_t i = 0; i < 4; ++i) rig.add(random_tokens(15, i), greedy(60), 1, -1);
    rig.add(random_tokens(3, 50), greedy(60), 1, 1);
    for (int i = 0; i < 5; ++i) rig.step();
    rig.add(random_tokens(220, 99), greedy(4));  // between them
    rig.run();
    EXPECT_FALSE(rig.scheduler.has_work()) << num_blocks;
  }
}

TEST_F(SchedulerTest, PriorityThenArrival) {
  Rig rig(model_, {.max_sequences = 1});
  const std::uint64_t first = rig.add(random_tokens(20, 1), greedy(4));
  rig.step();
  const std::uint64_t late = rig.add(random_tokens(20, 2), greedy(4), 1, 5);
  const std::uint64_t middle = rig.add(random_tokens(20, 3), greedy(4));
  const std::uint64_t urgent = rig.add(random_tokens(20, 4), greedy(4), 1, -1);
  rig.run();
  const auto end = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.back(); };
  EXPECT_LT(end(first), end(urgent));
  EXPECT_LT(end(urgent), end(middle));
  EXPECT_LT(end(middle), end(late));
}

TEST_F(SchedulerTest, WhatNobodyLooksUpIsNoQuery) {
  Rig rig(model_, {});
  SamplingParams params = greedy(2);
  params.num_prompt_logprobs = 0;
  rig.add(random_tokens(50, 1), params);  // of all its tokens
  rig.add(random_tokens(1, 2), greedy(2));
  rig.run();
  EXPECT_EQ(rig.scheduler.stats().num_prefix_queries, 0u);
  rig.add(random_tokens(50, 1), greedy(2));
  rig.run();
  EXPECT_EQ(rig.scheduler.stats().num_prefix_queries, 50u);
  EXPECT_EQ(rig.scheduler.stats().num_prefix_hits, 49u);
  EXPECT_EQ(rig.scheduler.stats().num_external_queries, 0u) << "there is no tier";
}

TEST_F(SchedulerTest, TheLastInOrderIsPreempted) {
  Rig rig(model_, {.num_blocks = 20});
  const std::uint64_t low = rig.add(random_tokens(100, 1), greedy(100), 1, 1);
  rig.step();
  const std::uint64_t high = rig.add(random_tokens(100, 2), greedy(100), 1, 0);
  rig.run();
  EXPECT_GT(rig.heard.at({low, 0}).usage.num_preemptions, 0);
  EXPECT_EQ(rig.scheduler.stats().num_prefix_queries, 200u) << "prompts, once each";
  EXPECT_EQ(rig.scheduler.stats().num_prefix_hits, 0u);
  EXPECT_EQ(rig.scheduler.stats().num_prompt_tokens, 200u) << "the same, though one was computed twice";
  EXPECT_EQ(rig.heard.at({high, 0}).usage.num_preemptions, 0);
  EXPECT_EQ(rig.heard.at({low, 0}).tokens.size(), 100u);
  EXPECT_EQ(rig.heard.at({high, 0}).tokens.size(), 100u);
}

TEST_F(SchedulerTest, OfAPromptWhoseClientLeavesWhatWasComputedCounts) {
  Rig rig(model_, {.max_batch_tokens = 64});
  const auto num_counted = [&] { return rig.scheduler.stats().num_prompt_tokens; };
  const std::uint64_t id = rig.add(random_tokens(200, 1), greedy(10), 2);
  rig.step();
  EXPECT_EQ(num_counted(), 64u);
  rig.scheduler.cancel(id);
  rig.step();
  EXPECT_EQ(num_counted(), 64u);
  rig.add(random_tokens(200, 1), greedy(10), 2);
  rig.run();
  EXPECT_EQ(num_counted(), 64u + 200u) << "for both choices once";
  EXPECT_EQ(rig.scheduler.stats().num_prompt_tokens_cached, 64u);
}

TEST_F(SchedulerTest, CountsTheTokensInLine) {
  Rig rig(model_, {.num_blocks = 20});
  const auto num_in_line = [&] { return rig.scheduler.num_waiting_tokens(); };
  rig.add(random_tokens(100, 1), greedy(100), 1, 1);
  EXPECT_EQ(num_in_line(), 100);
  rig.step();
  EXPECT_EQ(num_in_line(), 0);
  rig.add(random_tokens(100, 2), greedy(100));
  std::int64_t most = 0;
  while (rig.step()) {
    EXPECT_EQ(num_in_line() > 0, rig.scheduler.num_waiting() > 0);
    most = std::max(most, num_in_line());
  }
  EXPECT_GT(most, 100) << "of the one that was preempted, also those that it had generated";
  EXPECT_EQ(num_in_line(), 0);
  const std::uint64_t cancelled = rig.add(random_tokens(50, 3), greedy(1));
  EXPECT_EQ(num_in_line(), 50);
  rig.scheduler.cancel(cancelled);
  EXPECT_EQ(num_in_line(), 0);
}

TEST_F(SchedulerTest, EqualPrefixesThatArriveTogetherAreComputedOnce) {
  const std::vector<TokenId> shared = random_tokens(180, 7);
  Rig rig(model_, {.max_batch_tokens = 32});
  std::vector<std::uint64_t> ids;
  for (std::uint32_t i = 0; i < 5; ++i) {
    ids.push_back(rig.add(joined(shared, random_tokens(10, 20 + i)), greedy(1)));
  }
  rig.run();
  EXPECT_EQ(rig.num_computed, 180 + 5 * 10);
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(rig.heard.at({ids[i], 0}).usage.num_cached_tokens, 180);
  }
}

TEST_F(SchedulerTest, OthersPassWhoeverWaitsForAPrefix) {
  const std::vector<TokenId> shared = random_tokens(180, 7);
  Rig rig(model_, {.max_batch_tokens = 100});
  rig.add(joined(shared, {1}), greedy(3));
  rig.step();
  const std::uint64_t follower = rig.add(joined(shared, {2}), greedy(3));
  rig.add(random_tokens(5, 8), greedy(3));
  rig.step();
  EXPECT_EQ(rig.scheduler.num_running(), 2);
  EXPECT_EQ(rig.scheduler.num_waiting(), 1);
  rig.run();
  EXPECT_EQ(rig.heard.at({follower, 0}).usage.num_cached_tokens, 180);
}

TEST_F(SchedulerTest, AFollowerGoesOnWhenItsLeaderIsGone) {
  const std::vector<TokenId> shared = random_tokens(180, 7);
  Rig rig(model_, {.max_batch_tokens = 32});
  const std::uint64_t leader = rig.add(joined(shared, {1}), greedy(3));
  const std::uint64_t follower = rig.add(joined(shared, {2}), greedy(3));
  rig.step();
  rig.step();
  EXPECT_EQ(rig.scheduler.num_waiting(), 1);
  rig.scheduler.cancel(leader);
  rig.run();
  EXPECT_EQ(rig.heard.at({leader, 0}).finish, FinishReason::kCancelled);
  EXPECT_EQ(rig.heard.at({follower, 0}).tokens.size(), 3u);
  EXPECT_EQ(rig.heard.at({follower, 0}).usage.num_cached_tokens, 64);
}

TEST_F(SchedulerTest, CancellationFreesEverythingInEveryState) {
  Rig rig(model_, {.num_blocks = 40, .max_batch_tokens = 32});
  const std::uint64_t decoding = rig.add(random_tokens(10, 1), greedy(100));
  const std::uint64_t forked = rig.add(random_tokens(21, 2), greedy(100), 3);
  for (int i = 0; i < 4; ++i) rig.step();
  const std::uint64_t prefilling = rig.add(random_tokens(150, 3), greedy(10), 2);
  rig.step();
  const std::uint64_t in_line = rig.add(random_tokens(200, 4), greedy(10));
  rig.step();
  EXPECT_EQ(rig.scheduler.num_waiting(), 1);
  EXPECT_TRUE(rig.heard[(std::pair{prefilling, 0})].tokens.empty());
  for (const std::uint64_t id : {in_line, prefilling, forked, decoding}) {
    const int held = rig.cache.stats().num_held;
    rig.scheduler.cancel(id);
    EXPECT_LT(rig.cache.stats().num_held, id == in_line ? held + 1 : held);
    rig.scheduler.cancel(id);
  }
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  EXPECT_EQ(rig.cache.num_blocks_available(), 40);
  EXPECT_FALSE(rig.scheduler.has_work());
  EXPECT_FALSE(rig.step());
  for (const auto& [id, n] : {std::pair{decoding, 1}, std::pair{forked, 3},
                              std::pair{prefilling, 2}, std::pair{in_line, 1}}) {
    for (int choice = 0; choice < n; ++choice) {
      EXPECT_EQ(rig.heard.at({id, choice}).finish, FinishReason::kCancelled) << id;
    }
  }
}

TEST_F(SchedulerTest, AChoiceIsCancelledWithoutTheOthers) {
  Rig rig(model_, {.max_batch_tokens = 32});
  const std::uint64_t id = rig.add(random_tokens(20, 1), greedy(40), 3);
  const auto heard = [&](int choice) -> const Heard& { return rig.heard[std::pair(id, choice)]; };
  rig.step();
  EXPECT_EQ(rig.scheduler.num_running(), 3);
  rig.step();
  rig.scheduler.cancel_choice(id, 0);
  rig.scheduler.cancel_choice(id, 0);
  rig.scheduler.cancel_choice(id + 1, 0);
  EXPECT_EQ(rig.scheduler.num_running(), 2);
  EXPECT_EQ(heard(0).finish, FinishReason::kCancelled);
  EXPECT_EQ(heard(0).tokens.size(), 2u);
  rig.step();
  rig.scheduler.cancel_choice(id, 2);
  EXPECT_EQ(rig.scheduler.num_running(), 1);
  rig.run();
  EXPECT_EQ(heard(1).tokens.size(), 40u);
  EXPECT_EQ(heard(1).finish, FinishReason::kLength);
  EXPECT_EQ(heard(2).tokens.size(), 3u);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

// The last of them takes the request with it; one that has not begun is not cancelled alone.
TEST_F(SchedulerTest, TheLastChoiceToBeCancelledEndsTheRequest) {
  Rig rig(model_, {.max_batch_tokens = 8});
  const std::uint64_t id = rig.add(random_tokens(20, 1), greedy(40), 2);
  rig.step();
  rig.scheduler.cancel_choice(id, 0);
  EXPECT_EQ(rig.scheduler.num_running(), 1);
  while (rig.scheduler.num_running() < 2) ASSERT_TRUE(rig.step());
  rig.scheduler.cancel_choice(id, 1);
  rig.scheduler.cancel_choice(id, 0);
  EXPECT_FALSE(rig.scheduler.has_work());
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

// What a chunk has written is nobody's any more, and who comes next gets its blocks.
TEST_F(SchedulerTest, CancellationInTheMiddleOfAChunk) {
  Rig rig(model_, {.num_blocks = 40, .max_step_slowdown = 2});
  const std::uint64_t decoding = rig.add(random_tokens(10, 1), greedy(100));
  for (int i = 0; i < 3; ++i) rig.step();
  const std::uint64_t prompt = rig.add(random_tokens(150, 2), greedy(10));
  rig.step();
  ASSERT_FALSE(rig.scheduler.chunk().empty());
  rig.scheduler.cancel(prompt);
  EXPECT_TRUE(rig.scheduler.chunk().empty());
  EXPECT_LE(rig.cache.stats().num_held, 1);
  const std::uint64_t next = rig.add(random_tokens(150, 3), greedy(10));
  rig.run();
  EXPECT_EQ(rig.heard.at({prompt, 0}).finish, FinishReason::kCancelled);
  EXPECT_TRUE(rig.heard.at({prompt, 0}).tokens.empty());
  EXPECT_EQ(rig.heard.at({decoding, 0}).tokens.size(), 100u);
  EXPECT_EQ(rig.heard.at({next, 0}).tokens.size(), 10u);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

TEST_F(SchedulerTest, StopsAtStopTokensButNotBeforeMinTokens) {
  Rig rig(model_, {});
  const std::vector<TokenId> prompt = random_tokens(30, 1);
  const std::uint64_t plain = rig.add(prompt, greedy(30));
  rig.run();
  const std::vector<TokenId> tokens = rig.heard.at({plain, 0}).tokens;
  SamplingParams params = greedy(30);
  params.stop_token_ids = {tokens[5]};
  const auto first = std::ranges::find(tokens, tokens[5]) - tokens.begin();
  const std::uint64_t stopped = rig.add(prompt, params);
  params.min_tokens = 12;
  const std::uint64_t later = rig.add(prompt, params);
  rig.run();
  const Heard& heard = rig.heard.at({stopped, 0});
  EXPECT_EQ(heard.tokens, std::vector<TokenId>(tokens.begin(), tokens.begin() + first));
  EXPECT_EQ(heard.finish, FinishReason::kStop);
  EXPECT_EQ(heard.stop_token, tokens[5]);
  EXPECT_GE(rig.heard.at({later, 0}).tokens.size(), 12u);
  const auto& others = rig.heard.at({later, 0}).tokens;
  EXPECT_EQ(std::ranges::find(others, tokens[5]), others.end());
}

TEST_F(SchedulerTest, EndsAtTheModelsLength) {
  Rig rig(model_, {});
  const std::uint64_t id = rig.add(random_tokens(Rig::kMaxModelLen - 3, 1), greedy(100));
  const std::uint64_t none = rig.add(random_tokens(50, 2), greedy(0));
  rig.run();
  EXPECT_EQ(rig.heard.at({id, 0}).tokens.size(), 3u);
  EXPECT_EQ(rig.heard.at({id, 0}).finish, FinishReason::kLength);
  EXPECT_TRUE(rig.heard.at({none, 0}).tokens.empty());
  EXPECT_EQ(rig.heard.at({none, 0}).finish, FinishReason::kLength);
  EXPECT_EQ(rig.heard.at({none, 0}).num_updates, 1);
}

// What it was admitted with is not another's while its prompt is computed.
TEST_F(SchedulerTest, KeepsRoomForTheChoicesOfAPromptUnderWay) {
  Rig rig(model_, {.num_blocks = 24, .max_batch_tokens = 64});
  rig.add(random_tokens(150, 1), greedy(5), 4);  // 10 blocks, and 3 where the choices part
  rig.add(random_tokens(180, 2), greedy(5));     // 12 blocks
  rig.run();
  EXPECT_EQ(rig.scheduler.stats().num_preemptions, 0u);
}

// It waits for nobody of a lower priority, but finds what that one has computed.
TEST_F(SchedulerTest, SeesThatItNeedsLessThanBefore) {
  Rig rig(model_, {.num_blocks = 15, .max_batch_tokens = 100});
  const auto shared = random_tokens(160, 1);
  rig.add(joined(shared, random_tokens(10, 2)), greedy(40), 1, 1);
  rig.step();
  const std::uint64_t high = rig.add(joined(shared, random_tokens(10, 3)), greedy(1));
  rig.step();
  ASSERT_EQ(rig.scheduler.num_waiting(), 1);  // it lacks 5 blocks of 11, of which 4 are left
  rig.step();
  EXPECT_EQ(rig.heard[std::pair(high, 0)].tokens.size(), 1u);
  rig.run();
  EXPECT_EQ(rig.scheduler.stats().num_preemptions, 0u);
}

// It only looks at what it would find: a use it is when there is room for the rest, too.
TEST_F(SchedulerTest, AWaitingRequestUsesNothing) {
  Rig rig(model_, {.num_blocks = 24, .max_batch_tokens = 64});
  const auto known = random_tokens(80, 1);
  rig.add(known, greedy(1));
  rig.run();
  rig.add(random_tokens(200, 2), greedy(30));
  for (int i = 0; i < 4; ++i) rig.step();
  const KvStats before = rig.cache.stats();
  const std::uint64_t id = rig.add(joined(known, random_tokens(130, 3)), greedy(1));
  for (int i = 0; i < 4; ++i) rig.step();
  ASSERT_EQ(rig.scheduler.num_waiting(), 1);
  EXPECT_EQ(rig.cache.histograms().reuse_gap.num_observed(), 0u);
  EXPECT_EQ(rig.cache.stats().num_evicted, before.num_evicted);
  rig.run();
  EXPECT_GT((rig.heard[{id, 0}]).usage.num_cached_tokens, 0);
  EXPECT_GT(rig.cache.histograms().reuse_gap.num_observed(), 0u);
}

TEST_F(SchedulerTest, LittleIsWastedInAMixedLoad) {
  std::mt19937 random(3);
  Rig rig(model_, {.num_blocks = 600, .max_batch_tokens = 128, .max_model_len = 800});
  std::int64_t num_held = 0, num_used = 0;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const int num_prompt = 50 + static_cast<int>(random() % 600);
    rig.add(random_tokens(num_prompt, i), greedy(1 + static_cast<int>(random() % 100)));
  }
  while (rig.step()) {
    const KvStats stats = rig.cache.stats();
    num_held += stats.num_slots_held;
    num_used += stats.num_slots_used;
  }
  const double waste = 1 - static_cast<double>(num_used) / static_cast<double>(num_held);
  std::printf("waste %.2f %%\n", 100 * waste);
  EXPECT_LT(waste, 0.04);
}

}  // namespace
}  // namespace larder
