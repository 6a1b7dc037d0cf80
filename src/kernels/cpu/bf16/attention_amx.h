// Attention's sums over FP16, BF16 and E4M3 blocks on AMX tiles: TDPBF16PS multiplies 16 rows' queries, or softmax
// weights, by 16 keys, or dimensions of values, in pairs of BF16 numbers, 32 at a time. Numbers are rounded as in
// attention_bf16.h; the sums have another order. Few rows go this way, too: a row has the bits that it has among many.
// Included by attention.cc alone.
#pragma once

#include "kernels/cpu/bf16/amx_instructions.h"
#include "kernels/cpu/bf16/tile_pairs.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kRowsOfTile = 16;
constexpr int kStepPairs = 16;  // that a tile of keys or values has
constexpr int kScoreBytes = kKeyTile * 4;  // a row's
static_assert(kTileBlocks == 4, "as many tiles of scores");

// Of dimensions, with zeros behind the last one.
LARDER_INLINE int num_key_steps(const Work& work) { return (work.dim / 2 + kStepPairs - 1) / kStepPairs; }

LARDER_INLINE bool uses_tiles(const Work& work) {
  const KvTypes& types = work.args.kv.types;
  return multiplies_pairs(work.args, types.k) || multiplies_pairs(work.args, types.v);
}

LARDER_INLINE int rows_of_group(const Work& work) { return min_of(work.rows, kRowsOfTile); }
// Of the group that holds `row`: whole where the task has as many rows. What stands before `row` is done, and what
// comes out for it again is not used.
LARDER_INLINE int first_of_group(const Work& work, int row) { return min_of(row, work.rows - rows_of_group(work)); }

// Tiles 0 to 3: sums, one of 16 keys or dimensions each; 4 and 5: queries or weights; 6 and 7: keys or values.
struct TilesInUse {
  explicit TilesInUse(const Work& work) : is_in_use(uses_tiles(work)) {
    if (!is_in_use) return;
    TileShapes shapes = {};
    shapes.palette = 1;
    for (int tile = 0; tile < 8; ++tile) {
      shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows_of_group(work) : kStepPairs);
      shapes.row_bytes[tile] = 64;
    }
    tiles_begin(shapes);
  }
  ~TilesInUse() {
    if (is_in_use) tiles_end();
  }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;

  const bool is_in_use;
};

// What a step of keys has behind the last dimension, a step of values behind the last block.
LARDER_INLINE void fill_up_keys(const Work& work, TilePairs& pairs) {
  constexpr int kPairBytes = kTileBlocks * 64;
  const int begin = work.dim / 2;
  const int count = num_key_steps(work) * kStepPairs - begin;
  memset(pairs.k + begin * kPairBytes, 0, static_cast<size_t>(count * kPairBytes));
}
LARDER_INLINE void fill_up_values(const Work& work, const KeyTile& tile, TilePairs& pairs) {
  if (tile.num_blocks % 2 == 0) return;
  const int block_bytes = kBlockSize / 2 * work.padded_dim * 4;
  memset(pairs.v + tile.num_blocks * block_bytes, 0, static_cast<size_t>(block_bytes));
}
// And a row's query.
LARDER_INLINE void fill_up_query(const Work& work, const Queries& q) {
  const int begin = work.padded_dim / 2;
  memset(q.words + begin, 0, static_cast<size_t>(num_key_steps(work) * kStepPairs - begin) * 4);
}

// One step of four tiles of sums that have one operand in common; right: the first tile's other operand.
LARDER_INLINE void multiply_four(const void* left, int64_t left_stride, const uint8_t* right, int64_t right_stride) {
  tile_load<4>(left, left_stride);
  tile_load<6>(right, right_stride);
  tile_dot_bf16<0, 4, 6>();
  tile_load<7>(right + 64, right_stride);
  tile_dot_bf16<1, 4, 7>();
  tile_load<6>(right + 128, right_stride);
  tile_dot_bf16<2, 4, 6>();
  tile_load<7>(right + 192, right_stride);
  tile_dot_bf16<3, 4, 7>();
}
LARDER_INLINE void store_four(float* to, int64_t stride) {
  tile_store<0>(to, stride);
  tile_store<1>(to + kLanes, stride);
  tile_store<2>(to + 2 * kLanes, stride);
  tile_store<3>(to + 3 * kLanes, stride);
}

