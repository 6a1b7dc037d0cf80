// Attention over paged keys and values with an online softmax (Milakov & Gimelshein 2018; Dao et
// al. 2022).
//
// Why a row's bits depend on that row alone: scores sum over dimensions in order, values over keys
// in order (or as exact integers, in types that have codes), and the running maximum moves at fixed
// positions, every kKeyTile keys. A masked key adds exactly +-0 to a sum, and a tile or a split
// that a row does not see multiplies its sums by exactly 1, so what else shares the task decides at
// most the sign of a zero; write_out() makes every zero positive.
#include "kernels/cpu/attention_codes.h"
#include "kernels/cpu/attention_float.h"
#include "kernels/cpu/attention_sums.h"
#include "kernels/cpu/latent_values.h"
#if defined(LARDER_AMX)
#include "kernels/cpu/bf16/attention_amx.h"
#elif defined(LARDER_AVX512_BF16)
#include "kernels/cpu/bf16/attention_bf16.h"
#endif

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// One head's keys or values of a block.
struct HeadBlock {
  const AttentionSequence& sequence;
  int kv_head;
  int position;  // in the block

  const std::byte* keys(const PagedKvView& kv) const {
    return block(kv) + kv.k_offset_bytes + kv_head * kv_key_size_bytes(kv.types.k, kv.head_dim);
  }
  const std::byte* values(const PagedKvView& kv) const {
    return block(kv) + kv.v_offset_bytes + kv_head * kv_value_size_bytes(kv.types.v, kv.head_dim);
  }

 private:
  const std::byte* block(const PagedKvView& kv) const {
    const auto id = static_cast<int32_t>(sequence.block_table[position / kBlockSize]);
    return kv.base + id * kv.block_stride_bytes;
  }
};

// Into scores, from row q on; keys of kFp8 without their scales.
template <int kRows>
void score_numbers(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
#if defined(LARDER_AVX512_BF16) && !defined(LARDER_AMX)
  if (multiplies_pairs(work.args, work.args.kv.types.k))
    return score_rows_pairs<kRows>(work, tile, q.words, scores);
#endif
  const KvType type = work.args.kv.types.k;
  if (type == KvType::kInt8) return score_rows_int8<kRows>(work, tile, q, scores);
  if (type == KvType::kInt4) return score_rows_int4<kRows>(work, tile, q, scores);
  with_float_type(type, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
    score_rows_float<kType, kRows>(work, tile, q.values, scores);
  });
}

template <int kRows>
void score_rows(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  score_numbers<kRows>(work, tile, q, scores);
  if (work.args.kv.types.k == KvType::kFp8) scale_fp8_scores<kRows>(work, tile, scores);
}

template <int kRows>
void add_values(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  const KvType type = work.args.kv.types.v;
  if (type == KvType::kFp8) scale_fp8_weights<kRows>(work, tile, row);
#if defined(LARDER_AVX512_BF16) && !defined(LARDER_AMX)
  if (multiplies_pairs(work.args, type)) return add_values_pairs<kRows>(work, tile, row, partial);
#endif
  if (type == KvType::kInt8)
    return add_values_codes<ValueForm::kBytes, kRows>(work, tile, row, partial);
  if (type == KvType::kInt4) {
    return kv_is_large(work.dim)
               ? add_values_codes<ValueForm::kFiveBits, kRows>(work, tile, row, partial)
               : add_values_codes<ValueForm::kLevels, kRows>(work, tile, row, partial);
  }
  with_float_type(type, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
    add_values_float<kType, kRows>(work, tile, row, partial);
  });
}

// The scores of the sinks in this tile, once the row's window has left them behind.
void score_sinks(const Work& work, const KeyTile& tile, int row) {
  float scores[kKeyTile];
  score_rows<1>(work, tile, work.q_sinks.row(row, work.dim), scores);
  const int num_sinks = min_of(work.sinks - tile.begin, kKeyTile);
  memcpy(work.scores + row * kKeyTile, scores, sizeof(float) * static_cast<size_t>(num_sinks));
}

