// Attention's sums over codes (kv_type.h): queries and softmax weights in 16 bits, exact integer
// sums over a group of dimensions or a tile of keys, scaled in FP32. Included by attention.cc
// alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr float kLargestWord = 32767;
constexpr int kTilePairs = kCodeTile / 2;
// Sums stay within 31 bits: a group or a tile of 64 items, 255 * 32767 * 64 < 2^30.
static_assert(kCodeGroup <= 64 && kKeyTile <= 64);

// kNormalLevels + 128.
alignas(16) constexpr uint8_t kLevelBytes[16] = {1,   32,  53,  70,  84,  97,  110, 122,
                                                 134, 146, 159, 172, 186, 203, 224, 255};

LARDER_INLINE const uint8_t* bytes_of(const std::byte* p) {
  return reinterpret_cast<const uint8_t*>(p);
}

// sum[r] += a quad's words times those of row r. Row r's are words[r * stride + at] and the next.
// The codes are loaded twice, so that with 16 registers only even or odd words take room beside
// the sums. kNibbles: 0 whole bytes, 1 the lower, 2 the upper bits.
template <int kRows, int kNibbles>
LARDER_INLINE void dot_quad(I16* sum, const uint8_t* codes, const int32_t* words, int stride) {
  constexpr int kBits = kNibbles == 0 ? 8 : 4;
  constexpr int kShift = kNibbles == 2 ? 4 : 0;
  const Bytes64 even = word_bits<kShift, kBits>(load_bytes(codes));
  for (int r = 0; r < kRows; ++r) sum[r] = dot_words(sum[r], even, words + r * stride);
  const Bytes64 odd = word_bits<8 + kShift, kBits>(load_bytes(opaque(codes)));
  for (int r = 0; r < kRows; ++r) sum[r] = dot_words(sum[r], odd, words + r * stride + 1);
}

// The same with levels in place of codes.
template <int kRows, bool kUpper>
LARDER_INLINE void dot_levels(I16* sum, const uint8_t* codes, const int32_t* words, int stride) {
  const Bytes64 both = load_bytes(codes);
  const Bytes64 levels = look_up(kLevelBytes, kUpper ? high_nibbles(both) : low_nibbles(both));
  const Bytes64 even = word_bits<0, 8>(levels);
  for (int r = 0; r < kRows; ++r) sum[r] = dot_words(sum[r], even, words + r * stride);
  const Bytes64 odd = word_bits<8, 8>(levels);
  for (int r = 0; r < kRows; ++r) sum[r] = dot_words(sum[r], odd, words + r * stride + 1);
}

template <int kRows>
LARDER_INLINE void fetch(const std::byte* next, int64_t offset) {
  if constexpr (kRows <= kFetchRows) prefetch(next + offset);
}

// The codes fetch the next tile's codes; the scales lie behind them, in a line of their own.
template <int kRows>
LARDER_INLINE void fetch_scales(const Work& work, const KeyTile& tile, int b) {
  const KvTypes& types = work.args.kv.types;
  fetch<kRows>(tile.next_k[b], kv_key_size_bytes(types.k, work.dim) - 1);
  fetch<kRows>(tile.next_v[b], kv_value_size_bytes(types.v, work.dim) - 1);
}

// The row's query in 16 bits: one scale, and the words as integers in `rounded` [padded_dim].
void round_query(const Work& work, const Queries& q, int32_t* rounded) {
  V16 largest = zero();
  for (int d = 0; d < work.padded_dim; d += kLanes) largest = max(largest, abs(load(q.values + d)));
  const float peak = reduce_max(largest);
  const bool tiny = !(peak > 1e-30F);
  const V16 inverse = set1(tiny ? 0.0F : kLargestWord / peak);
  *q.scale = tiny ? 0.0F : peak / kLargestWord;
  for (int d = 0; d < work.padded_dim; d += kLanes) {
    store_int(rounded + d, to_int(mul(load(q.values + d), inverse)));
  }
}

LARDER_INLINE int32_t word_pair(int32_t low, int32_t high) {
  return static_cast<int32_t>((static_cast<uint32_t>(low) & 0xFFFFU) |
                              static_cast<uint32_t>(high) << 16);
}
LARDER_INLINE int32_t sum_of(const int32_t* values, int count) {
  int32_t sum = 0;
  for (int i = 0; i < count; ++i) sum += values[i];
  return sum;
}

void quantize_query_int8(const Work& work, const Queries& q) {
  alignas(64) int32_t rounded[kMaxCodeDim];
  round_query(work, q, rounded);
  for (int d = 0; d < work.padded_dim; d += kCodeTile) {
    for (int i = 0; i < kTilePairs; ++i) {
      q.words[d / 2 + i] = word_pair(rounded[d + i], rounded[d + i + kTilePairs]);
    }
  }
  for (int g = 0; g < work.num_groups; ++g) {
    const int begin = g * kCodeGroup;
    q.start[g] = -128 * sum_of(rounded + begin, min_of(kCodeGroup, work.padded_dim - begin));
  }
}

