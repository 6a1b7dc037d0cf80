// Attention over paged keys and values with an online softmax (Milakov & Gimelshein 2018; Dao et
// al. 2022).
//
// Why a row's bits depend on that row alone: scores sum over dimensions in order, values over keys
// in order, and the running maximum moves at fixed positions, every kKeyTile keys. A masked key
// adds exactly
// +-0 to a sum, and a tile or a split that a row does not see multiplies its sums by exactly 1, so
// what else shares the task decides at most the sign of a zero; write_out() makes every zero
// positive.
#include "kernels/cpu/functions.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kKeyTile = 64;
constexpr int kTileBlocks = kKeyTile / kBlockSize;
constexpr int kLanes = 16;
static_assert(kBlockSize == kLanes, "a vector holds one block's keys");
static_assert(kKeySplit % kKeyTile == 0);
static_assert(kTileBlocks % kAttentionVectors == 0);

// With so few rows (decode) a tile is bound by memory: the next one's keys and values are fetched
// ahead.
constexpr int kFetchRows = 4;

// A maximum below every score. Finite, so that a difference of two of them is 0 and not NaN.
constexpr float kNothing = -1e30F;

// Sums of a partial softmax, per row: sum of exp(score - max) * value, max, sum of exp(score -
// max).
struct Partial {
  float* values;  // [rows, padded_dim]
  float* max;     // [rows]
  float* sum;     // [rows]
};

// A task and where its operands lie. Row r: query query_begin + r / group, head r % group of the KV
// head.
struct Work {
  const AttentionArgs& args;
  const AttentionSequence& sequence;
  int kv_head;
  int group;  // query heads per KV head
  int rows;
  int dim;
  int padded_dim;
  int first_position;  // of query_begin
  int query_begin;
  int window;      // 0 = none
  int sinks;       // keys [0, sinks) are seen whatever the window
  float* q;        // [rows, padded_dim], scaled
  float* q_sinks;  // the same, for the sinks
  float* scores;   // [rows, kKeyTile]
  float* factor;   // [rows]: what the sums so far are multiplied by in this tile

  int position(int row) const { return first_position + row / group; }
  // Of the window.
  int first_key(int row) const { return window > 0 ? max_of(0, position(row) - window + 1) : 0; }
  bool past_sinks(int row) const { return args.q_sinks != nullptr && first_key(row) > sinks; }
  // Whether a row sees a key of [begin, end), as far as the first row's window and the sinks say.
  bool sees(int begin, int end) const { return begin < sinks || end > first_key(0); }
};

LARDER_INLINE Partial partial_at(std::byte* memory, int rows, int padded_dim) {
  auto* values = reinterpret_cast<float*>(memory);
  float* max = values + int64_t{rows} * padded_dim;
  return {values, max, max + rows};
}

LARDER_INLINE const uint16_t* block_half(const Work& work, int position, int64_t offset_bytes) {
  const PagedKvView& kv = work.args.kv;
  const auto block = static_cast<int32_t>(work.sequence.block_table[position / kBlockSize]);
  return reinterpret_cast<const uint16_t*>(kv.base + block * kv.block_stride_bytes + offset_bytes) +
         int64_t{work.kv_head} * work.dim * kBlockSize;
}

// The blocks of a tile of keys. Those that no row sees repeat one that is seen: masked, never used.
struct KeyTile {
  int begin;
  int num_blocks;
  const uint16_t* k[kTileBlocks];
  const uint16_t* v[kTileBlocks];
  const uint16_t* next_k[kTileBlocks];  // of the tile after it, to be fetched ahead
  const uint16_t* next_v[kTileBlocks];
};

