#include "model/forward/key_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/mapped_file.h"
#include "base/peak_test_support.h"
#include "model/gguf.h"

namespace larder {
namespace {

struct Model {
  explicit Model(const std::string& name, int num_threads = 1)
      : file(LARDER_SOURCE_DIR "/tests/golden/model/" + name + ".gguf"),
        gguf(file.bytes()),
        config(read_model_config(gguf)),
        pool(num_threads),
        weights(config, gguf, pool) {}
  MappedFile file;
  GgufFile gguf;
  ModelConfig config;
  ThreadPool pool;
  Weights weights;
};

std::vector<TokenId> some_tokens(int num_tokens) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < num_tokens; ++i) tokens.push_back((i * 37 + i / 7) % 120);
  return tokens;
}

TEST(KeyStatistics, BalancesAndOrdersByWhatAnErrorCosts) {
  ModelConfig config = Model("tiny_llama").config;
  config.num_heads = config.num_kv_heads = 1;
  config.head_dim = config.rope_dim = 4;
  config.rope_interleaved = false;
  KeyStatistics statistics(config);
  // Pairs are (0, 2) and (1, 3).
  const float q[] = {9, 9, 9, 9, 1, 4, 1, 4};
  const float k[] = {9, 9, 9, 9, 4, 4, 4, 4};
  const std::int32_t positions[] = {0, 10};  // the first one does not count
  for (int layer = 0; layer < config.num_layers(); ++layer)
    statistics.add(layer, q, k, positions);
  for (const KeyBasis& basis : statistics.basis()) {
    ASSERT_EQ(basis.balance.size(), 4u);
    EXPECT_NEAR(basis.balance[1] / basis.balance[0], 2, 1e-4);  // (16 / 1)^(1/4)
    EXPECT_EQ(basis.balance[0], basis.balance[2]);
    EXPECT_EQ(basis.balance[1], basis.balance[3]);
    EXPECT_EQ(basis.order, (std::vector<std::int16_t>{1, 3, 0, 2}));
  }
}

TEST(CalibrateKeys, GivesEveryHeadAnOrderAndTheSameForAnyThreads) {
  for (const char* name : {"tiny_llama", "tiny_gemma3"}) {
    const auto tokens = some_tokens(300);
    Model one(name, 1);
    const auto basis = calibrate_keys(one.config, one.weights, select_kernels(), one.pool, tokens);
    ASSERT_EQ(static_cast<int>(basis.size()), one.config.num_layers());
    const int dim = one.config.head_dim;
    for (const KeyBasis& layer : basis) {
      ASSERT_EQ(static_cast<int>(layer.order.size()), one.config.kv_size());
      for (int head = 0; head < one.config.num_kv_heads; ++head) {
        std::vector<std::int16_t> order(layer.order.begin() + head * dim,
                                        layer.order.begin() + (head + 1) * dim);
        std::ranges::sort(order);
        for (int i = 0; i < dim; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
      }
      for (const float balance : layer.balance) {
        EXPECT_GE(balance, 1.0F / 31);
        EXPECT_LE(balance, 31.0F);
      }
    }
    Model three(name, 3);
    const auto again =
        calibrate_keys(three.config, three.weights, select_kernels(), three.pool, tokens);
    for (std::size_t layer = 0; layer < basis.size(); ++layer) {
      EXPECT_EQ(basis[layer].balance, again[layer].balance);
      EXPECT_EQ(basis[layer].order, again[layer].order);
    }
  }
}

// Of a text so long that it is most of what the process takes meanwhile.
TEST(CalibrateKeys, TakesWhatIsSaid) {
  constexpr int kNumTokens = 30'000;
  const auto tokens = some_tokens(kNumTokens);
  for (const char* name : {"tiny_llama", "tiny_gemma3"}) {
    Model model(name, 2);
    const std::int64_t said_bytes = calibration_size_bytes(model.config, kNumTokens, model.pool);
    const std::optional<std::int64_t> before = begin_peak_of_memory();
    if (!before) GTEST_SKIP() << "peaks cannot be told here";
    (void)calibrate_keys(model.config, model.weights, select_kernels(), model.pool, tokens);
    const std::int64_t taken_bytes = peak_of_memory() - *before;
    // Stacks and what the allocator keeps are not in it.
    EXPECT_NEAR(static_cast<double>(taken_bytes), static_cast<double>(said_bytes), 3 << 20) << name;
    EXPECT_GT(said_bytes, 7 << 20) << name;
  }
}

}  // namespace
}  // namespace larder
