// A block's work where keys and values come to shared memory before they are needed, for any form of them.
// Included by attention's kernels alone.
//
// A block stays on its multiprocessor and has one item of work after the other. A warp of its own copies a
// split's keys and values piece by piece into a ring of stages, as far ahead as there is place, also of the
// items that follow; the other warps take them from there as attention_kernel() does from the device's memory:
// the same sums.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention_split.h"
#include "kernels/cuda/wgmma.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// Warps that compute, one that copies, and three that end at once: registers go to four warps together.
constexpr int kRingThreads = kThreads + kWarpgroupThreads;
constexpr int kComputeRegisters = 224;  // of a thread
constexpr int kCopyRegisters = 56;
static_assert(kThreads * kComputeRegisters + kWarpgroupThreads * kCopyRegisters <= 64 << 10);
constexpr int kRingChunks = 2;  // of a head's dimensions, at most
constexpr int kMostStages = 8;
constexpr int kFewestStages = 2;
// Splits that were told and may not have been read yet: of two pieces at least, so fewer than these.
constexpr int kToldSplits = 8;
static_assert(kMostStages / 2 + 2 <= kToldSplits && kKeySplit == 32 * kBlockSize);

// What a split of keys is about.
struct ToldSplit {
  Tile tile;
  int split;  // < 0: there are no more
  bool begins_tile;
  bool ends_tile;
};

struct RingState {
  Arrivals told[kToldSplits];
  Arrivals full[kMostStages][kWarps];
  Arrivals empty[kMostStages];
  ToldSplit splits[kToldSplits];
};

struct RingSizes {
  SharedSizes shared;
  int slot_bytes;  // of a piece
  int num_stages;

  static LARDER_HOST_AND_DEVICE int state_bytes() { return (static_cast<int>(sizeof(RingState)) + 127) / 128 * 128; }
  LARDER_HOST_AND_DEVICE int stage_bytes() const { return kWarps * kWarpBlocks * slot_bytes; }
  int total_bytes() const { return state_bytes() + num_stages * stage_bytes() + shared.total_bytes(); }
};

// Items of work are pieces of the batch (KeySharing) by KV heads. A block takes runs of pieces of one head:
// splits of one tile follow each other, whose queries are loaded once. Blocks side by side have the same run of
// different heads, which lie side by side.
struct RingRuns {
  int num_pieces;
  int length;
  int count;

  LARDER_MEMBER RingRuns(const Work& work, int num_blocks) {
    const AttentionSequence& last = work.args.sequences[work.args.num_sequences - 1];
    num_pieces = last.first_piece + pieces_of(work, last);
    int fewest = num_pieces * work.args.kv.num_kv_heads;  // pieces of the block that has most
    for (int tried = 1; tried <= kMostPieces; ++tried) {
      const int runs = (num_pieces + tried - 1) / tried * work.args.kv.num_kv_heads;
      const int most = (runs + num_blocks - 1) / num_blocks * tried;
      if (most > fewest) continue;
      fewest = most;
      length = tried;
      count = runs;
    }
  }

 private:
  static constexpr int kMostPieces = 8;
};

// Stages in turn: each has a piece of 512 keys, [warps][blocks] slots.
class Ring {
 public:
  LARDER_MEMBER Ring(unsigned char* bytes, const RingSizes& sizes)
      : state_(reinterpret_cast<RingState*>(bytes)),
        stages_(bytes + RingSizes::state_bytes()),
        sizes_(sizes) {}

  LARDER_MEMBER void begin() {
    if (thread_index() != 0) return;
    for (Arrivals& told : state_->told) begin_arrivals(&told, 1);
    for (int stage = 0; stage < sizes_.num_stages; ++stage) {
      begin_arrivals(&state_->empty[stage], kWarps);
      for (Arrivals& full : state_->full[stage]) begin_arrivals(&full, kWarpBlocks);
    }
    show_arrivals();
  }

