// What attention's kernels share: rows and keys of a tile, partial softmaxes. Included by them alone.
#pragma once

#include "kernels/cuda/codes.h"
#include "kernels/cuda/functions.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// A maximum below every score. Finite, so that a difference of two of them is 0 and not NaN.
constexpr float kNothing = -1e30F;

struct Work {
  AttentionArgs args;
  CodeParts parts;
  int group;        // query heads per KV head
  float* partials;  // [of all sequences: num_tokens, num_splits; num_heads, head_dim + 2]

  LARDER_MEMBER float* partial(const AttentionSequence& sequence, int query, int index,
                               int head) const {
    const std::int64_t row = sequence.first_partial + query * sequence.num_splits + index;
    return partials + (row * args.num_heads + head) * (args.kv.head_dim + 2);
  }
};

// Without what grids are made from: a step's arguments stay the same while its contexts grow.
inline Work work_of(const AttentionArgs& args, std::byte* scratch) {
  Work work = {args, code_parts(args.kv), args.num_heads / args.kv.num_kv_heads,
               reinterpret_cast<float*>(scratch)};
  work.args.sharing = {};
  return work;
}
// A little more of them than there are, so that grids stay the same for longer: those too many find nothing
// to do.
inline unsigned rounded_grid(int count) {
  int step = 1;
  while (16 * step <= count) step *= 2;
  return static_cast<unsigned>((count + step - 1) / step * step);
}

// The last sequence whose first piece, or row, is not behind index.
LARDER_DEVICE const AttentionSequence& find_sequence(const AttentionArgs& args,
                                                     int AttentionSequence::*first, int index) {
  int begin = 0;
  int end = args.num_sequences;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    if (args.sequences[middle].*first <= index)
      begin = middle;
    else
      end = middle;
  }
  return args.sequences[begin];
}

// What the queries of a sequence see.
struct Sight {
  int window;  // 0 = all
  int sinks;

  LARDER_MEMBER int first_key(int position) const {
    return window > 0 ? max_of(0, position - window + 1) : 0;
  }
  LARDER_MEMBER bool has_split(int split, int first_position, int last_position) const {
    if (split == 0 && sinks > 0) return true;
    return split >= first_key(first_position) / kKeySplit && split <= last_position / kKeySplit;
  }
  // Of those that queries from a position on see: as split_at() of kernels.h.
  LARDER_MEMBER int split_at(int index, int first_position) const {
    const int first = first_key(first_position) / kKeySplit;
    if (first == 0 || sinks == 0) return first + index;
    return index == 0 ? 0 : first + index - 1;
  }
};

LARDER_DEVICE Sight sight_of(const AttentionArgs& args, const AttentionSequence& sequence) {
  const int narrow =
      args.window < sequence.window ? args.window : sequence.window;
  const bool both = args.window > 0 && sequence.window > 0;
  return {both ? narrow : args.window + sequence.window,
          args.window == 0 && sequence.window > 0 ? sequence.num_sinks : 0};
}

// Rows [first_row, + num_rows) of a sequence and KV head: row r is query r / group, head r % group. Or, of keys that
// sequences of one query have in common, row r of member r / group.
struct Tile {
  AttentionSequence sequence;
  const AttentionSequence* all;  // of the batch, where the tile has members; else null
  Sight sight;
  int group;
  int kv_head;
  int first_row;
  int num_rows;
  int first_position;  // of the sequence's first query
  int split_index;