// scores[r][key] = sum over d of q[r][d] * k[key][d] of a group's rows, for the whole tile. words: the first row's.
void score_group_pairs(const Work& work, const KeyTile& tile, const int32_t* words, float* scores) {
  const int64_t stride = int64_t{4} * attention_words(work.dim);
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int step = 0; step < num_key_steps(work); ++step) {
    const uint8_t* k = tile.pairs->k + int64_t{step} * kStepPairs * kTileBlocks * 64;
    multiply_four(words + step * kStepPairs, stride, k, kTileBlocks * 64);
  }
  store_four(scores, kScoreBytes);
}

// Softmax weights of rows [row, row_end) to pairs, which take the place of the first half of the row's scores.
void pair_weights(const Work& work, const KeyTile& tile, int row, int row_end) {
  for (int r = row; r < row_end; ++r) {
    float* p = work.scores + r * kKeyTile;
    const int num_blocks = min_of(tile.num_blocks, (work.position(r) - tile.begin) / kBlockSize + 1);
    for (int b = 0; b < kTileBlocks; b += 2) {
      const V16 lower = b < num_blocks ? load(p + b * kLanes) : zero();
      const V16 upper = b + 1 < num_blocks ? load(p + (b + 1) * kLanes) : zero();
      _mm512_storeu_si512(p + b * kLanes / 2, rounded(lower, upper));
    }
  }
}

// values[r][0..64) += sum over keys of weight[r][key] * v[key][d..d + 64); of fewer dimensions where kTiles is below
// four. weights: the first row's pairs.
template <int kTiles>
LARDER_INLINE void add_tiles(const Work& work, const KeyTile& tile, const float* weights, int d, float* values,
                             int64_t stride) {
  const int64_t v_stride = int64_t{4} * work.padded_dim;
  tile_load<0>(values, stride);
  if constexpr (kTiles == 4) {
    tile_load<1>(values + kLanes, stride);
    tile_load<2>(values + 2 * kLanes, stride);
    tile_load<3>(values + 3 * kLanes, stride);
  }
  for (int b = 0; b < tile.num_blocks; b += 2) {
    const float* left = weights + b * kLanes / 2;
    const uint8_t* v = tile.pairs->v + (int64_t{b} * kBlockSize / 2 * work.padded_dim + d) * 4;
    if constexpr (kTiles == 4) {
      multiply_four(left, kScoreBytes, v, v_stride);
    } else {
      tile_load<4>(left, kScoreBytes);
      tile_load<6>(v, v_stride);
      tile_dot_bf16<0, 4, 6>();
    }
  }
  if constexpr (kTiles == 4) {
    store_four(values, stride);
  } else {
    tile_store<0>(values, stride);
  }
}

// values[r] = values * factor of rows [row, row_end), from one place to another.
LARDER_INLINE void scale_values(const Work& work, int row, int row_end, const float* from, float* to) {
  for (int r = row; r < row_end; ++r) {
    const V16 factor = set1(work.factor[r]);
    const int64_t at = int64_t{r - row} * work.padded_dim;
    for (int d = 0; d < work.padded_dim; d += kLanes) store(to + at + d, mul(load(from + at + d), factor));
  }
}

// values[r] = values * factor + sum over keys of weight[r][key] * v[key] of rows [row, row_end), at most a group, whose
// weights are in pairs.
void add_group_pairs(const Work& work, const KeyTile& tile, int row, int row_end, const Partial& partial) {
  bool keeps_all = true;
  for (int r = row; r < row_end; ++r) keeps_all = keeps_all && work.factor[r] == 1;
  const float* weights = work.scores + first_of_group(work, row) * kKeyTile;
  const bool is_whole = row_end - row == rows_of_group(work);
  float* own = partial.values + int64_t{row} * work.padded_dim;
  alignas(64) float copy[kRowsOfTile * kMaxPairDim];
  float* values = own;
  if (!is_whole) {
    const int group_floats = rows_of_group(work) * work.padded_dim;
    memset(copy, 0, sizeof(float) * static_cast<size_t>(group_floats));
    values = copy;
  }
  float* first = is_whole ? own : copy + (row - first_of_group(work, row)) * work.padded_dim;
  if (!is_whole || !keeps_all) scale_values(work, row, row_end, own, first);
  const int64_t stride = int64_t{4} * work.padded_dim;
  int d = 0;
  for (; d + 4 * kLanes <= work.padded_dim; d += 4 * kLanes) add_tiles<4>(work, tile, weights, d, values + d, stride);
  for (; d < work.padded_dim; d += kLanes) add_tiles<1>(work, tile, weights, d, values + d, stride);
  if (!is_whole) memcpy(own, first, sizeof(float) * static_cast<size_t>((row_end - row) * work.padded_dim));
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