  // By the warp that copies: its lane's block goes to a warp's slot. at: where the head's part of the block
  // begins, null where nobody sees it.
  LARDER_MEMBER void put(const std::byte* at, const Piece& piece) {
    const int block = thread_index() % 32;
    wait_for_arrivals(&state_->empty[stage_], phase_ ^ 1);
    Arrivals* full = &state_->full[stage_][block / kWarpBlocks];
    if (at != nullptr) {
      arrive_before_copy(full, piece.size);
      copy_in_bulk(slot(block), at + piece.begin, piece.size, full);
    } else {
      arrive(full);
    }
    advance();
  }
  LARDER_MEMBER void tell(int index, const ToldSplit& split) {
    if (thread_index() % 32 != 0) return;
    state_->splits[index % kToldSplits] = split;
    arrive(&state_->told[index % kToldSplits]);
  }

  // By the others: until a warp's pieces have come, until it has read them.
  LARDER_MEMBER const ToldSplit& listen(int index) {
    wait_for_arrivals(&state_->told[index % kToldSplits], index / kToldSplits % 2);
    return state_->splits[index % kToldSplits];
  }
  LARDER_MEMBER void await_piece() {
    wait_for_arrivals(&state_->full[stage_][thread_index() / 32], phase_);
  }
  // Of a block of the warp's, from where the head's part of it would begin.
  LARDER_MEMBER const std::byte* block_at(int block, const Piece& piece) const {
    return reinterpret_cast<const std::byte*>(slot(thread_index() / 32 * kWarpBlocks + block)) - piece.begin;
  }
  LARDER_MEMBER void release_piece() {
    arrive_as_warp(&state_->empty[stage_]);
    advance();
  }

 private:
  LARDER_MEMBER unsigned char* slot(int block) const {
    return stages_ + stage_ * sizes_.stage_bytes() + block * sizes_.slot_bytes;
  }
  LARDER_MEMBER void advance() {
    if (++stage_ < sizes_.num_stages) return;
    stage_ = 0;
    phase_ ^= 1;
  }

  RingState* state_;
  unsigned char* stages_;
  RingSizes sizes_;
  int stage_ = 0;
  int phase_ = 0;
};

// The copying warp.
template <class Keys, class Values>
class RingFiller {
 public:
  LARDER_MEMBER RingFiller(const Work& work, Ring& ring) : work_(work), ring_(ring) {}

  LARDER_MEMBER void run(int num_blocks) {
    const RingRuns runs(work_, num_blocks);
    const int num_heads = work_.args.kv.num_kv_heads;
    LARDER_NO_UNROLL
    for (int run = static_cast<int>(blockIdx.x); run < runs.count; run += num_blocks) {
      const int first = run / num_heads * runs.length;
      LARDER_NO_UNROLL
      for (int piece = first; piece < min_of(first + runs.length, runs.num_pieces); ++piece)
        fill(find_tile(work_, piece, run % num_heads));
    }
    wait();
    ring_.tell(index_, {{}, -1, false, false});
  }

 private:
  LARDER_MEMBER void fill(const Tile& tile) {
    const int own_block = thread_index() % 32 * kBlockSize;
    LARDER_NO_UNROLL
    for (TileSplits splits(tile); !splits.has_ended();) {
      const int split = splits.split();
      const int position = split * kKeySplit + own_block;
      const bool sees = tile.sees_some(position, kBlockSize);
      const std::byte* keys = sees ? keys_at(work_, tile, position) : nullptr;
      const std::byte* values = sees ? values_at(work_, tile, position) : nullptr;
      const bool begins = row_ != tile.batch_row(0) || kv_head_ != tile.kv_head;
      splits.next(tile);
      wait();
      ring_.tell(index_++, {tile, split, begins, splits.has_ended()});
      for (int i = 0; i < Keys::num_pieces(work_); ++i) ring_.put(keys, Keys::piece(work_, i));
      for (int i = 0; i < Values::kNumPieces; ++i) ring_.put(values, Values::piece(work_, i));
      row_ = tile.batch_row(0);
      kv_head_ = tile.kv_head;
    }
  }
  // Sequences and block tables came with the step, before any of its kernels: they can be read before.
  LARDER_MEMBER void wait() {
    if (!has_waited_) wait_for_kernels_before();
    has_waited_ = true;
  }