  // Whether blocks share out its keys, a split each.
  LARDER_MEMBER bool shares_keys() const { return sequence.num_splits > 1; }
  // Whether the piece is one of the sequence's.
  LARDER_MEMBER bool exists() const { return split_index < sequence.num_splits; }
  // Whose row it is.
  LARDER_MEMBER const AttentionSequence& owner(int r) const {
    return all == nullptr ? sequence : all[all[sequence.first_member + r / group].listed];
  }
  LARDER_MEMBER int query(int r) const { return all == nullptr ? (first_row + r) / group : 0; }
  // Members see all keys of theirs, wherever they are.
  LARDER_MEMBER int position(int r) const { return first_position + query(r); }
  LARDER_MEMBER int last_position() const { return position(num_rows - 1); }
  LARDER_MEMBER std::int64_t batch_row(int r) const { return owner(r).first_row + query(r); }
  LARDER_MEMBER int head(int r) const { return kv_head * group + (first_row + r) % group; }
  // Whether a row sees a key of [begin, end), as far as the first row's window and the sinks say.
  LARDER_MEMBER bool sees(int begin, int end) const {
    return begin < sight.sinks || end > sight.first_key(position(0));
  }
  // Whether a row may see one of `count` keys from begin on.
  LARDER_MEMBER bool sees_some(int begin, int count) const {
    return begin <= last_position() && sees(begin, begin + count);
  }
  // Whether every row sees all of them.
  LARDER_MEMBER bool all_see(int begin, int count) const {
    return begin + count - 1 <= position(0) &&
           (begin + count <= sight.sinks || (begin >= sight.sinks && begin >= sight.first_key(last_position())));
  }
};

LARDER_DEVICE int num_tiles(const Work& work, const AttentionSequence& sequence) {
  return (sequence.num_tokens * work.group + kDeviceTileRows - 1) / kDeviceTileRows;
}

// A sequence's own, and those of a tile with members that it has.
LARDER_DEVICE int pieces_of(const Work& work, const AttentionSequence& sequence) {
  return num_tiles(work, sequence) * (sequence.num_splits - sequence.first_split);
}

LARDER_DEVICE Tile find_tile(const Work& work, int piece, int kv_head) {
  const AttentionSequence& sequence =
      find_sequence(work.args, &AttentionSequence::first_piece, piece);
  const int tiles = num_tiles(work, sequence);
  const int index = piece - sequence.first_piece;
  const int split_index = sequence.first_split + index / tiles;
  const bool has_members = sequence.num_members > 0 && split_index * kKeySplit < sequence.num_common;
  const int rows = (has_members ? sequence.num_members : sequence.num_tokens) * work.group;
  const int first_row = index % tiles * kDeviceTileRows;
  return {sequence,
          has_members ? work.args.sequences : nullptr,
          sight_of(work.args, sequence),
          work.group,
          kv_head,
          first_row,
          min_of(kDeviceTileRows, rows - first_row),
          sequence.context_len - sequence.num_tokens,
          split_index};
}

// The block of a position, from where the layer's keys or values begin in it.
LARDER_DEVICE const std::byte* block_at(const Work& work, const Tile& tile, int position,
                                        std::int64_t offset_bytes) {
  const PagedKvView& kv = work.args.kv;
  const AttentionSequence& sequence = tile.sequence;
  const int index = position / kBlockSize;
  const bool is_sink = index < sequence.num_sinks / kBlockSize;
  const auto block = static_cast<std::int64_t>(
      sequence.block_table[is_sink ? index : index - sequence.skipped_blocks]);
  return kv.base + block * kv.block_stride_bytes + offset_bytes;
}
// The head's part of it.
LARDER_DEVICE const std::byte* keys_at(const Work& work, const Tile& tile, int position) {
  return block_at(work, tile, position, work.args.kv.k_offset_bytes) +
         tile.kv_head * work.parts.key_bytes;
}
LARDER_DEVICE const std::byte* values_at(const Work& work, const Tile& tile, int position) {
  return block_at(work, tile, position, work.args.kv.v_offset_bytes) +
         tile.kv_head * work.parts.value_bytes;
}

// What two partials, of these maxima, are multiplied by when they become one.
struct Merge {
  float max, keep, take;
  LARDER_MEMBER Merge(float into, float from)
      : max(fmaxf(into, from)), keep(power_of_2(into - max)), take(power_of_2(from - max)) {}
  LARDER_MEMBER float of(float into, float from) const { return fmaf(from, take, into * keep); }
};

LARDER_DEVICE float finish(float value, float sum) {
  return value * (1.0F / sum) + 0.0F;  // no zero is negative
}

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
