// How a block begins and ends a tile and a split of keys, wherever the keys come from. Included by attention's
// kernels alone; kThreads threads call it, of which each has a row and four dimensions of every chunk.
#pragma once

#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_floats.h"
#include "kernels/cuda/hadamard.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

template <class Keys>
SharedSizes shared_sizes(const Work& work) {
  return {work.args.q_sinks != nullptr ? 2 : 1, Keys::set_bytes(work),
          (work.args.kv.head_dim + kChunkDims - 1) / kChunkDims};
}

// A block's totals of its splits, in order.
struct RowTotals {
  float max = kNothing;
  float sum = 0;
};

LARDER_DEVICE int own_row() { return thread_index() / kRowThreads; }
LARDER_DEVICE int own_piece() { return thread_index() % kRowThreads; }

template <class Keys>
LARDER_DEVICE void begin_tile(const Work& work, const Tile& tile, const SharedSizes& sizes,
                              const Shared& shared) {
  Keys::load_queries(work, tile, sizes, shared);
  for (int i = thread_index(); i < kTileRows * shared.total_stride; i += kThreads)
    shared.totals[i] = 0;
  sync_warps();
}

// A warp's sums of a chunk: the next values come while the last are multiplied.
template <bool kWhole, class Values>
LARDER_DEVICE void sum_chunk(Values& values, const Work& work, const WarpKeys& own, MmaLane lane, int chunk,
                             LaneWords& next, const Shared& shared) {
  constexpr int kSteps = Values::kChunkSteps;
  LARDER_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const LaneWords words = next;
    next = Values::template load<kWhole>(work, own, lane, chunk + (step + 1) / kSteps, (step + 1) % kSteps);
    values.template add_step<kWhole>(work, own, lane, chunk, step, words, shared.own_weighted());
  }
}

// A split's sums: to the sequence's partials where it shares keys, else into the totals.
class SplitEnd {
 public:
  LARDER_MEMBER SplitEnd(const Work& work, const Tile& tile, const Shared& shared, const RowTotals& totals)
      : merge_(shared, own_row(), own_piece()),
        into_total_(totals.max, merge_.max),
        dim_(work.args.kv.head_dim),
        partial_(tile.shares_keys() && own_row() < tile.num_rows
                     ? work.partial(tile.owner(own_row()), tile.query(own_row()), tile.split_index,
                                    tile.head(own_row()))
                     : nullptr) {}

  // When all warps have put the chunk's.
  LARDER_MEMBER void take_chunk(const Shared& shared, int chunk) {
    const Floats4 four = merge_.of_chunk();
    const int first_dim = chunk * kChunkDims + own_piece() * 4;
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (partial_ != nullptr) {
        if (first_dim + i < dim_) partial_[first_dim + i] = four.value[i];
      } else {
        float& total = shared.totals[own_row() * shared.total_stride + first_dim + i];
        total = into_total_.of(total, four.value[i]);
      }
    }
  }
  LARDER_MEMBER void end(RowTotals& totals) {
    if (partial_ != nullptr && own_piece() == 0) {
      partial_[dim_] = merge_.max;
      partial_[dim_ + 1] = merge_.sum;
    }
    totals.sum = into_total_.of(totals.sum, merge_.sum);
    totals.max = into_total_.max;
  }

 private:
  RowMerge merge_;
  Merge into_total_;
  int dim_;
  float* partial_;
};

// Of a tile that a block had for itself.
LARDER_DEVICE void put_totals(const Work& work, const Tile& tile, const Shared& shared,
                              const RowTotals& totals) {
  const int dim = work.args.kv.head_dim;
  if (work.args.kv.types.v == KvType::kInt4)  // sums over values that were stored turned
    hadamard_rows<kThreads>(shared.totals, tile.num_rows, shared.total_stride, dim);
  const int r = own_row();
  if (r >= tile.num_rows) return;
  float* out = work.args.out + tile.batch_row(r) * work.args.ldo + std::int64_t{tile.head(r)} * dim;
  const float* total = shared.totals + r * shared.total_stride;
  for (int d = own_piece(); d < dim; d += kRowThreads) out[d] = finish(total[d], totals.sum);
}

// The splits of keys that a block takes, in order: the one of its own, or all that the tile's rows see.
class TileSplits {
 public:
  LARDER_MEMBER explicit TileSplits(const Tile& tile)
      : split_(tile.sight.split_at(tile.split_index,
                                   tile.shares_keys() ? tile.first_position : tile.position(0))),
        last_(tile.last_position() / kKeySplit) {
    if (tile.shares_keys() && !tile.sight.has_split(split_, tile.position(0), tile.last_position())) split_ = last_ + 1;
  }
  LARDER_MEMBER bool has_ended() const { return split_ > last_; }
  LARDER_MEMBER int split() const { return split_; }
  LARDER_MEMBER void next(const Tile& tile) {
    split_ = tile.shares_keys() ? last_ + 1 : tile.sight.split_at(++index_, tile.position(0));
  }

 private:
  int split_;
  int last_;
  int index_ = 0;
};

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
