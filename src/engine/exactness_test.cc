// A hit equals a miss, bit for bit: whatever was cached, however the prompt was cut, whoever shared
// the batch, the logits of every draw are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_test_support.h"
#include "kv/kv_type_names.h"

namespace larder {
namespace {

constexpr int kNumOutput = 20;

SamplingParams drawn(std::uint64_t seed, int max_tokens = kNumOutput) {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.repetition_penalty = 1.1f;
  params.seed = seed;
  params.max_tokens = max_tokens;
  return params;
}

// Model, KV type.
class Exactness : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  // Alone, with nothing cached, in one piece.
  Heard cold(const std::vector<TokenId>& prompt, std::uint64_t seed, int max_tokens = kNumOutput) {
    Rig rig(model_, {});
    const std::uint64_t id = rig.add(prompt, drawn(seed, max_tokens));
    rig.run();
    return rig.heard.at({id, 0});
  }

  int storm(RigConfig config);

  TinyModel model_{std::get<0>(GetParam()), 1, parse_kv_types(std::get<1>(GetParam()))};
  const std::vector<TokenId> prompt_ = random_tokens(150, 1);
};

TEST_P(Exactness, ColdRunsAgreeAndSeedsMatter) {
  const Heard first = cold(prompt_, 5);
  ASSERT_EQ(first.tokens.size(), static_cast<std::size_t>(kNumOutput));
  EXPECT_EQ(first.finish, FinishReason::kLength);
  EXPECT_TRUE(same_bits(first, cold(prompt_, 5)));
  EXPECT_NE(first.tokens, cold(prompt_, 6).tokens);
}

TEST_P(Exactness, Warm) {
  const Heard expected = cold(prompt_, 5);
  Rig rig(model_, {});
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t id = rig.add(prompt_, drawn(5));
    rig.run();
    const Heard& heard = rig.heard.at({id, 0});
    EXPECT_EQ(heard.usage.num_cached_tokens, round == 0 ? 0 : 149);
    EXPECT_TRUE(same_bits(heard, expected)) << round;
  }
}

TEST_P(Exactness, PartlyWarm) {
  const Heard expected = cold(prompt_, 5);
  for (const int num_shared : {1, 15, 16, 17, 40, 70, 128, 149}) {
    Rig rig(model_, {});
    const auto shared = std::vector<TokenId>(prompt_.begin(), prompt_.begin() + num_shared);
    rig.add(joined(shared, random_tokens(60, 99)), drawn(1));
    rig.run();
    const std::uint64_t id = rig.add(prompt_, drawn(5));
    rig.run();
    const Heard& heard = rig.heard.at({id, 0});
    EXPECT_GE(heard.usage.num_cached_tokens, num_shared);
    EXPECT_TRUE(same_bits(heard, expected)) << num_shared;
  }
}

TEST_P(Exactness, NextTurnOfAConversation) {
  Rig rig(model_, {});
  const std::uint64_t first = rig.add(prompt_, drawn(5));
  rig.run();
  const auto prompt =
      joined(joined(prompt_, rig.heard.at({first, 0}).tokens), random_tokens(20, 77));
  const std::uint64_t id = rig.add(prompt, drawn(8));
  rig.run();
  // All but the last token of the answer, which was never computed.
  EXPECT_EQ(rig.heard.at({id, 0}).usage.num_cached_tokens, 150 + kNumOutput - 1);
  EXPECT_TRUE(same_bits(rig.heard.at({id, 0}), cold(prompt, 8)));
}

TEST_P(Exactness, Chunked) {
  const Heard expected = cold(prompt_, 5);
  for (const int max_batch_tokens : {1, 7, 16, 100}) {
    Rig rig(model_, {.max_batch_tokens = max_batch_tokens});
    const std::uint64_t id = rig.add(prompt_, drawn(5));
    rig.run();
    EXPECT_LE(rig.most_tokens, max_batch_tokens);
    EXPECT_TRUE(same_bits(rig.heard.at({id, 0}), expected)) << max_batch_tokens;
  }
}