  const Work& work_;
  Ring& ring_;
  int index_ = 0;
  bool has_waited_ = false;
  std::int64_t row_ = -1;  // of the tile before; behind a tile with members its owner's rows are among those
  int kv_head_ = 0;
};

// A warp's keys and values of a split, as their pieces come.
template <class Keys, class Values>
class RingUnit {
 public:
  LARDER_MEMBER RingUnit(const Work& work, const ToldSplit& told, Ring& ring)
      : work_(work), ring_(ring), lane_(mma_lane()), own_(told.tile, told.split, lane_) {}

  LARDER_MEMBER void score(const SharedSizes& sizes, const Shared& shared, const LaneSight& sight,
                           LaneScores& scores) {
    LARDER_NO_UNROLL
    for (int i = 0; i < Keys::num_pieces(work_); ++i) {
      const Piece piece = Keys::piece(work_, i);
      ring_.await_piece();
      if (own_.sees_loaded) own_.loaded = ring_.block_at(lane_.group / 2, piece);
      if (own_.sees_scored) own_.scored = ring_.block_at(lane_.member, piece);
      if (own_.whole)
        score_pieces<Keys, true>(work_, own_, sizes, shared, sight, lane_, i, i + 1, scores);
      else if (own_.any)
        score_pieces<Keys, false>(work_, own_, sizes, shared, sight, lane_, i, i + 1, scores);
      ring_.release_piece();
    }
    if (!own_.any) return weigh_nothing(lane_, shared);
    if (own_.whole)
      scale_scores<true>(work_, own_, sizes, shared, sight, lane_, scores);
    else
      scale_scores<false>(work_, own_, sizes, shared, sight, lane_, scores);
    weigh(scores, lane_, shared);
  }

  LARDER_MEMBER void take_values(Values& values) {
    whole_ = Values::loads_whole(work_, own_);
    if constexpr (Values::kAddsPieces) {
      LARDER_UNROLL
      for (int i = 0; i < Values::kNumPieces; ++i) {
        await_values(i);
        if (whole_)
          values.template add_piece<true>(work_, own_, lane_, i);
        else if (own_.any)
          values.template add_piece<false>(work_, own_, lane_, i);
        ring_.release_piece();
      }
    } else {
      await_values(0);
    }
  }
  // The sums of a chunk.
  LARDER_MEMBER void put_chunk(Values& values, int chunk, bool is_last, const Shared& shared) {
    if (!own_.any) {
      put_zeros(lane_, shared.own_weighted());
    } else if constexpr (Values::kAddsPieces) {
      values.put(chunk, lane_, shared.own_weighted());
    } else if (whole_) {
      sum_chunk_of<true>(values, chunk, shared);
    } else {
      sum_chunk_of<false>(values, chunk, shared);
    }
    if constexpr (!Values::kAddsPieces)
      if (is_last) ring_.release_piece();
  }

 private:
  LARDER_MEMBER void await_values(int i) {
    ring_.await_piece();
    if (own_.sees_scored) own_.values = ring_.block_at(lane_.member, Values::piece(work_, i));
  }
  template <bool kWhole>
  LARDER_MEMBER void sum_chunk_of(Values& values, int chunk, const Shared& shared) {
    LaneWords next = Values::template load<kWhole>(work_, own_, lane_, chunk, 0);
    sum_chunk<kWhole>(values, work_, own_, lane_, chunk, next, shared);
  }

  const Work& work_;
  Ring& ring_;
  MmaLane lane_;
  WarpKeys own_;
  bool whole_ = false;
};

