#include "engine/step_pace.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr double kDecodeNs = 10e6;

// Steps of a machine that takes this long; returns how long the slowest of the last ones took.
double slowest_step_ns(StepPace& pace, int num_steps, int num_decodes, double token_ns) {
  double slowest = 0;
  for (int i = 0; i < num_steps; ++i) {
    const int num_tokens = pace.num_prefill_tokens(num_decodes, 1, 512);
    const double step_ns = kDecodeNs + num_tokens * token_ns;
    pace.observe(num_decodes, num_tokens, static_cast<std::int64_t>(step_ns));
    if (i >= num_steps / 2) slowest = std::max(slowest, step_ns);
  }
  return slowest;
}

TEST(StepPace, WithoutALimitTakesAllThereIs) {
  EXPECT_EQ(StepPace(0).num_prefill_tokens(3, 1, 77), 77);
}

TEST(StepPace, MeasuresAStepWithoutPromptsFirst) {
  StepPace pace(2);
  EXPECT_EQ(pace.num_prefill_tokens(1, 1, 512), 0);
  pace.observe(1, 0, 10'000'000);
  EXPECT_GT(pace.num_prefill_tokens(1, 1, 512), 0);
  EXPECT_EQ(pace.num_prefill_tokens(4, 1, 512), 0) << "another size of batch";
  EXPECT_LE(pace.num_prefill_tokens(1, 1, 2), 2);
}

TEST(StepPace, HoldsTheSlowdownAndUsesTheRoom) {
  for (const double token_ns : {20e3, 300e3, 2e6}) {
    StepPace pace(2);
    const double slowest = slowest_step_ns(pace, 60, 2, token_ns);
    EXPECT_LE(slowest, 2 * kDecodeNs) << token_ns;
    EXPECT_GE(slowest, 1.5 * kDecodeNs) << token_ns;
  }
}

TEST(StepPace, PromptsThatOutnumberDecodesGetTheirShare) {
  StepPace pace(2);
  slowest_step_ns(pace, 60, 2, 500e3);
  const int with_few = pace.num_prefill_tokens(2, 2, 512);
  EXPECT_EQ(pace.num_prefill_tokens(2, 1, 512), with_few);
  EXPECT_NEAR(pace.num_prefill_tokens(2, 8, 512), 4 * with_few, 4);
}

TEST(StepPace, FollowsTokensThatGetDearer) {
  StepPace pace(2);
  for (int i = 0; i < 100; ++i) {
    const double slowest = slowest_step_ns(pace, 4, 1, 50e3 * (1 + 0.2 * i));
    EXPECT_LE(slowest, 2.2 * kDecodeNs) << i;
  }
}

TEST(StepPace, OneSlowStepDoesNotStopPrompts) {
  StepPace pace(2);
  slowest_step_ns(pace, 20, 1, 100e3);
  const int before = pace.num_prefill_tokens(1, 1, 512);
  pace.observe(1, before, 900'000'000);
  EXPECT_GE(pace.num_prefill_tokens(1, 1, 512), before / 2);
  pace.observe(1, before, 1);
  EXPECT_LE(pace.num_prefill_tokens(1, 1, 512), 2 * before);
}

TEST(StepPace, AlwaysMovesOn) {
  StepPace pace(1.5);
  EXPECT_GT(slowest_step_ns(pace, 20, 1, 1e9), kDecodeNs);
}

// Behind a long context the first token of a chunk pays for reading it, the others for themselves: one a
// step would take twice as long.
TEST(StepPace, ALongContextIsReadForSeveralTokens) {
  StepPace pace(2);
  double total_ns = 0;
  for (int num_left = 2000; num_left > 0;) {
    const int num_tokens = pace.num_prefill_tokens(1, 1, num_left);
    const double added_ns = num_tokens > 0 ? 6e6 + num_tokens * 1e6 : 0;
    pace.observe(1, num_tokens, static_cast<std::int64_t>(kDecodeNs + added_ns));
    EXPECT_LE(added_ns, 10e6);
    total_ns += kDecodeNs + added_ns;
    num_left -= num_tokens;
  }
  EXPECT_LE(total_ns, 2000 / 3 * 1.1 * 20e6);
}

TEST(StepPace, MeasuresAgainAfterLongPrompts) {
  StepPace pace(2);
  pace.observe(1, 0, 10'000'000);
  int num_without = 0;
  for (int i = 0; i < 400; ++i) {
    const int num_tokens = pace.num_prefill_tokens(1, 1, 512);
    num_without += num_tokens == 0;
    pace.observe(1, num_tokens, 15'000'000);
  }
  EXPECT_GE(num_without, 2);
  EXPECT_LE(num_without, 5);
}

}  // namespace
}  // namespace larder