// Which of a tile's keys a row sees, from each block's begin on; whole blocks are sinks or not.
struct Seen {
  int begin[kTileBlocks];
  int end;  // from the tile's begin

  Mask16 of(int block) const { return lanes_between(begin[block], end - block * kLanes); }
};
LARDER_INLINE Seen seen_keys(const Work& work, const KeyTile& tile, int row) {
  Seen seen;
  seen.end = work.position(row) + 1 - tile.begin;
  for (int b = 0; b < kTileBlocks; ++b) {
    const int begin = tile.begin + b * kLanes;
    seen.begin[b] = begin < work.sinks ? 0 : work.first_key(row) - begin;
  }
  return seen;
}

// Whether each of rows [row, row_end) sees every key of a tile, as most do: the first one's end comes
// first, and the last one's window begins last.
LARDER_INLINE bool all_seen(const Work& work, const KeyTile& tile, int row, int row_end) {
  if (work.position(row) + 1 < tile.begin + kKeyTile) return false;
  const int first_outside_sinks = max_of(tile.begin, work.sinks);
  return first_outside_sinks >= tile.begin + kKeyTile ||
         work.first_key(row_end - 1) <= first_outside_sinks;
}

// Scores of a row, those not seen below every score, and the row's new maximum.
template <bool kAllSeen>
LARDER_INLINE float mask_scores(const Seen& seen, int num_blocks, float* scores,
                                float max_before) {
  V16 largest = set1(max_before);
  for (int b = 0; b < num_blocks; ++b) {
    V16 s = load(scores + b * kLanes);
    if constexpr (!kAllSeen) {
      s = select(seen.of(b), s, set1(kNothing));
      store(scores + b * kLanes, s);
    }
    largest = max(largest, s);
  }
  return reduce_max(largest);
}

// To 2^(score - max), 0 where not seen; their sum.
template <bool kAllSeen>
LARDER_INLINE float exponentiate(const Seen& seen, int num_blocks, float* scores, float max_now) {
  V16 total = zero();
  for (int b = 0; b < num_blocks; ++b) {
    V16 p = exp2_to_one(sub(load(scores + b * kLanes), set1(max_now)));
    if constexpr (!kAllSeen) p = select(seen.of(b), p, zero());
    store(scores + b * kLanes, p);
    total = add(total, p);
  }
  return reduce_add(total);
}

// Scores of rows to 2^(score - max); moves their maxima and sums. By steps, so that rows overlap
// where one waits for its maximum.
template <int kRows, bool kAllSeen>
LARDER_INLINE void softmax_seen(const Work& work, const KeyTile& tile, int row,
                                const Partial& partial) {
  static_assert(kRows <= kLanes);
  const int num_blocks = kAllSeen ? kTileBlocks : tile.num_blocks;
  float* scores = work.scores + row * kKeyTile;
  Seen seen[kRows];
  alignas(64) float difference[kLanes] = {};
  for (int r = 0; r < kRows; ++r) {
    if constexpr (!kAllSeen) seen[r] = seen_keys(work, tile, row + r);
    const float max_before = partial.max[row + r];
    partial.max[row + r] =
        mask_scores<kAllSeen>(seen[r], num_blocks, scores + r * kKeyTile, max_before);
    difference[r] = max_before - partial.max[row + r];
  }
  alignas(64) float factor[kLanes];
  store(factor, exp2_to_one(load(difference)));
  for (int r = 0; r < kRows; ++r) {
    const float sum = exponentiate<kAllSeen>(seen[r], num_blocks, scores + r * kKeyTile,
                                             partial.max[row + r]);
    partial.sum[row + r] = partial.sum[row + r] * factor[r] + sum;
    work.factor[row + r] = factor[r];
  }
}

