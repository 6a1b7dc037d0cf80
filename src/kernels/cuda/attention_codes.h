// Keys and values in codes, multiplied as they are stored (kv_type.h), for attention_kernel().
//
// Queries, and softmax weights times the scales of values, are rounded to 16 bits as on the CPU, which
// are a signed and an unsigned byte: value = 256 high + low. Tensor cores add exact integers over a
// group of dimensions or the warp's keys, which are scaled in FP32.
#pragma once

#include "kernels/cuda/attention_warp.h"
#include "kernels/cuda/codes.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr float kLargestWord = 32767;
constexpr std::uint32_t kSignBits = 0x80808080;  // code ^ 128 is code - 128, signed
constexpr std::uint32_t kLowerBits = 0x0F0F0F0F;
// Sums stay within 31 bits.
static_assert(kWarpKeys <= 128 && kLargeHead <= 128);

// Numbers in 16 bits: value = scale * word.
struct WordScale {
  float scale, inverse;
  LARDER_MEMBER explicit WordScale(float peak) {
    const bool tiny = !(peak > 1e-30F);
    scale = tiny ? 0.0F : peak / kLargestWord;
    inverse = tiny ? 0.0F : kLargestWord / peak;
  }
  LARDER_MEMBER int word(float value) const { return nearest_int(value * inverse); }
};

// Every word of the pieces.
template <class Function>
LARDER_DEVICE Words4 each_word(const Words4& a, const Words4& b, const Function& function) {
  Words4 result;
  LARDER_UNROLL
  for (int i = 0; i < 4; ++i)
    result.word[i] = static_cast<int>(
        function(static_cast<std::uint32_t>(a.word[i]), static_cast<std::uint32_t>(b.word[i])));
  return result;
}
template <class Function>
LARDER_DEVICE Words4 each_word(const Words4& a, const Function& function) {
  return each_word(a, a, [&](std::uint32_t word, std::uint32_t) { return function(word); });
}

// As HalfScales: the bytes of kInt4.
struct ByteScales {
  Words4 words;
  LARDER_MEMBER ByteScales(const std::byte* scales, int group)
      : words(words_at(scales, group * kBlockSize)) {}
  LARDER_MEMBER float of(int token) const {
    return scale8_value(words.word[token / 4] >> token % 4 * 8 & 255);
  }
};

// Eight keys of a block by eight quads of dimensions, of which a lane has quads `member` as `low`
// and four more as `high`; a word is a key's four codes, signed. Zeros where there are no keys.
struct StepCodes {
  Words4 low[2], high[2];
};

template <KvType kKey>
struct CodeKeys {
  static constexpr KvType kType = kKey;
  static constexpr bool kIsInt8 = kKey == KvType::kInt8;
  static constexpr int kPartBytes = kOperandWords * 16;

  // Operands are [steps][high and low bytes]; then [rows][groups] what takes the offset of
  // kInt4's codes off a group's sum.
  static LARDER_HOST_AND_DEVICE int starts_offset(const Work& work) {
    return work.parts.key_step[work.parts.num_key_groups] * 2 * kPartBytes;
  }
  static LARDER_HOST_AND_DEVICE int num_pieces(const Work&) { return 1; }
  static LARDER_HOST_AND_DEVICE Piece piece(const Work& work, int) {
    return {0, static_cast<int>(work.parts.key_bytes)};
  }
  static int set_bytes(const Work& work) {
    return starts_offset(work) + (kIsInt8 ? 0 : kTileRows * work.parts.num_key_groups * 4);
  }

  // Where the word of a group's dimension lies in a step's operands: [lane member][quad][byte].
  static LARDER_MEMBER int place_of_word(const Work& work, int group, int d) {
    const int i = d % kCodeStepDims;
    int member, is_high, byte;
    if constexpr (kIsInt8) {
      is_high = i / 16;
      member = i % 8 / 2;
      byte = i % 2 + i % 16 / 8 * 2;
    } else if (group < work.parts.num_wide_groups && !work.parts.is_large) {
      is_high = i / 16;
      member = i % 16 / 4;
      byte = i % 4;
    } else {
      is_high = i % 8 / 4;
      member = i / 8;
      byte = i % 4;
    }
    return member * 16 + is_high * 8 + byte;
  }

