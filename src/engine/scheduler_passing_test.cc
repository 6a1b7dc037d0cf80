// Who waits for whom where a long prompt is under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_test_support.h"
#include "kv/tier.h"

namespace larder {
namespace {

class SchedulerPassing : public ::testing::Test {
 protected:
  TinyModel model_{"tiny_llama"};
};

std::vector<TokenId> first_tokens(const std::vector<TokenId>& tokens, int count) {
  return {tokens.begin(), tokens.begin() + count};
}

// Beside a decode, in chunks, and alone.
TEST_F(SchedulerPassing, ShortPromptsPassALongOneEverySecondTime) {
  for (const bool beside_a_decode : {false, true}) {
    Rig rig(model_, {.max_batch_tokens = 16, .max_step_slowdown = 2, .num_layers_per_step = 100});
    if (beside_a_decode) rig.add(random_tokens(10, 1), greedy(200));
    for (int i = 0; i < 3; ++i) rig.step();
    const std::uint64_t book = rig.add(random_tokens(200, 2), greedy(2));
    rig.step();
    std::vector<std::uint64_t> others;
    for (std::uint32_t i = 0; i < 5; ++i) others.push_back(rig.add(random_tokens(8, 10 + i), greedy(1)));
    const std::uint64_t second_book = rig.add(random_tokens(200, 3), greedy(2));
    const std::uint64_t behind = rig.add(random_tokens(8, 20), greedy(1), 1, 1);
    rig.run();
    const int of_book = rig.heard.at({book, 0}).steps.front();
    for (const std::uint64_t id : others)
      EXPECT_LE(rig.heard.at({id, 0}).steps.front(), 20) << beside_a_decode;
    EXPECT_GT(of_book, 12);
    EXPECT_LE(of_book, 40) << "it has its turn, too";
    EXPECT_LT(of_book, rig.heard.at({second_book, 0}).steps.front());
    EXPECT_LT(of_book, rig.heard.at({behind, 0}).steps.front()) << "of another priority";
  }
}

// Of a prompt that is alone: the layers rest for others that are shorter, every second time.
TEST_F(SchedulerPassing, ShortPromptsComeBetweenAChunksLayers) {
  Rig rig(model_, {.max_model_len = 800, .max_step_slowdown = 2});
  rig.add(random_tokens(100, 1), greedy(1));
  rig.run();  // tells what a prompt's token costs
  const std::uint64_t book = rig.add(random_tokens(700, 2), greedy(2));
  rig.step();
  ASSERT_FALSE(rig.scheduler.chunk().empty());
  ASSERT_EQ(rig.scheduler.chunk().num_layers, 1);
  const std::uint64_t middling = rig.add(random_tokens(400, 3), greedy(1));
  const std::uint64_t low = rig.add(random_tokens(8, 4), greedy(1), 1, 1);
  // The last begins as the book does.
  const auto others = {rig.add(random_tokens(8, 5), greedy(1)), rig.add(random_tokens(9, 6), greedy(1)),
                       rig.add(joined(first_tokens(random_tokens(700, 2), 4), random_tokens(5, 8)), greedy(1))};
  rig.step();
  for (const std::uint64_t id : others) EXPECT_EQ((rig.heard[{id, 0}]).tokens.size(), 1u);
  EXPECT_EQ(rig.scheduler.chunk().num_layers, 1) << "it rested";
  const std::uint64_t next = rig.add(random_tokens(8, 7), greedy(1));
  rig.step();
  EXPECT_TRUE((rig.heard[{next, 0}]).tokens.empty());
  EXPECT_TRUE(rig.scheduler.chunk().empty() || rig.scheduler.chunk().num_layers > 1) << "its turn";
  rig.run();
  const auto first_step = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.front(); };
  EXPECT_LE(first_step(next), first_step(book));
  EXPECT_LE(first_step(book), first_step(middling)) << "no shorter than half";
  EXPECT_LE(first_step(book), first_step(low)) << "of another priority";
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

TEST_F(SchedulerPassing, MuchShorterPromptsPassThoughTheyTakeSeveralSteps) {
  for (const bool beside_a_decode : {false, true}) {
    Rig rig(model_, {.max_batch_tokens = 8, .max_step_slowdown = 2, .num_layers_per_step = 100});
    if (beside_a_decode) rig.add(random_tokens(6, 1), greedy(230));
    for (int i = 0; i < 4; ++i) rig.step();
    const std::uint64_t book = rig.add(random_tokens(230, 2), greedy(1));
    rig.step();
    const std::uint64_t other = rig.add(random_tokens(24, 3), greedy(1));
    const std::uint64_t longer = rig.add(random_tokens(60, 4), greedy(1));
    rig.run();
    const auto first_step = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.front(); };
    EXPECT_LE(first_step(other), 20) << beside_a_decode;
    EXPECT_GT(first_step(book), first_step(other)) << beside_a_decode;
    EXPECT_LT(first_step(book), first_step(longer)) << beside_a_decode;
  }
}

// In steps and in chunks, which only prompts of nearly its length outlast.
TEST_F(SchedulerPassing, AMoreUrgentPromptIsNotPassedForItsLength) {
  for (const bool in_chunks : {false, true}) {
    RigConfig config{.max_batch_tokens = 16};
    if (in_chunks) {
      config.max_step_slowdown = 2;
      config.num_layers_per_step = 100;
    }
    Rig rig(model_, config);
    const std::uint64_t book = rig.add(random_tokens(200, 1), greedy(1), 1, 5);
    rig.step();
    const std::uint64_t urgent = rig.add(random_tokens(60, 2), greedy(1), 1, -1);
    const std::uint64_t brief = rig.add(random_tokens(8, 3), greedy(1));
    rig.run();
    const auto first_step = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.front(); };
    EXPECT_LT(first_step(urgent), first_step(book)) << in_chunks;
    EXPECT_LT(first_step(brief), first_step(book)) << in_chunks;
  }
}