// Scores of rows, which are logarithms to base 2, as the cap leaves them. A loop of its own, so that those of models
// without a cap stay as they are.
void cap_scores(const Work& work, const KeyTile& tile, int row, int row_end) {
  const float cap = to_base_two(work.args.score_cap, 1);
  const V16 caps = set1(cap);
  const V16 inverse = set1(1.0F / cap);
  for (int r = row; r < row_end; ++r) {
    for (int b = 0; b < tile.num_blocks; ++b) {
      float* scores = work.scores + r * kKeyTile + b * kLanes;
      store(scores, soft_capped(load(scores), caps, inverse));
    }
  }
}

template <int kRows>
void softmax_rows(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  if (work.args.score_cap > 0) cap_scores(work, tile, row, row + kRows);
  if (all_seen(work, tile, row, row + kRows))
    softmax_seen<kRows, true>(work, tile, row, partial);
  else
    softmax_seen<kRows, false>(work, tile, row, partial);
}

// A tile's blocks up to the one that holds a position, in `part` unless they are all.
LARDER_INLINE const KeyTile& blocks_until(const KeyTile& tile, int position, KeyTile& part) {
  const int num_blocks = (position - tile.begin) / kBlockSize + 1;
  if (num_blocks >= tile.num_blocks) return tile;
  part = tile;
  part.num_blocks = num_blocks;
  return part;
}

// Blocks that come after the last of these rows are left out: what they would add is 0.
template <int kRows>
void tile_rows(const Work& work, const KeyTile& whole, int row, const Partial& partial) {
  KeyTile part;
  const KeyTile& tile = blocks_until(whole, work.position(row + kRows - 1), part);
  score_rows<kRows>(work, tile, work.q.row(row, work.dim),
                    work.scores + row * kKeyTile);
  if (tile.begin < work.sinks) {
    for (int r = row; r < row + kRows; ++r) {
      if (work.past_sinks(r)) score_sinks(work, tile, r);
    }
  }
  softmax_rows<kRows>(work, tile, row, partial);
  add_values<kRows>(work, tile, row, partial);
}

// Calls function.template operator()<n>(row) for rows [row, row_end): kRows at a time and the rest with fewer.
template <int kRows, class Function>
LARDER_INLINE void for_rows(int row, int row_end, const Function& function) {
  for (; row + kRows <= row_end; row += kRows) function.template operator()<kRows>(row);
  if constexpr (kRows > 1) for_rows<kRows - 1>(row, row_end, function);
}

#if defined(LARDER_AMX)
// Of the rows of a group, at `scores`, to which `row` belongs; q: all rows' queries.
void score_group(const Work& work, const KeyTile& tile, const Queries& q, int row, float* scores) {
  const int first = first_of_group(work, row);
  const bool in_pairs = multiplies_pairs(work.args, work.args.kv.types.k);
  if (in_pairs) score_group_pairs(work, tile, q.row(first, work.dim).words, scores);
  for_rows<kAttentionRows>(0, rows_of_group(work), [&]<int kRows>(int r) LARDER_INLINE_LAMBDA {
    if (!in_pairs)
      score_rows<kRows>(work, tile, q.row(first + r, work.dim), scores + r * kKeyTile);
    else if (work.args.kv.types.k == KvType::kFp8)
      scale_fp8_scores<kRows>(work, tile, scores + r * kKeyTile);
  });
}

// As score_sinks() of the rows [row, row_end) of a group.
void score_sinks_of_group(const Work& work, const KeyTile& tile, int row, int row_end) {
  alignas(64) float scores[kRowsOfTile * kKeyTile];
  score_group(work, tile, work.q_sinks, row, scores);
  const int num_sinks = min_of(work.sinks - tile.begin, kKeyTile);
  for (int r = row; r < row_end; ++r) {
    if (!work.past_sinks(r)) continue;
    memcpy(work.scores + r * kKeyTile, scores + (r - first_of_group(work, row)) * kKeyTile,
           sizeof(float) * static_cast<size_t>(num_sinks));
  }
}

