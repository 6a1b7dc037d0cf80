// How fast a model's forward pass is, apart from any serving: prompt and decode rates.
//
// model_bench MODEL.gguf [THREADS [TEST|all [f32]]]
// pp512, pp4096: a prompt of that many tokens in steps of 512. tg128: 128 tokens one by one after
// none; tg128x8: eight sequences at once. Tokens per second, the best of three.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>

#include "kernels/kernels.h"
#include "model/test_model.h"

namespace larder {
namespace {

constexpr int kStepTokens = 512;
constexpr int kLongPrompt = 4096;
constexpr int kDecodeTokens = 128;
constexpr int kMaxSequences = 8;

struct Cost {
  double wall_seconds = 0;
  double cpu_seconds = 0;  // over all threads; less disturbed by other processes
};

Cost cost_of(const std::function<void()>& function) {
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  function();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC};
}

void report(const std::string& name, int num_tokens, const std::function<void()>& function) {
  Cost best{1e30, 1e30};
  for (int i = 0; i < 3; ++i) {
    const Cost cost = cost_of(function);
    best.wall_seconds = std::min(best.wall_seconds, cost.wall_seconds);
    best.cpu_seconds = std::min(best.cpu_seconds, cost.cpu_seconds);
  }
  fmt::print("{:>8} {:10.2f} tokens/s {:10.3f} CPU ms/token\n", name,
             num_tokens / best.wall_seconds, best.cpu_seconds / num_tokens * 1e3);
}

TestSequence make_sequence(const TestModel& model, int num_tokens, int seed) {
  TestSequence sequence;
  for (int i = 0; i < num_tokens; ++i)
    sequence.tokens.push_back((i * 7919 + seed * 104729) % model.config.vocab_size);
  return sequence;
}

void prefill(TestRunner& runner, const TestModel& model, int num_tokens) {
  runner.reset();
  TestSequence sequence = make_sequence(model, num_tokens, 1);
  while (sequence.num_computed < num_tokens) {
    const TestStep step{&sequence, std::min(kStepTokens, num_tokens - sequence.num_computed)};
    runner.run({&step, 1}, false);
  }
}

void decode(TestRunner& runner, const TestModel& model, int num_sequences) {
  runner.reset();
  std::vector<TestSequence> sequences;
  for (int i = 0; i < num_sequences; ++i)
    sequences.push_back(make_sequence(model, kDecodeTokens, i));
  std::vector<TestStep> steps;
  for (TestSequence& sequence : sequences) steps.push_back({&sequence, 1});
  for (int i = 0; i < kDecodeTokens; ++i) runner.run(steps, false);
}

int run(int argc, char** argv) {
  const int num_threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const bool is_f32 = argc > 4 && std::string(argv[4]) == "f32";
  const double load_seconds = cost_of([&] { TestModel(argv[1], num_threads); }).wall_seconds;
  const TestModel model(argv[1], num_threads);
  TestRunner runner(
      model, select_kernels(), num_threads,
      {.max_batch_tokens = kStepTokens,
       .max_logit_rows = kMaxSequences,
       .max_context_len = kLongPrompt,
       .activations = is_f32 ? ActivationType::kF32 : ActivationType::kInt8},
      blocks_for(model, kLongPrompt, 1) + blocks_for(model, kDecodeTokens, kMaxSequences));
  fmt::print("{} {} threads, weights {:.1f} MiB, scratch {:.1f} MiB, loaded in {:.2f} s\n",
             select_kernels().name, num_threads,
             static_cast<double>(model.weights->size_bytes()) / (1 << 20),
             static_cast<double>(runner.transformer().scratch_size_bytes()) / (1 << 20),
             load_seconds);
  const std::string wanted = argc > 3 ? argv[3] : "all";
  const auto measure = [&](const std::string& name, int num_tokens, const auto& function) {
    if (wanted == "all" || wanted == name) report(name, num_tokens, function);
  };
  measure("pp512", 512, [&] { prefill(runner, model, 512); });
  measure("pp4096", kLongPrompt, [&] { prefill(runner, model, kLongPrompt); });
  measure("tg128", kDecodeTokens, [&] { decode(runner, model, 1); });
  measure("tg128x8", kDecodeTokens * 8, [&] { decode(runner, model, 8); });
  return 0;
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print("usage: {} MODEL.gguf [THREADS [TEST|all [f32]]]\n", argv[0]);
    return 2;
  }
  return larder::run(argc, argv);
}
