#include "engine/step_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace larder {
namespace {

constexpr double kDecodeNs = 10e6;
constexpr int kNumLayers = 30;
constexpr int kLongPrompt = 100'000;

// Steps of a machine that takes this long; returns how long the slowest of the last ones took.
double slowest_step_ns(StepPace& pace, int num_steps, int num_decodes, double token_ns) {
  double slowest = 0;
  for (int i = 0; i < num_steps; ++i) {
    const PromptRoom room = pace.room(num_decodes, {1, kLongPrompt}, 512, 128);
    const int num_tokens = room.num_chunk_tokens > 0 ? 0 : room.num_tokens;
    double step_ns = kDecodeNs + num_tokens * token_ns;
    pace.observe(num_decodes, num_tokens, static_cast<std::int64_t>(step_ns));
    if (room.num_chunk_tokens > 0) {
      const double layer_ns = room.num_chunk_tokens * token_ns / kNumLayers;
      const double num_fit = std::clamp(std::floor(static_cast<double>(room.chunk_ns) / layer_ns),
                                        1.0, double{kNumLayers});
      step_ns = kDecodeNs + num_fit * layer_ns;
      for (int layer = 0; layer < kNumLayers; ++layer)
        pace.observe_layer(0, room.num_chunk_tokens, static_cast<std::int64_t>(layer_ns));
      pace.observe_chunk(room.num_chunk_tokens, static_cast<std::int64_t>(kNumLayers * layer_ns));
    }
    if (i >= num_steps / 2) slowest = std::max(slowest, step_ns);
  }
  return slowest;
}

int num_tokens(const StepPace& pace, int num_decodes, int num_prompts, int most) {
  return pace.room(num_decodes, {num_prompts, kLongPrompt}, most, 128).num_tokens;
}

TEST(StepPace, WithoutALimitTakesAllThereIs) {
  EXPECT_EQ(num_tokens(StepPace(0, 1), 3, 1, 77), 77);
}

TEST(StepPace, MeasuresAStepWithoutPromptsFirst) {
  StepPace pace(2, 1);
  EXPECT_EQ(pace.room(1, {1, kLongPrompt}, 512, 128).num_tokens, 0);
  EXPECT_EQ(pace.room(1, {1, kLongPrompt}, 512, 128).num_chunk_tokens, 0);
  pace.observe(1, 0, 10'000'000);
  EXPECT_GT(pace.room(1, {1, kLongPrompt}, 512, 128).num_chunk_tokens, 0);
  EXPECT_EQ(pace.room(4, {1, kLongPrompt}, 512, 128).num_chunk_tokens, 0) << "another size of batch";
  EXPECT_LE(pace.room(1, {1, kLongPrompt}, 512, 2).num_chunk_tokens, 2);
}

TEST(StepPace, FewTokensTellAPromptsPrice) {
  StepPace pace(2, 1);
  pace.observe(1, 0, 10'000'000);
  EXPECT_EQ(num_tokens(pace, 1, 1, 512), 8) << "not known yet";
  pace.observe(1, 4, 10'400'000);
  EXPECT_NEAR(num_tokens(pace, 1, 1, 512), 46, 1);  // 0.6 of 10 ms, at 5 % of the step in all
}

TEST(StepPace, StepsWithoutDecodesEndWithinASecond) {
  StepPace pace(2, 1);
  const auto num_alone = [](const StepPace& of, int most) {
    return of.room_alone({2, kLongPrompt}, most, most).num_tokens;
  };
  EXPECT_EQ(num_alone(pace, 512), 512) << "not known yet";
  const auto step = [&](int num_tokens, double token_ns) {
    pace.observe(0, num_tokens, static_cast<std::int64_t>(num_tokens * token_ns));
  };
  step(512, 1e6);
  EXPECT_EQ(num_alone(pace, 512), 512);
  for (int i = 0; i < 20; ++i) step(num_alone(pace, 512), 4e6);
  EXPECT_NEAR(num_alone(pace, 512), 250, 3);
  for (int i = 0; i < 20; ++i) step(num_alone(pace, 512), 50e6);
  EXPECT_EQ(num_alone(pace, 512), 128) << "so that the weights are read for many";
  EXPECT_EQ(num_alone(pace, 64), 64);
  step(1, 50e6);  // a token's step tells nothing of a prompt's
  for (int i = 0; i < 20; ++i) step(128, 1e6);
  EXPECT_EQ(num_alone(pace, 512), 512);
  StepPace any(0, 1);
  any.observe(0, 512, 512 * 50'000'000LL);
  EXPECT_EQ(num_alone(any, 512), 512);
}

TEST(StepPace, AloneAPromptIsAChunkWhereItTakesLong) {
  const auto taught = [](double token_ns) {
    StepPace pace(2, 1);
    for (int i = 0; i < 20; ++i) pace.observe_chunk(128, static_cast<std::int64_t>(128 * token_ns));
    return pace;
  };
  EXPECT_EQ(StepPace(2, 1).room_alone({1, kLongPrompt}, 512, 512).num_chunk_tokens, 0)
      << "nothing is known yet";
  const StepPace fast = taught(0.3e6);  // 512 take 154 ms
  EXPECT_EQ(fast.room_alone({1, kLongPrompt}, 512, 512).num_chunk_tokens, 0);
  EXPECT_EQ(fast.room_alone({1, kLongPrompt}, 512, 512).num_tokens, 512);
  const StepPace slow = taught(4e6);
  const PromptRoom room = slow.room_alone({1, kLongPrompt}, 512, 512);
  EXPECT_NEAR(room.num_chunk_tokens, 250, 2) << "a second";
  EXPECT_NEAR(room.num_tokens, 50, 1) << "a fifth of it";
  EXPECT_EQ(room.chunk_ns, 200'000'000);
  EXPECT_EQ(slow.room_alone({1, kLongPrompt}, 512, 100).num_chunk_tokens, 100);
  EXPECT_NEAR(slow.room_alone({3, kLongPrompt}, 512, 512).num_tokens, 250, 2) << "of several, together";
  EXPECT_EQ(taught(1e9).room_alone({1, kLongPrompt}, 512, 512).num_chunk_tokens, 128);
  EXPECT_EQ(taught(1e9).room_alone({1, kLongPrompt}, 512, 512).num_tokens, 16);
}

TEST(StepPace, HoldsTheSlowdownAndUsesTheRoom) {
  for (const double token_ns : {20e3, 300e3, 2e6}) {
    StepPace pace(2, 1);
    const double slowest = slowest_step_ns(pace, 60, 2, token_ns);
    EXPECT_LE(slowest, 2 * kDecodeNs) << token_ns;
    EXPECT_GE(slowest, 1.5 * kDecodeNs) << token_ns;
  }
}

TEST(StepPace, PromptsThatOutnumberDecodesGetTheirShare) {
  StepPace pace(2, 1);
  slowest_step_ns(pace, 60, 2, 500e3);
  const int with_few = num_tokens(pace, 2, 2, 512);
  EXPECT_EQ(num_tokens(pace, 2, 1, 512), with_few);
  EXPECT_NEAR(num_tokens(pace, 2, 8, 512), 4 * with_few, 4);
}

TEST(StepPace, SeveralPromptsMayMakeAStepLastAsLongAsReadersWait) {
  StepPace pace(2, 1, 60'000'000);
  slowest_step_ns(pace, 60, 2, 500e3);
  EXPECT_NEAR(num_tokens(pace, 2, 1, 512), 0.6 * 10 / 0.5, 2) << "one: twice a step of 10 ms";
  EXPECT_NEAR(num_tokens(pace, 2, 2, 512), 0.6 * 50 / 0.5, 6);
  for (int i = 0; i < 60; ++i) pace.observe(2, 0, 100'000'000);
  EXPECT_EQ(num_tokens(pace, 2, 2, 512), num_tokens(pace, 2, 1, 512)) << "lasts longer anyway";
}

TEST(StepPace, ABriefPromptMayMakeAStepLastAsLongAsReadersWait) {
  StepPace pace(2, 1, 60'000'000);
  EXPECT_EQ(pace.room(2, {1, 10}, 512, 128).num_tokens, 0) << "nothing is known yet";
  slowest_step_ns(pace, 60, 2, 500e3);
  const auto num_beside = [&](int num_prompt_tokens) {
    return pace.room(2, {1, num_prompt_tokens}, 512, 128).num_tokens;
  };
  EXPECT_NEAR(num_beside(300), 0.6 * 50 / 0.5, 6) << "150 ms of prompt";
  EXPECT_NEAR(num_beside(420), 0.6 * 10 / 0.5, 2) << "210 ms: twice a step of 10 ms";
  for (int i = 0; i < 60; ++i) pace.observe(2, 0, 100'000'000);
  EXPECT_EQ(num_beside(300), num_beside(420)) << "lasts longer anyway";
}

TEST(StepPace, FollowsTokensThatGetDearer) {
  StepPace pace(2, 1);
  for (int i = 0; i < 100; ++i) {
    const double slowest = slowest_step_ns(pace, 4, 1, 50e3 * (1 + 0.2 * i));
    EXPECT_LE(slowest, 2.2 * kDecodeNs) << i;
  }
}

TEST(StepPace, OneSlowStepDoesNotStopPrompts) {
  StepPace pace(2, 1);
  slowest_step_ns(pace, 20, 1, 100e3);
  const int before = num_tokens(pace, 1, 1, 512);
  pace.observe(1, before, 900'000'000);
  EXPECT_GE(num_tokens(pace, 1, 1, 512), before / 2);
  pace.observe(1, before, 1);
  EXPECT_LE(num_tokens(pace, 1, 1, 512), 2 * before);
}

TEST(StepPace, AlwaysMovesOn) {
  StepPace pace(1.5, 1);
  EXPECT_GT(slowest_step_ns(pace, 20, 1, 1e9), kDecodeNs);
}

TEST(StepPace, PromptsThatFitWellNeedNoChunk) {
  StepPace pace(2, 1);
  slowest_step_ns(pace, 60, 1, 100e3);
  EXPECT_GE(pace.room(1, {1, kLongPrompt}, 512, 128).num_tokens, 50);
  EXPECT_EQ(pace.room(1, {1, kLongPrompt}, 512, 128).num_chunk_tokens, 0);
  EXPECT_EQ(pace.room(1, {1, kLongPrompt}, 16, 128).num_chunk_tokens, 0) << "all that may be";
}

// However dear a token, a chunk's layers fit into a step.
TEST(StepPace, ChunksAreAsLargeAsALayerAllows) {
  int before = 129;
  for (const double token_ns : {1e6, 4e6, 16e6}) {
    StepPace pace(2, 1);
    EXPECT_LE(slowest_step_ns(pace, 60, 1, token_ns), 1.95 * kDecodeNs) << token_ns;
    const int size = pace.room(1, {1, kLongPrompt}, 512, 128).num_chunk_tokens;
    EXPECT_LT(size, before) << token_ns;
    before = size;
  }
  EXPECT_GE(before, 8);
}

TEST(StepPace, MeasuresAgainAfterLongPrompts) {
  StepPace pace(2, 1);
  pace.observe(0, 64, 6'400'000);
  pace.observe(1, 0, 10'000'000);
  int num_without = 0;
  for (int i = 0; i < 400; ++i) {
    const int count = num_tokens(pace, 1, 1, 512);
    num_without += count == 0;
    pace.observe(1, count, 15'000'000);
  }
  EXPECT_GE(num_without, 2);
  EXPECT_LE(num_without, 5);
}

}  // namespace
}  // namespace larder
