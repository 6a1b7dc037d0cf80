// Who draws where a device computes, and that it is the request alone that says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "grammar/grammar_builder.h"
#include "kernels/cuda/test_device.h"

namespace larder {
namespace {

template <class Change>
SamplingParams params_with(const Change& change, std::uint64_t seed = 3) {
  SamplingParams params;
  params.seed = seed;
  params.max_tokens = 8;
  params.ignore_eos = true;
  change(params);
  return params;
}

TEST(Batch, TellsWhoDraws) {
  TinyModel model("tiny_llama");
  Rig rig(model, {});
  std::uint32_t num_added = 0;
  const auto add = [&](int n, const auto& change) {
    return rig.add(random_tokens(20, num_added++), params_with(change), n);
  };
  add(1, [](SamplingParams& params) { params.temperature = 0; });
  add(1, [](SamplingParams& params) { params.num_logprobs = 0; });
  add(3, [](SamplingParams& params) {
    params.temperature = 0.5f;
    params.top_p = 0.9f;
  });
  add(1, [](SamplingParams& params) { params.presence_penalty = 1; });
  add(1, [](SamplingParams& params) { params.min_tokens = 1; });
  add(1, [](SamplingParams& params) { params.logit_bias = {{5, 1.0f}}; });
  add(1, [](SamplingParams& params) {
    params.top_k = 7;
    params.min_p = 0.25f;
  });
  add(1, [](SamplingParams& params) { params.top_k = 1; });
  add(1, [](SamplingParams& params) {
    params.temperature = 0;
    GrammarBuilder builder;
    const Fragment whole = builder.text("a");
    params.constraint = std::make_shared<const Constraint>(builder.finish(whole), nullptr);
  });
  const Batch& batch = rig.scheduler.schedule();
  ASSERT_EQ(batch.entries().size(), 9u);
  std::vector<int> first_draws;
  std::vector<bool> take_best;
  for (const BatchEntry& entry : batch.entries()) {
    first_draws.push_back(entry.first_draw);
    take_best.push_back(entry.takes_best);
  }
  EXPECT_EQ(first_draws, (std::vector<int>{-1, -1, 0, -1, -1, -1, 3, -1, -1}));
  EXPECT_EQ(take_best, (std::vector<bool>{true, false, false, false, false, false, false, true, false}));
  EXPECT_TRUE(std::ranges::equal(batch.read_logits(), std::vector<std::int32_t>{1, 3, 4, 5, 8}));
  ASSERT_EQ(batch.draws().size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(batch.draws()[i].row, 2);
    EXPECT_EQ(batch.draws()[i].scale, 2);
    EXPECT_EQ(batch.draws()[i].top_p, 0.9f);
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(batch.draws()[i].uniform, batch.draws()[j].uniform);
  }
  EXPECT_EQ(batch.draws()[3].row, 6);
  EXPECT_EQ(batch.draws()[3].top_k, 7);
  EXPECT_EQ(batch.draws()[3].min_p, 0.25f);
  EXPECT_EQ(batch.draws()[3].uniform, batch.draws()[0].uniform) << "the same seed, choice and place";
}

TEST(Batch, ReadsThePromptsRowsAndThoseOfWhoMayNotEnd) {
  TinyModel model("tiny_llama");
  Rig rig(model, {});
  const std::uint64_t id = rig.add(random_tokens(6, 1), params_with([](SamplingParams& params) {
                                     params.num_prompt_logprobs = 1;
                                     params.min_tokens = 2;
                                   }));
  for (std::size_t num_output = 0; num_output < 4; ++num_output) {
    {
      const Batch& batch = rig.scheduler.schedule();  // as step() does once more
      ASSERT_EQ(batch.entries().size(), 1u);
      std::vector<std::int32_t> expected;
      if (num_output == 0) expected = {0, 1, 2, 3, 4, 5};
      if (num_output == 1) expected = {0};
      EXPECT_TRUE(std::ranges::equal(batch.read_logits(), expected)) << num_output;
      EXPECT_EQ(batch.entries()[0].first_draw, num_output < 2 ? -1 : 0) << num_output;
      EXPECT_EQ(batch.draws().size(), num_output < 2 ? 0u : 1u) << num_output;
    }
    rig.step();
    ASSERT_EQ((rig.heard[{id, 0}]).tokens.size(), num_output + 1);
  }
}

// Draws of rows of logits, by the host and on the device, each with a seed of its own.
struct BothDraws {
  std::vector<TokenId> host, device;

