// Attention's sums over FP16 and BF16 blocks, in FP32. Included by attention.cc alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

LARDER_INLINE const uint16_t* halves(const std::byte* p) {
  return reinterpret_cast<const uint16_t*>(p);
}

template <KvType kType>
LARDER_INLINE V16 load_value(const uint16_t* p) {
  if constexpr (kType == KvType::kF16) return load_f16(p);
  return load_bf16(p);
}
template <KvType kType>
LARDER_INLINE V16 load_value_partial(const uint16_t* p, int n) {
  if constexpr (kType == KvType::kF16) return load_f16_partial(p, n);
  return load_bf16_partial(p, n);
}

// scores[r][16 b + lane] = sum over d in order of q[r][d] * k[b][d][lane], for the tile's blocks (and
// those behind them, up to a multiple of kAttentionVectors).
template <KvType kType, int kRows>
void score_rows_float(const Work& work, const KeyTile& tile, const float* q, float* scores) {
  for (int b = 0; b < tile.num_blocks; b += kAttentionVectors) {
    V16 sum[kRows][kAttentionVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kAttentionVectors; ++v) sum[r][v] = zero();
    }
    for (int d = 0; d < work.dim; ++d) {
      V16 k[kAttentionVectors];
      for (int v = 0; v < kAttentionVectors; ++v) {
        k[v] = load_value<kType>(halves(tile.k[b + v]) + d * kLanes);
        if constexpr (kRows <= kFetchRows)
          fetch_line(halves(tile.next_k[b + v]) + d * kLanes, false, v % 2 != 0);
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

// values[r][d..] = values * factor + sum over keys in order of p[r][key] * v[key][d..], kVectors of
// 16 dimensions; lanes: how many of the last vector's exist.
template <KvType kType, int kRows, int kVectors>
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
      const uint16_t* from = halves(tile.v[b]) + i * work.dim + d;
      if constexpr (kRows <= kFetchRows) {
        for (int v = 0; v < kVectors; v += 2) {
          fetch_line(halves(tile.next_v[b]) + i * work.dim + d + v * kLanes, false, v % 4 != 0);
        }
      }
      V16 x[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        x[v] = lanes == kLanes ? load_value<kType>(from + v * kLanes)
                               : load_value_partial<kType>(from, lanes);
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

template <KvType kType, int kRows>
void add_values_float(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  int d = 0;
  for (; d + kAttentionVectors * kLanes <= work.dim; d += kAttentionVectors * kLanes) {
    add_values_of<kType, kRows, kAttentionVectors>(work, tile, row, d, kLanes, partial);
  }
  for (; d < work.dim; d += kLanes) {
    add_values_of<kType, kRows, 1>(work, tile, row, d, min_of(kLanes, work.dim - d), partial);
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