// The parts of a key in kInt4, in vectors: the wide one's quads, the narrow one's pairs of quads.
struct KeyParts {
  int num_wide;
  int num_narrow;
  int num_groups;         // of the wide part
  int num_narrow_groups;

  int wide_begin(int group) const { return num_wide * group / num_groups; }
  int narrow_begin(int group) const { return num_narrow * group / num_narrow_groups; }
};
LARDER_INLINE KeyParts key_parts(const Work& work) {
  return {kv_num_wide(work.dim) / 4, kv_num_narrow(work.dim) / 8, work.num_groups,
          kv_num_narrow_groups(work.dim)};
}

void quantize_query_int4(const Work& work, const Queries& q) {
  alignas(64) int32_t rounded[kMaxCodeDim + 16];
  round_query(work, q, rounded);
  for (int d = work.padded_dim; d < work.padded_dim + 16; ++d) rounded[d] = 0;
  const KeyParts parts = key_parts(work);
  for (int quad = 0; quad < parts.num_wide + 2 * parts.num_narrow; ++quad) {
    const int32_t* from = rounded + 4 * quad;
    q.words[2 * quad] = word_pair(from[0], from[2]);
    q.words[2 * quad + 1] = word_pair(from[1], from[3]);
  }
  const int32_t* narrow = rounded + 4 * parts.num_wide;
  for (int g = 0; g < work.num_groups; ++g) {
    const int wide_quads = parts.wide_begin(g + 1) - parts.wide_begin(g);
    // Codes stand for halves: the offset is rounded to a 32767th of the largest query value.
    q.start[g] = -255 * sum_of(rounded + 4 * parts.wide_begin(g), 4 * wide_quads) / 2;
  }
  for (int g = 0; g < parts.num_narrow_groups; ++g) {
    const int narrow_pairs = parts.narrow_begin(g + 1) - parts.narrow_begin(g);
    q.start[work.num_groups + g] =
        -15 * sum_of(narrow + 8 * parts.narrow_begin(g), 8 * narrow_pairs) / 2;
  }
}

// scores[r][16 b + lane] = q[r] . k[b][lane]
template <int kRows>
void score_rows_int8(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  const int stride = attention_words(work.dim);
  for (int b = 0; b < tile.num_blocks; ++b) {
    fetch_scales<kRows>(work, tile, b);
    V16 total[kRows];
    for (int r = 0; r < kRows; ++r) total[r] = zero();
    for (int g = 0; g < work.num_groups; ++g) {
      I16 sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(q.start[r * 3 * work.num_groups + g]);
      const int end = min_of(work.padded_dim, (g + 1) * kCodeGroup) / 4;
      for (int quad = g * kCodeGroup / 4; quad < end; ++quad) {
        fetch<kRows>(tile.next_k[b], quad * kCodeVector);
        dot_quad<kRows, 0>(sum, bytes_of(tile.k[b]) + quad * kCodeVector, q.words + 2 * quad,
                           stride);
      }
      const std::byte* scales = tile.k[b] + kBlockSize * (work.padded_dim + 2 * g);
      const V16 scale = load_bf16(reinterpret_cast<const uint16_t*>(scales));
      for (int r = 0; r < kRows; ++r) total[r] = fma(to_float(sum[r]), scale, total[r]);
    }
    for (int r = 0; r < kRows; ++r) {
      store(scores + r * kKeyTile + b * kLanes, mul(total[r], set1(q.scale[r])));
    }
  }
}

template <int kRows>
void score_rows_int4(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  const int stride = attention_words(work.dim);
  const KeyParts parts = key_parts(work);
  const int32_t* narrow_words = q.words + 2 * parts.num_wide;
  for (int b = 0; b < tile.num_blocks; ++b) {
    fetch_scales<kRows>(work, tile, b);
    const uint8_t* wide = bytes_of(tile.k[b]);
    const uint8_t* narrow = wide + parts.num_wide * kCodeVector;
    const uint8_t* scales = narrow + parts.num_narrow * kCodeVector;
    V16 total[kRows];
    for (int r = 0; r < kRows; ++r) total[r] = zero();
    for (int g = 0; g < parts.num_groups; ++g) {
      const int32_t* start = q.start + g;
      I16 sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(start[r * 3 * parts.num_groups]);
      for (int quad = parts.wide_begin(g); quad < parts.wide_begin(g + 1); ++quad) {
        fetch<kRows>(tile.next_k[b], quad * kCodeVector);
        dot_quad<kRows, 0>(sum, wide + quad * kCodeVector, q.words + 2 * quad, stride);
      }
      const V16 wide_scale = load_scale8(scales + g * kBlockSize);
      for (int r = 0; r < kRows; ++r) total[r] = fma(to_float(sum[r]), wide_scale, total[r]);
    }
    for (int g = 0; g < parts.num_narrow_groups; ++g) {
      const int32_t* start = q.start + parts.num_groups + g;
      I16 sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(start[r * 3 * parts.num_groups]);
      for (int v = parts.narrow_begin(g); v < parts.narrow_begin(g + 1); ++v) {
        const uint8_t* codes = narrow + v * kCodeVector;
        fetch<kRows>(tile.next_k[b], (parts.num_wide + v) * kCodeVector);
        dot_quad<kRows, 1>(sum, codes, narrow_words + 4 * v, stride);
        dot_quad<kRows, 2>(sum, codes, narrow_words + 4 * v + 2, stride);
      }
      const V16 narrow_scale = load_scale8(scales + (parts.num_groups + g) * kBlockSize);
      for (int r = 0; r < kRows; ++r) total[r] = fma(to_float(sum[r]), narrow_scale, total[r]);
    }
    for (int r = 0; r < kRows; ++r) {
      store(scores + r * kKeyTile + b * kLanes, mul(total[r], set1(q.scale[r])));
    }
  }
}

