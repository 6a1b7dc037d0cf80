// The recorded results of tests/golden/model, and how far a runner is from them. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/forward/exactness.h"

namespace larder {

struct Golden {
  std::string name;
  std::vector<TokenId> tokens;
  std::vector<double> logprobs;  // of tokens[1..]
  std::vector<TokenId> greedy;   // what follows them
  std::vector<double> margins;   // best logit less second best, per greedy token
};

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  CHECK(file.good(), path);
  return nlohmann::json::parse(file);
}

inline Golden to_golden(const nlohmann::json& json) {
  return {.name = json.value("name", ""),
          .tokens = json.at("tokens"),
          .logprobs = json.at("logprobs"),
          .greedy = json.at("greedy"),
          .margins = json.at("margins")};
}

struct Distance {
  double sum = 0;
  double largest = 0;
  std::size_t count = 0;

  double mean() const { return sum / static_cast<double>(count); }
  void add(double difference) {
    sum += std::abs(difference);
    largest = std::max(largest, std::abs(difference));
    ++count;
  }
};

struct Comparison {
  Distance logprobs;  // over every prompt token but the first
  // Places where the best token is not the golden's though its margin is larger than asked. Each is
  // looked at after the recorded text, so that one difference stays one.
  int greedy_differences = 0;
};

inline constexpr int kShortPrompt = 64;

// Computes the prompt in pieces of the runner's max_logit_rows, then the recorded continuation:
// behind a short prompt token by token, behind a long one at once, which gives the same bits.
inline Comparison compare(TestRunner& runner, const Golden& golden, double margin) {
  runner.reset();
  TestSequence sequence{.tokens = golden.tokens, .num_computed = 0, .tables = {}};
  const auto num_tokens = static_cast<int>(golden.tokens.size());
  const auto num_greedy = static_cast<int>(golden.greedy.size());
  const auto vocab_size = static_cast<std::size_t>(runner.transformer().config().vocab_size);
  const int max_rows = runner.transformer().limits().max_logit_rows;
  const auto row_of = [&](std::span<const float> logits, int i) {
    return logits.subspan(static_cast<std::size_t>(i) * vocab_size, vocab_size);
  };
  Comparison comparison;
  std::vector<TokenId> best;  // behind the prompt and behind each token that follows
  while (sequence.num_computed < num_tokens) {
    const int begin = sequence.num_computed;
    const int count = std::min(max_rows, num_tokens - begin);
    const TestStep step{&sequence, count};
    const auto logits = runner.run({&step, 1}, true);
    for (int i = 0; i < count && begin + i + 1 < num_tokens; ++i) {
      const auto position = static_cast<std::size_t>(begin + i);
      const double logprob =
          log_probability(runner.kernels(), row_of(logits, i), golden.tokens[position + 1]);
      comparison.logprobs.add(logprob - golden.logprobs[position]);
    }
    if (begin + count == num_tokens) best.push_back(best_token(row_of(logits, count - 1)));
  }
  sequence.tokens.insert(sequence.tokens.end(), golden.greedy.begin(), golden.greedy.end());
  while (static_cast<int>(best.size()) < num_greedy) {
    const int rest = num_greedy - static_cast<int>(best.size());
    const int count = num_tokens <= kShortPrompt ? 1 : std::min(max_rows, rest);
    const TestStep step{&sequence, count};
    const auto logits = runner.run({&step, 1}, true);
    for (int i = 0; i < count; ++i) best.push_back(best_token(row_of(logits, i)));
  }
  for (std::size_t i = 0; i < golden.greedy.size(); ++i)
    if (golden.margins[i] > margin && best[i] != golden.greedy[i]) ++comparison.greedy_differences;
  return comparison;
}

// Of a runner that computes activations in FP32, 64 tokens at a time. name: whose kernels it runs.
inline void expect_reference(TestRunner& runner, const nlohmann::json& json, const char* name) {
  const Golden golden = to_golden(json);
  const Comparison comparison = compare(runner, golden, 0.02);
  EXPECT_EQ(comparison.logprobs.count, golden.logprobs.size());
  EXPECT_LE(comparison.logprobs.mean(), 0.002) << name;
  EXPECT_LE(comparison.logprobs.largest, 0.01) << name;
  EXPECT_EQ(comparison.greedy_differences, 0) << name;

  const auto logits = logits_in_chunks(runner, golden.tokens, 64);
  const std::vector<double> expected = json.at("last_logits");
  ASSERT_EQ(logits.size(), expected.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(logits[i], expected[i], 0.02) << name << " " << i;
}

}  // namespace larder