// What is guessed ahead, and comes true or not, changes nothing: of loops, of draws, of what the cache has seen.
TEST_P(Exactness, WithGuesses) {
  SamplingParams looping = greedy(60);
  looping.num_logprobs = 2;
  const auto answers = [&](RigConfig config) {
    Rig rig(model_, config);
    std::vector<Heard> heard;
    for (const int num_at_once : {1, 1, 3}) {
      std::vector<std::uint64_t> ids;
      for (int i = 0; i < num_at_once; ++i) {
        ids.push_back(rig.add(prompt_, drawn(5, 30)));
        ids.push_back(rig.add(random_tokens(20 + i, 8), looping, 1 + i));
      }
      rig.run();
      for (const std::uint64_t id : ids) heard.push_back(rig.heard.at({id, 0}));
    }
    return std::tuple(heard, rig.num_guesses, rig.scheduler.stats().drafts);
  };
  const auto [expected, none, nothing] = answers({});
  EXPECT_EQ(none, 0);
  std::uint64_t num_rejected = 0;
  for (const int most : {1, 3, 15}) {
    const auto [heard, num_guesses, drafts] = answers({.max_draft_tokens = most});
    EXPECT_GT(num_guesses, 20);
    EXPECT_EQ(drafts.num_tokens, static_cast<std::uint64_t>(num_guesses));
    EXPECT_GT(drafts.num_accepted, 20);
    num_rejected += drafts.num_tokens - drafts.num_accepted;
    ASSERT_EQ(heard.size(), expected.size());
    for (std::size_t i = 0; i < heard.size(); ++i) {
      EXPECT_TRUE(same_bits(heard[i], expected[i])) << most << ", " << i;
      EXPECT_EQ(heard[i].finish, expected[i].finish);
      EXPECT_EQ(heard[i].usage.num_output_tokens, expected[i].usage.num_output_tokens);
    }
  }
  EXPECT_GT(num_rejected, 0u);
}

// One that always guesses right, as it is the model itself, and one that nearly never does.
TEST_P(Exactness, WithADraftModel) {
  TinyModel own(std::get<0>(GetParam())), other("tiny_qwen3");
  const auto answers = [&](RigConfig config) {
    auto rig = std::make_unique<Rig>(model_, config);
    SamplingParams looping = greedy(60);
    looping.num_logprobs = 2;
    for (const int num_at_once : {1, 3}) {
      for (int i = 0; i < num_at_once; ++i) {
        rig->add(prompt_, drawn(5 + static_cast<std::uint64_t>(i), 40));
        rig->add(random_tokens(20 + i, 8), looping, 1 + i);
        rig->attention = {.window = 64, .num_sinks = 16};
        rig->add(prompt_, drawn(9, 100));
        rig->attention = {};
      }
      rig->run();
    }
    return rig;
  };
  const auto expected = answers({});
  // Its blocks are FP16: it is the model itself where those are, too.
  const double most_steps = std::string(std::get<1>(GetParam())) == "f16" ? 0.8 : 0.95;
  for (TinyModel* draft_model : {&own, &other}) {
    for (const int most : {1, 4, 15}) {
      const auto rig = answers({.max_draft_tokens = most, .draft_model = draft_model});
      EXPECT_EQ(rig->heard.size(), expected->heard.size());
      for (const auto& [id, heard] : expected->heard) {
        EXPECT_TRUE(same_bits(rig->heard.at(id), heard)) << most << ", " << id.first << ", " << id.second;
        EXPECT_EQ(rig->heard.at(id).finish, heard.finish);
      }
      EXPECT_GT(rig->scheduler.stats().drafts.model_ns, 0);
      EXPECT_LT(rig->num_steps, expected->num_steps * (draft_model == &own ? most_steps : 1.01)) << most;
      EXPECT_EQ(rig->cache.stats().num_held, 0);
      EXPECT_EQ(rig->draft_rig->model.kv_stats().num_held, 0);
    }
  }
}