// Of one block's values, for one group of dimensions.
template <KvType kType>
LARDER_INLINE V16 value_scales(const Work& work, const std::byte* head, int group) {
  if constexpr (kType == KvType::kInt8) {
    const std::byte* scales = head + kBlockSize * (work.padded_dim + 2 * group);
    return load_bf16(reinterpret_cast<const uint16_t*>(scales));
  } else {
    return load_scale8(bytes_of(head) + kBlockSize * ((work.dim + 31) / 32 * 16 + group));
  }
}

// Softmax weights of a row's tile times the values' scales, in 16 bits.
struct WeightWords {
  int32_t words[kTileBlocks * kTilePairs];
  int32_t start;  // what takes the codes' offset off the sum
  float scale;
};

template <KvType kType>
void quantize_weights(const float* scores, const V16* scales, int num_blocks, WeightWords& to) {
  V16 weights[kTileBlocks];
  V16 largest = zero();
  for (int b = 0; b < num_blocks; ++b) {
    const V16 p = load(scores + b * kLanes);
    weights[b] = mul(p, scales[b]);
    // A slot that holds no token has any scale; kInt4's are all finite.
    if constexpr (kType == KvType::kInt8)
      weights[b] = select_ge(p, set1(1e-38F), weights[b], zero());
    largest = max(largest, weights[b]);
  }
  const float peak = reduce_max(largest);
  const bool tiny = !(peak > 1e-30F);
  const V16 inverse = set1(tiny ? 0.0F : kLargestWord / peak);
  to.scale = tiny ? 0.0F : peak / kLargestWord;
  if constexpr (kType == KvType::kInt4) to.scale *= kNormalLevelStep;
  I16 sum = set1_int(0);
  for (int b = 0; b < num_blocks; ++b) {
    const I16 words = to_int(mul(weights[b], inverse));
    store_word_pairs(to.words + b * kTilePairs, words);
    sum = add_int(sum, words);
  }
  to.start = -128 * reduce_add_int(sum);
}

// sum[r] += the tile's values of 16 dimensions from d on.
template <KvType kType, int kRows>
LARDER_INLINE void dot_values(I16* sum, const KeyTile& tile, int d, const int32_t* words) {
  constexpr int kStride = sizeof(WeightWords) / sizeof(int32_t);
  const bool upper = kType == KvType::kInt4 && d / kCodeTile % 2 != 0;
  const int tile_bytes = kCodeQuads * kCodeVector;
  const int offset = kType == KvType::kInt8 ? d / 16 * tile_bytes : d / 32 * tile_bytes;
  for (int b = 0; b < tile.num_blocks; ++b) {
    const uint8_t* codes = bytes_of(tile.v[b]) + offset;
    for (int quad = 0; quad < kCodeQuads; ++quad, codes += kCodeVector, words += 2) {
      if (!upper) fetch<kRows>(tile.next_v[b], offset + quad * kCodeVector);
      if constexpr (kType == KvType::kInt8) {
        dot_quad<kRows, 0>(sum, codes, words, kStride);
      } else if (upper) {
        dot_levels<kRows, true>(sum, codes, words, kStride);
      } else {
        dot_levels<kRows, false>(sum, codes, words, kStride);
      }
    }
  }
}

// values[r] = values[r] * factor + the tile's weights times its values.
template <KvType kType, int kRows>
void add_values_codes(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  constexpr int kGroup = kType == KvType::kInt8 ? kCodeGroup : kLevelGroup;
  for (int g = 0; g * kGroup < work.dim; ++g) {
    WeightWords weights[kRows];
    V16 scales[kTileBlocks];
    for (int b = 0; b < tile.num_blocks; ++b)
      scales[b] = value_scales<kType>(work, tile.v[b], g);
    for (int r = 0; r < kRows; ++r) {
      const float* scores = work.scores + (row + r) * kKeyTile;
      quantize_weights<kType>(scores, scales, tile.num_blocks, weights[r]);
    }
    const int end = min_of(work.padded_dim, (g + 1) * kGroup);
    for (int d = g * kGroup; d < end; d += kCodeTile) {
      I16 sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(weights[r].start);
      dot_values<kType, kRows>(sum, tile, d, weights[0].words);
      for (int r = 0; r < kRows; ++r) {
        float* values = partial.values + int64_t{row + r} * work.padded_dim + d;
        const V16 kept = mul(load(values), set1(work.factor[row + r]));
        store(values, fma(to_float(sum[r]), set1(weights[r].scale), kept));
      }
    }
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
