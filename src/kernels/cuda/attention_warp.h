// How a block takes a tile of rows through a split of keys in tensor cores, whatever keys and values are.
// Included by attention's kernels alone.
//
// A warp takes kWarpKeys keys of the split for all rows of the tile: scores, softmax and weighted sums
// of its own, merged in order with those of the split's other warps. Which keys a warp has is the
// split's, and where a row lies in tensor cores does not change its sums.
//
// The order of dimensions and keys within operands is free as long as both operands keep to it, so it is
// that of the blocks: a lane loads pieces of 16 bytes as they lie, and needs nothing of another lane but
// maxima and sums.
#pragma once

#include "kernels/cuda/attention_tile.h"
#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/tensor_core.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr float kLog2E = 1.44269504088896341F;
constexpr int kTileRows = kDeviceTileRows;
constexpr int kWarpBlocks = 4;
constexpr int kWarpKeys = kWarpBlocks * kBlockSize;
constexpr int kWarps = kKeySplit / kWarpKeys;
constexpr int kThreads = kWarps * 32;
constexpr int kChunkDims = 64;  // of the sums over values, at once
constexpr int kPaddedDims = kChunkDims + 4;
constexpr int kRowThreads = kChunkDims / 4;  // of a chunk's sums
constexpr int kRowHalves = 2;                // rows `group` and `group` + 8 of a lane
static_assert(kTileRows == 16 && kWarpBlocks == 4 && kWarps * kWarpKeys == kKeySplit &&
              kThreads == kTileRows * kRowThreads);

// Softmax weights are multiplied by this, and so are their sums: the second FP16 number of one keeps
// its bits then.
constexpr float kWeightScale = 1 << 14;

// Of rows `group` (and 8 more) and the 16 keys of the lane's block `member`: key j + 8 i at [j][i].
using LaneScores = float[kRowHalves][8][2];

// The warps that compute meet; a block may have another one.
LARDER_DEVICE void sync_warps() { sync_first_threads<kThreads>(); }

// Bytes of a head's keys or values in a block.
struct Piece {
  int begin;
  int size;
};

// 16 bytes each of four vectors.
struct LaneWords {
  Words4 vector[4];
};

LARDER_DEVICE Words4 words_at(const std::byte* at, int offset_bytes) {
  return *reinterpret_cast<const Words4*>(at + offset_bytes);
}

// Scales of a block's 16 tokens, as they lie: the BF16 numbers of kInt8 and kFp8.
struct HalfScales {
  Words4 words[2];
  LARDER_MEMBER HalfScales(const std::byte* scales, int group)
      : words{words_at(scales, group * kBlockSize * 2),
              words_at(scales, group * kBlockSize * 2 + 16)} {}
  LARDER_MEMBER float of(int token) const {
    const auto two = static_cast<std::uint32_t>(words[token / 8].word[token % 8 / 2]);
    return bf16_value(static_cast<std::uint16_t>(two >> token % 2 * 16));
  }
};

// A left operand in shared memory is 16 bytes for each lane of a warp.
constexpr int kOperandWords = 32;
LARDER_DEVICE void load_operand(const Words4* lane, std::uint32_t (&operand)[4]) {
  const Words4 four = *lane;
  LARDER_UNROLL
  for (int i = 0; i < 4; ++i) operand[i] = static_cast<std::uint32_t>(four.word[i]);
}

// What a block keeps in shared memory; the sizes depend on the call.
struct SharedSizes {
  int num_sets;   // of queries: a second one for the sinks
  int set_bytes;  // a multiple of 16
  int num_chunks;

  int total_bytes() const {
    return num_sets * set_bytes +
           kTileRows * 4 * (2 + 2 * kWarps + kWarps * kPaddedDims + num_chunks * kChunkDims);
  }
};
struct Shared {
  unsigned char* queries;  // [sets][set_bytes], the left operands of scores
  float* weighted;         // [warps][rows][kPaddedDims], of a chunk
  float* totals;           // [rows][total_stride], of the splits before
  float* scales;           // [2 sets][rows], what scores are multiplied by
  float* maxima;           // [warps][rows], of a split
  float* sums;             // [warps][rows]
  int total_stride;

