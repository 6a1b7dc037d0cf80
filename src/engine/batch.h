// One step's work as flat arrays, in the model's terms.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"
#include "engine/sequence.h"
#include "kernels/kernels.h"

namespace larder {

// Tokens of one sequence to compute: rows [first_row, first_row + num_tokens), then one for each token of its draft.
struct BatchEntry {
  Sequence* sequence = nullptr;
  int num_tokens = 0;
  int first_row = 0;
  // Logits, counted among the batch's: rows of the prompt first, then the one to sample from.
  int first_logit = 0;
  int num_prompt_logits = 0;
  int num_samples = 0;  // 0 = more of the sequence is missing; n where the choices part; else 1
  int num_guesses = 0;  // of its draft: each has a row of logits behind that, and may be drawn, too
  // Who samples, where a device computes: it draws these num_samples from first_draw on of the batch's draws, or
  // takes the best (takes_best), or the host does of the logits. For the request alone to say, see Sampler.
  int first_draw = -1;
  bool takes_best = false;
};

// Tokens of sequences as flat arrays. No allocation once it has seen its largest step. Thread: engine only.
class BatchRows {
 public:
  struct Group {
    std::vector<std::int64_t> slots;           // [num_tokens]
    std::vector<AttentionSequence> sequences;  // [entries]; block tables as they are now
  };

  explicit BatchRows(int num_groups) : groups_(static_cast<std::size_t>(num_groups)) {}

  void clear();
  void push_token(TokenId token) { tokens_.push_back(token); }
  // The last tokens that were pushed are those at [begin, end) of a sequence, whose table has room for them.
  void add(const BlockTable& table, int begin, int end, const AttentionSpan& span);

  int num_tokens() const { return static_cast<int>(tokens_.size()); }
  std::span<const TokenId> tokens() const { return tokens_; }
  std::span<const std::int32_t> positions() const { return positions_; }
  // [num_tokens], from where queries look at sinks; empty when all look from their own positions.
  std::span<const std::int32_t> sink_positions() const {
    return has_sinks_ ? std::span<const std::int32_t>(sink_positions_)
                      : std::span<const std::int32_t>();
  }
  std::span<const Group> groups() const { return groups_; }

 private:
  std::vector<TokenId> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> sink_positions_;
  bool has_sinks_ = false;
  std::vector<Group> groups_;
};

// A step's, filled by the scheduler.
class Batch : public BatchRows {
 public:
  explicit Batch(int num_groups) : BatchRows(num_groups) {}

  void clear();
  // The next num_tokens of a sequence, whose table has room for them and for those of its draft. num_samples: see
  // BatchEntry.
  void add(Sequence& sequence, int num_tokens, int num_samples);

  bool empty() const { return entries_.empty(); }
  int num_guesses() const { return num_guesses_; }  // of its tokens
  std::span<const BatchEntry> entries() const { return entries_; }
  std::span<const std::int32_t> logit_rows() const { return logit_rows_; }
  // Those whose logits the host reads where a device computes, as places in logit_rows.
  std::span<const std::int32_t> read_logits() const { return read_logits_; }
  std::span<const TokenDraw> draws() const { return draws_; }  // rows as places in logit_rows

 private:
  void add_logits(BatchEntry& entry);

  std::vector<BatchEntry> entries_;
  int num_guesses_ = 0;
  std::vector<std::int32_t> logit_rows_;
  std::vector<std::int32_t> read_logits_;
  std::vector<TokenDraw> draws_;
};

// Rows of the sequence's next num_tokens whose logits the prompt's logprobs want.
int num_prompt_logits(const Sequence& sequence, int num_tokens);

}  // namespace larder
