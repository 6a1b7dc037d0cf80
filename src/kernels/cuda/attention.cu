// Attention over paged keys and values of 16 bits, with an online softmax (Milakov & Gimelshein
// 2018; Dao et al. 2022).
//
// A block takes kTileRows rows of one sequence and KV head, and all keys or those of one split of
// kKeySplit. A row's bits depend on that row alone as in cpu/attention.cc: sums run over dimensions
// and keys in order, the running maximum moves at multiples of kKeyTile, splits start from nothing
// and are merged in order, and what a row does not see changes at most a zero's sign, which the
// last step takes away.
#include "kernels/cuda/functions.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 128;
constexpr int kKeyTile = kThreads;  // a thread per key, then a thread per dimension
constexpr int kTileRows = kDeviceTileRows;
constexpr int kWarpRows = kTileRows / (kThreads / 32);
static_assert(kKeySplit % kKeyTile == 0 && kKeyTile % kBlockSize == 0);

// A maximum below every score. Finite, so that a difference of two of them is 0 and not NaN.
constexpr float kNothing = -1e30F;

struct Work {
  AttentionArgs args;
  int group;        // query heads per KV head
  float* partials;  // [of all sequences: num_tokens, num_splits; num_heads, head_dim + 2]

  LARDER_MEMBER float* partial(const AttentionSequence& sequence, int query, int index,
                               int head) const {
    const std::int64_t row = sequence.first_partial + query * sequence.num_splits + index;
    return partials + (row * args.num_heads + head) * (args.kv.head_dim + 2);
  }
};

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

// Rows [first_row, + num_rows) of a sequence and KV head: row r is query r / group, head r % group.
struct Tile {
  const AttentionSequence* sequence;
  Sight sight;
  int group;
  int kv_head;
  int first_row;
  int num_rows;
  int first_position;  // of the sequence's first query
  int split_index;

  LARDER_MEMBER int query(int r) const { return (first_row + r) / group; }
  LARDER_MEMBER int position(int r) const { return first_position + query(r); }
  LARDER_MEMBER int last_position() const { return position(num_rows - 1); }
  LARDER_MEMBER std::int64_t batch_row(int r) const { return sequence->first_row + query(r); }
  LARDER_MEMBER int head(int r) const { return kv_head * group + (first_row + r) % group; }
  // Whether a row sees a key of [begin, end), as far as the first row's window and the sinks say.
  LARDER_MEMBER bool sees(int begin, int end) const {
    return begin < sight.sinks || end > sight.first_key(position(0));
  }
  LARDER_MEMBER bool row_sees(int r, int key) const {
    return r < num_rows && key <= position(r) &&
           (key < sight.sinks || key >= sight.first_key(position(r)));
  }
};

LARDER_DEVICE Tile find_tile(const Work& work, int piece, int kv_head) {
  const AttentionSequence& sequence =
      find_sequence(work.args, &AttentionSequence::first_piece, piece);
  const int rows = sequence.num_tokens * work.group;
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const int index = piece - sequence.first_piece;
  const int first_row = index % tiles * kTileRows;
  return {&sequence,  sight_of(work.args, sequence),
          work.group, kv_head,
          first_row,  min_of(kTileRows, rows - first_row),
          sequence.context_len - sequence.num_tokens,
          index / tiles};
}

template <KvType kType>
LARDER_DEVICE float stored_value(std::uint16_t bits) {
  if constexpr (kType == KvType::kF16)
    return half_value(bits);
  else
    return bf16_value(bits);
}

// What the threads of a block share.
template <int kMaxDim>
struct Shared {
  alignas(16) float q[2][kTileRows][kMaxDim];  // scaled; for the sinks
  alignas(16) float scores[kTileRows][kKeyTile];
  float max[kTileRows];
  float sum[kTileRows];
  float factor[kTileRows];  // what the sums so far are multiplied by in this tile
  float total_max[kTileRows];
  float total_sum[kTileRows];
};

// Scores are logarithms to base 2.
template <int kMaxDim>
LARDER_DEVICE void load_queries(const Work& work, const Tile& tile, Shared<kMaxDim>& shared) {
  constexpr float kLog2E = 1.44269504088896341F;
  const float scale = work.args.scale * kLog2E;
  const int dim = work.args.kv.head_dim;
  for (int i = thread_index(); i < kTileRows * dim; i += kThreads) {
    const int r = i / dim;
    const int d = i % dim;
    if (r >= tile.num_rows) {
      shared.q[0][r][d] = shared.q[1][r][d] = 0;
      continue;
    }
    const std::int64_t at = tile.batch_row(r) * work.args.ldq + std::int64_t{tile.head(r)} * dim + d;
    shared.q[0][r][d] = work.args.q[at] * scale;
    shared.q[1][r][d] = work.args.q_sinks != nullptr ? work.args.q_sinks[at] * scale : 0.0F;
  }
}

