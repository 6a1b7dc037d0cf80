// Draws on a device against a reference that sorts everything, in double precision, and against themselves in other
// company. Runs on open_test_device(): emulated here, a GPU in tests/gpu.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cuda/test_device.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

using test::OnDevice;

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// What rounding may move a place in the distribution by, as a share of the whole.
constexpr double kRounding = 1e-6;
constexpr double kLastUniform = 1 - 0x1p-53;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

class CudaSampling : public ::testing::Test {
 protected:
  // Rows of num_logits, one behind the other, from the skip-th float of the memory on.
  std::vector<TokenId> drawn(const std::vector<float>& rows, int num_logits, const std::vector<TokenDraw>& draws,
                             int skip = 0) {
    std::vector<float> shifted(to_size(skip));
    shifted.insert(shifted.end(), rows.begin(), rows.end());
    OnDevice<float> logits(*device_, shifted);
    const auto num_rows = rows.size() / to_size(num_logits);
    OnDevice<TokenId> best(*device_, std::vector<TokenId>(num_rows, -1));
    device_->kernels().first_of_best(logits.data() + skip, static_cast<int>(num_rows), num_logits, best.data());
    OnDevice<TokenDraw> on_device(*device_, draws);
    OnDevice<TokenId> tokens(*device_, std::vector<TokenId>(draws.size(), -1));
    device_->kernels().draw_tokens({.logits = logits.data() + skip,
                                    .best = best.data(),
                                    .num_logits = num_logits,
                                    .draws = on_device.data(),
                                    .num_draws = static_cast<int>(draws.size()),
                                    .tokens = tokens.data()});
    return tokens.read();
  }

 private:
  std::unique_ptr<Device> device_ = open_test_device();
};

// The tokens of a row that weigh anything, the best first.
std::vector<TokenId> in_order(const std::vector<float>& logits) {
  std::vector<TokenId> order;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > kLowest) order.push_back(static_cast<TokenId>(i));
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return logits[to_size(a)] > logits[to_size(b)]; });
  return order;
}

// What is kept of a row.
struct Reference {
  std::vector<double> weights;  // by token, 0 where it is not kept
  double sum = 0;               // of those
  bool is_sure = true;          // no rounding moves the place where top-p ends

  // order: in_order().
  Reference(const std::vector<float>& logits, std::vector<TokenId> order, const TokenDraw& draw)
      : weights(logits.size()) {
    if (draw.top_k > 0 && to_size(draw.top_k) < order.size()) order.resize(to_size(draw.top_k));
    std::vector<double> given;
    for (const TokenId token : order)
      given.push_back(std::exp((double{logits[to_size(token)]} - logits[to_size(order[0])]) * draw.scale));
    const double all = std::accumulate(given.begin(), given.end(), 0.0);
    double kept = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const TokenId token = order[i];
      const double weight = given[i];
      if (draw.top_p < 1 && kept > 0) {
        const double missing = (draw.top_p * all - kept) / all;
        const bool is_exact = weight == 1;  // so far, all of one weight
        is_sure = is_sure && (is_exact || std::abs(missing) > kRounding);
        if (missing <= 0) break;
      }
      kept += weight;
      if (weight < draw.min_p) continue;
      weights[to_size(token)] = weight;
      sum += weight;
    }
  }

  // The middle of a token's part of [0, 1).
  double uniform_of(TokenId token) const {
    const double before = std::accumulate(weights.begin(), weights.begin() + token, 0.0);
    return (before + weights[to_size(token)] / 2) / sum;
  }
  bool is_likely(TokenId token) const { return weights[to_size(token)] / sum > 4 * kRounding; }
  // The next kept token from there on, around the end.
  TokenId kept_from(TokenId token) const {
    while (weights[to_size(token)] == 0) token = (token + 1) % static_cast<TokenId>(weights.size());
    return token;
  }
};