  // Codes of kInt4 stand for halves: rounded to the smallest number of a word.
  static LARDER_MEMBER int start_of(const Work& work, int group, int sum_of_words) {
    if (group >= work.parts.num_wide_groups) return -15 * sum_of_words / 2;
    return work.parts.is_large ? -63 * sum_of_words / 2
                               : 128 * sum_of_words - 255 * sum_of_words / 2;
  }

  static LARDER_MEMBER void load_queries(const Work& work, const Tile& tile,
                                         const SharedSizes& sizes, const Shared& shared) {
    const CodeParts& parts = work.parts;
    const int lane = thread_index() % 32;
    auto* all = reinterpret_cast<Words4*>(shared.queries);
    for (int i = thread_index(); i < sizes.num_sets * sizes.set_bytes / 16; i += kThreads)
      all[i] = Words4{};  // where a group ends within a step, zeros follow
    sync_warps();
    for_queries(work, tile, sizes, [&](const RowQuery& query, int set, int r) {
      unsigned char* queries = shared.queries + set * sizes.set_bytes;
      const WordScale word_scale(query.peak());
      if (lane == 0) shared.scales[set * kTileRows + r] = word_scale.scale;
      for (int group = 0; group < parts.num_key_groups; ++group) {
        const int begin = parts.key_begin[group];
        int sum = 0;
        for (int d = begin + lane; d < parts.key_begin[group + 1]; d += 32) {
          const int word = word_scale.word(query.at(d));
          sum += word;
          const int step = parts.key_step[group] + (d - begin) / kCodeStepDims;
          unsigned char* to = queries + step * 2 * kPartBytes + r % 8 * 64 + r / 8 * 4 +
                              place_of_word(work, group, d - begin);
          to[0] = static_cast<unsigned char>(word >> 8);
          to[kPartBytes] = static_cast<unsigned char>(word);
        }
        if constexpr (kIsInt8) continue;
        sum = warp_sum(sum);
        auto* starts = reinterpret_cast<int*>(queries + starts_offset(work));
        if (lane == 0) starts[r * parts.num_key_groups + group] = start_of(work, group, sum);
      }
    });
  }

