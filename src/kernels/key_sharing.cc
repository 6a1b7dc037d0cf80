// How a device's attention shares out the keys of a batch.
#include <algorithm>

#include "kernels/ops.h"

namespace larder {
namespace {

// So many blocks of one sequence keep a device busy without sharing out keys.
constexpr std::int64_t kManyDeviceBlocks = 1024;

// Of a sequence's block table, behind those of its sinks: those that none of its queries sees.
int skipped_blocks(const AttentionArgs& layer, const AttentionSequence& sequence) {
  const int window = seen_window(layer, sequence);
  const int first_position = sequence.context_len - sequence.num_tokens;
  const int first_block = window > 0 ? (first_position - window + 1) / kBlockSize : 0;
  return std::max(0, first_block - sequence.num_sinks / kBlockSize);
}

// Tiles of as many members as they hold, for the whole splits of the common keys. num_listed: members of tiles so far.
void give_members(std::span<AttentionSequence> sequences, const CommonKeys& common, int most_members, int& num_listed) {
  const int num_splits = common.num_keys / kKeySplit;
  if (num_splits == 0) return;
  const auto at = [&](int i) -> AttentionSequence& { return sequences[static_cast<std::size_t>(i)]; };
  int first_member = num_listed;
  for (int i = 0; i < common.num_sequences; ++i)
    if (at(common.sequences[i]).num_splits > 1) at(num_listed++).listed = common.sequences[i];
  for (; num_listed - first_member > 1; first_member += most_members) {
    const int num_members = std::min(most_members, num_listed - first_member);
    for (int m = 0; m < num_members; ++m) {
      AttentionSequence& member = at(at(first_member + m).listed);
      member.num_common = num_splits * kKeySplit;
      member.first_split = num_splits;
    }
    AttentionSequence& owner = at(at(first_member).listed);
    owner.first_split = 0;
    owner.first_member = first_member;
    owner.num_members = num_members;
  }
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
    sequence.skipped_blocks = skipped_blocks(layer, sequence);
    const int splits = num_splits(attention_splits(layer, {static_cast<int>(i), 0, 0, sequence.num_tokens}));
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