  BothDraws(Device& device_, const std::vector<float>& rows, int vocab_size, int num_draws,
            const SamplingParams& params) {
    const auto num_rows = static_cast<int>(rows.size()) / vocab_size;
    Sampler sampler(vocab_size);
    std::vector<TokenDraw> draws;
    for (int i = 0; i < num_draws; ++i) {
      const int row = i % num_rows;
      const auto seed = static_cast<std::uint64_t>(i);
      const auto num_output = static_cast<std::size_t>(i % 5);
      draws.push_back(Sampler::draw_of(params, seed, i % 3, num_output, row));
      const auto size = static_cast<std::size_t>(vocab_size);
      const SampleContext context{
          .params = params, .num_output = num_output, .end_tokens = {}, .seed = seed, .choice = i % 3};
      const auto logits = std::span(rows).subspan(static_cast<std::size_t>(row) * size, size);
      host.push_back(sampler.sample(logits, {}, context).token);
    }
    test::OnDevice<float> logits(device_, rows);
    test::OnDevice<TokenId> best(device_, std::vector<TokenId>(static_cast<std::size_t>(num_rows)));
    device_.kernels().first_of_best(logits.data(), num_rows, vocab_size, best.data());
    test::OnDevice<TokenDraw> on_device(device_, draws);
    test::OnDevice<TokenId> tokens(device_, host);
    device_.kernels().draw_tokens({.logits = logits.data(),
                                   .best = best.data(),
                                   .num_logits = vocab_size,
                                   .draws = on_device.data(),
                                   .num_draws = num_draws,
                                   .tokens = tokens.data()});
    device = tokens.read();
  }
};

std::vector<float> random_logits(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits;
  for (int i = 0; i < count; ++i) logits.push_back(normal(random));
  return logits;
}

// The numbers are the host's, and where it walks the tokens in their order, too, so is each token.
TEST(DeviceDraws, AreTheSamplersOwn) {
  const auto device = open_test_device();
  const std::vector<float> rows = random_logits(40 * 500, 4);
  for (const auto& [temperature, min_p] : {std::pair{1.0f, 0.0f}, {0.7f, 0.0f}, {1.6f, 0.0f}, {1.0f, 0.1f}}) {
    SamplingParams params;
    params.temperature = temperature;
    params.min_p = min_p;
    const BothDraws draws(*device, rows, 500, 40, params);
    EXPECT_EQ(draws.device, draws.host) << temperature << " " << min_p;
  }
}

// Filters leave the same tokens, drawn about as often.
TEST(DeviceDraws, AreOfTheSamplersDistribution) {
  const auto device = open_test_device();
  constexpr int kVocabSize = 30, kNumDraws = 200;
  const std::vector<float> logits = random_logits(kVocabSize, 6);
  std::vector<SamplingParams> all(3);
  all[0].top_k = 4;
  all[1].top_p = 0.8f;
  all[2].temperature = 1.4f;
  all[2].top_k = 9;
  all[2].top_p = 0.9f;
  all[2].min_p = 0.1f;
  for (const SamplingParams& params : all) {
    const BothDraws draws(*device, logits, kVocabSize, kNumDraws, params);
    for (TokenId token = 0; token < kVocabSize; ++token) {
      const auto num_host = static_cast<double>(std::ranges::count(draws.host, token));
      const auto num_device = static_cast<double>(std::ranges::count(draws.device, token));
      EXPECT_EQ(num_host > 0, num_device > 0) << params.top_k << " " << params.top_p << " " << token;
      EXPECT_NEAR(num_host, num_device, 5 * std::sqrt(num_host + num_device)) << token;
    }
  }
}

// An engine on the device.
class DeviceEngine : public ::testing::Test {
 protected:
  struct Asked {
    std::vector<TokenId> prompt;
    SamplingParams params;
    int n = 1;
  };
  using Choices = std::vector<std::vector<OutputToken>>;