// A look into it takes a millisecond.
class SlowTier final : public KvTier {
 public:
  const char* name() const override { return "slow"; }
  bool put(const TierBlock&, std::span<const std::byte>) override { return false; }
  TierPresence presence(const TierBlock&) const override {
    ++num_looks;
    if (clock != nullptr) clock->advance_ns(kNsPerMs);
    return TierPresence::kAbsent;
  }
  void get(TierRead) override {}
  double estimate_read_seconds(std::int64_t) const override { return 0; }
  TierStats stats() const override { return {}; }
  bool takes_writes() const override { return false; }

  ManualClock* clock = nullptr;  // null: it takes no time
  mutable int num_looks = 0;
};

TEST_F(SchedulerPassing, WhatThoseMissWhoArePassedIsLookedUpOverSeveralSteps) {
  SlowTier tier;
  Rig rig(model_, {.max_batch_tokens = 16, .tiers = {&tier}});
  rig.add(random_tokens(200, 1), greedy(1));
  rig.step();
  for (std::uint32_t i = 0; i < 30; ++i) rig.add(random_tokens(60, 10 + i), greedy(1));
  tier.clock = &rig.clock;
  tier.num_looks = 0;
  for (int i = 0; i < 8; ++i) {
    const int before = tier.num_looks;
    rig.step();
    EXPECT_LE(tier.num_looks - before, 5) << "a step looks for 5 ms";
  }
  EXPECT_EQ(tier.num_looks, 30) << "each has been looked up once";
  rig.run();
}

// Steps until the first token of a prompt of 200 tokens, at most 400, while there are always two others that may pass it.
int steps_among_passers(Rig& rig, int num_of_passer, bool is_running) {
  std::vector<std::uint64_t> passers;
  std::uint32_t seed = 100;
  const auto is_open = [&](std::uint64_t id) { return rig.heard[{id, 0}].finish == FinishReason::kNone; };
  const auto step = [&] {
    while (std::ranges::count_if(passers, is_open) < 2)
      passers.push_back(rig.add(random_tokens(num_of_passer, ++seed), greedy(1)));
    rig.step();
  };
  rig.add(random_tokens(10, 1), greedy(700));
  for (int i = 0; i < 3; ++i) rig.step();
  for (int i = 0; i < 5 && !is_running; ++i) step();
  const std::uint64_t book = rig.add(random_tokens(200, 2), greedy(1));
  if (is_running) rig.step();
  const int before = rig.num_steps;
  while (is_open(book) && rig.num_steps < before + 400) step();
  return rig.num_steps - before;
}

TEST_F(SchedulerPassing, ALongPromptHasItsTurnHoweverManyPass) {
  for (const int num_of_passer : {8, 16, 24}) {
    for (const bool is_running : {false, true}) {
      // It takes 13 pieces. A passer takes as many of 16 tokens as it needs, two at most, before it is begun, and one
      // before each of the next.
      Rig in_steps(model_, {.max_batch_tokens = 17, .max_prefill_tokens = 16, .max_model_len = 800});
      EXPECT_LE(steps_among_passers(in_steps, num_of_passer, is_running), 2 * 13 + 10) << num_of_passer << is_running;
      // It takes 25 chunks of 8 tokens, for which the passers are too long to join a step beside the decode. A chunk takes
      // a step a layer, and may rest as often.
      Rig in_chunks(model_, {.max_batch_tokens = 17,
                             .max_model_len = 800,
                             .max_step_slowdown = 2,
                             .layer_token_ns = 500'000});
      EXPECT_LE(steps_among_passers(in_chunks, num_of_passer, is_running), 2 * 25 * 2 * model_.config.num_layers() + 20)
          << num_of_passer << is_running;
      EXPECT_GT(in_chunks.num_chunks, 25);
    }
  }
}

}  // namespace
}  // namespace larder