  LARDER_MEMBER Shared(unsigned char* bytes, const SharedSizes& sizes)
      : queries(bytes), total_stride(sizes.num_chunks * kChunkDims) {
    weighted = reinterpret_cast<float*>(bytes + sizes.num_sets * sizes.set_bytes);
    totals = weighted + kWarps * kTileRows * kPaddedDims;
    scales = totals + kTileRows * total_stride;
    maxima = scales + 2 * kTileRows;
    sums = maxima + kWarps * kTileRows;
  }
  // Of the thread's warp.
  LARDER_MEMBER float* own_weighted() const { return weighted + thread_index() / 32 * kTileRows * kPaddedDims; }
  LARDER_MEMBER float* own_maxima() const { return maxima + thread_index() / 32 * kTileRows; }
  LARDER_MEMBER float* own_sums() const { return sums + thread_index() / 32 * kTileRows; }
};

// The query of a row in one of the sets, times the scale of scores, which are logarithms to base 2.
struct RowQuery {
  const float* q;  // null: no such row
  float scale;
  int dim;

  LARDER_MEMBER RowQuery(const Work& work, const Tile& tile, int set, int r)
      : q(nullptr), scale(work.args.scale * kLog2E), dim(work.args.kv.head_dim) {
    if (r >= tile.num_rows) return;
    // Up to there, nothing is out of sight between the sinks and the window.
    const bool past_sinks = tile.sight.first_key(tile.position(r)) > tile.sight.sinks;
    q = set == 1 && past_sinks ? work.args.q_sinks : work.args.q;
    q += tile.batch_row(r) * work.args.ldq + std::int64_t{tile.head(r)} * dim;
  }
  // Bounded as on a CPU (cpu/attention.cc): beside what a key may hold no score leaves FP32.
  LARDER_MEMBER float at(int d) const {
    constexpr float kLargest = 0x1p50F;
    if (q == nullptr || d >= dim) return 0;
    const float value = q[d] * scale;
    const float bounded = value < kLargest ? value : kLargest;
    return bounded > -kLargest ? bounded : -kLargest;
  }
  // The largest of them, by a warp.
  LARDER_MEMBER float peak() const {
    float largest = 0;
    for (int d = thread_index() % 32; d < dim; d += 32) largest = fmaxf(largest, fabsf(at(d)));
    return warp_max(largest);
  }
};

// load(query, set, r): all queries, a warp one at a time.
template <class Load>
LARDER_DEVICE void for_queries(const Work& work, const Tile& tile, const SharedSizes& sizes,
                               const Load& load) {
  for (int i = thread_index() / 32; i < sizes.num_sets * kTileRows; i += kWarps) {
    const int set = i / kTileRows;
    const int r = i % kTileRows;
    load(RowQuery(work, tile, set, r), set, r);
  }
}

// What a lane sees: of rows `group` and `group` + 8.
struct LaneSight {
  int position[kRowHalves];  // -1: no such row
  int first_key[kRowHalves];
  int sinks;

  LARDER_MEMBER LaneSight(const Tile& tile, MmaLane lane) : sinks(tile.sight.sinks) {
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h) {
      const int r = h * 8 + lane.group;
      position[h] = r < tile.num_rows ? tile.position(r) : -1;
      first_key[h] = tile.sight.first_key(position[h]);
    }
  }
  // Without branches: a lane asks for many.
  LARDER_MEMBER bool sees(int h, int key) const {
    return (static_cast<int>(key <= position[h]) &
            (static_cast<int>(key < sinks) | static_cast<int>(key >= first_key[h]))) != 0;
  }
};

// Which keys of a split a warp has, and where a lane finds its own: it loads keys of block group / 2, has
// scores of block `member`, and loads values of that. Null where nothing of a block is seen.
struct WarpKeys {
  int begin;
  int loaded_block;  // positions
  int scored_block;
  bool any;    // is seen, the same for all lanes
  bool whole;  // all of them are there, and every row sees them; the same for all lanes
  bool sees_loaded, sees_scored;
  const std::byte* loaded = nullptr;
  const std::byte* scored = nullptr;
  const std::byte* values = nullptr;
  int num_values = 0;  // of the block, that there are

