// Promise 1 as a check: the same logits, bit for bit, however a prompt is computed. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "model/forward/test_model.h"

namespace larder {

// Token ids that look like nothing, the same each time.
inline std::vector<TokenId> arbitrary_tokens(int count, int vocab_size, std::uint64_t seed) {
  std::vector<TokenId> tokens;
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    tokens.push_back(static_cast<TokenId>((state >> 33) % static_cast<std::uint64_t>(vocab_size)));
  }
  return tokens;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Logits of the prompt's last token when it is computed in pieces of chunk tokens; as in the engine,
// only the last piece has any.
inline std::vector<float> logits_in_chunks(TestRunner& runner, const std::vector<TokenId>& tokens,
                                           int chunk) {
  runner.reset();
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  std::span<const float> logits;
  while (sequence.num_computed < static_cast<int>(tokens.size())) {
    const int rest = static_cast<int>(tokens.size()) - sequence.num_computed;
    const TestStep step{&sequence, std::min(chunk, rest)};
    logits = rest > chunk ? runner.run({&step, 1}, std::vector<std::int32_t>{})
                          : runner.run({&step, 1}, false);
  }
  return {logits.begin(), logits.end()};
}

// The same in a batch with num_others other sequences, some in the middle of their prompt and some
// adding one token, as in decode; the prompt stands in the middle of the batch.
inline std::vector<float> logits_in_batch(TestRunner& runner, const std::vector<TokenId>& tokens,
                                          int num_others) {
  runner.reset();
  const int vocab_size = runner.transformer().config().vocab_size;
  std::vector<TestSequence> others(static_cast<std::size_t>(num_others));
  for (std::size_t i = 0; i < others.size(); ++i)
    others[i].tokens = arbitrary_tokens(static_cast<int>(tokens.size()) + 1, vocab_size, 100 + i);
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  const int room = runner.transformer().limits().max_batch_tokens;
  const int share = std::max(1, room / 2 / (num_others + 1));
  std::vector<float> logits;
  while (logits.empty()) {
    std::vector<TestStep> steps;
    const int rest = static_cast<int>(tokens.size()) - sequence.num_computed;
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (i == others.size() / 2) steps.push_back({&sequence, std::min(rest, room / 2)});
      const int left = static_cast<int>(others[i].tokens.size()) - others[i].num_computed;
      if (left > 0) steps.push_back({&others[i], std::min(left, i % 2 == 0 ? 1 : share)});
    }
    const auto all = runner.run(steps, false);
    if (rest > room / 2) continue;
    std::size_t place = 0;
    while (steps[place].sequence != &sequence) ++place;
    const auto mine = all.subspan(place * static_cast<std::size_t>(vocab_size),
                                  static_cast<std::size_t>(vocab_size));
    logits.assign(mine.begin(), mine.end());
  }
  return logits;
}

// The same in chunks that pass the layers one by one, with passes of another sequence's token between.
inline std::vector<float> logits_in_layers(TestRunner& runner, const std::vector<TokenId>& tokens,
                                           int chunk) {
  runner.reset();
  TestSequence sequence{.tokens = tokens, .num_computed = 0, .tables = {}};
  TestSequence other{.tokens = tokens, .num_computed = 0, .tables = {}};
  std::span<const float> logits;
  while (sequence.num_computed < static_cast<int>(tokens.size())) {
    const int rest = static_cast<int>(tokens.size()) - sequence.num_computed;
    logits = runner.run_in_layers({&sequence, std::min(chunk, rest)}, {&other, 1});
  }
  return {logits.begin(), logits.end()};
}

// Cold, in chunks, layer by layer, in a batch with others, with one thread and two: equal.
// device: where the model's weights are.
inline void expect_exact(const TestModel& model, const KernelTable& kernels, int num_tokens,
                         ActivationType activations, Device* device = nullptr,
                         int num_others = 15) {
  const auto tokens = arbitrary_tokens(num_tokens, model.config.vocab_size, 1);
  const TransformerLimits limits{.max_batch_tokens = std::max(num_tokens, 64),
                                 .max_logit_rows = 16,
                                 .max_context_len = num_tokens + 16,
                                 .activations = activations,
                                 .packs_rows = true};
  const int num_blocks = blocks_for(model, num_tokens + 1, 16);
  std::vector<float> cold;
  for (const int num_threads : {1, 2}) {
    TestRunner runner(model, kernels, num_threads, limits, num_blocks, device);
    const std::string where = fmt::format("{} with {} threads", kernels.name, num_threads);
    if (cold.empty()) cold = logits_in_chunks(runner, tokens, num_tokens);
    for (const int chunk : {num_tokens, 512, 100, 16, 7, 1}) {
      const bool is_cold = chunk == num_tokens && num_threads == 1;
      // One thread does all lengths. Thousands of forks for single rows take long on a busy machine.
      const bool is_left_to_one = num_threads > 1 && chunk != num_tokens &&
                                  (chunk > 16 || (chunk == 1 && num_tokens > 128));
      if (chunk > num_tokens || is_cold || is_left_to_one) continue;
      EXPECT_TRUE(same_bits(cold, logits_in_chunks(runner, tokens, chunk)))
          << where << " in chunks of " << chunk;
    }
    for (const int chunk : {128, 50}) {
      if (chunk < 128 && num_tokens <= chunk) continue;  // the whole once more
      EXPECT_TRUE(same_bits(cold, logits_in_layers(runner, tokens, std::min(chunk, num_tokens))))
          << where << " in layers, in chunks of " << chunk;
    }
    EXPECT_TRUE(same_bits(cold, logits_in_batch(runner, tokens, num_others))) << where << " in a batch";
  }
}

}  // namespace larder