// The head's keys or values of the block of a position.
LARDER_DEVICE const std::uint16_t* head_in_block(const Work& work, const Tile& tile, int position,
                                                 std::int64_t offset_bytes) {
  const PagedKvView& kv = work.args.kv;
  const AttentionSequence& sequence = *tile.sequence;
  const int index = position / kBlockSize;
  const bool is_sink = index < sequence.num_sinks / kBlockSize;
  const auto block = static_cast<std::int64_t>(
      sequence.block_table[is_sink ? index : index - sequence.skipped_blocks]);
  const std::int64_t head_bytes = std::int64_t{kBlockSize} * kv.head_dim * 2;
  return reinterpret_cast<const std::uint16_t*>(kv.base + block * kv.block_stride_bytes +
                                                offset_bytes + tile.kv_head * head_bytes);
}

// The thread's key with all rows, kNothing where a row does not see it.
template <KvType kKey, int kMaxDim>
LARDER_DEVICE void score_key(const Work& work, const Tile& tile, int key, int end,
                             Shared<kMaxDim>& shared) {
  float scores[kTileRows] = {};
  const int block_begin = key / kBlockSize * kBlockSize;
  if (key < end && tile.sees(block_begin, block_begin + kBlockSize)) {
    const std::uint16_t* k =
        head_in_block(work, tile, key, work.args.kv.k_offset_bytes) + key % kBlockSize;
    int which[kTileRows];  // of the two queries
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const bool past_sinks = work.args.q_sinks != nullptr && r < tile.num_rows &&
                              tile.sight.first_key(tile.position(r)) > tile.sight.sinks;
      which[r] = past_sinks && key < tile.sight.sinks ? 1 : 0;
    }
    const int dim = work.args.kv.head_dim;
    int d = 0;
    for (; d + 4 <= dim; d += 4) {
      float values[4];
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i) values[i] = stored_value<kKey>(k[(d + i) * kBlockSize]);
      LARDER_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        const Floats4 q = *reinterpret_cast<const Floats4*>(&shared.q[which[r]][r][d]);
        LARDER_UNROLL
        for (int i = 0; i < 4; ++i) scores[r] = fmaf(q.value[i], values[i], scores[r]);
      }
    }
    for (; d < dim; ++d) {
      const float value = stored_value<kKey>(k[d * kBlockSize]);
      LARDER_UNROLL
      for (int r = 0; r < kTileRows; ++r)
        scores[r] = fmaf(shared.q[which[r]][r][d], value, scores[r]);
    }
  }
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r)
    shared.scores[r][thread_index()] = tile.row_sees(r, key) ? scores[r] : kNothing;
}

// Scores to 2^(score - max); moves maxima and sums. A warp takes kWarpRows rows.
template <int kMaxDim>
LARDER_DEVICE void softmax(Shared<kMaxDim>& shared) {
  constexpr int kLaneKeys = kKeyTile / 32;
  const int lane = thread_index() % 32;
  for (int i = 0; i < kWarpRows; ++i) {
    const int r = thread_index() / 32 * kWarpRows + i;
    float* scores = shared.scores[r];
    float largest = kNothing;
    LARDER_UNROLL
    for (int k = 0; k < kLaneKeys; ++k) largest = fmaxf(largest, scores[k * 32 + lane]);
    const float max_before = shared.max[r];
    const float max_now = fmaxf(max_before, warp_max(largest));
    float sum = 0;
    LARDER_UNROLL
    for (int k = 0; k < kLaneKeys; ++k) {
      const float score = scores[k * 32 + lane];
      const float p = score == kNothing ? 0.0F : exp2f(score - max_now);
      scores[k * 32 + lane] = p;
      sum += p;
    }
    sum = warp_sum(sum);
    sync_warp();  // all lanes have read the maximum then
    if (lane == 0) {
      const float factor = exp2f(max_before - max_now);
      shared.factor[r] = factor;
      shared.max[r] = max_now;
      shared.sum[r] = shared.sum[r] * factor + sum;
    }
  }
}

