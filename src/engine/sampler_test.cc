#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/heap_test_support.h"
#include "engine/engine_test_support.h"

namespace larder {
namespace {

std::vector<float> random_logits(int vocab_size, std::uint32_t seed, float scale = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(static_cast<std::size_t>(vocab_size));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

struct Draw {
  SamplingParams params;
  std::vector<TokenId> prompt, output, end_tokens;
  int choice = 0;
};

TokenId sample(Sampler& sampler, const std::vector<float>& logits, const Draw& draw,
               std::uint64_t seed) {
  const TokenCounts seen(draw.prompt, draw.output);
  return sampler
      .sample(logits, {},
              {.params = draw.params,
               .seen = &seen,
               .num_output = draw.output.size(),
               .end_tokens = draw.end_tokens,
               .seed = seed,
               .choice = draw.choice})
      .token;
}

// The distribution that the parameters describe, by sorting everything, in double precision.
std::vector<double> reference(std::vector<float> logits, const Draw& draw) {
  const SamplingParams& params = draw.params;
  for (const auto& [token, bias] : params.logit_bias)
    logits[static_cast<std::size_t>(token)] += bias;
  std::vector<double> values(logits.begin(), logits.end());
  for (std::size_t token = 0; token < values.size(); ++token) {
    const auto id = static_cast<TokenId>(token);
    const auto count = std::ranges::count(draw.output, id);
    const bool is_seen = count > 0 || std::ranges::count(draw.prompt, id) > 0;
    if (is_seen) {
      values[token] = values[token] > 0 ? values[token] / params.repetition_penalty
                                        : values[token] * params.repetition_penalty;
    }
    values[token] -= params.frequency_penalty * static_cast<double>(count);
    if (count > 0) values[token] -= params.presence_penalty;
  }
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return values[a] > values[b]; });
  if (params.top_k > 0)
    order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(params.top_k)));
  std::vector<double> probabilities(values.size(), 0);
  const auto normalize = [&] {
    double sum = 0;
    for (const double probability : probabilities) sum += probability;
    for (double& probability : probabilities) probability /= sum;
  };
  for (const std::size_t token : order) {
    probabilities[token] = std::exp((values[token] - values[order[0]]) / params.temperature);
  }
  normalize();
  double kept = 0;
  for (const std::size_t token : order) {
    if (kept >= params.top_p) probabilities[token] = 0;
    kept += probabilities[token];
  }
  for (const std::size_t token : order) {
    if (probabilities[token] < params.min_p * probabilities[order[0]]) probabilities[token] = 0;
  }
  normalize();
  return probabilities;
}

// Pearson's test of num_draws draws against the reference; also that nothing outside it is drawn.
void expect_distribution(const Draw& draw, const std::vector<float>& logits) {
  constexpr int kNumDraws = 40000;
  Sampler sampler(static_cast<int>(logits.size()));
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < kNumDraws; ++i) {
    ++counts[static_cast<std::size_t>(
        sample(sampler, logits, draw, static_cast<std::uint64_t>(i)))];
  }
  const std::vector<double> expected = reference(logits, draw);
  double chi_squared = 0;
  int degrees = -1;
  for (std::size_t token = 0; token < counts.size(); ++token) {
    const double mean = expected[token] * kNumDraws;
    EXPECT_TRUE(expected[token] > 0 || counts[token] == 0) << token;
    if (mean < 5) continue;
    chi_squared += (counts[token] - mean) * (counts[token] - mean) / mean;
    ++degrees;
  }
  ASSERT_GE(degrees, 1);
  EXPECT_LT(chi_squared, degrees + 5 * std::sqrt(2.0 * degrees));
}

