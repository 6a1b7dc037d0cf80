// How fast a model's forward pass is, apart from any serving, asked test by test: bench/duel.py
// lets two builds take turns every few milliseconds, since what a shared machine gives varies from
// second to second.
//
// model_bench MODEL.gguf [THREADS [KV_TYPE]]
// Each line of standard input is a test, answered by seconds and by tokens or bytes:
//   pp COUNT                  a prompt in steps of 512
//   tg COUNT DEPTH [BATCH [SHARED]]
//                             one by one behind a made-up context, for as many sequences at once, whose first
//                             SHARED tokens lie in the same blocks
//   read                      the weights, by plain loads
//   fetch                     the weights, by plain loads behind prefetches
// weights MIB is printed before.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "kernels/kernels.h"
#include "kernels/machine_limits.h"
#include "kv/kv_type_names.h"
#include "model/forward/key_calibration.h"
#include "model/forward/test_model.h"

namespace larder {
namespace {

constexpr int kStepTokens = 512;
constexpr int kMaxSequences = 64;
constexpr std::int64_t kKvBytes = std::int64_t{1} << 30;

class ModelBench {
 public:
  ModelBench(const std::string& path, int num_threads, const std::string& kv_type)
      : model_(path, num_threads), pool_(num_threads) {
    model_.layout = std::make_unique<KvLayout>(kv_layer_shapes(model_.config),
                                               parse_kv_types(kv_type));
    if (has_codes(model_.layout->types().k))
      model_.layout->set_key_basis(calibrate_keys(model_.config, *model_.weights, select_kernels(),
                                                  pool_, make_sequence(256, 0).tokens));
    num_blocks_ = static_cast<int>(kKvBytes / model_.layout->block_size_bytes());
    runner_ = std::make_unique<TestRunner>(
        model_, select_kernels(), num_threads,
        TransformerLimits{.max_batch_tokens = kStepTokens,
                          .max_logit_rows = kMaxSequences,
                          .max_context_len = num_blocks_ * kBlockSize},
        num_blocks_);
  }

  std::size_t weights_bytes() const { return model_.weights->size_bytes(); }

  // Tokens computed.
  int prefill(int num_tokens) {
    TestSequence sequence = make_sequence(num_tokens, 1);
    while (sequence.num_computed < num_tokens) {
      const TestStep step{&sequence, std::min(kStepTokens, num_tokens - sequence.num_computed)};
      runner_->run({&step, 1}, false);
    }
    return num_tokens;
  }

  int decode(int num_tokens, int depth, int num_sequences, int num_shared) {
    std::vector<TestSequence> sequences;
    for (int i = 0; i < num_sequences; ++i) {
      sequences.push_back(make_sequence(depth + num_tokens, i));
      sequences.back().num_computed = depth;  // what a block costs does not depend on what it holds
    }
    if (num_shared > 0) share(sequences, num_shared);
    std::vector<TestStep> steps;
    for (TestSequence& sequence : sequences) steps.push_back({&sequence, 1});
    for (int i = 0; i < num_tokens; ++i) runner_->run(steps, false);
    return num_tokens * num_sequences;
  }

  std::size_t read(bool fetch) {
    const auto read_part = fetch ? machine_limits().fetch : machine_limits().read;
    const auto part = static_cast<std::int64_t>(weights_bytes()) / pool_.num_threads() / 64 * 64;
    pool_.parallel_for(pool_.num_threads(), [&](int task, int) {
      sink_ += read_part(model_.weights->data() + task * part, part);
    });
    return static_cast<std::size_t>(part * pool_.num_threads());
  }

  void reset() { runner_->reset(); }

  // Of blocks, for so many tokens.
  bool has_room(std::int64_t num_tokens) const {
    if (num_tokens < 1 || num_tokens > std::int64_t{num_blocks_} * kBlockSize) return false;
    return blocks_for(model_, static_cast<int>(num_tokens), 1) <= num_blocks_;
  }

 private:
  TestSequence make_sequence(int num_tokens, int seed) const {
    TestSequence sequence;
    for (int i = 0; i < num_tokens; ++i)
      sequence.tokens.push_back((i * 7919 + seed * 104729) % model_.config.vocab_size);
    return sequence;
  }

  // A token of the first one has it take its blocks.
  void share(std::vector<TestSequence>& sequences, int num_shared) {
    TestSequence first = sequences[0];
    const TestStep step{&first, 1};
    runner_->run({&step, 1}, false);
    for (TestSequence& sequence : sequences)
      for (const std::vector<BlockId>& table : first.tables)
        sequence.tables.emplace_back(table.begin(), table.begin() + num_shared / kBlockSize);
  }

  TestModel model_;
  ThreadPool pool_;
  int num_blocks_ = 0;
  std::unique_ptr<TestRunner> runner_;
  std::atomic<std::int64_t> sink_{0};
};

// Tokens or bytes; 0: no such test, or more tokens than kKvBytes hold.
std::size_t run_test(ModelBench& bench, std::istringstream& line) {
  std::string test;
  int count = 0;
  int depth = 0;
  int batch = 1;
  int shared = 0;
  line >> test;
  if (test == "pp" && line >> count && bench.has_room(count))
    return static_cast<std::size_t>(bench.prefill(count));
  if (test == "tg" && line >> count >> depth) {
    if (!(line >> batch)) batch = 1;
    if (!(line >> shared)) shared = 0;
    const std::int64_t own = std::int64_t{depth} - shared + count + 2 * kBlockSize;
    const std::int64_t of_first = shared > 0 ? depth + kBlockSize : 0;
    if (depth >= 0 && batch > 0 && batch <= kMaxSequences && shared >= 0 && shared <= depth &&
        bench.has_room(batch * own + of_first))
      return static_cast<std::size_t>(bench.decode(count, depth, batch, shared));
  }
  if (test == "read" || test == "fetch") return bench.read(test == "fetch");
  return 0;
}

int run(int argc, char** argv) {
  ModelBench bench(argv[1], argc > 2 ? std::atoi(argv[2]) : 2, argc > 3 ? argv[3] : "f16");
  fmt::print("weights {:.1f}\n", static_cast<double>(bench.weights_bytes()) / (1 << 20));
  std::fflush(stdout);
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream line(text);
    bench.reset();
    const auto begin = std::chrono::steady_clock::now();
    const std::size_t units = run_test(bench, line);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (units == 0) {
      fmt::print(stderr, "{}: no such test, or more than {} MiB of keys and values or {} sequences\n",
                 text, kKvBytes >> 20, kMaxSequences);
      return 2;
    }
    fmt::print("{:.6f} {}\n", taken.count(), units);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print("usage: {} MODEL.gguf [THREADS [KV_TYPE]] < TESTS\n", argv[0]);
    return 2;
  }
  try {
    return larder::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
