// A small model that guesses what a large one will say (Leviathan et al. 2023, arXiv:2211.17192).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/guessing_model.h"
#include "engine/model_runner.h"
#include "engine/token_drawer.h"
#include "kv/cache/kv_cache.h"
#include "model/forward/transformer.h"

namespace larder {

// Where it computes; references must outlive it. The layout is the storage's; all blocks are used.
struct DraftModelParts {
  Transformer& model;
  KvStorage& storage;
  const KvLayout& layout;
};

// Its keys and values lie in blocks of its own, found again by prefix as the large model's are. Of what it has computed,
// what the sequence has become stays, and the next tokens overwrite the rest. It draws as the sequence does, with the
// same seed at the same place, under its penalties and within its form: that comes true more often than the likeliest token.
// A vocabulary of more or fewer tokens than the large model's is cut or filled up with tokens of no likelihood. Thread: engine only.
class DraftModel final : public GuessingModel {
 public:
  // For the model's limits; more in a step is a bug.
  static constexpr int kMaxBatchTokens = kMostSequences * kMostMissing;
  static constexpr int kMaxLogitRows = kMostSequences;

  DraftModel(const DraftModelParts& parts, TokenDrawer& drawer, const Clock& clock);
  // Beside the model's and the cache's own.
  static std::int64_t size_bytes(int num_threads, int vocab_size, int target_vocab_size);
  // Of its cache.
  static KvCacheConfig cache_config(int num_blocks) { return {.num_blocks = num_blocks}; }

  void settle(Sequence& sequence) override;
  int num_missing(const Sequence& sequence) const override;
  void compute(Sequence& sequence, int num_tokens) override;
  void guess(std::span<Sequence* const> sequences, std::span<ModelGuess> guesses) override;
  void release(Sequence& sequence) override;

  // Forgets what no sequence holds.
  void clear_cache() { cache_.clear(); }
  KvStats kv_stats() const { return cache_.stats(); }

 private:
  bool fits(const Sequence& sequence) const;
  void begin(Sequence& sequence);
  void keep_what_came_true(Sequence& sequence);
  bool add(Sequence& sequence, int end);
  void note_computed(Sequence& sequence, int end);
  ModelGuess drawn(Sequence& sequence, const Logits& row, std::size_t thread);
  Logits in_targets_vocabulary(const Logits& row, std::size_t thread);

  const Transformer& model_;
  KvCache cache_;
  ModelRunner runner_;
  ThreadPool& pool_;
  TokenDrawer& drawer_;
  // Scratch.
  BatchRows rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::vector<float>> padded_;  // per thread, where the vocabulary is smaller
};

}  // namespace larder
