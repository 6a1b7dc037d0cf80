// A model with its KV storage, driven by hand: for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/mapped_file.h"
#include "model/forward/transformer.h"
#include "model/forward/weights.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace larder {

// What a file holds, shared by several runners.
struct TestModel {
  explicit TestModel(const std::string& path, int num_threads = 2, Device* device = nullptr,
                     KvTypes types = {}, int max_model_len = 0)
      : TestModel(GgufFile(MappedFile(path).bytes()), num_threads, device, types, max_model_len) {}
  explicit TestModel(const GgufFile& gguf, int num_threads = 2, Device* device = nullptr,
                     KvTypes types = {}, int max_model_len = 0) {
    config = read_model_config(gguf, max_model_len);
    ThreadPool pool(num_threads);
    weights = std::make_unique<Weights>(config, gguf, pool, LoadProgress(), device);
    layout = std::make_unique<KvLayout>(kv_layer_shapes(config), types);
  }

  ModelConfig config;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<KvLayout> layout;
};

// A sequence whose blocks are taken one after another and never shared.
struct TestSequence {
  std::vector<TokenId> tokens;
  int num_computed = 0;
  std::vector<std::vector<BlockId>> tables;  // per group
};

// Tokens of one sequence that a step computes: the next num_tokens.
struct TestStep {
  TestSequence* sequence = nullptr;
  int num_tokens = 0;
};

class TestRunner {
 public:
  TestRunner(const TestModel& model, const KernelTable& kernels, int num_threads,
             const TransformerLimits& limits, int num_blocks, Device* device = nullptr,
             ProductPartners* partners = nullptr)
      : model_(model),
        kernels_(kernels),
        pool_(num_threads),
        storage_(*model.layout, num_blocks + 1, device),
        transformer_(model.config, *model.weights, *model.layout, kernels, pool_, limits, device, partners),
        num_blocks_(num_blocks),
        poisoned_(BlockId{num_blocks}) {
    constexpr std::byte kNanByte{0x7f};  // in both bytes of an FP16
    const std::vector<std::byte> poison(
        static_cast<std::size_t>(model.layout->block_size_bytes()), kNanByte);
    storage_.write_block(poisoned_, poison);
  }

  Transformer& transformer() { return transformer_; }
  const KernelTable& kernels() const { return kernels_; }

  // One batch; logits of every row, or of each sequence's last.
  std::span<const float> run(std::span<const TestStep> steps, bool all_logits) {
    lay_out(steps, all_logits, arrays_);
    logits_ = transformer_.forward(arrays_.batch(), storage_);
    return logits_.values;
  }
  // In two parts: what is measured of the second is the model's alone.
  void prepare(std::span<const TestStep> steps, bool all_logits) { lay_out(steps, all_logits, arrays_); }
  void run_prepared() { logits_ = transformer_.forward(arrays_.batch(), storage_); }
  // Layer by layer, as chunks beside streams are.
  void run_prepared_in_layers() {
    for (int layer = 0; layer < model_.config.num_layers(); ++layer)
      logits_ = transformer_.forward_layers(arrays_.batch(), storage_, layer, layer + 1);
  }
  // The same with draws, of which these rows' logits are read.
  const Logits& run_to_draw(std::span<const TestStep> steps, bool all_logits, std::span<const TokenDraw> draws,
                            std::span<const std::int32_t> read_logits) {
    lay_out(steps, all_logits, arrays_);
    ForwardBatch batch = arrays_.batch();
    batch.draws = draws;
    batch.read_logits = read_logits;
    return logits_ = transformer_.forward(batch, storage_);
  }

  // One batch; logits of these rows.
  std::span<const float> run(std::span<const TestStep> steps, std::vector<std::int32_t> logit_rows) {
    lay_out(steps, false, arrays_);
    arrays_.logit_rows = std::move(logit_rows);
    logits_ = transformer_.forward(arrays_.batch(), storage_);
    return logits_.values;
  }

  // The logits of step's last row, layer by layer, with passes of other's between some of them.
  std::span<const float> run_in_layers(const TestStep& step, const TestStep& other) {
    Arrays between;
    lay_out({&other, 1}, false, between);
    lay_out({&step, 1}, false, arrays_);
    for (int layer = 0; layer < model_.config.num_layers(); ++layer) {
      if (layer % 8 == 1) transformer_.forward(between.batch(), storage_);
      logits_ = transformer_.forward_layers(arrays_.batch(), storage_, layer, layer + 1);
    }
    return logits_.values;
  }

