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
#include "model/gguf.h"
#include "model/model_config.h"
#include "model/transformer.h"
#include "model/weights.h"

namespace larder {

// What a file holds, shared by several runners.
struct TestModel {
  explicit TestModel(const std::string& path, int num_threads = 2, Device* device = nullptr) {
    const MappedFile file(path);
    const GgufFile gguf(file.bytes());
    config = read_model_config(gguf);
    ThreadPool pool(num_threads);
    weights = std::make_unique<Weights>(config, gguf, pool);
    if (device != nullptr) weights->move_to(*device);
    layout = std::make_unique<KvLayout>(kv_layer_shapes(config));
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
             const TransformerLimits& limits, int num_blocks, Device* device = nullptr)
      : model_(model),
        pool_(num_threads),
        storage_(*model.layout, num_blocks + 1, device),
        transformer_(model.config, *model.weights, *model.layout, kernels, pool_, limits, device),
        num_blocks_(num_blocks),
        poisoned_(BlockId{num_blocks}) {
    constexpr std::byte kNanByte{0x7f};  // in both bytes of an FP16
    const std::vector<std::byte> poison(
        static_cast<std::size_t>(model.layout->block_size_bytes()), kNanByte);
    storage_.write_block(poisoned_, poison);
  }

  Transformer& transformer() { return transformer_; }

  // One batch; logits of every row, or of each sequence's last.
  std::span<const float> run(std::span<const TestStep> steps, bool all_logits) {
    tokens_.clear();
    positions_.clear();
    logit_rows_.clear();
    const auto num_groups = static_cast<std::size_t>(model_.layout->num_groups());
    slots_.assign(num_groups, {});
    sequences_.assign(num_groups, {});
    for (const TestStep& step : steps) add(step, all_logits);
    groups_.clear();
    for (std::size_t g = 0; g < num_groups; ++g) groups_.push_back({slots_[g], sequences_[g]});
    return transformer_.forward(
        {.tokens = tokens_, .positions = positions_, .groups = groups_, .logit_rows = logit_rows_},
        storage_);
  }

  // Forgets all sequences; their blocks keep what was written, as those of an evicted sequence do.
  void reset() { next_block_ = 0; }

 private:
  void add(const TestStep& step, bool all_logits) {
    TestSequence& sequence = *step.sequence;
    const int first_row = static_cast<int>(tokens_.size());
    const int context_len = sequence.num_computed + step.num_tokens;
    sequence.tables.resize(slots_.size());
    for (int position = sequence.num_computed; position < context_len; ++position) {
      tokens_.push_back(sequence.tokens[static_cast<std::size_t>(position)]);
      positions_.push_back(position);
      if (all_logits || position + 1 == context_len)
        logit_rows_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
    }
    for (std::size_t g = 0; g < slots_.size(); ++g) {
      auto& table = sequence.tables[g];
      while (static_cast<int>(table.size()) * kBlockSize < context_len)
        table.push_back(take_block());
      drop_passed_blocks(static_cast<int>(g), sequence);
      for (int position = sequence.num_computed; position < context_len; ++position)
        slots_[g].push_back(
            std::int64_t{to_index(table[static_cast<std::size_t>(position) / kBlockSize])} *
                kBlockSize +
            position % kBlockSize);
      sequences_[g].push_back({.first_row = first_row,
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
  ThreadPool pool_;
  KvStorage storage_;
  Transformer transformer_;
  int num_blocks_;
  BlockId poisoned_;
  int next_block_ = 0;
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> positions_, logit_rows_;
  std::vector<std::vector<std::int64_t>> slots_;
  std::vector<std::vector<AttentionSequence>> sequences_;
  std::vector<GroupBatch> groups_;
};

// Blocks that a runner needs for sequences of that many tokens.
inline int blocks_for(const TestModel& model, int num_tokens, int num_sequences) {
  return (num_tokens + kBlockSize - 1) / kBlockSize * model.layout->num_groups() * num_sequences;
}

// Index of the largest logit, the first of equals.
inline TokenId best_token(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// log softmax of one logit.
inline double log_probability(std::span<const float> logits, TokenId token) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return logits[static_cast<std::size_t>(token)] - largest - std::log(sum);
}

}  // namespace larder