TEST(Sampler, DrawsFromTheDistribution) {
  const std::vector<float> logits = random_logits(300, 1, 1.5f);
  const auto with = [](auto change) {
    Draw draw;
    change(draw);
    return draw;
  };
  expect_distribution(Draw{}, logits);
  expect_distribution(with([](Draw& d) { d.params.temperature = 0.5f; }), logits);
  expect_distribution(with([](Draw& d) { d.params.temperature = 2; }), logits);
  expect_distribution(with([](Draw& d) { d.params.top_k = 7; }), logits);
  expect_distribution(with([](Draw& d) { d.params.top_p = 0.6f; }), logits);
  expect_distribution(with([](Draw& d) { d.params.top_p = 0.97f; }), logits);
  expect_distribution(with([](Draw& d) { d.params.min_p = 0.1f; }), logits);
  expect_distribution(with([](Draw& d) {
                        d.params.top_k = 20;
                        d.params.top_p = 0.8f;
                        d.params.min_p = 0.2f;
                        d.params.temperature = 1.3f;
                      }),
                      logits);
  expect_distribution(with([](Draw& d) {
                        d.params.repetition_penalty = 1.5f;
                        d.params.frequency_penalty = 0.4f;
                        d.params.presence_penalty = -0.7f;
                        d.params.logit_bias = {{3, 2.5f}, {4, -100.0f}};
                        d.prompt = {1, 2, 3, 3, 250};
                        d.output = {2, 5, 5, 5, 4};
                      }),
                      logits);
  // Few of many runs hold what is likely, and most do.
  for (const float spread : {6.0f, 0.5f}) {
    const std::vector<float> many = random_logits(20 * kLogitRun + 3, 5, spread);
    expect_distribution(with([](Draw& d) { d.params.top_p = 0.9f; }), many);
    expect_distribution(with([](Draw& d) { d.params.top_k = 40; }), many);
  }
}

TEST(Sampler, GreedyTakesTheFirstOfTheBest) {
  for (const int vocab_size : {1, 5, 16, 31, 128, 1000}) {
    std::vector<float> logits = random_logits(vocab_size, 2);
    for (int at = 0; at < vocab_size; at += 7) {
      std::vector<float> changed = logits;
      changed[static_cast<std::size_t>(at)] = 100;
      changed.back() = 100;
      Sampler sampler(vocab_size);
      Draw draw;
      draw.params.temperature = 0;
      EXPECT_EQ(sample(sampler, changed, draw, 0), at);
      draw.params.temperature = 1;
      draw.params.top_k = 1;
      EXPECT_EQ(sample(sampler, changed, draw, 0), at);
    }
  }
}

TEST(Sampler, TheFirstOfTheBestIsEnoughWhereNothingElseIsAsked) {
  SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_TRUE(Sampler::takes_first_of_best(greedy, 0));
  const auto is_enough = [&](auto change) {
    SamplingParams params = greedy;
    change(params);
    return Sampler::takes_first_of_best(params, 5);
  };
  EXPECT_FALSE(is_enough([](SamplingParams& params) { params.temperature = 0.1F; }));
  EXPECT_FALSE(is_enough([](SamplingParams& params) { params.num_logprobs = 0; }));
  EXPECT_FALSE(is_enough([](SamplingParams& params) { params.logit_bias = {{1, 0.5F}}; }));
  EXPECT_FALSE(is_enough([](SamplingParams& params) { params.repetition_penalty = 1.1F; }));
  EXPECT_FALSE(is_enough([](SamplingParams& params) { params.presence_penalty = 0.1F; }));
  EXPECT_FALSE(is_enough([](SamplingParams& params) { params.min_tokens = 6; }));
  EXPECT_TRUE(is_enough([](SamplingParams& params) { params.min_tokens = 5; }));
  EXPECT_TRUE(is_enough([](SamplingParams& params) {
    params.temperature = 1;
    params.top_k = 1;
  }));
}

TEST(Sampler, DrawsDependOnSeedChoiceAndIndexOnly) {
  const std::vector<float> logits = random_logits(1000, 3, 0.1f);
  Sampler sampler(1000), other(1000);
  Draw draw;
  const TokenId token = sample(sampler, logits, draw, 1);
  for (int i = 0; i < 5; ++i) sample(other, random_logits(1000, 4), draw, 9);
  EXPECT_EQ(sample(other, logits, draw, 1), token);
  int num_equal = 0;
  for (std::uint64_t seed = 2; seed < 52; ++seed)
    num_equal += sample(sampler, logits, draw, seed) == token;
  for (draw.choice = 1; draw.choice < 51; ++draw.choice) {
    num_equal += sample(sampler, logits, draw, 1) == token;
  }
  draw.choice = 0;
  for (int i = 0; i < 50; ++i) {
    draw.output.push_back(0);
    num_equal += sample(sampler, logits, draw, 1) == token;
  }
  EXPECT_LE(num_equal, 5);
}

