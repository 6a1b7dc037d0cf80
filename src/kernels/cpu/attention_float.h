// Attention's sums over FP16, BF16 and E4M3 blocks, in FP32. Included by attention.cc alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// scores, or weights, of rows times their keys' scales; scales_of(b): those of block b, as they lie.
template <int kRows, class ScalesOf>
LARDER_INLINE void times_scales(float* scores, int num_blocks, const ScalesOf& scales_of) {
  for (int b = 0; b < num_blocks; ++b) {
    const auto* from = reinterpret_cast<const uint16_t*>(scales_of(b));
    const V16 scales = mul(load_bf16(from), set1(kE4m3InHalf));
    for (int r = 0; r < kRows; ++r) {
      float* of_block = scores + r * kKeyTile + b * kLanes;
      store(of_block, mul(load(of_block), scales));
    }
  }
}
template <int kRows>
void scale_fp8_scores(const Work& work, const KeyTile& tile, float* scores) {
  times_scales<kRows>(scores, tile.num_blocks, [&](int b) LARDER_INLINE_LAMBDA {
    return tile.k[b] + int64_t{work.dim} * kBlockSize;
  });
}
// Nobody wants the weights as they were after this.
template <int kRows>
void scale_fp8_weights(const Work& work, const KeyTile& tile, int row) {
  times_scales<kRows>(work.scores + row * kKeyTile, tile.num_blocks,
                      [&](int b) LARDER_INLINE_LAMBDA { return tile.v[b]; });
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
        k[v] = load_value<kType>(keys_in<kType>(tile.k[b + v]) + d * kLanes);
        if constexpr (kRows <= kFetchRows)
          if (kType != KvType::kFp8 || d % 4 == 0)
            fetch_line(keys_in<kType>(tile.next_k[b + v]) + d * kLanes, false, v % 2 != 0);
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
      const auto* from = values_in<kType>(tile.v[b]) + i * work.dim + d;
      if constexpr (kRows <= kFetchRows) {
        constexpr int kLine = kType == KvType::kFp8 ? 4 : 2;  // vectors
        for (int v = 0; v < kVectors; v += kLine) {
          fetch_line(values_in<kType>(tile.next_v[b]) + i * work.dim + d + v * kLanes, false,
                     v % (2 * kLine) != 0);
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
