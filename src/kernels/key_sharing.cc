// How a device's attention shares out the keys of a batch.
#include <algorithm>

#include "kernels/ops.h"

namespace larder {
namespace {

// So many blocks of one sequence keep a device busy without sharing out keys.
constexpr std::int64_t kManyDeviceBlocks = 1024;

// What of a sequence is seen decides these; returns how many splits that is.
int leave_out(const AttentionArgs& layer, int index, AttentionSequence& sequence) {
  const int window = seen_window(layer, sequence);
  const int first_position = sequence.context_len - sequence.num_tokens;
  const int first_block = window > 0 ? (first_position - window + 1) / kBlockSize : 0;
  sequence.skipped_blocks = std::max(0, first_block - sequence.num_sinks / kBlockSize);
  return num_splits(attention_splits(layer, {index, 0, 0, sequence.num_tokens}));
}

// Tiles of as many members as they hold, of whole splits that all of these share out.
void give_members(std::span<AttentionSequence> sequences, const CommonKeys& common, int most_members, int& num_listed) {
  const int num_keys = common.num_keys / kKeySplit * kKeySplit;
  if (num_keys == 0) return;
  int num_members = 0;
  AttentionSequence* first = nullptr;
  for (int i = 0; i < common.num_sequences; ++i) {
    AttentionSequence& sequence = sequences[static_cast<std::size_t>(common.sequences[i])];
    if (sequence.num_splits == 1) continue;
    if (num_members % most_members == 0) {
      first = &sequence;
      first->first_member = num_listed;
    }
    sequences[static_cast<std::size_t>(num_listed++)].listed = common.sequences[i];
    sequence.num_common = num_keys;
    sequence.first_split = &sequence == first ? 0 : num_keys / kKeySplit;
    first->num_members = num_members++ % most_members + 1;
  }
  if (first != nullptr && first->num_members == 1) first->num_members = 0;
}

}  // namespace

CommonKeyRule device_common_rule(const AttentionArgs& args) {
  return {.window = args.window,
          .max_states = 1 << 20,  // a tile has no state
          .min_saved_steps = kKeySplit / kCommonKeyStep};
}

KeySharing share_keys(const AttentionArgs& args, std::span<AttentionSequence> sequences,
                      std::span<const CommonKeys> common, std::int64_t scratch_bytes) {
  const std::int64_t max_partials = scratch_bytes / device_partial_size_bytes(args.num_heads, args.kv.head_dim);
  const int group = args.num_heads / args.kv.num_kv_heads;
  const auto num_tiles = [&](const AttentionSequence& sequence) {
    return (sequence.num_tokens * group + kDeviceTileRows - 1) / kDeviceTileRows;
  };
  AttentionArgs layer = args;
  layer.sequences = sequences.data();
  KeySharing sharing;
  std::int64_t num_partials = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    AttentionSequence& sequence = sequences[i];
    const int splits = leave_out(layer, static_cast<int>(i), sequence);
    const std::int64_t wanted = std::int64_t{sequence.num_tokens} * splits;
    const bool shares = splits > 1 &&
                        std::int64_t{num_tiles(sequence)} * args.kv.num_kv_heads < kManyDeviceBlocks &&
                        num_partials + wanted <= max_partials;
    sequence.num_splits = shares ? splits : 1;
    sequence.first_partial = static_cast<int>(num_partials);
    sequence.first_split = sequence.num_members = 0;
    sharing.most_tiles = std::max(sharing.most_tiles, num_tiles(sequence));
    if (!shares) continue;
    num_partials += wanted;
    sharing.num_merged_rows = sequence.first_row + sequence.num_tokens;
  }
  int num_listed = 0;
  if (2 * group <= kDeviceTileRows)
    for (const CommonKeys& keys : common) give_members(sequences, keys, kDeviceTileRows / group, num_listed);
  for (AttentionSequence& sequence : sequences) {
    sequence.first_piece = sharing.num_pieces;
    sharing.num_pieces += num_tiles(sequence) * (sequence.num_splits - sequence.first_split);
  }
  return sharing;
}

}  // namespace larder
