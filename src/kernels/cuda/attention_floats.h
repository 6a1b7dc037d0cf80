// Keys and values that are floats of 16 or 8 bits in tensor cores, for attention_kernel().
//
// Queries and softmax weights are the sum of two FP16 or three BF16 numbers, so every product with a
// stored number is exact. E4M3 is multiplied as FP16; scores get its scales at their end, weights at
// their beginning.
#pragma once

#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/packed.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

template <KvType kType>
constexpr int kParts = kType == KvType::kBF16 ? 3 : 2;
template <KvType kType>
constexpr int kNumberBytes = kType == KvType::kFp8 ? 1 : 2;
// Bytes in front of a head's values in a block.
template <KvType kType>
constexpr int kValuesBegin = kType == KvType::kFp8 ? kFp8ScalesSizeBytes : 0;

// Two numbers, each as the sum of kParts.
template <KvType kType>
LARDER_DEVICE void part_pair(float a, float b, std::uint32_t (&parts)[kParts<kType>]) {
  if constexpr (kType != KvType::kBF16) {
    LARDER_UNROLL
    for (std::uint32_t& part : parts) {
      part = half_pair(a, b);
      a -= half_value(static_cast<std::uint16_t>(part));
      b -= half_value(static_cast<std::uint16_t>(part >> 16));
    }
  } else {
    bf16_parts(a, b, parts);
  }
}

// Eight numbers, in the first half of the words where they are bytes.
template <KvType kType>
LARDER_DEVICE Words4 load_eight(const std::byte* at) {
  if constexpr (kNumberBytes<kType> == 2) return words_at(at, 0);
  Several<int, 2> two;
  load_several(two, at, 0);
  return {{two.value[0], two.value[1], 0, 0}};
}
// Those of them that there are, wherever they begin.
template <KvType kType>
LARDER_DEVICE Words4 load_up_to_eight(const std::byte* at, int count) {
  Words4 words = {};
  LARDER_UNROLL
  for (int i = 0; i < 8; ++i) {
    if (i >= count) continue;
    if constexpr (kNumberBytes<kType> == 2)
      words.word[i / 2] |= reinterpret_cast<const std::uint16_t*>(at)[i] << i % 2 * 16;
    else
      words.word[i / 4] |= static_cast<int>(std::uint32_t{reinterpret_cast<const std::uint8_t*>(at)[i]} << i % 4 * 8);
  }
  return words;
}

// sums (and those of rows 8 further) += a b. Operand b: number j of eight of each of the lane's vectors,
// the first two of which are rows 2 member and 2 member + 1.
template <KvType kType>
LARDER_DEVICE void add_product(float (&sums)[2], float (&lower_sums)[2],
                               const std::uint32_t (&a)[4], const LaneWords& b, int j) {
  const auto pair = [&](int first) {
    if constexpr (kType == KvType::kFp8)
      return e4m3_pair(static_cast<std::uint32_t>(b.vector[first].word[j / 4]),
                       static_cast<std::uint32_t>(b.vector[first + 1].word[j / 4]), j % 4);
    return pick_bytes(static_cast<std::uint32_t>(b.vector[first].word[j / 2]),
                      static_cast<std::uint32_t>(b.vector[first + 1].word[j / 2]),
                      j % 2 == 0 ? 0x5410U : 0x7632U);
  };
  if constexpr (kType != KvType::kBF16)
    mma_half(sums, lower_sums, a, pair(0), pair(2));
  else
    mma_bf16(sums, lower_sums, a, pair(0), pair(2));
}

// A power of two that brings a row's largest value to [2^13, 2^14), and the one that takes it back.
struct RowScale {
  float there, back;
  LARDER_MEMBER explicit RowScale(float peak) {
    const int exponent = min_of(max_of(static_cast<int>(as_bits(peak) >> 23), 30), 240);
    there = as_float(static_cast<std::uint32_t>(127 + 13 + 127 - exponent) << 23);
    back = as_float(static_cast<std::uint32_t>(exponent - 13) << 23);
  }
};

template <KvType kKey>
struct FloatKeys {
  static constexpr KvType kType = kKey;
  static constexpr int kNumParts = kParts<kKey>;
  static constexpr int kStepDims = 16;

