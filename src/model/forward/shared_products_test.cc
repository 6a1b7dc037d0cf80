// Products that several machines share out, within one process.
#include "model/forward/shared_products.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "model/forward/exactness.h"
#include "model/forward/local_partners.h"
#include "model/forward/model_in_codes.h"
#include "model/forward/test_model.h"

namespace larder {
namespace {

const std::string kFolder = LARDER_SOURCE_DIR "/tests/golden/model/";

TEST(OutputSplit, EveryRowHasOneMachineInOrder) {
  for (const std::vector<std::uint32_t>& shares :
       {std::vector<std::uint32_t>{1}, {1, 1}, {3, 1}, {1, 100}, {7, 5, 1, 1}, {OutputSplit::kMaxShare, 1, 1}}) {
    const OutputSplit split(shares);
    for (const int num_rows : {1, 16, 31, 32, 33, 64, 96, 1000, 4096, 262144}) {
      int end = 0;
      for (int machine = 0; machine < split.num_machines(); ++machine) {
        const RowRange rows = split.rows_of(machine, num_rows);
        EXPECT_EQ(rows.begin, end);
        EXPECT_GE(rows.size(), 0);
        EXPECT_TRUE(rows.begin % kSplitRows == 0 || rows.size() == 0) << rows.begin;
        end = rows.end;
      }
      EXPECT_EQ(end, num_rows);
    }
  }
  EXPECT_EQ(OutputSplit(std::vector<std::uint32_t>{3, 1}).rows_of(1, 4096).size(), 1024);
  EXPECT_THROW(OutputSplit(std::vector<std::uint32_t>{}), Error);
  EXPECT_THROW(OutputSplit(std::vector<std::uint32_t>{1, 0}), Error);
  EXPECT_THROW(OutputSplit(std::vector<std::uint32_t>{OutputSplit::kMaxShare + 1}), Error);
  EXPECT_THROW(OutputSplit(std::vector<std::uint32_t>(OutputSplit::kMaxMachines + 1, 1)), Error);
}

// A model's file, and whether its matrices are codes: then machines send each other codes, too.
class SharedProducts : public ::testing::TestWithParam<std::tuple<const char*, GgmlType>> {
 protected:
  void expect_same_bits(const std::vector<std::uint32_t>& shares, const KernelTable& kernels, ActivationType activations) {
    const auto [name, type] = GetParam();
    const ModelInCodes file(kFolder + name + ".gguf", type);
    TestModel whole(file.gguf());
    const int num_tokens = 70;
    TransformerLimits limits{.max_batch_tokens = 128, .max_logit_rows = 70, .max_context_len = 100, .activations = activations};
    const auto tokens = arbitrary_tokens(num_tokens, whole.config.vocab_size, 1);
    const int num_blocks = blocks_for(whole, num_tokens + 1, 16);
    TestRunner alone(whole, kernels, 2, limits, num_blocks);

    TestModel model(file.gguf());
    LocalPartners partners(file.gguf(), OutputSplit(shares), kernels, limits);
    model.weights = partners.server_weights();
    limits.split = OutputSplit(shares);
    TestRunner shared(model, kernels, 2, limits, num_blocks, nullptr, &partners);
    const std::string where = fmt::format("{} {} on {} machines", kernels.name, name, shares.size());
    for (const int chunk : {num_tokens, 16, 7, 1})
      EXPECT_TRUE(same_bits(logits_in_chunks(alone, tokens, chunk), logits_in_chunks(shared, tokens, chunk)))
          << where << " in chunks of " << chunk;
    EXPECT_TRUE(same_bits(logits_in_layers(alone, tokens, 40), logits_in_layers(shared, tokens, 40))) << where;
    EXPECT_TRUE(same_bits(logits_in_batch(alone, tokens, 5), logits_in_batch(shared, tokens, 5))) << where;
    // All rows' logits, and what the sampler takes of them.
    const auto all = [&](TestRunner& runner) {
      runner.reset();
      TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
      const TestStep step{&sequence, num_tokens};
      return runner.run({&step, 1}, true);
    };
    EXPECT_TRUE(same_bits(all(alone), all(shared))) << where;
    EXPECT_TRUE(same_bits(alone.logits().maxima, shared.logits().maxima)) << where;
    EXPECT_GT(partners.num_exchanges(), 0);
    EXPECT_LT(model.weights->size_bytes(), whole.weights->size_bytes()) << where;
  }
};

TEST_P(SharedProducts, HaveTheSameBitsOnAnyNumberOfMachines) {
  for (const Isa isa : kCpuIsas) {
    const KernelTable* kernels = kernels_for(isa);
    if (kernels == nullptr) continue;
    for (const ActivationType activations : {ActivationType::kInt8, ActivationType::kF32}) {
      expect_same_bits({1, 1}, *kernels, activations);
      expect_same_bits({2, 1, 4}, *kernels, activations);
      expect_same_bits({1, 1000}, *kernels, activations);  // the server has next to nothing
    }
  }
}

const auto kTypes = ::testing::Values(GgmlType::kF32, GgmlType::kQ8_0);

// tiny_mixed has codes of nine types by itself.
INSTANTIATE_TEST_SUITE_P(All, SharedProducts,
                         ::testing::Combine(::testing::Values("tiny_llama", "tiny_qwen2", "tiny_qwen3", "tiny_gemma3",
                                                              "tiny_mixed", "tiny_phi3", "tiny_phi3_window",
                                                              "tiny_smollm3", "tiny_granite", "tiny_mistral3",
                                                              "tiny_olmo2", "tiny_exaone4", "tiny_seed_oss",
                                                              "tiny_ernie4_5", "tiny_glm4", "tiny_gemma2"),
                                            kTypes));
INSTANTIATE_TEST_SUITE_P(Experts, SharedProducts,
                         ::testing::Combine(::testing::Values("tiny_qwen3moe", "tiny_deepseek2", "tiny_deepseek3",
                                                              "tiny_qwen2moe", "tiny_gpt_oss", "tiny_gpt_oss_mxfp4",
                                                              "tiny_glm4moe"),
                                            kTypes));

TEST(SharedProductsLost, WhatIsLostInAPassLeavesThePassesBehindItTheirBits) {
  const ModelInCodes file(kFolder + "tiny_llama.gguf", GgmlType::kQ8_0);
  const OutputSplit split(std::vector<std::uint32_t>{1, 1});
  TransformerLimits limits{.max_batch_tokens = 64, .max_logit_rows = 4, .max_context_len = 100, .split = split};
  TestModel model(file.gguf());
  LocalPartners partners(file.gguf(), split, select_kernels(), limits);
  model.weights = partners.server_weights();
  const auto tokens = arbitrary_tokens(60, model.config.vocab_size, 1);
  TestRunner runner(model, select_kernels(), 1, limits, blocks_for(model, 61, 4), nullptr, &partners);
  const std::vector<float> before = logits_in_layers(runner, tokens, 20);
  const int num_exchanges = partners.num_exchanges();
  for (int lost_at = 0; lost_at < num_exchanges; ++lost_at) {
    partners.lose_after(lost_at);
    EXPECT_THROW(logits_in_layers(runner, tokens, 20), PartnerLost) << lost_at;
    partners.lose_after(-1);
    if (lost_at % 7 != 0) continue;
    EXPECT_TRUE(same_bits(before, logits_in_layers(runner, tokens, 20))) << lost_at;
  }
}

TEST(SharedProductsSize, SharesOfAModelAreAllOfIt) {
  const MappedFile file(kFolder + "tiny_llama.gguf");
  const GgufFile gguf(file.bytes());
  const ModelConfig config = read_model_config(gguf);
  const OutputSplit split(std::vector<std::uint32_t>{2, 1, 1});
  std::size_t size_bytes = 0;
  for (int machine = 0; machine < 3; ++machine) size_bytes += weights_size_bytes(config, gguf, {split, machine});
  const std::size_t whole_bytes = weights_size_bytes(config, gguf);
  EXPECT_GE(size_bytes, whole_bytes);
  EXPECT_LT(weights_size_bytes(config, gguf, {split, 1}), whole_bytes / 2);
}

}  // namespace
}  // namespace larder
