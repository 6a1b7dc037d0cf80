#include "model/forward/transformer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>

#include "model/forward/exactness.h"
#include "model/forward/golden.h"

namespace larder {
namespace {

const std::string kFolder = LARDER_SOURCE_DIR "/tests/golden/model/";
const char* const kModels[] = {"tiny_llama", "tiny_qwen2", "tiny_qwen3", "tiny_gemma3", "tiny_mixed",
                               "tiny_qwen3moe", "tiny_mixtral", "tiny_deepseek2", "tiny_deepseek3", "tiny_phi3",
                               "tiny_phi3_window", "tiny_smollm3", "tiny_granite", "tiny_mistral3", "tiny_olmo2",
                               "tiny_olmo3", "tiny_exaone4", "tiny_seed_oss", "tiny_ernie4_5", "tiny_glm4",
                               "tiny_qwen2moe", "tiny_granitemoe", "tiny_gpt_oss", "tiny_gpt_oss_mxfp4",
                               "tiny_glm4moe", "tiny_dots1", "tiny_ernie4_5_moe", "tiny_gemma2"};

std::vector<const KernelTable*> all_kernels() {
  std::vector<const KernelTable*> tables;
  for (const Isa isa : kCpuIsas)
    if (const KernelTable* kernels = kernels_for(isa)) tables.push_back(kernels);
  return tables;
}

class TinyModel : public ::testing::TestWithParam<const char*> {
 protected:
  TestModel model_{kFolder + GetParam() + ".gguf"};
  nlohmann::json json_ = read_json(kFolder + GetParam() + ".json");
};

TEST_P(TinyModel, AgreesWithTheReference) {
  for (const KernelTable* kernels : all_kernels()) {
    TestRunner runner(model_, *kernels, 2,
                      {.max_batch_tokens = 64,
                       .max_logit_rows = 64,
                       .max_context_len = 128,
                       .activations = ActivationType::kF32},
                      blocks_for(model_, 128, 1));
    expect_reference(runner, json_, kernels->name);
  }
}

TEST_P(TinyModel, RowsDoNotDependOnTheirCompany) {
  for (const KernelTable* kernels : all_kernels())
    for (const ActivationType activations : {ActivationType::kF32, ActivationType::kInt8})
      expect_exact(model_, *kernels, 600, activations);
}

INSTANTIATE_TEST_SUITE_P(Models, TinyModel, ::testing::ValuesIn(kModels));

// transformers takes the short divisors for a sequence within the original context, here of 64 tokens.
TEST(Transformer, LongRopesDivisorsAreChosenByTheLongestSequence) {
  const TestModel model(kFolder + "tiny_phi3.gguf", 2, nullptr, {}, 64);
  for (const KernelTable* kernels : all_kernels()) {
    TestRunner runner(model, *kernels, 2,
                      {.max_batch_tokens = 64,
                       .max_logit_rows = 64,
                       .max_context_len = 64,
                       .activations = ActivationType::kF32},
                      blocks_for(model, 64, 1));
    expect_reference(runner, read_json(kFolder + "tiny_phi3_short.json"), kernels->name);
  }
  EXPECT_NE(model.config.ropes[0].frequencies, TestModel(kFolder + "tiny_phi3.gguf").config.ropes[0].frequencies);
}

TEST(Transformer, EightBitActivationsStayNearTheReference) {
  const TestModel model(kFolder + "tiny_mixed.gguf");
  const Golden golden = to_golden(read_json(kFolder + "tiny_mixed.json"));
  for (const KernelTable* kernels : all_kernels()) {
    TestRunner runner(model, *kernels, 2,
                      {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 128},
                      blocks_for(model, 128, 1));
    const Comparison comparison = compare(runner, golden, 0.5);
    EXPECT_LE(comparison.logprobs.mean(), 0.1) << kernels->name;
    EXPECT_GT(comparison.logprobs.mean(), 0.001) << kernels->name << " took the FP32 path";
    EXPECT_EQ(comparison.greedy_differences, 0) << kernels->name;
  }
}

TEST(Transformer, SizesAreKnownBefore) {
  const MappedFile file(kFolder + "tiny_mixed.gguf");
  const GgufFile gguf(file.bytes());
  const ModelConfig config = read_model_config(gguf);
  ThreadPool pool(2);
  std::size_t reported = 0;
  const Weights weights(config, gguf, pool, [&](std::size_t done, std::size_t total) {
    EXPECT_LE(reported, done);
    reported = done;
    EXPECT_EQ(total, weights_size_bytes(config, gguf));
  });
  EXPECT_EQ(reported, weights.size_bytes());
  EXPECT_EQ(weights.size_bytes(), weights_size_bytes(config, gguf));

  const KvLayout layout(kv_layer_shapes(config));
  const TransformerLimits limits{.max_batch_tokens = 33, .max_logit_rows = 5,
                                 .max_context_len = 3000};
  const Transformer transformer(config, weights, layout, *kernels_for(Isa::kGeneric), pool, limits);
  EXPECT_EQ(transformer.scratch_size_bytes(), transformer_scratch_size_bytes(config, limits, pool));
}

TEST(Transformer, TellingAScratchsSizeTakesNone) {
  const MappedFile file(kFolder + "tiny_mixed.gguf");
  ModelConfig config = read_model_config(GgufFile(file.bytes()));
  config.num_heads = 32;
  ThreadPool pool(2);
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before_kib = peak_kib();
  const TransformerLimits limits{.max_batch_tokens = 33, .max_logit_rows = 5,
                                 .max_context_len = 1 << 24};
  const std::size_t size_bytes = transformer_scratch_size_bytes(config, limits, pool);
  EXPECT_GT(size_bytes, std::size_t{256} << 20);
  EXPECT_LT(peak_kib() - before_kib, 64 << 10);
}

// In the last layer none but the rows that want logits attend.
TEST(Transformer, LogitsOfAnyRowsAreTheSame) {
  for (const char* name : {"tiny_llama.gguf", "tiny_gemma3.gguf"}) {
    const TestModel model(kFolder + name);
    const auto vocab_size = static_cast<std::size_t>(model.config.vocab_size);
    TestRunner runner(model, *kernels_for(Isa::kGeneric), 1,
                      {.max_batch_tokens = 32, .max_logit_rows = 32, .max_context_len = 64},
                      blocks_for(model, 64, 6));
    const auto run = [&](const std::vector<std::int32_t>& rows) {
      runner.reset();
      std::vector<TestSequence> sequences;
      std::vector<TestStep> steps;
      for (const int seed : {1, 2, 3})
        sequences.push_back({.tokens = arbitrary_tokens(30, model.config.vocab_size, seed),
                             .num_computed = 0,
                             .tables = {}});
      const std::vector<TestStep> before{{&sequences[0], 19}, {&sequences[2], 11}};
      runner.run(before, false);
      steps = {{&sequences[0], 6}, {&sequences[1], 9}, {&sequences[2], 4}};
      const auto logits = runner.run(steps, rows);
      return std::vector<float>(logits.begin(), logits.end());
    };
    std::vector<std::int32_t> all(19);
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> expected = run(all);
    for (const std::vector<std::int32_t>& rows :
         {std::vector<std::int32_t>{1, 2, 5, 16, 18}, {7}, {14, 15}, {0, 6, 8, 10, 11, 12, 17}}) {
      const std::vector<float> logits = run(rows);
      ASSERT_EQ(logits.size(), rows.size() * vocab_size);
      for (std::size_t i = 0; i < rows.size(); ++i)
        EXPECT_TRUE(same_bits(std::span(logits).subspan(i * vocab_size, vocab_size),
                              std::span(expected).subspan(
                                  static_cast<std::size_t>(rows[i]) * vocab_size, vocab_size)))
            << name << ", row " << rows[i];
    }
  }
}

TEST(Transformer, LogitsComeInTheOrderAskedFor) {
  for (const char* name : {"tiny_llama.gguf", "tiny_gemma2.gguf"}) {
    const TestModel model(kFolder + name);
    TestRunner runner(model, *kernels_for(Isa::kGeneric), 1,
                      {.max_batch_tokens = 32, .max_logit_rows = 8, .max_context_len = 64},
                      blocks_for(model, 32, 2));
    TestSequence first{.tokens = arbitrary_tokens(5, 128, 1), .num_computed = 0, .tables = {}};
    TestSequence second{.tokens = arbitrary_tokens(9, 128, 2), .num_computed = 0, .tables = {}};
    const std::vector<TestStep> steps{{&first, 5}, {&second, 9}};
    const auto both = runner.run(steps, false);
    ASSERT_EQ(both.size(), 2u * 128);
    ASSERT_EQ(runner.logits().maxima.size(), 2u);  // the vocabulary is one run
    for (const std::size_t row : {0u, 1u})
      EXPECT_EQ(runner.logits().maxima[row], std::ranges::max(both.subspan(row * 128, 128)));
    const std::vector<float> copy(both.begin(), both.end());
    EXPECT_TRUE(same_bits(std::span(copy).first(128), logits_in_chunks(runner, first.tokens, 5)));
    EXPECT_TRUE(same_bits(std::span(copy).last(128), logits_in_chunks(runner, second.tokens, 9)));
  }
}

}  // namespace
}  // namespace larder
