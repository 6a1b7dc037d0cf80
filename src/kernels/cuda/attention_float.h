// Attention's sums over keys and values of 16 bits, in FP32. Included by attention's kernels alone.
#pragma once

#include "kernels/cuda/attention_tile.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

template <KvType kType>
LARDER_DEVICE float stored_value(std::uint16_t bits) {
  if constexpr (kType == KvType::kF16)
    return half_value(bits);
  else
    return bf16_value(bits);
}

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

// The thread's key with all rows.
template <KvType kKey, int kMaxDim>
LARDER_DEVICE void score_key(const Work& work, const Tile& tile, int key, int end,
                             Shared<kMaxDim>& shared) {
  float scores[kTileRows] = {};
  const int block_begin = key / kBlockSize * kBlockSize;
  if (key < end && tile.sees(block_begin, block_begin + kBlockSize)) {
    const std::uint16_t* k =
        reinterpret_cast<const std::uint16_t*>(keys_at(work, tile, key)) + key % kBlockSize;
    int which[kTileRows];
    LARDER_UNROLL
    for (int r = 0; r < kTileRows; ++r) which[r] = query_for(work, tile, r, key);
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
  write_scores(tile, key, scores, shared);
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
    const auto* v = reinterpret_cast<const std::uint16_t*>(values_at(work, tile, block));
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

// For attention_kernel().
template <KvType kKey, KvType kValue>
struct HalfTypes {
  static constexpr bool kHaveCodes = false;
  template <int kMaxDim>
  using SharedOf = Shared<kMaxDim>;

  template <int kMaxDim>
  static LARDER_MEMBER void load(const Work& work, const Tile& tile, Shared<kMaxDim>& shared) {
    load_queries(work, tile, shared);
  }
  template <int kMaxDim>
  static LARDER_MEMBER void score(const Work& work, const Tile& tile, int key, int end,
                                  Shared<kMaxDim>& shared) {
    score_key<kKey>(work, tile, key, end, shared);
  }
  template <int kMaxDim>
  static LARDER_MEMBER void add(const Work& work, const Tile& tile, int begin, int end,
                                Shared<kMaxDim>& shared,
                                float (&sums)[kTileRows][kMaxDim / kThreads]) {
    add_values<kValue>(work, tile, begin, end, shared, sums);
  }
};


}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
