// A layer's experts against double precision, and bit against bit.
#include "model/forward/expert_layers.h"

#include <cmath>

#include "kernels/test_util.h"
#include "model/expert_choice.h"

namespace larder {
namespace {

using test::TestMatrix;

constexpr int kHidden = 256, kFfn = 256, kSharedFfn = 512, kNumExperts = 6, kNumChosen = 2;

// Its matrices and their values.
struct TestLayer {
  TestLayer(GgmlType type, int shared_ffn_size) {
    config.hidden_size = kHidden;
    config.experts = {.num_experts = kNumExperts, .num_chosen = kNumChosen, .ffn_size = kFfn,
                      .shared_ffn_size = shared_ffn_size, .scale = 1.5F};
    config.layers = {{.has_experts = true}};
    matrices.reserve(4 + 3 * kNumExperts);
    weights.router = add(GgmlType::kF32, kNumExperts, kHidden);
    for (int i = 0; i < kNumExperts; ++i) {
      weights.expert_gate.push_back(add(type, kFfn, kHidden));
      weights.expert_up.push_back(add(type, kFfn, kHidden));
      weights.expert_down.push_back(add(type, kHidden, kFfn));
    }
    if (shared_ffn_size == 0) return;
    weights.gate = add(type, shared_ffn_size, kHidden);
    weights.up = add(type, shared_ffn_size, kHidden);
    weights.down = add(type, kHidden, shared_ffn_size);
  }

  const PackedMatrix& add(GgmlType type, int rows, int cols) {
    matrices.emplace_back(type, rows, cols, static_cast<unsigned>(matrices.size() + 1));
    return matrices.back().packed;
  }

  ModelConfig config;
  LayerWeights weights;
  std::vector<TestMatrix> matrices;  // the router, then of each expert gate, up and down, then the shared ones
};

std::vector<double> times(const TestMatrix& w, const std::vector<double>& x) {
  std::vector<double> y(static_cast<std::size_t>(w.packed.num_rows));
  for (std::size_t row = 0; row < y.size(); ++row)
    for (std::size_t c = 0; c < x.size(); ++c) y[row] += double{w.values[row * x.size() + c]} * x[c];
  return y;
}

std::vector<double> mlp(const TestMatrix* matrices, const std::vector<double>& x) {
  std::vector<double> gate = times(matrices[0], x);
  const std::vector<double> up = times(matrices[1], x);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
  return times(matrices[2], gate);
}

std::vector<double> reference(const TestLayer& layer, const float* row) {
  const std::vector<double> x(row, row + kHidden);
  const std::vector<double> scores = times(layer.matrices[0], x);
  const std::vector<float> given(scores.begin(), scores.end());
  std::int32_t chosen[kNumChosen];
  float weights[kNumChosen];
  choose_experts(layer.config.experts, given.data(), nullptr, chosen, weights);
  std::vector<double> y(kHidden);
  if (layer.config.experts.shared_ffn_size > 0) y = mlp(&layer.matrices[1 + 3 * kNumExperts], x);
  for (int k = 0; k < kNumChosen; ++k) {
    const std::vector<double> part = mlp(&layer.matrices[1 + 3 * static_cast<std::size_t>(chosen[k])], x);
    for (std::size_t c = 0; c < kHidden; ++c) y[c] += weights[k] * part[c];
  }
  return y;
}

std::vector<float> run(const TestLayer& layer, const KernelTable& table, bool int8, int num_threads,
                       std::vector<float> x) {
  ThreadPool pool(num_threads);
  const int rows = static_cast<int>(x.size()) / kHidden;
  ExpertLayers layers(layer.config, table, pool, rows, int8);
  EXPECT_EQ(layers.size_bytes(), ExpertLayers::size_bytes(layer.config, rows));
  layers.run(layer.weights, x.data(), rows);
  return x;
}

double distance(const std::vector<double>& wanted, const float* got) {
  double error = 0, size = 0;
  for (std::size_t c = 0; c < wanted.size(); ++c) {
    error += (wanted[c] - got[c]) * (wanted[c] - got[c]);
    size += wanted[c] * wanted[c];
  }
  return std::sqrt(error / size);
}

TEST(ExpertLayers, ComputeWhatTheirExpertsDo) {
  constexpr int kRows = 21;
  const auto x = test::random_values(kRows * kHidden, 7);
  for (const int shared : {0, kSharedFfn}) {
    for (const GgmlType type : {GgmlType::kF32, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_K}) {
      const TestLayer layer(type, shared);
      for (const KernelTable* table : test::tables_of_products()) {
        for (const bool int8 : {false, true}) {
          const auto y = run(layer, *table, int8, 2, x);
          const double most = int8 ? 0.03 : 1e-5;
          for (std::size_t row = 0; row < kRows; ++row)
            ASSERT_LE(distance(reference(layer, &x[row * kHidden]), &y[row * kHidden]), most)
                << table->name << " row " << row << " type " << static_cast<int>(type);
        }
      }
    }
  }
}

TEST(ExpertLayers, RowsDoNotDependOnTheirCompany) {
  constexpr int kRows = 67;
  const auto x = test::random_values(kRows * kHidden, 7);
  for (const GgmlType type : {GgmlType::kBF16, GgmlType::kQ4_0, GgmlType::kQ6_K, GgmlType::kMXFP4}) {
    const TestLayer layer(type, kSharedFfn);
    for (const KernelTable* table : test::tables_of_products()) {
      const auto together = run(layer, *table, true, 2, x);
      for (const std::size_t rows : {std::size_t{1}, std::size_t{5}, std::size_t{30}}) {
        for (std::size_t begin = 0; begin < kRows; begin += rows) {
          const std::size_t end = std::min<std::size_t>(begin + rows, kRows);
          const auto first = static_cast<std::ptrdiff_t>(begin * kHidden), last = static_cast<std::ptrdiff_t>(end * kHidden);
          const auto part = run(layer, *table, true, 1, {x.begin() + first, x.begin() + last});
          ASSERT_TRUE(test::same_bits(part, {together.begin() + first, together.begin() + last}))
              << table->name << " rows from " << begin << " by " << rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace larder