  static LARDER_HOST_AND_DEVICE int num_steps(const Work& work) {
    return (work.args.kv.head_dim + kStepDims - 1) / kStepDims;
  }
  // Operands are [steps][parts].
  static int set_bytes(const Work& work) { return num_steps(work) * kNumParts * kOperandWords * 16; }

  static constexpr int kNumberSize = kNumberBytes<kKey>;
  static constexpr int kPieceSteps = 4 / kNumberSize;
  static LARDER_HOST_AND_DEVICE int num_pieces(const Work& work) {
    return (num_steps(work) + kPieceSteps - 1) / kPieceSteps;
  }
  static LARDER_HOST_AND_DEVICE Piece piece(const Work& work, int i) {
    constexpr int kDims = kPieceSteps * kStepDims;
    const int dims = work.args.kv.head_dim - i * kDims;
    const int scales = kKey == KvType::kFp8 && dims <= kDims ? kFp8ScalesSizeBytes : 0;
    return {i * kDims * kBlockSize * kNumberSize,
            (dims < kDims ? dims : kDims) * kBlockSize * kNumberSize + scales};
  }

  // A lane of scores has dimensions member, member + 4, member + 8 and member + 12 of a step, the latter
  // two in words 2 and 3.
  static LARDER_MEMBER void load_queries(const Work& work, const Tile& tile,
                                         const SharedSizes& sizes, const Shared& shared) {
    const int lane = thread_index() % 32;
    for_queries(work, tile, sizes, [&](const RowQuery& query, int set, int r) {
      const RowScale scale(query.peak());
      if (lane == 0) shared.scales[set * kTileRows + r] = scale.back;
      for (int pair = lane; pair < num_steps(work) * 8; pair += 32) {
        const int upper = pair / 4 % 2;
        const int d = pair / 8 * kStepDims + upper * 8 + pair % 4;
        std::uint32_t parts[kNumParts];
        part_pair<kKey>(query.at(d) * scale.there, query.at(d + 4) * scale.there, parts);
        auto* words = reinterpret_cast<Words4*>(shared.queries + set * sizes.set_bytes) +
                      pair / 8 * kNumParts * kOperandWords + r % 8 * 4 + pair % 4;
        LARDER_UNROLL
        for (int part = 0; part < kNumParts; ++part)
          words[part * kOperandWords].word[upper * 2 + r / 8] = static_cast<int>(parts[part]);
      }
    });
  }

  // Eight keys of a block for each of the lane's four dimensions. kWhole: they are there, as are all
  // dimensions of the step.
  template <bool kWhole>
  static LARDER_MEMBER LaneWords load(const std::byte* keys, int dim, int step, MmaLane lane) {
    LaneWords words;
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int d = step * kStepDims + i * 4 + lane.member;
      words.vector[i] = kWhole || (keys != nullptr && d < dim)
                            ? load_eight<kKey>(keys + d * kBlockSize * kNumberSize)
                            : Words4{};
    }
    return words;
  }

  // Adds to scores.
  template <bool kWhole>
  static LARDER_MEMBER void score(const Work& work, const SetKeys& own, MmaLane lane, int first_piece,
                                  int end_piece, LaneScores& scores) {
    const int dim = work.args.kv.head_dim;
    const int begin = first_piece * kPieceSteps;
    const int end = min_of(end_piece * kPieceSteps, num_steps(work));
    const auto* queries = reinterpret_cast<const Words4*>(own.queries) + thread_index() % 32;
    const std::byte* keys =
        kWhole || own.loaded != nullptr ? own.loaded + lane.group % 2 * 8 * kNumberSize : nullptr;
    const auto add_steps = [&]<bool kAll>() {
      LaneWords next = load<kAll>(keys, dim, begin, lane);
      LARDER_NO_UNROLL
      for (int step = begin; step < end; ++step) {
        const LaneWords words = next;
        if (step + 1 < end) next = load<kAll>(keys, dim, step + 1, lane);
        std::uint32_t q[kNumParts][4];
        LARDER_UNROLL
        for (int part = 0; part < kNumParts; ++part)
          load_operand(queries + (step * kNumParts + part) * kOperandWords, q[part]);
        if constexpr (!kAll) sync_warp();  // conditions above may have parted it
        LARDER_UNROLL
        for (int part = kNumParts - 1; part >= 0; --part)  // the small ones first
          LARDER_UNROLL
          for (int j = 0; j < 8; ++j)
            add_product<kKey>(scores[0][j], scores[1][j], q[part], words, j);
      }
    };
    if (kWhole && dim % kStepDims == 0)
      add_steps.template operator()<kWhole>();
    else
      add_steps.template operator()<false>();
    if constexpr (kKey == KvType::kFp8)
      if (end == num_steps(work) && (kWhole || own.scored != nullptr)) times_scales(own.scored, dim, scores);
  }

 private:
  // Of the lane's block.
  static LARDER_MEMBER void times_scales(const std::byte* keys, int dim, LaneScores& scores) {
    const HalfScales scales(keys + dim * kBlockSize, 0);
    LARDER_UNROLL
    for (int k = 0; k < kBlockSize; ++k) {
      const float scale = scales.of(k) * kE4m3InHalf;
      LARDER_UNROLL
      for (int h = 0; h < kRowHalves; ++h) scores[h][k % 8][k / 8] *= scale;
    }
  }
};