void add_groups(const Work& work, const KeyTile& tile, int row, int row_end, const Partial& partial) {
  pair_weights(work, tile, row, row_end);
  for (; row < row_end; row += kRowsOfTile) {
    KeyTile part;
    const int group_end = min_of(row + kRowsOfTile, row_end);
    add_group_pairs(work, blocks_until(tile, work.position(group_end - 1), part), row, group_end, partial);
  }
}

// As tile_rows() for all rows at once, step by step: tiles that are loaded from what was just stored wait for it. Values
// are stored while keys are multiplied.
void tile_groups(const Work& work, KeyTile& tile, int row, int row_end, const Partial& partial) {
  TilePairs pairs;
  tile.pairs = &pairs;
  store_keys_in_pairs(work, tile, pairs);
  fill_up_keys(work, pairs);
  for (int r = row; r < row_end; r += kRowsOfTile)
    score_group(work, tile, work.q, r, work.scores + first_of_group(work, r) * kKeyTile);
  store_values_in_pairs(work, tile, pairs);
  fill_up_values(work, tile, pairs);
  if (tile.begin < work.sinks && work.args.q_sinks != nullptr) {
    for (int r = row; r < row_end; r += kRowsOfTile)
      score_sinks_of_group(work, tile, r, min_of(r + kRowsOfTile, row_end));
  }
  const KvType type = work.args.kv.types.v;
  const bool in_pairs = multiplies_pairs(work.args, type);
  for_rows<kAttentionRows>(row, row_end, [&]<int kRows>(int r) LARDER_INLINE_LAMBDA {
    KeyTile part;
    const KeyTile& seen = blocks_until(tile, work.position(r + kRows - 1), part);
    softmax_rows<kRows>(work, seen, r, partial);
    if (!in_pairs)
      add_values<kRows>(work, seen, r, partial);
    else if (type == KvType::kFp8)
      scale_fp8_weights<kRows>(work, seen, r);
  });
  if (in_pairs) add_groups(work, tile, row, row_end, partial);
}
#endif

void tile_all_rows(const Work& work, KeyTile& tile, int row, int row_end, const Partial& partial) {
#if defined(LARDER_AMX)
  if (uses_tiles(work)) return tile_groups(work, tile, row, row_end, partial);
#endif
  for_rows<kAttentionRows>(row, row_end, [&]<int kRows>(int r) LARDER_INLINE_LAMBDA {
    tile_rows<kRows>(work, tile, r, partial);
  });
}

// Block b of the first tile that a sequence's first query sees: of the sinks, where it has some.
HeadBlock first_block(const Work& work, const AttentionSequence& sequence, int kv_head, int b) {
  const int sinks = seen_sinks(work.args, sequence);
  const int window = sinks > 0 ? 0 : seen_window(work.args, sequence);
  const int first_position = sequence.context_len - sequence.num_tokens;
  const int first = window > 0 ? max_of(0, first_position - window + 1) : sequence.num_common;
  const int position = max_of(first, first / kKeyTile * kKeyTile + b * kBlockSize);
  const int end = sinks > 0 ? min_of(sinks, sequence.context_len) : sequence.context_len;
  return {sequence, kv_head, min_of(position, end - 1)};
}

// What is read after block b of a tile: a tile on, if this task sees it, or else in the next KV head
// or the next sequence, whose turn it mostly is then.
HeadBlock block_after(const Work& work, const HeadBlock& block, int b) {
  const int next = block.position + kKeyTile;
  if (next <= work.position(work.rows - 1) && work.sees(next, next + kBlockSize))
    return {block.sequence, block.kv_head, next};
  if (block.kv_head + 1 < work.args.kv.num_kv_heads)
    return first_block(work, block.sequence, block.kv_head + 1, b);
  const AttentionSequence* after = &block.sequence + 1;
  if (after == work.args.sequences + work.args.num_sequences) return block;
  return first_block(work, *after, 0, b);
}