TEST(Sampler, LogprobsAreOfTheModelsDistribution) {
  const std::vector<float> logits = random_logits(5000, 5);
  Sampler sampler(5000);
  Draw draw;
  draw.params.temperature = 0;
  draw.params.num_logprobs = 3;
  draw.params.logit_bias = {{17, 100.0f}};
  const OutputToken token =
      sampler.sample(logits, {},
                     {.params = draw.params, .end_tokens = {}});
  EXPECT_EQ(token.token, 17);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  EXPECT_NEAR(token.logprob, logits[17] - std::log(sum), 1e-5);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) { return logits[a] > logits[b]; });
  ASSERT_EQ(token.best.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(token.best[i].token, static_cast<TokenId>(order[i]));
    EXPECT_NEAR(token.best[i].logprob, logits[order[i]] - std::log(sum), 1e-5);
  }
  EXPECT_EQ(sampler.score(logits, {}, 5, 5000).best.size(), 5000u);
}

// Of tokens next to each other, far apart and alike; what was only guessed leaves nothing.
TEST(TokenCounts, AreWhatHasBeenAddedAndNotTakenBack) {
  std::mt19937 random(3);
  for (const int most : {3, 300, 300'000}) {
    const auto token = [&] { return static_cast<TokenId>(random() % static_cast<unsigned>(most)); };
    std::map<TokenId, std::int32_t> expected;
    std::vector<TokenId> prompt(500);
    for (TokenId& one : prompt) expected[one = token()];
    TokenCounts seen(prompt, {});
    EXPECT_EQ(all_of(seen), expected);
    for (int i = 0; i < 2000; ++i) {
      const TokenId one = token(), guess = token();
      seen.add(one);
      seen.add(guess);
      seen.take_back(guess);
      ++expected[one];
    }
    EXPECT_EQ(all_of(seen), expected);
    EXPECT_EQ(all_of(TokenCounts(seen)), expected);
  }
}

// Whatever a sequence goes through, only as many tokens are looked at in a draw as there are different ones.
TEST(TokenCounts, GrowWithTheVocabularyOnly) {
  TokenCounts seen({}, {});
  const auto add = [&](int times) {
    for (int i = 0; i < times; ++i) seen.add(i % 1000);
  };
  add(1000);
  if (!is_heap_known()) GTEST_SKIP() << "the heap's size is not known";
  const std::int64_t before = heap_in_use();
  add(1'000'000);
  EXPECT_EQ(heap_in_use(), before);
  EXPECT_EQ(all_of(seen).size(), 1000u);
}

TEST(Sampler, GivenMaximaChangeNothing) {
  const std::vector<float> logits = random_logits(5000, 7);
  std::vector<float> maxima(static_cast<std::size_t>(num_logit_runs(5000)));
  select_kernels().run_maxima(logits.data(), 5000, maxima.data());
  Sampler sampler(5000);
  SamplingParams params;
  params.num_logprobs = 3;
  const auto expect_same = [&](const SamplingParams& changed) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const SampleContext context{
          .params = changed, .end_tokens = {}, .seed = seed};
      const OutputToken given = sampler.sample(logits, maxima, context);
      const OutputToken found = sampler.sample(logits, {}, context);
      EXPECT_EQ(given.token, found.token);
      EXPECT_EQ(given.logprob, found.logprob);
      ASSERT_EQ(given.best.size(), 3u);
      EXPECT_EQ(given.best[2].token, found.best[2].token);
    }
  };
  expect_same(params);
  for (auto change : {+[](SamplingParams& p) { p.temperature = 0; },
                      +[](SamplingParams& p) { p.top_k = 40; },
                      +[](SamplingParams& p) { p.top_p = 0.9f; },
                      // The maxima are not of what is drawn from.
                      +[](SamplingParams& p) { p.logit_bias = {{17, 100.0f}}; }}) {
    SamplingParams changed = params;
    change(changed);
    expect_same(changed);
  }
}

TEST(Sampler, EndTokensAreBarredBeforeMinTokens) {
  std::vector<float> logits(50, 0);
  logits[3] = 50;
  logits[4] = 40;
  logits[5] = 30;
  Sampler sampler(50);
  Draw draw;
  draw.params.temperature = 0;
  draw.params.min_tokens = 2;
  draw.params.stop_token_ids = {4};
  draw.end_tokens = {3};
  EXPECT_EQ(sample(sampler, logits, draw, 0), 5);
  draw.output = {5};
  EXPECT_EQ(sample(sampler, logits, draw, 0), 5);
  draw.output = {5, 5};
  EXPECT_EQ(sample(sampler, logits, draw, 0), 3);
}