// kChunks: whose sums it has at a time.
template <KvType kValue, int kChunks>
struct FloatValues {
  static constexpr int kNumParts = kParts<kValue>;
  static constexpr int kStepKeys = 4;  // of each of the warp's blocks
  static constexpr int kChunkSteps = kBlockSize / kStepKeys;

  static constexpr int kNumberSize = kNumberBytes<kValue>;
  static constexpr bool kHasScales = kValue == KvType::kFp8;

  // Left operands: pair p is keys 2 p and 2 p + 1 of the lane's block. With scales, FP32's bits until
  // begin().
  std::uint32_t weights[kNumParts][kRowHalves][kBlockSize / 2];
  float back[kRowHalves];  // with scales: what sums are multiplied by
  float sums[kChunks][kRowHalves][8][2];  // dimension 8 i + j of the lane's 16 at [j][i]

  static constexpr bool kAddsPieces = true;
  static constexpr int kPieceSteps = 2 / kNumberSize;
  static constexpr int kNumPieces = kChunkSteps / kPieceSteps;
  static constexpr int kRingDims = 4 / kNumberSize;  // four keys of so many are 16 bytes
  static LARDER_HOST_AND_DEVICE Piece piece(const Work& work, int i) {
    constexpr int kBegin = kValuesBegin<kValue>;
    const int size = kPieceSteps * kStepKeys * work.args.kv.head_dim * kNumberSize;
    return {i == 0 ? 0 : kBegin + i * size, i == 0 ? kBegin + size : size};
  }