  // What each of the requests hears, in an engine of their own, so many submitted a step.
  std::vector<Choices> run(const std::vector<Asked>& all, int num_per_step) {
    constexpr int kNumBlocks = 400;
    KvStorage storage(model_.layout, kNumBlocks, device_.get());
    Transformer transformer(model_.config, model_.weights, model_.layout, device_->kernels(), model_.pool,
                            {.max_batch_tokens = 64, .max_logit_rows = 32, .max_context_len = 128},
                            device_.get());
    EngineConfig config;
    config.num_blocks = kNumBlocks;
    config.max_model_len = 100;
    config.max_batch_tokens = 64;
    config.max_step_slowdown = 0;
    const SteadyClock clock;
    Engine engine(config, transformer, storage, model_.layout, {}, clock);
    std::vector<Choices> heard(all.size());
    std::size_t next = 0;
    do {
      for (int i = 0; i < num_per_step && next < all.size(); ++i, ++next) {
        Request request;
        request.prompt = all[next].prompt;
        request.sampling = all[next].params;
        request.n = all[next].n;
        Choices& choices = heard[next];
        choices.resize(static_cast<std::size_t>(request.n));
        request.on_update = [&choices](RequestUpdate&& update) {
          auto& output = choices[static_cast<std::size_t>(update.choice)];
          output.insert(output.end(), update.tokens.begin(), update.tokens.end());
        };
        engine.submit(std::move(request));
      }
    } while (engine.step() || next < all.size());
    return heard;
  }

  std::unique_ptr<Device> device_ = open_test_device();
  TinyModel model_{"tiny_llama", 2, {}, device_.get()};
};

TEST_F(DeviceEngine, DrawsTheSameAloneAndInCompany) {
  std::vector<Asked> all;
  const auto add = [&](int n, const auto& change) {
    const auto seed = static_cast<std::uint32_t>(all.size());
    all.push_back({random_tokens(10 + static_cast<int>(seed) % 7, seed), params_with(change, seed), n});
  };
  add(1, [](SamplingParams&) {});
  add(1, [](SamplingParams& params) { params.temperature = 0; });
  add(3, [](SamplingParams& params) { params.top_p = 0.9f; });
  add(1, [](SamplingParams& params) { params.num_logprobs = 2; });
  add(2, [](SamplingParams& params) { params.repetition_penalty = 1.2f; });
  add(1, [](SamplingParams& params) { params.min_tokens = 4; });
  add(1, [](SamplingParams& params) { params.num_prompt_logprobs = 0; });
  add(1, [](SamplingParams& params) { params.top_k = 5; });
  const std::vector<Choices> together = run(all, 8);
  const std::vector<Choices> in_turn = run(all, 1);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Choices alone = run({all[i]}, 1).front();
    ASSERT_EQ(alone.size(), together[i].size());
    for (std::size_t choice = 0; choice < alone.size(); ++choice) {
      ASSERT_EQ(alone[choice].size(), 8u) << i;
      for (const Choices* others : {&together[i], &in_turn[i]}) {
        ASSERT_EQ((*others)[choice].size(), 8u) << i;
        for (std::size_t at = 0; at < 8; ++at) {
          EXPECT_EQ((*others)[choice][at].token, alone[choice][at].token) << i << " " << choice << " " << at;
          EXPECT_EQ((*others)[choice][at].logprob, alone[choice][at].logprob) << i << " " << choice << " " << at;
        }
      }
    }
  }
}

TEST_F(DeviceEngine, DrawsEveryChoiceByItself) {
  const auto params = params_with([](SamplingParams& given) { given.top_p = 0.95f; });
  const auto tokens_of = [&](int n, int choice) {
    std::vector<TokenId> tokens;
    const Choices choices = run({{random_tokens(12, 5), params, n}}, 1).front();
    for (const OutputToken& token : choices[static_cast<std::size_t>(choice)]) tokens.push_back(token.token);
    return tokens;
  };
  EXPECT_EQ(tokens_of(3, 0), tokens_of(1, 0));
  EXPECT_EQ(tokens_of(3, 1), tokens_of(2, 1));
  // Of one row of logits.
  const Choices choices = run({{random_tokens(12, 5), params, 6}}, 1).front();
  const auto is_first = [&](const std::vector<OutputToken>& output) {
    return output[0].token == choices[0][0].token;
  };
  EXPECT_LT(std::ranges::count_if(choices, is_first), 6);
}

}  // namespace
}  // namespace larder