// Beside a sequence that decodes, prompts pass the layers in chunks; they find each other's blocks.
TEST_P(Exactness, InChunksBesideADecode) {
  const Heard expected = cold(prompt_, 5);
  const std::vector<TokenId> others = random_tokens(30, 3);
  const Heard of_others = cold(others, 6, 200);
  for (const int num_layers : {1, 2, 100}) {
    Rig rig(model_, {.max_step_slowdown = 2, .num_layers_per_step = num_layers});
    const std::uint64_t decoding = rig.add(others, drawn(6, 200));
    for (int i = 0; i < 3; ++i) rig.step();
    const std::uint64_t first = rig.add(prompt_, drawn(5));
    const std::uint64_t second = rig.add(joined(prompt_, random_tokens(30, 4)), drawn(5));
    const std::uint64_t third = rig.add(prompt_, drawn(5));
    rig.run();
    EXPECT_GE(rig.num_chunks, 3) << num_layers;
    EXPECT_TRUE(same_bits(rig.heard.at({first, 0}), expected)) << num_layers;
    EXPECT_EQ(rig.heard.at({second, 0}).usage.num_cached_tokens, 150);
    EXPECT_EQ(rig.heard.at({third, 0}).usage.num_cached_tokens, 149);
    EXPECT_TRUE(same_bits(rig.heard.at({third, 0}), expected)) << num_layers;
    EXPECT_TRUE(same_bits(rig.heard.at({decoding, 0}), of_others)) << num_layers;
    const std::vector<int>& steps = rig.heard.at({decoding, 0}).steps;
    for (std::size_t i = 1; i < steps.size(); ++i) ASSERT_EQ(steps[i], steps[i - 1] + 1);
  }
}

// A long prompt alone passes the layers in chunks, too; others come between.
TEST_P(Exactness, BetweenAChunksLayers) {
  constexpr int kMostTokens = 900;
  const std::vector<TokenId> book = random_tokens(800, 5);
  const auto cold_book = [&] {
    Rig rig(model_, {.max_model_len = kMostTokens});
    const std::uint64_t id = rig.add(book, drawn(5));
    rig.run();
    EXPECT_EQ(rig.num_chunks, 0);
    return rig.heard.at({id, 0});
  };
  const Heard expected = cold_book();
  const Heard of_prompt = cold(prompt_, 5);
  for (const int num_layers : {1, 2, 100}) {
    Rig rig(model_, {.max_model_len = kMostTokens,
                     .max_step_slowdown = 2,
                     .num_layers_per_step = num_layers});
    rig.add(random_tokens(100, 6), drawn(1, 1));
    rig.run();
    const std::uint64_t first = rig.add(book, drawn(5));
    rig.step();
    const std::uint64_t between = rig.add(prompt_, drawn(5));
    rig.run();
    EXPECT_GE(rig.num_chunks, 1) << num_layers;
    EXPECT_TRUE(same_bits(rig.heard.at({first, 0}), expected)) << num_layers;
    EXPECT_TRUE(same_bits(rig.heard.at({between, 0}), of_prompt)) << num_layers;
  }
}

// Prompts that share beginnings of many lengths, and their cold runs.
struct Company {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Heard> expected;
};

TEST_P(Exactness, InABatchOf16) {
  Company company;
  for (int i = 0; i < 16; ++i) {
    const auto shared = std::vector<TokenId>(prompt_.begin(), prompt_.begin() + i * 9);
    company.prompts.push_back(
        joined(shared, random_tokens(20 + i, 1000u + static_cast<unsigned>(i))));
    company.expected.push_back(cold(company.prompts.back(), static_cast<std::uint64_t>(i)));
  }
  for (const int max_batch_tokens : {17, 40, 512}) {
    Rig rig(model_, {.max_batch_tokens = max_batch_tokens});
    for (int i = 0; i < 16; ++i) {
      rig.add(company.prompts[static_cast<std::size_t>(i)], drawn(static_cast<std::uint64_t>(i)));
      if (i % 3 == 0) rig.step();
    }
    rig.run();
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(same_bits(rig.heard.at({i + 1, 0}), company.expected[i])) << i;
    }
  }
}

TEST_P(Exactness, PreemptedAndResumed) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Heard> expected;
  for (std::uint64_t i = 0; i < 6; ++i) {
    prompts.push_back(random_tokens(60, static_cast<std::uint32_t>(50 + i)));
    expected.push_back(cold(prompts.back(), i, 120));
  }
  // Room for one sequence of the greatest length, and little more: growing ones push each other
  // out.
  const auto num_blocks = static_cast<int>(model_.layout.num_blocks_for(Rig::kMaxModelLen, 64)) + 2;
  Rig rig(model_, {.num_blocks = num_blocks, .max_batch_tokens = 64});
  for (std::uint64_t i = 0; i < 6; ++i) rig.add(prompts[i], drawn(i, 120));
  rig.run();
  EXPECT_GT(rig.scheduler.stats().num_preemptions, 0u);
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(same_bits(rig.heard.at({i + 1, 0}), expected[i])) << i;
  }
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