// Keys [begin, min(end, begin + kKeyTile)). Blocks that no row sees, outside the window and the
// sinks (they may be kNone) and past the end, are never read.
KeyTile key_tile(const Work& work, int begin, int end) {
  const PagedKvView& kv = work.args.kv;
  KeyTile tile;
  tile.begin = begin;
  tile.num_blocks = min_of(kTileBlocks, (end - begin + kBlockSize - 1) / kBlockSize);
  const auto is_seen = [&](int position) {
    return position < end && work.sees(position, position + kBlockSize);
  };
  int seen = begin;
  while (!is_seen(seen)) seen += kBlockSize;
  for (int b = 0; b < kTileBlocks; ++b) {
    if (is_seen(begin + b * kBlockSize)) seen = begin + b * kBlockSize;
    const HeadBlock block = {work.sequence, work.kv_head, seen};
    tile.k[b] = block.keys(kv);
    tile.v[b] = block.values(kv);
    const HeadBlock next = block_after(work, block, b);
    tile.next_k[b] = next.keys(kv);
    tile.next_v[b] = next.values(kv);
  }
  return tile;
}

void begin_split(const Work& work, const Partial& partial) {
  for (int64_t i = 0; i < int64_t{work.rows} * work.padded_dim; ++i) partial.values[i] = 0;
  for (int r = 0; r < work.rows; ++r) {
    partial.max[r] = kNothing;
    partial.sum[r] = 0;
  }
}

// Adds the keys of one split to its partial softmax, from key `begin` on.
void run_split(const Work& work, int split, int begin, const Partial& partial) {
  const int last_position = work.position(work.rows - 1);
  const int end = min_of((split + 1) * kKeySplit, last_position + 1);
  for (int key = begin; key < end; key += kKeyTile) {
    if (!work.sees(key, key + kKeyTile)) continue;
    // Rows that see a key of this tile: from the first whose position has come to the last whose
    // window has not passed.
    int first_row = 0;
    if (work.first_position < key) first_row = (key - work.first_position) * work.group;
    int row_end = work.rows;
    if (work.window > 0 && key >= work.sinks) {
      const int last_seeing = key + kKeyTile - 1 + work.window - 1;
      const int64_t num_seeing = int64_t{last_seeing - work.first_position + 1} * work.group;
      if (num_seeing < row_end) row_end = static_cast<int>(num_seeing);
    }
    KeyTile tile = key_tile(work, key, end);
    if (work.args.kv.values_are_keys) turn_keys(work, tile);
#if defined(LARDER_AVX512_BF16) && !defined(LARDER_AMX)
    TilePairs pairs;
    tile.pairs = &pairs;
    if (stores_pairs(work)) {
      store_keys_in_pairs(work, tile, pairs);
      store_values_in_pairs(work, tile, pairs);
    }
#endif
    tile_all_rows(work, tile, first_row, row_end, partial);
  }
}

// Splits in order, each from nothing, into total; `next` is for the one under way. The first num_done
// keys are there already: complete splits in total, a begun one where it was under way.
void run_splits(const Work& work, const SplitRange& splits, int num_done, const Partial& total,
                const Partial& next) {
  for (int index = 0; index < num_splits(splits); ++index) {
    const int split = split_at(splits, index);
    const int begin = split * kKeySplit;
    if (begin + kKeySplit <= num_done) continue;
    const Partial& partial = index == 0 ? total : next;
    if (begin >= num_done) begin_split(work, partial);
    run_split(work, split, max_of(begin, num_done), partial);
    if (index > 0) merge(work, total, next);
  }
}

// All of the first num_keys keys, as run_splits() wants to find them.
void run_common_splits(const Work& work, int num_keys, const Partial& total, const Partial& next) {
  for (int split = 0; split * kKeySplit < num_keys; ++split) {
    const Partial& partial = split == 0 ? total : next;
    begin_split(work, partial);
    run_split(work, split, split * kKeySplit, partial);
    if (split > 0 && (split + 1) * kKeySplit <= num_keys) merge(work, total, next);
  }
}

// Takes the scratch bit by bit.
struct Scratch {
  std::byte* next;