  LARDER_MEMBER WarpKeys(const Tile& tile, int split, MmaLane lane)
      : begin(split * kKeySplit + thread_index() / 32 * kWarpKeys),
        loaded_block(begin + lane.group / 2 * kBlockSize),
        scored_block(begin + lane.member * kBlockSize),
        any(tile.sees_some(begin, kWarpKeys)),
        whole(tile.all_see(begin, kWarpKeys)),
        sees_loaded(tile.sees_some(loaded_block, kBlockSize)),
        sees_scored(tile.sees_some(scored_block, kBlockSize)) {
    if (sees_scored) num_values = min_of(kBlockSize, tile.last_position() + 1 - scored_block);
  }
  // Where they lie in the device's memory.
  LARDER_MEMBER void find(const Work& work, const Tile& tile) {
    if (sees_loaded) loaded = keys_at(work, tile, loaded_block);
    if (!sees_scored) return;
    scored = keys_at(work, tile, scored_block);
    values = values_at(work, tile, scored_block);
  }
};

// The keys of one set of queries, as a lane has them: those of the other are as zeros.
struct SetKeys {
  const unsigned char* queries;
  const std::byte* loaded;
  const std::byte* scored;
};

// Adds what pieces [first_piece, end_piece) of the keys give to the warp's scores. kWhole: as WarpKeys.
template <class Keys, bool kWhole>
LARDER_DEVICE void score_pieces(const Work& work, const WarpKeys& own, const SharedSizes& sizes,
                                const Shared& shared, const LaneSight& sight, MmaLane lane,
                                int first_piece, int end_piece, LaneScores& scores) {
  const int num_sink_keys = sizes.num_sets == 2 ? sight.sinks : 0;
  if constexpr (kWhole) {
    const int set = own.begin < num_sink_keys ? 1 : 0;
    Keys::template score<true>(work, {shared.queries + set * sizes.set_bytes, own.loaded, own.scored},
                               lane, first_piece, end_piece, scores);
  } else {
    LARDER_NO_UNROLL
    for (int set = 0; set < (own.begin < num_sink_keys ? 2 : 1); ++set) {
      const auto in_set = [&](int block) { return (block < num_sink_keys) == (set == 1); };
      Keys::template score<false>(work,
                                  {shared.queries + set * sizes.set_bytes,
                                   in_set(own.loaded_block) ? own.loaded : nullptr,
                                   in_set(own.scored_block) ? own.scored : nullptr},
                                  lane, first_piece, end_piece, scores);
    }
  }
}

// One by one, by way of memory: written out for each they would make all kernels a quarter larger, and few models have
// a cap.
LARDER_DEVICE void cap_scores(float cap, LaneScores& scores) {
  float all[kRowHalves * kBlockSize];
  LARDER_UNROLL
  for (int i = 0; i < kRowHalves * kBlockSize; ++i) all[i] = scores[i / kBlockSize][i % 8][i % kBlockSize / 8];
  LARDER_NO_UNROLL
  for (int i = 0; i < kRowHalves * kBlockSize; ++i) all[i] = soft_capped(all[i], cap);
  LARDER_UNROLL
  for (int i = 0; i < kRowHalves * kBlockSize; ++i) scores[i / kBlockSize][i % 8][i % kBlockSize / 8] = all[i];
}

