// Endless context: sinks and a window at constant memory, as exact as everything else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/engine_test_support.h"
#include "engine/request_check.h"

namespace larder {
namespace {

constexpr AttentionSpan kSpan{.window = 48, .num_sinks = 16};

SamplingParams endless(int max_tokens) {
  SamplingParams params = greedy(max_tokens);
  params.ignore_eos = true;
  return params;
}

Heard run_one(TinyModel& model, const RigConfig& config, const std::vector<TokenId>& prompt,
              int max_tokens) {
  Rig rig(model, config);
  rig.add(prompt, endless(max_tokens));
  rig.run();
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  return rig.heard[{1, 0}];
}

class Endless : public ::testing::TestWithParam<const char*> {
 protected:
  TinyModel model{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Models, Endless, ::testing::Values("tiny_llama", "tiny_gemma2", "tiny_gemma3"));

TEST_P(Endless, GoesOnPastTheModelsLengthInConstantMemory) {
  // Room for two sequences of that span, not for what is generated.
  Rig rig(model, {.num_blocks = 30 * model.layout.num_groups(), .max_batch_tokens = 32,
                  .attention = kSpan});
  rig.add(random_tokens(20, 1), endless(1500));
  int most_held = 0;
  while (rig.step()) most_held = std::max(most_held, rig.cache.stats().num_held);
  const Heard& heard = rig.heard[{1, 0}];
  EXPECT_EQ(heard.tokens.size(), 1500u);
  EXPECT_EQ(heard.finish, FinishReason::kLength);
  EXPECT_LE(most_held, model.layout.num_blocks_for(KvCache::num_endless_tokens(kSpan, 32), 32));
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

TEST_P(Endless, IsTheSameInAnyChunksAndWithOthersAround) {
  const std::vector<TokenId> prompt = random_tokens(300, 2);
  const Heard whole = run_one(model, {.attention = kSpan}, prompt, 40);
  for (const int chunk : {1, 7, 64}) {
    EXPECT_TRUE(same_bits(whole, run_one(model, {.max_batch_tokens = chunk, .attention = kSpan},
                                         prompt, 40)))
        << chunk;
  }
  Rig rig(model, {.max_batch_tokens = 50, .attention = kSpan});
  rig.add(random_tokens(90, 3), endless(60));
  rig.add(prompt, endless(40));
  rig.add(prompt, endless(40));
  rig.run();
  EXPECT_TRUE(same_bits(whole, rig.heard[{2, 0}]));
  EXPECT_TRUE(same_bits(whole, rig.heard[{3, 0}]));
  EXPECT_EQ((rig.heard[{3, 0}]).usage.num_cached_tokens, kSpan.window);
}

// What is seen repeats itself, and so do distances: queries that grow with their position must not.
TEST(EndlessTemperature, IsThatOfThePlaceInWhatIsSeen) {
  TinyModel model("tiny_mistral3");
  ASSERT_GT(model.config.temperature.scale, 0);
  std::vector<TokenId> prompt = random_tokens(16, 5);
  const std::vector<TokenId> period = random_tokens(8, 6);
  while (prompt.size() < 4000) prompt.insert(prompt.end(), period.begin(), period.end());
  for (const int num_sinks : {0, kSpan.num_sinks}) {
    const RigConfig config{.attention = {.window = kSpan.window, .num_sinks = num_sinks}};
    const auto logits_after = [&](std::size_t num_tokens) {
      return run_one(model, config, {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(num_tokens)}, 1).logits.front();
    };
    const std::vector<float> early = logits_after(400), late = logits_after(4000);
    ASSERT_EQ(early.size(), late.size());
    float most = 0;
    for (std::size_t i = 0; i < early.size(); ++i) most = std::max(most, std::abs(early[i] - late[i]));
    EXPECT_LT(most, 0.02F) << num_sinks << " sinks";
  }
}

// Between its layers, others' tokens pass theirs: both turn their queries for the sinks.
TEST_P(Endless, IsTheSameInLayersBesideADecode) {
  const std::vector<TokenId> prompt = random_tokens(300, 2);
  const Heard whole = run_one(model, {.attention = kSpan}, prompt, 40);
  Rig rig(model, {.attention = kSpan, .max_step_slowdown = 2});
  rig.add(random_tokens(90, 3), endless(400));
  for (int i = 0; i < 40; ++i) rig.step();
  rig.add(prompt, endless(40));
  rig.run();
  EXPECT_GT(rig.num_chunks, 2);
  EXPECT_TRUE(same_bits(whole, rig.heard[{2, 0}]));
}

TEST_P(Endless, SeesEverythingUntilTheWindowMoves) {
  const std::vector<TokenId> prompt = random_tokens(30, 4);
  const Heard plain = run_one(model, {}, prompt, 18);
  EXPECT_TRUE(same_bits(plain, run_one(model, {.attention = kSpan}, prompt, 18)));
  const Heard longer = run_one(model, {}, prompt, 60);
  EXPECT_FALSE(same_bits(longer, run_one(model, {.attention = kSpan}, prompt, 60)));
}

TEST_P(Endless, SharesTheBeginningWithSequencesThatSeeEverything) {
  const std::vector<TokenId> prompt = random_tokens(100, 5);
  const Heard cold = run_one(model, {.attention = kSpan}, prompt, 30);
  Rig rig(model, {});
  rig.add(random_tokens(100, 5), endless(1));
  rig.run();
  rig.attention = kSpan;
  rig.add(prompt, endless(30));
  rig.run();
  EXPECT_TRUE(same_bits(cold, rig.heard[{2, 0}]));
  EXPECT_EQ((rig.heard[{2, 0}]).usage.num_cached_tokens, kSpan.window);
}

TEST_P(Endless, ChoicesPartWithinTheWindow) {
  SamplingParams params = endless(200);
  params.temperature = 1;
  params.seed = 11;
  Rig one(model, {.attention = kSpan});
  one.add(random_tokens(70, 6), params, 3);
  one.run();
  Rig two(model, {.max_batch_tokens = 9, .attention = kSpan});
  two.add(random_tokens(70, 6), params, 3);
  two.run();
  for (int choice = 0; choice < 3; ++choice) {
    EXPECT_TRUE(same_bits(one.heard[{1, choice}], two.heard[{1, choice}])) << choice;
  }
  EXPECT_EQ(one.cache.stats().num_held, 0);
}

TEST_P(Endless, ComesBackFromPreemptionWithTheSameBits) {
  const std::vector<TokenId> prompt = random_tokens(150, 7);
  const Heard alone = run_one(model, {.attention = kSpan}, prompt, 120);
  const auto num_blocks = static_cast<int>(model.layout.num_blocks_for(160, 32)) + 4;
  Rig rig(model, {.num_blocks = num_blocks, .max_batch_tokens = 32, .max_sequences = 8, .max_model_len = 160, .attention = kSpan});
  for (std::uint32_t i = 0; i < 3; ++i) rig.add(random_tokens(40, 20 + i), endless(110));
  rig.add(prompt, endless(120));
  rig.run();
  EXPECT_GT(rig.scheduler.stats().num_preemptions, 0u);
  EXPECT_TRUE(same_bits(alone, rig.heard[{4, 0}]));
}

// A pin beyond the window keeps what others can find, and no more is told as written.
TEST_P(Endless, PinsAndWritesToTheEndOfTheWindowOnly) {
  for (const int batch_tokens : {32, 512}) {  // the window moves after the places, or with them
    Rig rig(model, {.max_batch_tokens = batch_tokens, .attention = kSpan});
    rig.pins = {{20, 3600}, {100, 60}, {180, 60}};
    rig.add(random_tokens(200, 8), endless(1));
    rig.run();
    const RequestUsage& usage = rig.heard[{1, 0}].usage;
    EXPECT_EQ(usage.written[0].num_tokens, 20);
    EXPECT_EQ(usage.written[1].num_tokens, kSpan.window - 20);
    EXPECT_EQ(usage.written[2].num_tokens, 0);
    EXPECT_EQ(rig.cache.stats().num_pins_refused, 0u);
    EXPECT_EQ(rig.cache.stats().num_pinned, model.layout.num_groups() * kSpan.window / kBlockSize);
  }
}

TEST(EndlessRequest, IsRefusedWithTheFieldThatIsWrong) {
  const auto field_of = [](int window, int num_sinks) -> std::string {
    Request request;
    request.prompt = {1, 2};
    request.attention_window = window;
    request.attention_sinks = num_sinks;
    try {
      check_request(request, {.vocab_size = 10, .max_model_len = 1024, .max_choices = 4,
                              .max_batch_tokens = 256});
    } catch (const Error& error) {
      return error.param();
    }
    return "";
  };
  EXPECT_EQ(field_of(64, 16), "");
  EXPECT_EQ(field_of(64, 0), "");
  EXPECT_EQ(field_of(0, 16), "attention_sinks");
  EXPECT_EQ(field_of(64, 10), "attention_sinks");
  EXPECT_EQ(field_of(64, 80), "attention_sinks");
  EXPECT_EQ(field_of(40, 16), "attention_window");
  EXPECT_EQ(field_of(-16, 0), "attention_sinks");
  EXPECT_EQ(field_of(512, 16), "attention_window");
}

}  // namespace
}  // namespace larder
