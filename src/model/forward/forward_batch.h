// What one forward pass computes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.h"
#include "kernels/kernels.h"

namespace larder {

// One layer group's view of a batch: block ids differ from group to group, tokens do not.
struct GroupBatch {
  std::span<const std::int64_t> slots;  // [num_tokens], where each token's K and V go
  // [num_sequences], in order of rows and covering all of them. Positions of a sequence's rows are
  // the last num_tokens before context_len.
  std::span<const AttentionSequence> sequences;
  // Left empty by callers, of the sequences: on a device, and on a CPU.
  KeySharing sharing = {};
  std::span<const CommonKeys> common = {};
};

// Where a query at this position would stand if what its sequence does not see any more were not there.
inline std::int32_t seen_place(const AttentionSequence& sequence, std::int32_t position) {
  return sequence.window > 0 ? std::min(position, sequence.num_sinks + sequence.window - 1) : position;
}

// Flat arrays that the caller owns; nothing is kept.
struct ForwardBatch {
  std::span<const TokenId> tokens;           // [num_tokens], each in [0, vocab_size)
  std::span<const std::int32_t> positions;   // [num_tokens]
  // [num_tokens] or empty: the positions from which queries look at their sequence's sinks.
  std::span<const std::int32_t> sink_positions = {};
  std::span<const GroupBatch> groups;        // [KvLayout::num_groups()]
  std::span<const std::int32_t> logit_rows;  // rows that want logits, ascending; may be empty
  // Those whose logits are read, as places in logit_rows, ascending; without it all are. A device keeps the others'
  // to itself: the first of their best and what is drawn there are enough.
  std::optional<std::span<const std::int32_t>> read_logits = std::nullopt;
  // What a device draws, TokenDraw::row being a place in logit_rows: [num_draws], at most
  // TransformerLimits::max_sequences. A CPU draws nothing here.
  std::span<const TokenDraw> draws = {};
  // Left empty by callers. The sequences of the last layer's group with none but logit_rows, in the order of
  // their tokens; a sequence is several where its logit_rows have gaps.
  std::span<const AttentionSequence> logit_sequences = {};
  KeySharing logit_sharing = {};
  std::span<const CommonKeys> logit_common = {};
};

}  // namespace larder