// scores[r][16 b + lane] = sum over d in order of q[r][d] * k[b][d][lane].
template <int kRows>
void score_rows(const Work& work, const KeyTile& tile, const float* q, float* scores) {
  for (int b = 0; b < kTileBlocks; b += kAttentionVectors) {
    V16 sum[kRows][kAttentionVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kAttentionVectors; ++v) sum[r][v] = zero();
    }
    for (int d = 0; d < work.dim; ++d) {
      V16 k[kAttentionVectors];
      for (int v = 0; v < kAttentionVectors; ++v) {
        k[v] = load_f16(tile.k[b + v] + d * kLanes);
        if constexpr (kRows <= kFetchRows) prefetch(tile.next_k[b + v] + d * kLanes);
      }
      for (int r = 0; r < kRows; ++r) {
        const V16 x = set1(q[r * work.padded_dim + d]);
        for (int v = 0; v < kAttentionVectors; ++v) sum[r][v] = fma(x, k[v], sum[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kAttentionVectors; ++v) {
        store(scores + r * kKeyTile + (b + v) * kLanes, sum[r][v]);
      }
    }
  }
}

// The scores of the sinks in this tile, once the row's window has left them behind.
void score_sinks(const Work& work, const KeyTile& tile, int row) {
  float scores[kKeyTile];
  score_rows<1>(work, tile, work.q_sinks + int64_t{row} * work.padded_dim, scores);
  const int num_sinks = min_of(work.sinks - tile.begin, kKeyTile);
  memcpy(work.scores + row * kKeyTile, scores, sizeof(float) * static_cast<size_t>(num_sinks));
}

// Scores of one row to exp(score - max); moves its maximum and sum.
void softmax_row(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  float* scores = work.scores + row * kKeyTile;
  const int end = work.position(row) + 1 - tile.begin;
  V16 s[kTileBlocks];
  V16 largest = set1(partial.max[row]);
  int first[kTileBlocks];  // seen in each block, whole blocks being sinks or not
  for (int b = 0; b < kTileBlocks; ++b) {
    const int begin = tile.begin + b * kLanes;
    first[b] = begin < work.sinks ? 0 : work.first_key(row) - begin;
    const Mask16 seen = lanes_between(first[b], end - b * kLanes);
    s[b] = select(seen, load(scores + b * kLanes), set1(kNothing));
    largest = max(largest, s[b]);
  }
  const float new_max = reduce_max(largest);
  const V16 factor = exp(set1(partial.max[row] - new_max));
  V16 total = zero();
  for (int b = 0; b < kTileBlocks; ++b) {
    const Mask16 seen = lanes_between(first[b], end - b * kLanes);
    const V16 p = select(seen, exp(sub(s[b], set1(new_max))), zero());
    store(scores + b * kLanes, p);
    total = add(total, p);
  }
  float factor_lanes[kLanes];
  store(factor_lanes, factor);
  work.factor[row] = factor_lanes[0];
  partial.max[row] = new_max;
  partial.sum[row] = partial.sum[row] * factor_lanes[0] + reduce_add(total);
}

// values[r][d..] = values * factor + sum over keys in order of p[r][key] * v[key][d..], kVectors of
// 16 dimensions; lanes: how many of the last vector's exist.
template <int kRows, int kVectors>
void add_values_of(const Work& work, const KeyTile& tile, int row, int d, int lanes,
                   const Partial& partial) {
  float* values = partial.values + int64_t{row} * work.padded_dim + d;
  const float* p = work.scores + row * kKeyTile;
  V16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const V16 factor = set1(work.factor[row + r]);
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = mul(load(values + r * work.padded_dim + v * kLanes), factor);
    }
  }
  for (int b = 0; b < tile.num_blocks; ++b) {
    for (int i = 0; i < kBlockSize; ++i) {
      const uint16_t* from = tile.v[b] + i * work.dim + d;
      if constexpr (kRows <= kFetchRows) {
        for (int v = 0; v < kVectors; v += 2) {
          prefetch(tile.next_v[b] + i * work.dim + d + v * kLanes);
        }
      }
      V16 x[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        x[v] = lanes == kLanes ? load_f16(from + v * kLanes) : load_f16_partial(from, lanes);
      }
      for (int r = 0; r < kRows; ++r) {
        const V16 weight = set1(p[r * kKeyTile + b * kBlockSize + i]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(weight, x[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      store(values + r * work.padded_dim + v * kLanes, sum[r][v]);
    }
  }
}

template <int kRows>
void add_values_rows(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  int d = 0;
  for (; d + kAttentionVectors * kLanes <= work.dim; d += kAttentionVectors * kLanes) {
    add_values_of<kRows, kAttentionVectors>(work, tile, row, d, kLanes, partial);
  }
  for (; d < work.dim; d += kLanes) {
    add_values_of<kRows, 1>(work, tile, row, d, min_of(kLanes, work.dim - d), partial);
  }
}

template <int kRows>
void tile_rows(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  score_rows<kRows>(work, tile, work.q + int64_t{row} * work.padded_dim,
                    work.scores + row * kKeyTile);
  if (tile.begin < work.sinks) {
    for (int r = row; r < row + kRows; ++r) {
      if (work.past_sinks(r)) score_sinks(work, tile, r);
    }
  }
  for (int r = row; r < row + kRows; ++r) softmax_row(work, tile, r, partial);
  add_values_rows<kRows>(work, tile, row, partial);
}

// Calls tile_rows for rows [row, row_end), kRows at a time and the rest with fewer.
template <int kRows>
void tile_all_rows(const Work& work, const KeyTile& tile, int row, int row_end,
                   const Partial& partial) {
  for (; row + kRows <= row_end; row += kRows) tile_rows<kRows>(work, tile, row, partial);
  if constexpr (kRows > 1) tile_all_rows<kRows - 1>(work, tile, row, row_end, partial);
}

// Keys [begin, min(end, begin + kKeyTile)). Blocks that no row sees, outside the window and the
// sinks (they may be kNone) and past the end, are never read.
KeyTile key_tile(const Work& work, int begin, int end) {
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
    const int next = is_seen(seen + kKeyTile) ? seen + kKeyTile : seen;
    tile.k[b] = block_half(work, seen, work.args.kv.k_offset_bytes);
    tile.v[b] = block_half(work, seen, work.args.kv.v_offset_bytes);
    tile.next_k[b] = block_half(work, next, work.args.kv.k_offset_bytes);
    tile.next_v[b] = block_half(work, next, work.args.kv.v_offset_bytes);
  }
  return tile;
}

// The partial softmax of the keys in one split.
void run_split(const Work& work, int split, const Partial& partial) {
  for (int64_t i = 0; i < int64_t{work.rows} * work.padded_dim; ++i) partial.values[i] = 0;
  for (int r = 0; r < work.rows; ++r) {
    partial.max[r] = kNothing;
    partial.sum[r] = 0;
  }
  const int last_position = work.position(work.rows - 1);
  const int end = min_of((split + 1) * kKeySplit, last_position + 1);
  for (int key = split * kKeySplit; key < end; key += kKeyTile) {
    if (!work.sees(key, key + kKeyTile)) continue;
    // Rows that see a key of this tile: from the first whose position has come to the last whose
    // window has not passed.
    int first_row = 0;
    if (work.first_position < key) first_row = (key - work.first_position) * work.group;
    int row_end = work.rows;
    if (work.window > 0 && key >= work.sinks) {
      const int last_seeing = key + kKeyTile - 1 + work.window - 1;
      row_end = min_of(row_end, (last_seeing - work.first_position + 1) * work.group);
    }
    tile_all_rows<kAttentionRows>(work, key_tile(work, key, end), first_row, row_end, partial);
  }
}

// into = into and partial as one softmax. An empty side changes nothing.
void merge(const Work& work, const Partial& into, const Partial& partial) {
  for (int r = 0; r < work.rows; ++r) {
    const float max = into.max[r] > partial.max[r] ? into.max[r] : partial.max[r];
    float lanes[kLanes];
    store(lanes, exp(set1(into.max[r] - max)));
    const float keep = lanes[0];
    store(lanes, exp(set1(partial.max[r] - max)));
    const float take = lanes[0];
    into.max[r] = max;
    into.sum[r] = into.sum[r] * keep + partial.sum[r] * take;
    for (int d = 0; d < work.padded_dim; d += kLanes) {
      const int64_t at = int64_t{r} * work.padded_dim + d;
      const V16 kept = mul(load(into.values + at), set1(keep));
      store(into.values + at, fma(load(partial.values + at), set1(take), kept));
    }
  }
}

void write_out(const Work& work, const Partial& partial) {
  for (int r = 0; r < work.rows; ++r) {
    const int query = work.sequence.first_row + work.query_begin + r / work.group;
    const int head = work.kv_head * work.group + r % work.group;
    float* out = work.args.out + query * work.args.ldo + int64_t{head} * work.dim;
    const V16 inverse = set1(1.0F / partial.sum[r]);
    for (int d = 0; d < work.dim; d += kLanes) {
      const V16 v = mul(load(partial.values + int64_t{r} * work.padded_dim + d), inverse);
      store_partial(out + d, add(v, zero()), min_of(kLanes, work.dim - d));
    }
  }
}

Work work_of(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch) {
  const AttentionSequence& sequence = args.sequences[task.sequence];
  const int group = args.num_heads / args.kv.num_kv_heads;
  const int rows = (task.query_end - task.query_begin) * group;
  const int dim = args.kv.head_dim;
  const int padded_dim = (dim + kLanes - 1) / kLanes * kLanes;
  const int first = sequence.context_len - sequence.num_tokens + task.query_begin;
  Work work{.args = args,
            .sequence = sequence,
            .kv_head = task.kv_head,
            .group = group,
            .rows = rows,
            .dim = dim,
            .padded_dim = padded_dim,
            .first_position = first,
            .query_begin = task.query_begin,
            .window = seen_window(args, sequence),
            .sinks = seen_sinks(args, sequence),
            .q = reinterpret_cast<float*>(scratch),
            .q_sinks = nullptr,
            .scores = nullptr,
            .factor = nullptr};
  work.q_sinks = work.q + int64_t{rows} * padded_dim;
  work.scores = work.q_sinks + int64_t{rows} * padded_dim;
  work.factor = work.scores + int64_t{rows} * kKeyTile;
  return work;
}

void scale_queries(const Work& work, const float* q, float* scaled) {
  for (int r = 0; r < work.rows; ++r) {
    const int query = work.sequence.first_row + work.query_begin + r / work.group;
    const int head = work.kv_head * work.group + r % work.group;
    const float* from = q + query * work.args.ldq + int64_t{head} * work.dim;
    float* to = scaled + int64_t{r} * work.padded_dim;
    for (int d = 0; d < work.dim; ++d) to[d] = from[d] * work.args.scale;
  }
}

}  // namespace

void attention(const AttentionArgs& args, const AttentionTask& task, std::byte* scratch) {
  const int rows = (task.query_end - task.query_begin) * (args.num_heads / args.kv.num_kv_heads);
  const int64_t partial_bytes = attention_partial_size_bytes(rows, args.kv.head_dim);
  const Work work = work_of(args, task, scratch + 2 * partial_bytes);
  scale_queries(work, args.q, work.q);
  if (args.q_sinks != nullptr && work.sinks > 0) scale_queries(work, args.q_sinks, work.q_sinks);
  const Partial total = partial_at(scratch, rows, work.padded_dim);
  if (task.split >= 0) return run_split(work, task.split, total);
  const Partial next = partial_at(scratch + partial_bytes, rows, work.padded_dim);
  const SplitRange splits = attention_splits(args, task);
  run_split(work, split_at(splits, 0), total);
  for (int index = 1; index < num_splits(splits); ++index) {
    run_split(work, split_at(splits, index), next);
    merge(work, total, next);
  }
  write_out(work, total);
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
