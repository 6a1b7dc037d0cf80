// Attention's sums over FP16, BF16 and E4M3 blocks by VDPBF16PS, which multiplies two pairs of BF16 values
// a lane, exactly, and adds them to FP32 sums: twice as many products as in FP32. Queries, keys,
// values and softmax weights are rounded to BF16; scores, maxima and sums stay in FP32. Included by
// attention.cc alone.
#pragma once

#include "kernels/cpu/bf16/tile_pairs.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

static_assert(kAttentionVectors == kTileBlocks, "all of a tile's keys are scored at once");

// Few rows take their pairs from the blocks as they come, while the units that multiply are busy; for
// more they are stored once. Counted over the whole task.
constexpr int kDirectRows = 24;
LARDER_INLINE bool stores_pairs(const Work& work) { return work.rows > kDirectRows; }

// scores[r][key] = sum over d in order of q[r][d] * k[key][d], for the whole tile. load_keys(d, b):
// key_pairs().
template <int kRows, class Load>
LARDER_INLINE void score_rows_with(const Work& work, const int32_t* words, float* scores,
                                   const Load& load_keys) {
  const int32_t* of_row[kRows];
  V16 sum[kRows][kTileBlocks];
  for (int r = 0; r < kRows; ++r) {
    of_row[r] = words + int64_t{r} * attention_words(work.dim);
    for (int b = 0; b < kTileBlocks; ++b) sum[r][b] = zero();
  }
  const int64_t num_pairs = work.dim / 2;
  for (int64_t i = 0; i < num_pairs; ++i) {
    __m512i keys[kTileBlocks];
    for (int b = 0; b < kTileBlocks; ++b) keys[b] = load_keys(2 * i, b);
    for (int r = 0; r < kRows; ++r) {
      for (int b = 0; b < kTileBlocks; ++b) sum[r][b] = dot_pairs(sum[r][b], keys[b], of_row[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kTileBlocks; ++b) store(scores + r * kKeyTile + b * kLanes, sum[r][b]);
  }
}

template <KvType kType, int kRows>
LARDER_INLINE void score_rows_direct(const Work& work, const KeyTile& tile, const int32_t* words,
                                     float* scores) {
  score_rows_with<kRows>(work, words, scores, [&](int64_t d, int b) LARDER_INLINE_LAMBDA {
    fetch_next_keys<kType>(tile, d, b);
    return key_pairs<kType>(tile, d, b);
  });
}

template <int kRows>
void score_rows_pairs(const Work& work, const KeyTile& tile, const int32_t* words, float* scores) {
  if (!stores_pairs(work)) {
    return with_float_type(work.args.kv.types.k, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
      score_rows_direct<kType, kRows>(work, tile, words, scores);
    });
  }
  const uint8_t* k = tile.pairs->k;
  score_rows_with<kRows>(work, words, scores, [&](int64_t d, int b) LARDER_INLINE_LAMBDA {
    return _mm512_load_si512(k + (d / 2 * kTileBlocks + b) * 64);
  });
}

// values[r][d..] = values * factor + sum over keys in order of weight[r][key] * v[key][d..], kVectors
// of 16 dimensions. load_values(i, d): value_pairs().
template <int kRows, int kVectors, class Load>
LARDER_INLINE void add_values_of_pairs(const Work& work, int num_pairs,
                                       const int32_t (*weights)[kKeyTile / 2], int row, int d,
                                       const Partial& partial, const Load& load_values) {
  float* values = partial.values + int64_t{row} * work.padded_dim + d;
  V16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const V16 factor = set1(work.factor[row + r]);
    for (int i = 0; i < kVectors; ++i)
      sum[r][i] = mul(load(values + r * work.padded_dim + i * kLanes), factor);
  }
  for (int pair = 0; pair < num_pairs; ++pair) {
    __m512i x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = load_values(pair, d + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectors; ++i) sum[r][i] = dot_pairs(sum[r][i], x[i], weights[r][pair]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i)
      store(values + r * work.padded_dim + i * kLanes, sum[r][i]);
  }
}

template <int kRows, class Load>
LARDER_INLINE void add_values_with(const Work& work, const KeyTile& tile, int row,
                                   const Partial& partial, const Load& load_values) {
  alignas(64) int32_t weights[kRows][kKeyTile / 2];
  for (int r = 0; r < kRows; ++r) {
    const float* p = work.scores + (row + r) * kKeyTile;
    for (int i = 0; i < kKeyTile; i += 2 * kLanes)
      _mm512_store_si512(weights[r] + i / 2, rounded(load(p + i), load(p + i + kLanes)));
  }
  const int num_pairs = tile.num_blocks * kBlockSize / 2;
  int d = 0;
  for (; d + kAttentionVectors * kLanes <= work.dim; d += kAttentionVectors * kLanes)
    add_values_of_pairs<kRows, kAttentionVectors>(work, num_pairs, weights, row, d, partial,
                                                  load_values);
  for (; d < work.dim; d += kLanes)
    add_values_of_pairs<kRows, 1>(work, num_pairs, weights, row, d, partial, load_values);
}

template <KvType kType, int kRows>
LARDER_INLINE void add_values_direct(const Work& work, const KeyTile& tile, int row,
                                     const Partial& partial) {
  add_values_with<kRows>(work, tile, row, partial, [&](int i, int d) LARDER_INLINE_LAMBDA {
    fetch_next_values<kType>(work, tile, i, d);
    return value_pairs<kType>(work, tile, i, d);
  });
}

template <int kRows>
void add_values_pairs(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  if (!stores_pairs(work)) {
    return with_float_type(work.args.kv.types.v, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
      add_values_direct<kType, kRows>(work, tile, row, partial);
    });
  }
  const uint8_t* v = tile.pairs->v;
  add_values_with<kRows>(work, tile, row, partial, [&](int i, int d) LARDER_INLINE_LAMBDA {
    return _mm512_load_si512(v + (i * work.padded_dim + d) * 4);
  });
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