  const Logits& logits() const { return logits_; }  // the last ones

  // Forgets all sequences; their blocks keep what was written, as those of an evicted sequence do.
  void reset() { next_block_ = 0; }

 private:
  struct Arrays {
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> positions, logit_rows;
    std::vector<std::vector<std::int64_t>> slots;
    std::vector<std::vector<AttentionSequence>> sequences;
    std::vector<GroupBatch> groups;

    ForwardBatch batch() const {
      return {.tokens = tokens, .positions = positions, .groups = groups, .logit_rows = logit_rows};
    }
  };

  void lay_out(std::span<const TestStep> steps, bool all_logits, Arrays& arrays) {
    const auto num_groups = static_cast<std::size_t>(model_.layout->num_groups());
    arrays = {};
    arrays.slots.resize(num_groups);
    arrays.sequences.resize(num_groups);
    for (const TestStep& step : steps) add(step, all_logits, arrays);
    for (std::size_t g = 0; g < num_groups; ++g)
      arrays.groups.push_back({arrays.slots[g], arrays.sequences[g]});
  }

  void add(const TestStep& step, bool all_logits, Arrays& arrays) {
    TestSequence& sequence = *step.sequence;
    const int first_row = static_cast<int>(arrays.tokens.size());
    const int context_len = sequence.num_computed + step.num_tokens;
    sequence.tables.resize(arrays.slots.size());
    for (int position = sequence.num_computed; position < context_len; ++position) {
      arrays.tokens.push_back(sequence.tokens[static_cast<std::size_t>(position)]);
      arrays.positions.push_back(position);
      if (all_logits || position + 1 == context_len)
        arrays.logit_rows.push_back(static_cast<std::int32_t>(arrays.tokens.size()) - 1);
    }
    for (std::size_t g = 0; g < arrays.slots.size(); ++g) {
      auto& table = sequence.tables[g];
      while (static_cast<int>(table.size()) * kBlockSize < context_len)
        table.push_back(take_block());
      drop_passed_blocks(static_cast<int>(g), sequence);
      for (int position = sequence.num_computed; position < context_len; ++position)
        arrays.slots[g].push_back(
            std::int64_t{to_index(table[static_cast<std::size_t>(position) / kBlockSize])} *
                kBlockSize +
            position % kBlockSize);
      arrays.sequences[g].push_back({.first_row = first_row,
                                     .num_tokens = step.num_tokens,
                                     .context_len = context_len,
                                     .block_table = table.data()});
    }
    sequence.num_computed = context_len;
  }

  // As the cache does: no query to come sees a block whose last position left the window. Here its
  // place is taken by a block of NaN, which shows in the logits if it is read.
  void drop_passed_blocks(int group, TestSequence& sequence) {
    const int window = model_.layout->group(group).window;
    if (window == 0) return;
    const int first_seen = std::max(0, sequence.num_computed - window + 1);
    for (int block = 0; block < first_seen / kBlockSize; ++block)
      sequence.tables[static_cast<std::size_t>(group)][static_cast<std::size_t>(block)] = poisoned_;
  }

  BlockId take_block() {
    CHECK(next_block_ < num_blocks_, next_block_);
    return BlockId{next_block_++};
  }

  const TestModel& model_;
  const KernelTable& kernels_;
  ThreadPool pool_;
  KvStorage storage_;
  Transformer transformer_;
  int num_blocks_;
  BlockId poisoned_;
  int next_block_ = 0;
  Arrays arrays_;
  Logits logits_;
};

// Blocks that a runner needs for sequences of that many tokens.
inline int blocks_for(const TestModel& model, int num_tokens, int num_sequences) {
  return (num_tokens + kBlockSize - 1) / kBlockSize * model.layout->num_groups() * num_sequences;
}

// Index of the largest logit, the first of equals.
inline TokenId best_token(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// log softmax of one logit, by the sampler's kernels where there are any: a quarter of a million
// exponentials take long.
inline double log_probability(const KernelTable& kernels, std::span<const float> logits,
                              TokenId token) {
  const auto num_logits = static_cast<std::int64_t>(logits.size());
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  if (kernels.run_weights != nullptr) {
    std::vector<float> runs(static_cast<std::size_t>(num_logit_runs(num_logits)));
    kernels.run_weights(logits.data(), num_logits, {.best = largest}, runs.data());
    sum = std::accumulate(runs.begin(), runs.end(), 0.0);
  } else {
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  }
  return logits[static_cast<std::size_t>(token)] - largest - std::log(sum);
}

}  // namespace larder