// The partial softmax of the keys in one split.
template <class Keys, class Values>
LARDER_DEVICE void take_split(const Work& work, const ToldSplit& told, Ring& ring,
                              const SharedSizes& sizes, const Shared& shared, RowTotals& totals) {
  RingUnit<Keys, Values> unit(work, told, ring);
  LaneScores scores = {};
  unit.score(sizes, shared, LaneSight(told.tile, mma_lane()), scores);
  Values values(scores);
  unit.take_values(values);
  sync_warps();

  SplitEnd end(work, told.tile, shared, totals);
  LARDER_UNROLL
  for (int chunk = 0; chunk < kRingChunks; ++chunk) {
    if (chunk == sizes.num_chunks) break;
    unit.put_chunk(values, chunk, chunk + 1 == sizes.num_chunks, shared);
    sync_warps();
    end.take_chunk(shared, chunk);
    sync_warps();
  }
  end.end(totals);
}

// Grid: as many blocks as there are multiprocessors, at most.
template <class Keys, class Values>
LARDER_KERNEL_OF_1(kRingThreads) ring_kernel(Work work, RingSizes sizes, int num_blocks) {
  LARDER_SHARED_BYTES(bytes);
  Ring ring(bytes, sizes);
  ring.begin();
  sync_block();
  if (thread_index() >= kThreads) {
    give_registers<kCopyRegisters>();
    if (thread_index() >= kThreads + 32) return wait_for_kernels_before();
    return RingFiller<Keys, Values>(work, ring).run(num_blocks);
  }
  take_registers<kComputeRegisters>();
  wait_for_kernels_before();
  const Shared shared(bytes + RingSizes::state_bytes() + sizes.num_stages * sizes.stage_bytes(),
                      sizes.shared);
  RowTotals totals;
  for (int index = 0;; ++index) {
    const ToldSplit& told = ring.listen(index);
    if (told.split < 0) return;
    if (told.begins_tile) {
      begin_tile<Keys>(work, told.tile, sizes.shared, shared);
      totals = {};
    }
    take_split<Keys, Values>(work, told, ring, sizes.shared, shared, totals);
    if (told.ends_tile && !told.tile.shares_keys()) {
      put_totals(work, told.tile, shared, totals);
      sync_warps();
    }
  }
}

template <class Keys, class Values>
RingSizes ring_sizes(const Work& work) {
  int largest = 0;
  for (int i = 0; i < Keys::num_pieces(work); ++i) largest = std::max(largest, Keys::piece(work, i).size);
  for (int i = 0; i < Values::kNumPieces; ++i) largest = std::max(largest, Values::piece(work, i).size);
  // Slots begin in different banks.
  RingSizes sizes = {shared_sizes<Keys>(work), (largest + 127) / 128 * 128 + 32, 0};
  const int left = kCudaMostSharedBytes - sizes.total_bytes();
  sizes.num_stages = std::min(left / sizes.stage_bytes(), kMostStages);
  return sizes;
}
// Whether heads have a place in the ring. Bulk copies are of multiples of 16 bytes.
template <class Keys, class Values>
bool has_ring(const Work& work) {
  const int dim = work.args.kv.head_dim;
  return dim <= kRingChunks * kChunkDims && dim % Values::kRingDims == 0 &&
         ring_sizes<Keys, Values>(work).num_stages >= kFewestStages;
}

template <class Keys, class Values>
void launch_ring(const Work& work, int num_pieces) {
  const RingSizes sizes = ring_sizes<Keys, Values>(work);
  static const bool allowed = [] {
    allow_shared(ring_kernel<Keys, Values>, kCudaMostSharedBytes);
    return true;
  }();
  static_cast<void>(allowed);
  const int num_blocks = std::min(static_cast<int>(rounded_grid(num_pieces)) * work.args.kv.num_kv_heads,
                                  num_multiprocessors());
  launch_with_shared(ring_kernel<Keys, Values>, dim3(static_cast<unsigned>(num_blocks)), kRingThreads,
                     sizes.total_bytes(), work, sizes, num_blocks);
}

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