// Adds the tile's values, weighted, to the thread's dimensions.
template <KvType kValue, int kMaxDim>
LARDER_DEVICE void add_values(const Work& work, const Tile& tile, int begin, int end,
                              const Shared<kMaxDim>& shared,
                              float (&sums)[kTileRows][kMaxDim / kThreads]) {
  constexpr int kDims = kMaxDim / kThreads;
  const int dim = work.args.kv.head_dim;
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r)
    LARDER_UNROLL
    for (int j = 0; j < kDims; ++j) sums[r][j] *= shared.factor[r];
  for (int block = begin; block < min_of(begin + kKeyTile, end); block += kBlockSize) {
    if (!tile.sees(block, block + kBlockSize)) continue;
    const std::uint16_t* v = head_in_block(work, tile, block, work.args.kv.v_offset_bytes);
    const int num_keys = min_of(kBlockSize, end - block);
    LARDER_UNROLL
    for (int key = 0; key < kBlockSize; ++key) {
      if (key >= num_keys) break;
      float values[kDims];
      LARDER_UNROLL
      for (int j = 0; j < kDims; ++j) {
        const int d = j * kThreads + thread_index();
        values[j] = d < dim ? stored_value<kValue>(v[key * dim + d]) : 0.0F;
      }
      LARDER_UNROLL
      for (int r = 0; r < kTileRows; ++r) {
        const float p = shared.scores[r][block - begin + key];
        LARDER_UNROLL
        for (int j = 0; j < kDims; ++j) sums[r][j] = fmaf(p, values[j], sums[r][j]);
      }
    }
  }
}

// The partial softmax of the keys in one split.
template <KvType kKey, KvType kValue, int kMaxDim>
LARDER_DEVICE void run_split(const Work& work, const Tile& tile, int split,
                             Shared<kMaxDim>& shared,
                             float (&sums)[kTileRows][kMaxDim / kThreads]) {
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r)
    LARDER_UNROLL
    for (int j = 0; j < kMaxDim / kThreads; ++j) sums[r][j] = 0;
  if (thread_index() < kTileRows) {
    shared.max[thread_index()] = kNothing;
    shared.sum[thread_index()] = 0;
  }
  sync_block();  // also for the queries
  const int end = min_of((split + 1) * kKeySplit, tile.last_position() + 1);
  for (int key = split * kKeySplit; key < end; key += kKeyTile) {
    if (!tile.sees(key, key + kKeyTile)) continue;
    score_key<kKey>(work, tile, key + thread_index(), end, shared);
    sync_block();
    softmax(shared);
    sync_block();
    add_values<kValue>(work, tile, key, end, shared, sums);
    sync_block();
  }
}

// What two partials, of these maxima, are multiplied by when they become one.
struct Merge {
  float max, keep, take;
  LARDER_MEMBER Merge(float into, float from)
      : max(fmaxf(into, from)), keep(exp2f(into - max)), take(exp2f(from - max)) {}
  LARDER_MEMBER float of(float into, float from) const { return fmaf(from, take, into * keep); }
};

LARDER_DEVICE float finish(float value, float sum) {
  return value * (1.0F / sum) + 0.0F;  // no zero is negative
}

template <KvType kKey, KvType kValue, int kMaxDim>
LARDER_DEVICE void run_all_splits(const Work& work, const Tile& tile, Shared<kMaxDim>& shared) {
  constexpr int kDims = kMaxDim / kThreads;
  float totals[kTileRows][kDims] = {};
  if (thread_index() < kTileRows) {
    shared.total_max[thread_index()] = kNothing;
    shared.total_sum[thread_index()] = 0;
  }
  for (int index = 0;; ++index) {
    const int split = tile.sight.split_at(index, tile.position(0));
    if (split > tile.last_position() / kKeySplit) break;
    float sums[kTileRows][kDims];
    run_split<kKey, kValue>(work, tile, split, shared, sums);
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r) {
      const Merge merge(shared.total_max[r], shared.max[r]);
      LARDER_UNROLL
      for (int j = 0; j < kDims; ++j) totals[r][j] = merge.of(totals[r][j], sums[r][j]);
    }
    sync_block();
    if (thread_index() < kTileRows) {
      const int r = thread_index();
      const Merge merge(shared.total_max[r], shared.max[r]);
      shared.total_sum[r] = merge.of(shared.total_sum[r], shared.sum[r]);
      shared.total_max[r] = merge.max;
    }
    sync_block();
  }
  const int dim = work.args.kv.head_dim;
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= tile.num_rows) break;
    float* out = work.args.out + tile.batch_row(r) * work.args.ldo + std::int64_t{tile.head(r)} * dim;
    LARDER_UNROLL
    for (int j = 0; j < kDims; ++j) {
      const int d = j * kThreads + thread_index();
      if (d < dim) out[d] = finish(totals[r][j], shared.total_sum[r]);
    }
  }
}