  // keys: where the head's part of the lane's block begins. kWhole: it is there, and kInt8's dimensions
  // fill the steps.
  template <bool kWhole>
  static LARDER_MEMBER StepCodes load(const Work& work, const std::byte* keys, int group, int step,
                                      MmaLane lane) {
    const CodeParts& parts = work.parts;
    StepCodes codes = {};
    if (!kWhole && keys == nullptr) return codes;
    const int begin = parts.key_begin[group] + step * kCodeStepDims;
    const int end = parts.key_begin[group + 1];
    const std::byte* pieces = keys + lane.group % 2 * 32;
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::byte* at = pieces + i * 16;
      const auto less_128 = [](std::uint32_t word) { return word ^ kSignBits; };
      if constexpr (kIsInt8) {
        const int vector = begin / 4 + lane.member;
        codes.low[i] = each_word(words_at(at, vector * kCodeVector), less_128);
        if (kWhole || begin + 16 < end)
          codes.high[i] = each_word(words_at(at, (vector + 4) * kCodeVector), less_128);
      } else if (group >= parts.num_wide_groups) {
        if (begin + lane.member * 8 >= end) continue;
        const int vector = (begin - parts.num_wide) / 8 + lane.member;
        const Words4 both = words_at(at, parts.wide_bytes + vector * kCodeVector);
        codes.low[i] = each_word(both, [](std::uint32_t word) { return word & kLowerBits; });
        codes.high[i] = each_word(both, [](std::uint32_t word) { return word >> 4 & kLowerBits; });
      } else if (parts.is_large) {
        if (begin + lane.member / 2 * 16 >= end) continue;
        load_six_bits(at + (begin / 16 + lane.member / 2) * 3 * kCodeVector, lane.member % 2,
                      codes.low[i], codes.high[i]);
      } else {
        const int vector = begin / 4 + lane.member;
        if (begin + lane.member * 4 < end)
          codes.low[i] = each_word(words_at(at, vector * kCodeVector), less_128);
        if (begin + lane.member * 4 + 16 < end)
          codes.high[i] = each_word(words_at(at, (vector + 4) * kCodeVector), less_128);
      }
    }
    return codes;
  }
  // Of three vectors: one of two with the lower four bits, and its two bits of the third.
  static LARDER_MEMBER void load_six_bits(const std::byte* three, int which, Words4& low,
                                          Words4& high) {
    const Words4 lower = words_at(three, which * kCodeVector);
    const Words4 upper = words_at(three, 2 * kCodeVector);
    low = each_word(lower, upper, [&](std::uint32_t a, std::uint32_t b) {
      return (a & kLowerBits) | (b >> which * 4 & 0x03030303U) << 4;
    });
    high = each_word(lower, upper, [&](std::uint32_t a, std::uint32_t b) {
      return (a >> 4 & kLowerBits) | (b >> (which * 4 + 2) & 0x03030303U) << 4;
    });
  }

  // Adds to scores.
  template <bool kWhole>
  static LARDER_MEMBER void score(const Work& work, const SetKeys& own, MmaLane lane, int, int,
                                  LaneScores& scores) {
    if (kWhole && (!kIsInt8 || work.parts.dim % kCodeStepDims == 0))
      add_groups<kWhole>(work, own, lane, scores);
    else
      add_groups<false>(work, own, lane, scores);
  }
  template <bool kWhole>
  static LARDER_MEMBER void add_groups(const Work& work, const SetKeys& own, MmaLane lane,
                                       LaneScores& scores) {
    using Scales = std::conditional_t<kIsInt8, HalfScales, ByteScales>;
    const CodeParts& parts = work.parts;
    const auto* queries = reinterpret_cast<const Words4*>(own.queries) + thread_index() % 32;
    const auto* starts = reinterpret_cast<const int*>(own.queries + starts_offset(work));
    LARDER_NO_UNROLL
    for (int group = 0; group < parts.num_key_groups; ++group) {
      int sums[8][kRowHalves * 2];  // [j][2 h + i]: key j + 8 i
      LARDER_UNROLL
      for (int i = 0; i < kRowHalves * 2; ++i) {
        const int start = kIsInt8 || (!kWhole && own.scored == nullptr)
                              ? 0
                              : starts[(i / 2 * 8 + lane.group) * parts.num_key_groups + group];
        LARDER_UNROLL
        for (int j = 0; j < 8; ++j) sums[j][i] = start;
      }
      const int first_step = parts.key_step[group];
      LARDER_NO_UNROLL
      for (int step = first_step; step < parts.key_step[group + 1]; ++step) {
        const StepCodes codes = load<kWhole>(work, own.loaded, group, step - first_step, lane);
        if constexpr (!kWhole || !kIsInt8) sync_warp();  // conditions above may have parted it
        add_step(queries + step * 2 * kOperandWords, codes, sums);
      }
      if (!kWhole && own.scored == nullptr) continue;
      const Scales scales(own.scored + parts.key_scale_offset, group);
      LARDER_UNROLL
      for (int k = 0; k < kBlockSize; ++k)
        LARDER_UNROLL
        for (int h = 0; h < kRowHalves; ++h) {
          float& score = scores[h][k % 8][k / 8];
          score = fmaf(static_cast<float>(sums[k % 8][h * 2 + k / 8]), scales.of(k), score);
        }
    }
  }
  // queries: the lane's high bytes of a step, and behind those of the other lanes the low ones.
  static LARDER_MEMBER void add_step(const Words4* queries, const StepCodes& codes,
                                     int (&sums)[8][kRowHalves * 2]) {
    std::uint32_t q[2][4];
    LARDER_UNROLL
    for (int part = 0; part < 2; ++part) load_operand(queries + part * kOperandWords, q[part]);
    LARDER_UNROLL
    for (int j = 0; j < 8; ++j) {
      const auto low = static_cast<std::uint32_t>(codes.low[j / 4].word[j % 4]);
      const auto high = static_cast<std::uint32_t>(codes.high[j / 4].word[j % 4]);
      int products[4] = {};
      mma_int8(products, q[0], low, high);
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i) sums[j][i] += products[i] * 256;
      mma_unsigned(sums[j], q[1], low, high);
    }
  }
};

