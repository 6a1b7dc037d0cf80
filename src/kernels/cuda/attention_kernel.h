// A block's work where keys and values come straight from the device's memory, for any form of them. Included
// by attention's kernels alone.
#pragma once

#include "kernels/cuda/attention_ring.h"
#include "kernels/cuda/attention_split.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// A warp's scores and softmax weights, and the first of its values: they come while the weights are computed.
template <class Keys, class Values, bool kWhole>
LARDER_DEVICE void weigh_keys(const Work& work, const WarpKeys& own, const SharedSizes& sizes,
                              const Shared& shared, const LaneSight& sight, MmaLane lane,
                              LaneScores& scores, LaneWords& next) {
  score_pieces<Keys, kWhole>(work, own, sizes, shared, sight, lane, 0, Keys::num_pieces(work), scores);
  scale_scores<kWhole>(work, own, sizes, shared, sight, lane, scores);
  next = Values::template load<false>(work, own, lane, 0, 0);
  weigh(scores, lane, shared);
}

// The partial softmax of the keys in one split.
template <class Keys, class Values>
LARDER_DEVICE void run_split(const Work& work, const Tile& tile, const TileSplits& splits,
                             const SharedSizes& sizes, const Shared& shared,
                             const LaneSight& sight, RowTotals& totals) {
  const MmaLane lane = mma_lane();
  WarpKeys own(tile, splits.split(), lane);
  own.find(work, tile);
  LaneScores scores = {};
  LaneWords next = {};
  if (own.whole)
    weigh_keys<Keys, Values, true>(work, own, sizes, shared, sight, lane, scores, next);
  else if (own.any)
    weigh_keys<Keys, Values, false>(work, own, sizes, shared, sight, lane, scores, next);
  else
    weigh_nothing(lane, shared);
  Values values(scores);
  sync_warps();

  SplitEnd end(work, tile, shared, totals);
  const bool whole = Values::loads_whole(work, own);
  LARDER_NO_UNROLL
  for (int chunk = 0; chunk < sizes.num_chunks; ++chunk) {
    if (whole)
      sum_chunk<true>(values, work, own, lane, chunk, next, shared);
    else if (own.any)
      sum_chunk<false>(values, work, own, lane, chunk, next, shared);
    else
      put_zeros(lane, shared.own_weighted());
    sync_warps();
    end.take_chunk(shared, chunk);
    sync_warps();
  }
  end.end(totals);
}

// Grid: pieces, KV heads.
template <class Keys, class Values>
LARDER_KERNEL_OF_2(kThreads) attention_kernel(Work work, SharedSizes sizes) {
  LARDER_SHARED_BYTES(bytes);
  const Shared shared(bytes, sizes);
  // Sequences and block tables came with the step, before any of its kernels.
  const Tile tile = find_tile(work, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  if (!tile.exists()) return wait_for_kernels_before();
  TileSplits splits(tile);
  if (splits.has_ended()) return wait_for_kernels_before();
  wait_for_kernels_before();
  begin_tile<Keys>(work, tile, sizes, shared);
  const LaneSight sight(tile, mma_lane());
  RowTotals totals;
  for (; !splits.has_ended(); splits.next(tile))
    run_split<Keys, Values>(work, tile, splits, sizes, shared, sight, totals);
  if (!tile.shares_keys()) put_totals(work, tile, shared, totals);
}

template <class Keys, class Values>
void launch_attention(const Work& work, int num_pieces) {
  const SharedSizes sizes = shared_sizes<Keys>(work);
  const dim3 grid(rounded_grid(num_pieces), static_cast<unsigned>(work.args.kv.num_kv_heads));
  static int allowed_bytes = 0;  // of this kernel
  const int shared_bytes = sizes.total_bytes();
  if (shared_bytes > allowed_bytes) {
    allow_shared(attention_kernel<Keys, Values>, shared_bytes);
    allowed_bytes = shared_bytes;
  }
  launch_with_shared(attention_kernel<Keys, Values>, grid, kThreads, shared_bytes, work, sizes);
}

// RingValues: for heads that have a place in the ring. Prompts are bound by their products: more warps at
// a time are better for them. Few pieces are over before a kernel that wants a multiprocessor for itself has begun.
// kHasRing: rare pairs of types have none; each would be some seconds of nvcc and 200 KB.
template <class Keys, class Values, class RingValues, bool kHasRing>
void launch_either(const Work& work, const KeySharing& sharing) {
  if constexpr (kHasRing) {
    const bool are_many = 4 * sharing.num_pieces * work.args.kv.num_kv_heads >= 3 * num_multiprocessors();
    if (are_many && sharing.most_tiles == 1 && has_ring<Keys, RingValues>(work))
      return launch_ring<Keys, RingValues>(work, sharing.num_pieces);
  }
  launch_attention<Keys, Values>(work, sharing.num_pieces);
}

template <class Keys>
void launch_with_keys(const Work& work, const KeySharing& sharing) {
  const auto floats = [&]<KvType kType>() {
    launch_either<Keys, FloatValues<kType, 1>, FloatValues<kType, kRingChunks>, kType == Keys::kType>(work, sharing);
  };
  const auto codes = [&]<ValueForm kForm>() {
    launch_either<Keys, CodeValues<kForm>, CodeValues<kForm>, has_codes(Keys::kType)>(work, sharing);
  };
  switch (work.args.kv.types.v) {
    case KvType::kF16:
      return floats.template operator()<KvType::kF16>();
    case KvType::kBF16:
      return floats.template operator()<KvType::kBF16>();
    case KvType::kFp8:
      return floats.template operator()<KvType::kFp8>();
    case KvType::kInt8:
      return codes.template operator()<ValueForm::kBytes>();
    case KvType::kInt4:
      return work.parts.is_large ? codes.template operator()<ValueForm::kFiveBits>()
                                 : codes.template operator()<ValueForm::kLevels>();
  }
}

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