TEST(Sampler, ExtremesStayInRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float low : {-infinity, -1e30f}) {
    std::vector<float> logits(300, low);
    logits[200] = 1e30f;
    Sampler sampler(300);
    for (const float top_p : {0.01f, 0.999999f, 1.0f}) {
      for (const int top_k : {0, 5, 299, 300, 100000}) {
        Draw draw;
        draw.params.top_p = top_p;
        draw.params.top_k = top_k;
        draw.params.temperature = 1e-4f;
        EXPECT_EQ(sample(sampler, logits, draw, 7), 200);
      }
    }
  }
  std::vector<float> endless = random_logits(300, 1);
  endless[200] = infinity;
  std::vector<float> barred(300, -infinity);
  Sampler sampler(300);
  for (const float top_p : {0.5f, 1.0f}) {
    Draw draw;
    draw.params.top_p = top_p;
    EXPECT_EQ(sample(sampler, endless, draw, 7), 200);
  }
  EXPECT_EQ(sample(sampler, barred, Draw{}, 1), 0);
}

TEST(Sampler, WhatIsNotANumberIsNotDrawn) {
  constexpr int kVocabSize = 5000;
  std::vector<float> logits = random_logits(kVocabSize, 1);
  for (std::size_t i = 0; i < 3000; i += 7) logits[i] = std::numeric_limits<float>::quiet_NaN();
  logits[4000] = logits[4001] = 50;
  Sampler sampler(kVocabSize);
  for (const int top_k : {2, 5, 2000}) {
    Draw draw;
    draw.params.top_k = top_k;
    for (std::uint64_t seed = 0; seed < 20; ++seed)
      EXPECT_EQ(sample(sampler, logits, draw, seed) / 2, 2000) << top_k;
  }
}

// Copies are what the engine has of them.
TEST(Sampler, TakesTheMemoryThatIsPlanned) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap's size is not known";
  constexpr int kVocabSize = 10'000;
  const std::vector<float> flat(kVocabSize, 1.0f), logits = random_logits(kVocabSize, 1);
  Draw top_k, top_p, penalties;
  top_k.params.top_k = 2000;
  top_p.params.top_p = 0.999f;
  penalties.params.repetition_penalty = 1.1f;
  penalties.prompt = {1, 2, 3};
  const std::int64_t before = heap_in_use();
  const auto sampler = std::make_unique<Sampler>(Sampler(kVocabSize));
  const auto copy = std::make_unique<Sampler>(std::as_const(*sampler));
  const std::int64_t at_first = heap_in_use() - before;
  for (const Draw* draw : {&top_k, &top_p, &penalties})
    for (const std::vector<float>* of : {&flat, &logits})
      for (Sampler* with : {sampler.get(), copy.get()}) sample(*with, *of, *draw, 1);
  EXPECT_EQ(heap_in_use() - before, at_first);
  EXPECT_LE(at_first, 2 * Sampler::size_bytes(kVocabSize));
  EXPECT_GE(at_first, 2 * Sampler::size_bytes(kVocabSize) * 9 / 10);
}

// Not a limit, a record: see the log.
TEST(Sampler, SpeedOfALargeVocabulary) {
  constexpr int kVocabSize = 262144;
  const std::vector<float> logits = random_logits(kVocabSize, 6);
  Sampler sampler(kVocabSize);
  const auto time = [&](const char* name, auto change) {
    Draw draw;
    change(draw);
    double best_us = 1e9;
    for (std::uint64_t i = 0; i < 20; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const TokenId token = sample(sampler, logits, draw, i);
      const std::chrono::duration<double, std::micro> spent =
          std::chrono::steady_clock::now() - begin;
      ASSERT_LT(token, kVocabSize);
      best_us = std::min(best_us, spent.count());
    }
    std::printf("%-16s %8.0f us\n", name, best_us);
  };
  time("greedy", [](Draw& d) { d.params.temperature = 0; });
  time("temperature", [](Draw&) {});
  time("top_k 40", [](Draw& d) { d.params.top_k = 40; });
  time("top_p 0.95", [](Draw& d) { d.params.top_p = 0.95f; });
  time("min_p 0.05", [](Draw& d) { d.params.min_p = 0.05f; });
  time("penalties", [](Draw& d) { d.params.repetition_penalty = 1.1f; });
  time("5 logprobs", [](Draw& d) {
    d.params.temperature = 0;
    d.params.num_logprobs = 5;
  });
}

}  // namespace
}  // namespace larder