  template <class T>
  T* take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next);
    next += count * static_cast<int64_t>(sizeof(T));
    return taken;
  }
  Queries take_queries(int64_t rows, int dim) {
    float* values = take<float>(rows * ((dim + kLanes - 1) / kLanes * kLanes));
    int32_t* words = take<int32_t>(rows * attention_words(dim));
    float* scale = take<float>(rows);
    return {values, words, scale, take<int32_t>(rows * 3 * kv_num_groups(dim))};
  }
};

// Rows of so many queries of a sequence, from query_begin on.
Work work_of(const AttentionArgs& args, const AttentionSequence& sequence, int kv_head,
             int query_begin, int num_queries, std::byte* memory) {
  const int group = args.num_heads / args.kv.num_kv_heads;
  const int rows = num_queries * group;
  const int dim = args.kv.head_dim;
  const int padded_dim = (dim + kLanes - 1) / kLanes * kLanes;
  Scratch scratch{memory};
  const Queries q = scratch.take_queries(rows, dim);
  const Queries q_sinks = scratch.take_queries(rows, dim);
  float* scores = scratch.take<float>(int64_t{rows} * kKeyTile);
  return {.args = args,
          .sequence = sequence,
          .kv_head = kv_head,
          .group = group,
          .rows = rows,
          .dim = dim,
          .padded_dim = padded_dim,
          .num_groups = kv_num_groups(dim),
          .first_position = sequence.context_len - sequence.num_tokens + query_begin,
          .query_begin = query_begin,
          .window = seen_window(args, sequence),
          .sinks = seen_sinks(args, sequence),
          .q = q,
          .q_sinks = q_sinks,
          .scores = scores,
          .factor = scratch.take<float>(rows),
          .values = scratch.take<uint16_t>(int64_t{kKeyTile} * dim)};
}
Work work_of(const AttentionArgs& args, const AttentionTask& task, std::byte* memory) {
  return work_of(args, args.sequences[task.sequence], task.kv_head, task.query_begin,
                 task.query_end - task.query_begin, memory);
}
// Rows of several sequences' one query, each of which sees all keys.
Work work_of(const AttentionArgs& args, const CommonTask& task, std::byte* memory) {
  const CommonKeys& common = args.common[task.common];
  const AttentionSequence& any = args.sequences[common.sequences[task.begin]];
  Work work = work_of(args, any, task.kv_head, 0, task.end - task.begin, memory);
  work.group = work.rows;
  work.first_position = common.num_keys - 1;
  work.window = 0;
  work.sinks = 0;
  return work;
}

// One query head's, into one row.
void prepare_query(const Work& work, const float* from, const Queries& row) {
  for (int d = 0; d < work.dim; ++d) row.values[d] = to_base_two(from[d], work.args.scale);
  for (int d = work.dim; d < work.padded_dim; ++d) row.values[d] = 0;
#if defined(LARDER_AVX512_BF16)
  if (multiplies_pairs(work.args, work.args.kv.types.k)) pair_query(work, row);
#if defined(LARDER_AMX)
  if (multiplies_pairs(work.args, work.args.kv.types.k)) fill_up_query(work, row);
#endif
#endif
  if (work.args.kv.types.k == KvType::kInt8) quantize_query_int8(work, row);
  if (work.args.kv.types.k == KvType::kInt4) quantize_query_int4(work, row);
}

void prepare_queries(const Work& work, const float* q, const Queries& to) {
  for (int r = 0; r < work.rows; ++r) {
    const int query = work.sequence.first_row + work.query_begin + r / work.group;
    const int head = work.kv_head * work.group + r % work.group;
    prepare_query(work, q + query * work.args.ldq + int64_t{head} * work.dim, to.row(r, work.dim));
  }
}

// The sums of rows [row, row + rows).
void copy_rows(const Work& work, const Partial& from, int row, int rows, const Partial& to) {
  memcpy(to.values, from.values + int64_t{row} * work.padded_dim,
         sizeof(float) * static_cast<size_t>(rows * work.padded_dim));
  memcpy(to.max, from.max + row, sizeof(float) * static_cast<size_t>(rows));
  memcpy(to.sum, from.sum + row, sizeof(float) * static_cast<size_t>(rows));
}

}  // namespace