TEST_P(Exactness, ChoicesAreThoseOfRequestsOfTheirOwn) {
  Rig rig(model_, {});
  const std::uint64_t id = rig.add(prompt_, drawn(5), 4);
  rig.run();
  EXPECT_EQ(rig.num_computed, 150 + 4 * (kNumOutput - 1));
  EXPECT_GT(rig.cache.stats().num_copied_on_write, 0u);
  EXPECT_TRUE(same_bits(rig.heard.at({id, 0}), cold(prompt_, 5)));
  for (int choice = 1; choice < 4; ++choice) {
    const Heard& heard = rig.heard.at({id, choice});
    EXPECT_NE(heard.tokens, rig.heard.at({id, 0}).tokens);
    // Recomputed cold: what led to every draw is what a prompt with the same tokens gives.
    for (const std::size_t length : {std::size_t{1}, std::size_t{10}, heard.tokens.size() - 1}) {
      const std::vector<TokenId> output(heard.tokens.begin(),
                                        heard.tokens.begin() + static_cast<long>(length));
      const Heard direct = cold(joined(prompt_, output), 1, 1);
      EXPECT_EQ(direct.logits.front(), heard.logits[length]) << choice << " " << length;
    }
  }
  // Again under a storm of preemptions.
  const auto num_blocks = static_cast<int>(model_.layout.num_blocks_for(Rig::kMaxModelLen, 32));
  Rig small(model_, {.num_blocks = num_blocks, .max_batch_tokens = 32});
  const std::uint64_t again = small.add(prompt_, drawn(5), 4);
  small.add(random_tokens(100, 3), drawn(9));
  small.run();
  for (int choice = 0; choice < 4; ++choice) {
    EXPECT_TRUE(same_bits(small.heard.at({again, choice}), rig.heard.at({id, choice}))) << choice;
  }
}

TEST_P(Exactness, PromptLogprobsDoNotDependOnTheCache) {
  SamplingParams params = drawn(5);
  params.num_prompt_logprobs = 2;
  std::vector<OutputToken> expected;
  for (const int max_batch_tokens : {512, 64, 9}) {
    Rig rig(model_, {.max_batch_tokens = max_batch_tokens, .max_logit_rows = 40});
    rig.add(prompt_, drawn(5));
    rig.run();
    const std::uint64_t id = rig.add(prompt_, params);
    const std::uint64_t other = rig.add(random_tokens(90, 4), params);
    rig.run();
    const Heard& heard = rig.heard.at({id, 0});
    ASSERT_EQ(heard.prompt_logprobs.size(), prompt_.size() - 1);
    EXPECT_EQ(rig.heard.at({other, 0}).prompt_logprobs.size(), 89u);
    EXPECT_EQ(heard.usage.num_cached_tokens, 0);
    EXPECT_TRUE(same_bits(heard, cold(prompt_, 5)));
    if (expected.empty()) expected = heard.prompt_logprobs;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(heard.prompt_logprobs[i].token, prompt_[i + 1]);
      EXPECT_EQ(heard.prompt_logprobs[i].logprob, expected[i].logprob);
      ASSERT_EQ(heard.prompt_logprobs[i].best.size(), 2u);
      EXPECT_GE(heard.prompt_logprobs[i].best[0].logprob, heard.prompt_logprobs[i].logprob);
    }
  }
}