// How values are stored: kInt8, kInt4, and kInt4 of large heads.
enum class ValueForm { kBytes, kLevels, kFiveBits };

template <ValueForm kForm>
struct CodeValues {
  static constexpr int kUnitDims = 32;  // a lane has those of its product 4 group to 4 group + 3
  static constexpr int kChunkSteps = kChunkDims / kUnitDims;
  static constexpr int kGroupDims = kForm == ValueForm::kBytes    ? kCodeGroup
                                    : kForm == ValueForm::kLevels ? kLevelGroup
                                                                  : kLargeHead;

  static constexpr bool kAddsPieces = false;
  static constexpr int kNumPieces = 1;
  static constexpr int kRingDims = 2;
  static LARDER_HOST_AND_DEVICE Piece piece(const Work& work, int) {
    return {0, static_cast<int>(work.parts.value_bytes)};
  }

  float weights[kRowHalves][kBlockSize];
  // Left operands of 32 keys each: quad i has keys 2i, 2i + 1, 2i + 8 and 2i + 9 of the lane's block.
  std::uint32_t bytes[2][2][4];  // [high, low][half of the quads]
  float scale[kRowHalves];
  int start[kRowHalves];  // what takes the codes' offset off a sum

  LARDER_MEMBER explicit CodeValues(const LaneScores& scores) {
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h)
      LARDER_UNROLL
      for (int k = 0; k < kBlockSize; ++k) weights[h][k] = scores[h][k % 8][k / 8];
  }

  // The dimensions fill the chunks.
  static LARDER_MEMBER bool loads_whole(const Work& work, const WarpKeys& own) {
    return own.whole && work.parts.dim % kChunkDims == 0;
  }

  // Codes of four dimensions, for each of the four quads; in 4 bits also of the four that are 16 on.
  // kWhole: they are there, as are all keys.
  template <bool kWhole>
  static LARDER_MEMBER LaneWords load(const Work& work, const WarpKeys& own, MmaLane lane, int chunk,
                                      int step) {
    LaneWords words = {};
    const int unit = chunk * kChunkSteps + step;
    const int first_dim = unit * kUnitDims;
    const int dim = kForm == ValueForm::kBytes ? first_dim + lane.group / 4 * 16 : first_dim;
    if (kWhole ? chunk * kChunkDims >= work.parts.dim : own.values == nullptr || dim >= work.parts.dim)
      return words;
    const int tile = kForm == ValueForm::kBytes    ? dim / 16
                     : kForm == ValueForm::kLevels ? unit
                                                   : unit + unit / (kLargeHead / kUnitDims);
    const std::byte* at = own.values + tile * kCodeTileBytes + lane.group % 4 * 16;
    LARDER_UNROLL
    for (int quad = 0; quad < kCodeQuads; ++quad) words.vector[quad] = words_at(at, quad * kCodeVector);
    return words;
  }

  // The rows' weights times the scales of a group of dimensions, in 16 bits.
  template <bool kWhole>
  LARDER_MEMBER void begin_group(const Work& work, const WarpKeys& own, int group) {
    using Scales = std::conditional_t<kForm == ValueForm::kBytes, HalfScales, ByteScales>;
    float of_key[kBlockSize] = {};
    if (kWhole || (own.values != nullptr && group * kGroupDims < work.parts.dim)) {
      const Scales scales(own.values + work.parts.value_scale_offset, group);
      LARDER_UNROLL
      for (int k = 0; k < kBlockSize; ++k) of_key[k] = kWhole || k < own.num_values ? scales.of(k) : 0.0F;
    }
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h) {
      float largest = 0;
      LARDER_UNROLL
      for (int k = 0; k < kBlockSize; ++k) largest = fmaxf(largest, weights[h][k] * of_key[k]);
      const WordScale word_scale(warp_max<4>(largest));
      int sum = 0;
      LARDER_UNROLL
      for (int quad = 0; quad < kCodeQuads; ++quad) {
        std::uint32_t high = 0, low = 0;
        LARDER_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = quad * 2 + i % 2 + i / 2 * 8;
          const int word = word_scale.word(weights[h][key] * of_key[key]);
          sum += word;
          high |= (static_cast<std::uint32_t>(word) >> 8 & 255U) << i * 8;
          low |= (static_cast<std::uint32_t>(word) & 255U) << i * 8;
        }
        bytes[0][quad / 2][quad % 2 * 2 + h] = high;
        bytes[1][quad / 2][quad % 2 * 2 + h] = low;
      }
      scale[h] = word_scale.scale * (kForm == ValueForm::kLevels ? kNormalLevelStep : 1.0F);
      start[h] = kForm == ValueForm::kFiveBits ? -31 * warp_sum<4>(sum) / 2 : 0;
    }
  }

  // The lane's codes of a quad, signed.
  template <bool kWhole>
  static LARDER_MEMBER Words4 codes_of(const WarpKeys& own, MmaLane lane, int unit, int quad,
                                       const Words4& words) {
    const int nibble = lane.group / 4 * 4;
    if constexpr (kForm == ValueForm::kBytes) {
      return each_word(words, [](std::uint32_t word) { return word ^ kSignBits; });
    } else if constexpr (kForm == ValueForm::kLevels) {
      return each_word(words, [&](std::uint32_t word) { return levels_of(word >> nibble & kLowerBits); });
    } else {
      constexpr int kUnits = kLargeHead / kUnitDims;
      const int fifths = unit / kUnits * (kUnits + 1) + kUnits;
      const int bit = unit % kUnits * 2 + lane.group / 4;
      const Words4 fifth = kWhole || own.values != nullptr
                               ? words_at(own.values, fifths * kCodeTileBytes + quad * kCodeVector +
                                                          lane.group % 4 * 16)
                               : Words4{};
      return each_word(words, fifth, [&](std::uint32_t word, std::uint32_t upper) {
        return (word >> nibble & kLowerBits) | (upper >> bit & 0x01010101U) << 4;
      });
    }
  }

  // Writes a unit's sums to weighted.
  template <bool kWhole>
  LARDER_MEMBER void add_step(const Work& work, const WarpKeys& own, MmaLane lane, int chunk, int step,
                         const LaneWords& words, float* weighted) {
    const int unit = chunk * kChunkSteps + step;
    if (step * kUnitDims % kGroupDims == 0)
      begin_group<kWhole>(work, own, unit * kUnitDims / kGroupDims);
    Words4 codes[kCodeQuads];
    LARDER_UNROLL
    for (int quad = 0; quad < kCodeQuads; ++quad)
      codes[quad] = codes_of<kWhole>(own, lane, unit, quad, words.vector[quad]);
    if constexpr (!kWhole) sync_warp();  // conditions above may have parted it, and tensor cores take it whole
    Floats4 sums[kRowHalves][2];  // dimensions 8 member + 4 i + j
    LARDER_UNROLL
    for (int j = 0; j < 4; ++j) {
      int products[4] = {};
      const auto low = [&](int half) { return static_cast<std::uint32_t>(codes[half * 2].word[j]); };
      const auto high = [&](int half) {
        return static_cast<std::uint32_t>(codes[half * 2 + 1].word[j]);
      };
      LARDER_UNROLL
      for (int half = 0; half < 2; ++half) mma_int8(products, bytes[0][half], low(half), high(half));
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i) products[i] = products[i] * 256 + start[i / 2];
      LARDER_UNROLL
      for (int half = 0; half < 2; ++half)
        mma_unsigned(products, bytes[1][half], low(half), high(half));
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i)
        sums[i / 2][i % 2].value[j] = static_cast<float>(products[i]) * scale[i / 2];
    }
    LARDER_UNROLL
    for (int h = 0; h < kRowHalves; ++h)
      LARDER_UNROLL
      for (int i = 0; i < 2; ++i)
        put_sums(weighted, lane, h, step * kUnitDims + lane.member * 8 + i * 4, sums[h][i]);
  }
};

}  // namespace
}  // namespace larder::LARDER_CUDA_NAMESPACE