int64_t attention_stack_bytes([[maybe_unused]] const AttentionArgs& args) {
#if defined(LARDER_AMX)
  if (!multiplies_pairs(args, args.kv.types.k) && !multiplies_pairs(args, args.kv.types.v)) return 0;
  return sizeof(TilePairs) + sizeof(float) * kRowsOfTile * kMaxPairDim;  // see add_group_pairs()
#elif defined(LARDER_AVX512_BF16)
  return sizeof(TilePairs);  // whatever is in it
#else
  return 0;
#endif
}

void attention(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch) {
  const int rows = (task.query_end - task.query_begin) * (args.num_heads / args.kv.num_kv_heads);
  const int64_t partial_bytes = attention_partial_size_bytes(rows, args.kv.head_dim);
  const Work work = work_of(args, task, scratch + 2 * partial_bytes);
#if defined(LARDER_AMX)
  const TilesInUse tiles(work);
#endif
  prepare_queries(work, args.q, work.q);
  if (args.q_sinks != nullptr && work.sinks > 0) prepare_queries(work, args.q_sinks, work.q_sinks);
  std::byte* sums = task.state != nullptr ? task.state : scratch;
  const Partial total = partial_at(sums, rows, work.padded_dim);
  if (task.split >= 0) {
    begin_split(work, total);
    return run_split(work, task.split, task.split * kKeySplit, total);
  }
  const Partial next = partial_at(sums + partial_bytes, rows, work.padded_dim);
  const int num_done = task.state != nullptr ? work.sequence.num_common : 0;
  run_splits(work, attention_splits(args, task), num_done, total, next);
  write_out(work, total);
}

void attention_common(const AttentionArgs& args, const CommonTask& task, std::byte* scratch) {
  const CommonKeys& common = args.common[task.common];
  const int group = args.num_heads / args.kv.num_kv_heads;
  const int rows = (task.end - task.begin) * group;
  const int64_t partial_bytes = attention_partial_size_bytes(rows, args.kv.head_dim);
  const Work work = work_of(args, task, scratch + 2 * partial_bytes);
#if defined(LARDER_AMX)
  const TilesInUse tiles(work);
#endif
  for (int r = 0; r < rows; ++r) {
    const AttentionSequence& sequence = args.sequences[common.sequences[task.begin + r / group]];
    const int head = task.kv_head * group + r % group;
    prepare_query(work, args.q + sequence.first_row * args.ldq + int64_t{head} * work.dim,
                  work.q.row(r, work.dim));
  }
  const Partial total = partial_at(scratch, rows, work.padded_dim);
  const Partial next = partial_at(scratch + partial_bytes, rows, work.padded_dim);
  run_common_splits(work, common.num_keys, total, next);
  const bool has_begun_split = common.num_keys > kKeySplit && common.num_keys % kKeySplit != 0;
  for (int i = 0; i < task.end - task.begin; ++i) {
    std::byte* state = task.states + i * task.stride_bytes;
    copy_rows(work, total, i * group, group, partial_at(state, group, work.padded_dim));
    if (!has_begun_split) continue;
    state += attention_partial_size_bytes(group, args.kv.head_dim);
    copy_rows(work, next, i * group, group, partial_at(state, group, work.padded_dim));
  }
}

void merge_attention(const AttentionArgs& args, const AttentionTask& task, std::byte* partials,
                     int64_t stride_bytes) {
  const Work work = work_of(args, task, nullptr);
  const SplitRange splits = attention_splits(args, task);
  const Partial total = partial_at(partials, work.rows, work.padded_dim);
  for (int index = 1; index < num_splits(splits); ++index) {
    std::byte* next = partials + index * stride_bytes;
    merge(work, total, partial_at(next, work.rows, work.padded_dim));
  }
  write_out(work, total);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
