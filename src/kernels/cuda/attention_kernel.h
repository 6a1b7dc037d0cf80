// A block's work, for any form of keys and values. Included by attention's kernels alone.
#pragma once

#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_halves.h"
#include "kernels/cuda/hadamard.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// A block's totals of its splits, in order.
struct RowTotals {
  float max = kNothing;
  float sum = 0;
};

// The partial softmax of the keys in one split: to the sequence's partials where it shares keys, else
// into the totals.
template <class Keys, class Values>
LARDER_DEVICE void run_split(const Work& work, const Tile& tile, int split, bool shares_keys,
                             const SharedSizes& sizes, const Shared& shared,
                             const LaneSight& sight, RowTotals& totals) {
  const MmaLane lane = mma_lane();
  const int warp = thread_index() / 32;
  const int dim = work.args.kv.head_dim;
  const WarpKeys own(work, tile, split, lane);
  float* maxima = shared.maxima + warp * kTileRows;
  float* sums = shared.sums + warp * kTileRows;
  LaneScores scores = {};
  LaneWords next = {};  // of the values: they come while the softmax is computed, and so on
  if (own.any) {
    score_keys<Keys>(work, own, sizes, shared, sight, lane, scores);
    next = Values::load(work, own, lane, 0);
    weigh(scores, lane, maxima, sums);
  } else {
    weigh_nothing(lane, maxima, sums);
  }
  Values values(scores);
  sync_block();

  const int r = thread_index() / kRowThreads;
  const int piece = thread_index() % kRowThreads;
  const RowMerge merge(shared, r, piece);
  const Merge into_total(totals.max, merge.max);
  float* partial = shares_keys && r < tile.num_rows
                       ? work.partial(*tile.sequence, tile.query(r), tile.split_index, tile.head(r))
                       : nullptr;
  LARDER_NO_UNROLL
  for (int chunk = 0; chunk < sizes.num_chunks; ++chunk) {
    if (own.any) {
      LARDER_UNROLL
      for (int step = 0; step < Values::kChunkSteps; ++step) {
        const LaneWords words = next;
        next = Values::load(work, own, lane, chunk * Values::kChunkSteps + step + 1);
        sync_warp();  // conditions above may have parted it, and tensor cores take it whole
        values.add(work, own, lane, chunk, step, words,
                   shared.weighted + warp * kTileRows * kPaddedDims);
      }
    }
    sync_block();
    const Floats4 four = merge.of_chunk();
    const int first_dim = chunk * kChunkDims + piece * 4;
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (partial != nullptr) {
        if (first_dim + i < dim) partial[first_dim + i] = four.value[i];
      } else {
        float& total = shared.totals[r * shared.total_stride + first_dim + i];
        total = into_total.of(total, four.value[i]);
      }
    }
    sync_block();
  }
  if (partial != nullptr && piece == 0) {
    partial[dim] = merge.max;
    partial[dim + 1] = merge.sum;
  }
  totals.sum = into_total.of(totals.sum, merge.sum);
  totals.max = into_total.max;
}

// Grid: pieces, KV heads.
template <class Keys, class Values>
LARDER_KERNEL_OF_2(kThreads) attention_kernel(Work work, SharedSizes sizes) {
  LARDER_SHARED_BYTES(bytes);
  const Shared shared(bytes, sizes);
  // Sequences and block tables came with the step, before any of its kernels.
  const Tile tile = find_tile(work, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (!tile.exists()) return wait_for_kernels_before();
  const bool shares_keys = tile.sequence->num_splits > 1;
  const int own_split = tile.sight.split_at(tile.split_index, tile.first_position);
  if (shares_keys && !tile.sight.has_split(own_split, tile.position(0), tile.last_position()))
    return wait_for_kernels_before();
  wait_for_kernels_before();
  Keys::load_queries(work, tile, sizes, shared);
  for (int i = thread_index(); i < kTileRows * shared.total_stride; i += kThreads)
    shared.totals[i] = 0;
  sync_block();

  const LaneSight sight(tile, mma_lane());
  RowTotals totals;
  if (shares_keys) {
    run_split<Keys, Values>(work, tile, own_split, true, sizes, shared, sight, totals);
    return;
  }
  for (int index = 0;; ++index) {
    const int split = tile.sight.split_at(index, tile.position(0));
    if (split > tile.last_position() / kKeySplit) break;
    run_split<Keys, Values>(work, tile, split, false, sizes, shared, sight, totals);
  }
  const int dim = work.args.kv.head_dim;
  if (work.args.kv.types.v == KvType::kInt4)  // sums over values that were stored turned
    hadamard_rows(shared.totals, tile.num_rows, shared.total_stride, dim);
  const int r = thread_index() / kRowThreads;
  if (r >= tile.num_rows) return;
  float* out = work.args.out + tile.batch_row(r) * work.args.ldo + std::int64_t{tile.head(r)} * dim;
  const float* total = shared.totals + r * shared.total_stride;
  for (int d = thread_index() % kRowThreads; d < dim; d += kRowThreads)
    out[d] = finish(total[d], totals.sum);
}

template <class Keys, class Values>
void launch_attention(const Work& work, int num_pieces) {
  const AttentionArgs& args = work.args;
  const SharedSizes sizes = {args.q_sinks != nullptr ? 2 : 1, Keys::set_bytes(work),
                             (args.kv.head_dim + kChunkDims - 1) / kChunkDims};
  const dim3 grid(rounded_grid(num_pieces), static_cast<unsigned>(args.kv.num_kv_heads));
  static int allowed_bytes = 0;  // of this kernel
  const int shared_bytes = sizes.total_bytes();
  if (shared_bytes > allowed_bytes) {
    allow_shared(attention_kernel<Keys, Values>, shared_bytes);
    allowed_bytes = shared_bytes;
  }
  launch_with_shared(attention_kernel<Keys, Values>, grid, kThreads, shared_bytes, work, sizes);
}

template <class Keys>
void launch_with_keys(const Work& work, int num_pieces) {
  switch (work.args.kv.types.v) {
    case KvType::kF16:
      return launch_attention<Keys, HalfValues<KvType::kF16>>(work, num_pieces);
    case KvType::kBF16:
      return launch_attention<Keys, HalfValues<KvType::kBF16>>(work, num_pieces);
    case KvType::kInt8:
      return launch_attention<Keys, CodeValues<ValueForm::kBytes>>(work, num_pieces);
    case KvType::kInt4:
      return work.parts.is_large ? launch_attention<Keys, CodeValues<ValueForm::kFiveBits>>(work, num_pieces)
                                 : launch_attention<Keys, CodeValues<ValueForm::kLevels>>(work, num_pieces);
  }
}

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
