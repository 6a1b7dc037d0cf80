// A block's work, for any types of keys and values. Included by attention's kernels alone.
#pragma once

#include "kernels/cuda/attention_float.h"
#include "kernels/cuda/hadamard.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// The partial softmax of the keys in one split.
template <class Types, int kMaxDim>
LARDER_DEVICE void run_split(const Work& work, const Tile& tile, int split,
                             typename Types::template SharedOf<kMaxDim>& shared,
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
    Types::score(work, tile, key + thread_index(), end, shared);
    sync_block();
    softmax(shared);
    sync_block();
    Types::add(work, tile, key, end, shared, sums);
    sync_block();
  }
}

// Sums over values that were stored turned.
template <int kMaxDim>
LARDER_DEVICE void turn_back(const Work& work, const Tile& tile, Shared<kMaxDim>& shared,
                             float (&totals)[kTileRows][kMaxDim / kThreads]) {
  float(&rows)[kTileRows][kMaxDim] = shared.q[0];  // nobody needs the queries any more
  const int dim = work.args.kv.head_dim;
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r)
    LARDER_UNROLL
    for (int j = 0; j < kMaxDim / kThreads; ++j)
      rows[r][j * kThreads + thread_index()] = totals[r][j];
  hadamard_rows(rows[0], tile.num_rows, kMaxDim, dim);
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r)
    LARDER_UNROLL
    for (int j = 0; j < kMaxDim / kThreads; ++j)
      totals[r][j] = rows[r][j * kThreads + thread_index()];
}

// What a split left for merge_kernel().
template <int kMaxDim>
LARDER_DEVICE void write_partial(const Work& work, const Tile& tile, const Shared<kMaxDim>& shared,
                                 const float (&sums)[kTileRows][kMaxDim / kThreads]) {
  const int dim = work.args.kv.head_dim;
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= tile.num_rows) break;
    float* partial = work.partial(*tile.sequence, tile.query(r), tile.split_index, tile.head(r));
    LARDER_UNROLL
    for (int j = 0; j < kMaxDim / kThreads; ++j) {
      const int d = j * kThreads + thread_index();
      if (d < dim) partial[d] = sums[r][j];
    }
    if (thread_index() == 0) {
      partial[dim] = shared.max[r];
      partial[dim + 1] = shared.sum[r];
    }
  }
}

// Takes a split's sums into the totals.
template <int kMaxDim>
LARDER_DEVICE void merge_split(Shared<kMaxDim>& shared,
                               const float (&sums)[kTileRows][kMaxDim / kThreads],
                               float (&totals)[kTileRows][kMaxDim / kThreads]) {
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    const Merge merge(shared.total_max[r], shared.max[r]);
    LARDER_UNROLL
    for (int j = 0; j < kMaxDim / kThreads; ++j) totals[r][j] = merge.of(totals[r][j], sums[r][j]);
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

template <int kMaxDim>
LARDER_DEVICE void write_out(const Work& work, const Tile& tile, const Shared<kMaxDim>& shared,
                             const float (&totals)[kTileRows][kMaxDim / kThreads]) {
  const int dim = work.args.kv.head_dim;
  LARDER_UNROLL
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= tile.num_rows) break;
    float* out = work.args.out + tile.batch_row(r) * work.args.ldo + std::int64_t{tile.head(r)} * dim;
    LARDER_UNROLL
    for (int j = 0; j < kMaxDim / kThreads; ++j) {
      const int d = j * kThreads + thread_index();
      if (d < dim) out[d] = finish(totals[r][j], shared.total_sum[r]);
    }
  }
}

// Grid: pieces, KV heads.
template <class Types, int kMaxDim>
LARDER_KERNEL_OF(kThreads) attention_kernel(Work work) {
  constexpr int kDims = kMaxDim / kThreads;
  LARDER_SHARED typename Types::template SharedOf<kMaxDim> shared;
  const Tile tile = find_tile(work, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  const bool shares_keys = tile.sequence->num_splits > 1;
  const int own_split = tile.sight.split_at(tile.split_index, tile.first_position);
  if (shares_keys && !tile.sight.has_split(own_split, tile.position(0), tile.last_position()))
    return;
  Types::load(work, tile, shared);
  float totals[kTileRows][kDims] = {};
  if (thread_index() < kTileRows) {
    shared.total_max[thread_index()] = kNothing;
    shared.total_sum[thread_index()] = 0;
  }
  for (int index = 0;; ++index) {
    const int split = shares_keys ? own_split : tile.sight.split_at(index, tile.position(0));
    if (split > tile.last_position() / kKeySplit) break;
    float sums[kTileRows][kDims];
    run_split<Types, kMaxDim>(work, tile, split, shared, sums);
    if (shares_keys) return write_partial(work, tile, shared, sums);
    merge_split(shared, sums, totals);
  }
  if constexpr (Types::kHaveCodes) {
    if (work.args.kv.types.v == KvType::kInt4) turn_back(work, tile, shared, totals);
  }
  write_out(work, tile, shared, totals);
}

template <class Types>
void launch_attention(const AttentionArgs& args, std::byte* scratch) {
  const Work work = work_of(args, scratch);
  const dim3 grid(static_cast<unsigned>(args.sharing.num_pieces),
                  static_cast<unsigned>(args.kv.num_kv_heads));
  const int dim = args.kv.head_dim;
  if (dim <= 128) return launch(attention_kernel<Types, 128>, grid, kThreads, work);
  if (dim <= 256) return launch(attention_kernel<Types, 256>, grid, kThreads, work);
  launch(attention_kernel<Types, kCudaMaxHeadDim>, grid, kThreads, work);
}

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