// Gaussian; few values, many of them equal, below one; one value; one far above all; and what weighs nothing among
// others.
constexpr int kNumKinds = 5;
std::vector<float> logits_of_kind(int kind, int size, unsigned seed) {
  std::vector<float> logits = test::random_values(to_size(size), seed, kind == 3 ? 1.0F : 3.0F);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (kind == 1) logits[i] = std::round(logits[i] * 0.5F) * 2;
    if (kind == 2) logits[i] = -1.25F;
    if (kind == 4) logits[i] = i % 3 == 1 ? kLowest : i % 5 == 2 ? kNan : logits[i];
  }
  float& best = logits[logits.size() * 2 / 3];
  if (kind == 1) best = *std::max_element(logits.begin(), logits.end()) + 2;
  if (kind == 3) best = 60;
  return logits;
}

std::vector<TokenDraw> params_for(int size) {
  std::vector<TokenDraw> all;
  const auto add = [&](int top_k, float top_p, float min_p, float scale) {
    all.push_back({.uniform = 0, .row = 0, .top_k = top_k, .scale = scale, .top_p = top_p, .min_p = min_p});
  };
  for (const float scale : {1.0F, 1.3F, 0.6F}) add(0, 1, 0, scale);
  for (const int top_k : {1, 2, 50, size}) add(top_k, 1, 0, 1);
  for (const float top_p : {1e-6F, 0.5F, 0.9F, 0.999F}) add(0, top_p, 0, 0.8F);
  for (const float min_p : {1e-3F, 0.05F, 1.0F}) add(0, 1, min_p, 1);
  add(50, 0.9F, 0, 1);
  add(2, 0.99F, 0, 1);
  add(7, 0.7F, 0.2F, 1.1F);
  add(0, 0.95F, 0.1F, 0.9F);
  add(size / 2, 0.99F, 0, 0.7F);
  return all;
}

// The tokens that draws in the middle of their parts must give.
struct Expectation {
  std::vector<float> rows;
  std::vector<TokenDraw> draws;
  std::vector<TokenId> tokens;
  int num_unsure = 0;

  Expectation(int size, const std::vector<TokenDraw>& params) {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      const std::vector<float> logits = logits_of_kind(kind, size, static_cast<unsigned>(kind) + 1);
      rows.insert(rows.end(), logits.begin(), logits.end());
      const std::vector<TokenId> order = in_order(logits);
      for (TokenDraw draw : params) {
        draw.row = kind;
        add(Reference(logits, order, draw), draw);
      }
    }
  }

 private:
  void add(const Reference& reference, TokenDraw draw) {
    const int size = static_cast<int>(reference.weights.size());
    if (!reference.is_sure) {
      ++num_unsure;
      return;
    }
    const auto heaviest = std::max_element(reference.weights.begin(), reference.weights.end());
    for (const std::int64_t from :
         {heaviest - reference.weights.begin(), std::int64_t{0}, std::int64_t{size} * 4 / 5}) {
      const TokenId token = reference.kept_from(static_cast<TokenId>(from));
      if (!reference.is_likely(token)) continue;
      draw.uniform = reference.uniform_of(token);
      draws.push_back(draw);
      tokens.push_back(token);
    }
  }
};

TEST_F(CudaSampling, DrawsWhatTheReferenceKeeps) {
  for (const int size : {1, 3, 257, 4100, 49152, 151936}) {
    const std::vector<TokenDraw> params = params_for(size);
    const Expectation expected(size, params);
    EXPECT_LE(expected.num_unsure, size > 10000 ? 12 : 4) << size;
    EXPECT_LE(5 * params.size(), expected.draws.size()) << size;
    EXPECT_EQ(drawn(expected.rows, size, expected.draws), expected.tokens) << size;
  }
}