// Arrivals, choices, priorities, salts and cancellations at random, in a cache that holds one
// sequence and a half. Returns how many chunks there were.
int Exactness::storm(RigConfig config) {
  std::mt19937 random(11);
  struct Asked {
    std::vector<TokenId> prompt;
    SamplingParams params;
    int n;
  };
  std::vector<Asked> all;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto num_shared = static_cast<long>(random() % 150);
    const auto shared = std::vector<TokenId>(prompt_.begin(), prompt_.begin() + num_shared);
    const auto rest = random_tokens(1 + static_cast<int>(random() % 40), random() % 3);
    all.push_back({joined(shared, rest), drawn(i, 1 + static_cast<int>(random() % 40)),
                   random() % 4 == 0 ? 3 : 1});
    if (random() % 5 == 0) all.back().params.num_prompt_logprobs = 2;
  }
  const auto num_most = model_.layout.num_blocks_for(Rig::kMaxModelLen, config.max_batch_tokens);
  config.num_blocks = static_cast<int>(num_most) * 3 / 2;
  config.max_logit_rows = 12;
  Rig rig(model_, config);
  std::vector<std::uint64_t> cancelled;
  for (const Asked& asked : all) {
    const std::uint64_t id =
        rig.add(asked.prompt, asked.params, asked.n, static_cast<int>(random() % 2));
    for (unsigned i = 0; i < random() % 6; ++i) rig.step();
    if (random() % 6 != 0) continue;
    cancelled.push_back(1 + random() % id);
    rig.scheduler.cancel(cancelled.back());
  }
  rig.run();
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  EXPECT_EQ(rig.cache.stats().num_slots_used, 0);
  if (rig.draft_rig != nullptr) {
    EXPECT_EQ(rig.draft_rig->model.kv_stats().num_held, 0);
    EXPECT_GT(rig.scheduler.stats().drafts.num_accepted, 0u);
  }
  EXPECT_GT(rig.scheduler.stats().num_preemptions, 0u);
  EXPECT_GT(rig.cache.stats().num_evicted, 0u);
  int num_finished = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Rig alone(model_, {});
    alone.add(all[i].prompt, all[i].params, all[i].n);
    alone.run();
    for (int choice = 0; choice < all[i].n; ++choice) {
      const Heard& heard = rig.heard.at({i + 1, choice});
      EXPECT_NE(heard.finish, FinishReason::kNone) << i;
      if (heard.finish == FinishReason::kCancelled) {
        EXPECT_NE(std::ranges::find(cancelled, i + 1), cancelled.end());
        continue;
      }
      ++num_finished;
      const Heard& expected = alone.heard.at({1, choice});
      EXPECT_TRUE(same_bits(heard, expected)) << i << " " << choice;
      EXPECT_EQ(heard.prompt_logprobs.size(), expected.prompt_logprobs.size());
      if (heard.prompt_logprobs.size() != expected.prompt_logprobs.size()) continue;
      for (std::size_t row = 0; row < expected.prompt_logprobs.size(); ++row) {
        EXPECT_EQ(heard.prompt_logprobs[row].logprob, expected.prompt_logprobs[row].logprob);
      }
    }
  }
  EXPECT_GT(num_finished, 30);
  return rig.num_chunks;
}

TEST_P(Exactness, AStorm) { EXPECT_EQ(storm({.max_batch_tokens = 48}), 0); }

TEST_P(Exactness, AStormWithChunks) {
  EXPECT_GT(storm({.max_batch_tokens = 48, .max_step_slowdown = 2}), 10);
  EXPECT_GT(storm({.max_batch_tokens = 48, .max_step_slowdown = 2, .num_layers_per_step = 2}), 10);
}

// So dear that prompts alone are chunks, too.
TEST_P(Exactness, AStormOfDearTokens) {
  EXPECT_GT(storm({.max_batch_tokens = 64, .max_step_slowdown = 2, .token_ns = 10'000'000}), 10);
}

// With blocks for a few of them only.
TEST_P(Exactness, AStormWithADraftModel) {
  TinyModel own(std::get<0>(GetParam()));
  EXPECT_EQ(storm({.max_batch_tokens = 48, .max_draft_tokens = 6, .draft_model = &own, .num_draft_blocks = 60}), 0);
}

std::string name_of(const ::testing::TestParamInfo<Exactness::ParamType>& test) {
  return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param);
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness,
                         ::testing::Combine(::testing::Values("tiny_llama", "tiny_gemma3"),
                                            ::testing::Values("f16", "fp8", "int8", "int4")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Capped, Exactness,
                         ::testing::Combine(::testing::Values("tiny_gemma2"), ::testing::Values("f16", "int4")), name_of);
INSTANTIATE_TEST_SUITE_P(Experts, Exactness,
                         ::testing::Combine(::testing::Values("tiny_qwen3moe", "tiny_deepseek3", "tiny_glm4moe"),
                                            ::testing::Values("f16")),
                         name_of);

}  // namespace
}  // namespace larder