  LARDER_MEMBER explicit FloatValues(const LaneScores& scores) {
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h)
      LARDER_UNROLL
      for (int p = 0; p < kBlockSize / 2; ++p) {
        const float a = scores[h][2 * p % 8][p / 4];
        const float b = scores[h][(2 * p + 1) % 8][p / 4];
        if constexpr (kHasScales) {
          weights[0][h][p] = as_bits(a);
          weights[1][h][p] = as_bits(b);
        } else {
          put_pair(h, p, a, b);
        }
      }
  }

  // With scales: weights times those of their keys, in FP16's range. Of what is not there, zeros.
  LARDER_MEMBER void begin(const std::byte* values) {
    float scaled[kRowHalves][kBlockSize];
    float peaks[kRowHalves] = {};
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h)
      LARDER_UNROLL
      for (int k = 0; k < kBlockSize; ++k) scaled[h][k] = as_float(weights[k % 2][h][k / 2]);
    if (values != nullptr) {
      const HalfScales scales(values, 0);
      LARDER_UNROLL
      for (int k = 0; k < kBlockSize; ++k)
        LARDER_UNROLL
        for (int h = 0; h < kRowHalves; ++h) {
          scaled[h][k] *= scales.of(k);
          peaks[h] = fmaxf(peaks[h], scaled[h][k]);
        }
    }
    sync_warp();
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h) {
      const RowScale scale(warp_max<4>(peaks[h]));
      back[h] = scale.back * kE4m3InHalf;
      LARDER_UNROLL
      for (int p = 0; p < kBlockSize / 2; ++p)
        put_pair(h, p, scaled[h][2 * p] * scale.there, scaled[h][2 * p + 1] * scale.there);
    }
  }

  // Eight dimensions of the step's keys. Of a slot that no token has there is nothing to be multiplied.
  // kWhole: there are all keys, and dimensions come in eights.
  template <bool kWhole>
  static LARDER_MEMBER LaneWords load(const Work& work, const WarpKeys& own, MmaLane lane, int chunk,
                                      int step) {
    const int dim = work.args.kv.head_dim;
    const int first_dim = chunk * kChunkDims + lane.group * 8;
    const std::byte* values = own.values + kValuesBegin<kValue>;
    LaneWords words;
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = step * kStepKeys + i;
      words.vector[i] = Words4{};
      if constexpr (kWhole) {
        // Past the last dimensions, those before: nobody takes their sums.
        const int d = min_of(first_dim, dim - 8);
        words.vector[i] = load_eight<kValue>(values + (key * dim + d) * kNumberSize);
        continue;
      }
      if (key >= own.num_values || first_dim >= dim) continue;
      const std::byte* value = values + (key * dim + first_dim) * kNumberSize;
      words.vector[i] =
          dim % 8 == 0 ? load_eight<kValue>(value) : load_up_to_eight<kValue>(value, dim - first_dim);
    }
    return words;
  }

  // Begins the chunk's sums with its first step. place: of the sums.
  LARDER_MEMBER void add(int place, int step, const LaneWords& words) {
    float (&chunk)[kRowHalves][8][2] = sums[place];
    if (step == 0) {
      LARDER_UNROLL
      for (int j = 0; j < 8; ++j)
        chunk[0][j][0] = chunk[0][j][1] = chunk[1][j][0] = chunk[1][j][1] = 0;
    }
    LARDER_UNROLL
    for (int part = kNumParts - 1; part >= 0; --part) {
      const std::uint32_t a[4] = {weights[part][0][step * 2], weights[part][1][step * 2],
                                  weights[part][0][step * 2 + 1], weights[part][1][step * 2 + 1]};
      LARDER_UNROLL
      for (int j = 0; j < 8; ++j) add_product<kValue>(chunk[0][j], chunk[1][j], a, words, j);
    }
  }
  LARDER_MEMBER void put(int place, MmaLane lane, float* weighted) const {
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h)
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i) {
        Floats4 four;
        LARDER_UNROLL
        for (int j = 0; j < 4; ++j) {
          four.value[j] = sums[place][h][i % 2 * 4 + j][i / 2];
          if constexpr (kHasScales) four.value[j] *= back[h];
        }
        put_sums(weighted, lane, h, lane.member * 16 + i * 4, four);
      }
  }

  static LARDER_MEMBER bool loads_whole(const Work& work, const WarpKeys& own) {
    return own.whole && work.args.kv.head_dim % 8 == 0;
  }

  // The sums of a piece's keys over all chunks.
  template <bool kWhole>
  LARDER_MEMBER void add_piece(const Work& work, const WarpKeys& own, MmaLane lane, int piece) {
    if constexpr (kHasScales)
      if (piece == 0) begin(own.values);
    LARDER_UNROLL
    for (int i = 0; i < kPieceSteps; ++i) {
      const int step = piece * kPieceSteps + i;
      LARDER_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (chunk * kChunkDims >= work.args.kv.head_dim) break;
        const LaneWords words = load<kWhole>(work, own, lane, chunk, step);
        if constexpr (!kWhole) sync_warp();  // conditions above may have parted it, and tensor cores take it whole
        add(chunk, step, words);
      }
    }
  }
  // A step of a chunk that has the only place; the last one writes its sums to weighted.
  template <bool kWhole>
  LARDER_MEMBER void add_step(const Work&, const WarpKeys& own, MmaLane lane, int chunk, int step,
                              const LaneWords& words, float* weighted) {
    if constexpr (kHasScales)
      if (chunk == 0 && step == 0) begin(own.values);
    if constexpr (!kWhole) sync_warp();
    add(0, step, words);
    if (step + 1 == kChunkSteps) put(0, lane, weighted);
  }

 private:
  LARDER_MEMBER void put_pair(int h, int p, float a, float b) {
    std::uint32_t parts[kNumParts];
    part_pair<kValue>(a, b, parts);
    LARDER_UNROLL
    for (int part = 0; part < kNumParts; ++part) weights[part][h][p] = parts[part];
  }
};

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