// Every way of loading a row, and whoever else draws.
TEST_F(CudaSampling, DrawsDoNotDependOnTheirCompany) {
  const int size = 6148;
  std::vector<float> rows;
  std::vector<TokenDraw> draws;
  for (int kind = 0; kind < kNumKinds; ++kind) {
    const auto logits = logits_of_kind(kind, size, static_cast<unsigned>(kind) + 11);
    rows.insert(rows.end(), logits.begin(), logits.end());
    for (TokenDraw draw : params_for(size)) {
      draw.row = kind;
      draw.uniform = std::fmod(0.317 * static_cast<double>(draws.size()), 1.0);
      draws.push_back(draw);
    }
  }
  const auto together = drawn(rows, size, draws);
  EXPECT_EQ(drawn(rows, size, draws, 1), together);
  for (std::size_t i = 0; i < draws.size(); i += 3) {
    TokenDraw alone = draws[i];
    const auto begin = rows.begin() + alone.row * size;
    alone.row = 0;
    EXPECT_EQ(drawn({begin, begin + size}, size, {alone}), std::vector<TokenId>{together[i]}) << i;
  }
}

TEST_F(CudaSampling, TakesTheEndsOfTheDistribution) {
  const int size = 2000;
  const std::vector<float> logits = logits_of_kind(1, size, 5);
  for (TokenDraw draw : params_for(size)) {
    const Reference reference(logits, in_order(logits), draw);
    const auto is_kept = [](double weight) { return weight > 0; };
    const auto& weights = reference.weights;
    const auto first = std::find_if(weights.begin(), weights.end(), is_kept) - weights.begin();
    const auto last = weights.rend() - std::find_if(weights.rbegin(), weights.rend(), is_kept) - 1;
    TokenDraw at_end = draw;
    at_end.uniform = kLastUniform;
    const auto tokens = drawn(logits, size, {draw, at_end});
    EXPECT_EQ(tokens[0], first) << draw.top_k << " " << draw.top_p << " " << draw.min_p;
    EXPECT_EQ(tokens[1], last) << draw.top_k << " " << draw.top_p << " " << draw.min_p;
  }
}

TEST_F(CudaSampling, NeverDrawsWhatWeighsNothing) {
  const int size = 300;
  std::vector<float> rows;
  const auto add_row = [&](float value) { rows.insert(rows.end(), to_size(size), value); };
  for (const float value : {kNan, kLowest, kNan, 0.5F, -3e38F}) add_row(value);
  for (std::size_t i = 0; i < 5; ++i) rows[2 * to_size(size) + 10 * i] = kLowest;
  for (const std::size_t i : {120, 250}) rows[3 * to_size(size) + i] = -kLowest;
  rows[4 * to_size(size) + 7] = 3e38F;
  std::vector<TokenDraw> draws;
  std::vector<TokenId> expected;
  for (int row = 0; row < 5; ++row)
    for (TokenDraw draw : params_for(size)) {
      draw.row = row;
      draw.uniform = kLastUniform;
      draws.push_back(draw);
      expected.push_back(row < 3 ? 0 : row == 3 ? 120 : 7);
    }
  EXPECT_EQ(drawn(rows, size, draws), expected);
}

// Uniform numbers at equal distances give a token as often as it is likely, but for one at each end.
TEST_F(CudaSampling, DrawsTokensAsOftenAsTheyAreLikely) {
  const std::vector<float> logits = {0.3F, -1, 2, 1.1F, kLowest, 2, -0.4F, 0.9F, kNan};
  const int size = static_cast<int>(logits.size());
  constexpr int kNumDraws = 120;
  for (const TokenDraw& params : {TokenDraw{.scale = 1.25F}, TokenDraw{.top_k = 4}, TokenDraw{.top_p = 0.8F},
                                  TokenDraw{.min_p = 0.3F}}) {
    std::vector<TokenDraw> draws(kNumDraws, params);
    for (int i = 0; i < kNumDraws; ++i) draws[to_size(i)].uniform = (i + 0.5) / kNumDraws;
    std::vector<int> counts(logits.size());
    for (const TokenId token : drawn(logits, size, draws)) ++counts[to_size(token)];
    const Reference reference(logits, in_order(logits), params);
    for (std::size_t token = 0; token < counts.size(); ++token)
      EXPECT_NEAR(counts[token], reference.weights[token] / reference.sum * kNumDraws, 1.0) << token;
  }
}

}  // namespace
}  // namespace larder