// The warp's scores, scaled, capped and masked.
template <bool kWhole>
LARDER_DEVICE void scale_scores(const Work& work, const WarpKeys& own, const SharedSizes& sizes, const Shared& shared,
                                const LaneSight& sight, MmaLane lane, LaneScores& scores) {
  const int num_sink_keys = sizes.num_sets == 2 ? sight.sinks : 0;
  const float* scales = shared.scales + (own.scored_block < num_sink_keys ? kTileRows : 0);
  LARDER_UNROLL
  for (int h = 0; h < kRowHalves; ++h) {
    const float scale = scales[h * 8 + lane.group];
    LARDER_UNROLL
    for (int k = 0; k < kBlockSize; ++k) scores[h][k % 8][k / 8] *= scale;
  }
  if (work.args.score_cap > 0) cap_scores(work.args.score_cap * kLog2E, scores);
  if constexpr (!kWhole) {
    LARDER_UNROLL
    for (int i = 0; i < kRowHalves * kBlockSize; ++i) {
      float& score = scores[i / kBlockSize][i % 8][i % kBlockSize / 8];
      score = sight.sees(i / kBlockSize, own.scored_block + i % kBlockSize) ? score : kNothing;
    }
  }
}

// Scores to softmax weights; leaves the warp's maxima and sums.
LARDER_DEVICE void weigh(LaneScores& scores, MmaLane lane, const Shared& shared) {
  LARDER_UNROLL
  for (int h = 0; h < kRowHalves; ++h) {
    float max = kNothing;
    LARDER_UNROLL
    for (int j = 0; j < 8; ++j) max = fmaxf(max, fmaxf(scores[h][j][0], scores[h][j][1]));
    max = warp_max<4>(max);
    const float seen = max == kNothing ? 0.0F : max;  // weights of a row that sees nothing are zeros
    float sum = 0;
    LARDER_UNROLL
    for (int k = 0; k < kBlockSize; ++k) {
      float& score = scores[h][k % 8][k / 8];
      score = power_of_2(score - seen) * kWeightScale;
      sum += score;
    }
    sum = warp_sum<4>(sum);
    if (lane.member == 0) {
      shared.own_maxima()[h * 8 + lane.group] = max;
      shared.own_sums()[h * 8 + lane.group] = sum;
    }
  }
}

// The same of a warp that sees nothing.
LARDER_DEVICE void weigh_nothing(MmaLane lane, const Shared& shared) {
  if (lane.member != 0) return;
  LARDER_UNROLL
  for (int h = 0; h < kRowHalves; ++h) {
    shared.own_maxima()[h * 8 + lane.group] = kNothing;
    shared.own_sums()[h * 8 + lane.group] = 0;
  }
}

// Four of the warp's weighted sums of a chunk, from dimension d of it on.
LARDER_DEVICE void put_sums(float* weighted, MmaLane lane, int h, int d, const Floats4& sums) {
  *reinterpret_cast<Floats4*>(weighted + (h * 8 + lane.group) * kPaddedDims + d) = sums;
}

// The sums of a warp that sees nothing: finite, whatever they are multiplied by.
LARDER_DEVICE void put_zeros(MmaLane lane, float* weighted) {
  LARDER_UNROLL
  for (int h = 0; h < kRowHalves; ++h)
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) put_sums(weighted, lane, h, lane.member * 16 + i * 4, {});
}

// A row's partials of a split become one, and then its total: the threads of a row do this together.
struct RowMerge {
  const float* weighted;  // of the first warp, the thread's four dimensions
  float factors[kWarps];  // 0 where the row sees nothing of the warp's keys
  float max = kNothing;
  float sum = 0;

  LARDER_MEMBER RowMerge(const Shared& shared, int r, int piece)
      : weighted(shared.weighted + r * kPaddedDims + piece * 4) {
    LARDER_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      factors[warp] = shared.maxima[warp * kTileRows + r];
      max = fmaxf(max, factors[warp]);
    }
    LARDER_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      factors[warp] = factors[warp] == kNothing ? 0.0F : power_of_2(factors[warp] - max);
      sum = fmaf(shared.sums[warp * kTileRows + r], factors[warp], sum);
    }
  }
  LARDER_MEMBER Floats4 of_chunk() const {
    Floats4 total = {};
    LARDER_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      const Floats4 four = *reinterpret_cast<const Floats4*>(
          weighted + warp * kTileRows * kPaddedDims);
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i) total.value[i] = fmaf(four.value[i], factors[warp], total.value[i]);
    }
    return total;
  }
};

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