// Grid: pieces, KV heads.
template <KvType kKey, KvType kValue, int kMaxDim>
LARDER_KERNEL_OF(kThreads) attention_kernel(Work work) {
  constexpr int kDims = kMaxDim / kThreads;
  LARDER_SHARED Shared<kMaxDim> shared;
  const Tile tile = find_tile(work, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  const bool shares_keys = tile.sequence->num_splits > 1;
  const int split = tile.sight.split_at(tile.split_index, tile.first_position);
  if (shares_keys && !tile.sight.has_split(split, tile.position(0), tile.last_position())) return;
  load_queries(work, tile, shared);
  if (!shares_keys) return run_all_splits<kKey, kValue>(work, tile, shared);
  float sums[kTileRows][kDims];
  run_split<kKey, kValue>(work, tile, split, shared, sums);
  const int dim = work.args.kv.head_dim;
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= tile.num_rows) break;
    float* partial = work.partial(*tile.sequence, tile.query(r), tile.split_index, tile.head(r));
    LARDER_UNROLL
    for (int j = 0; j < kDims; ++j) {
      const int d = j * kThreads + thread_index();
      if (d < dim) partial[d] = sums[r][j];
    }
    if (thread_index() == 0) {
      partial[dim] = shared.max[r];
      partial[dim + 1] = shared.sum[r];
    }
  }
}

// A block per row and head merges what its splits left.
LARDER_KERNEL_OF(kThreads) merge_kernel(Work work) {
  const int row = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const AttentionSequence& sequence =
      find_sequence(work.args, &AttentionSequence::first_row, row);
  if (sequence.num_splits == 1) return;
  const Sight sight = sight_of(work.args, sequence);
  const int query = row - sequence.first_row;
  const int first_position = sequence.context_len - sequence.num_tokens;
  const int position = first_position + query;
  const int dim = work.args.kv.head_dim;
  for (int d = thread_index(); d < dim; d += kThreads) {
    float max = kNothing;
    float sum = 0;
    float total = 0;
    for (int index = 0; index < sequence.num_splits; ++index) {
      if (!sight.has_split(sight.split_at(index, first_position), position, position)) continue;
      const float* partial = work.partial(sequence, query, index, head);
      const Merge merge(max, partial[dim]);
      total = merge.of(total, partial[d]);
      sum = merge.of(sum, partial[dim + 1]);
      max = merge.max;
    }
    work.args.out[row * work.args.ldo + std::int64_t{head} * dim + d] = finish(total, sum);
  }
}

template <KvType kKey, KvType kValue>
void launch_attention(const Work& work, dim3 grid) {
  const int dim = work.args.kv.head_dim;
  if (dim <= 128) return launch(attention_kernel<kKey, kValue, 128>, grid, kThreads, work);
  if (dim <= 256) return launch(attention_kernel<kKey, kValue, 256>, grid, kThreads, work);
  require(dim <= kCudaMaxHeadDim, "head_dim");
  launch(attention_kernel<kKey, kValue, kCudaMaxHeadDim>, grid, kThreads, work);
}

}  // namespace

void attention_batch(const AttentionArgs& args, std::byte* scratch) {
  require(!has_codes(args.kv.types.k) && !has_codes(args.kv.types.v), "KV types of 16 bits");
  const Work work{args, args.num_heads / args.kv.num_kv_heads, reinterpret_cast<float*>(scratch)};
  const dim3 grid(static_cast<unsigned>(args.sharing.num_pieces),
                  static_cast<unsigned>(args.kv.num_kv_heads));
  const bool k_is_half = args.kv.types.k == KvType::kF16;
  if (args.kv.types.v == KvType::kF16) {
    k_is_half ? launch_attention<KvType::kF16, KvType::kF16>(work, grid)
              : launch_attention<KvType::kBF16, KvType::kF16>(work, grid);
  } else {
    k_is_half ? launch_attention<KvType::kF16, KvType::kBF16>(work, grid)
              : launch_attention<KvType::kBF16, KvType::kBF16>(work, grid);
  }
  launch(merge_kernel,
         dim3(static_cast<unsigned>(args.sharing.num_merged_rows),
              static_cast<unsigned>(args.num_heads)),
         kThreads, work);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
