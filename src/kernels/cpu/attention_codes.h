// Attention's sums over codes (kv_type.h): queries and softmax weights in 16 bits, exact integer
// sums over a group of dimensions or a tile of keys, scaled in FP32. Included by attention.cc
// alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr float kLargestWord = 32767;
constexpr int kTilePairs = kCodeTile / 2;
// Sums stay within 31 bits: a group or a tile of 64 items, 255 * 32767 * 64 < 2^30. Groups of more
// have codes of 4 bits.
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

// The same of codes that were put together in a register.
template <int kRows>
LARDER_INLINE void dot_bytes(I16* sum, Bytes64 codes, const int32_t* words, int stride) {
  const Bytes64 even = word_bits<0, 8>(codes);
  for (int r = 0; r < kRows; ++r) sum[r] = dot_words(sum[r], even, words + r * stride);
  const Bytes64 odd = word_bits<8, 8>(codes);
  for (int r = 0; r < kRows; ++r) sum[r] = dot_words(sum[r], odd, words + r * stride + 1);
}
template <bool kUpper>
LARDER_INLINE Bytes64 load_nibbles(const uint8_t* codes) {
  const Bytes64 both = load_bytes(codes);
  return kUpper ? high_nibbles(both) : low_nibbles(both);
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

// The parts of a key in kInt4: the wide one's quads, the narrow one's pairs of quads.
struct KeyParts {
  int dim;
  int num_wide;
  int num_narrow;
  int num_wide_groups;
  int num_narrow_groups;
  int wide_bytes;  // of a block
  bool is_large;

  int wide_begin(int group) const { return kv_wide_begin(dim, group) / 4; }
  int narrow_begin(int group) const { return num_narrow * group / num_narrow_groups; }
};
LARDER_INLINE KeyParts key_parts(const Work& work) {
  return {.dim = work.dim,
          .num_wide = kv_num_wide(work.dim) / 4,
          .num_narrow = kv_num_narrow(work.dim) / 8,
          .num_wide_groups = kv_num_wide_groups(work.dim),
          .num_narrow_groups = kv_num_narrow_groups(work.dim),
          .wide_bytes = kv_wide_size_bytes(work.dim) * kBlockSize,
          .is_large = kv_is_large(work.dim)};
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
  const int largest_code = parts.is_large ? 63 : 255;
  for (int g = 0; g < parts.num_wide_groups; ++g) {
    const int wide_quads = parts.wide_begin(g + 1) - parts.wide_begin(g);
    // Codes stand for halves: the offset is rounded to a 32767th of the largest query value.
    q.start[g] = -largest_code * sum_of(rounded + 4 * parts.wide_begin(g), 4 * wide_quads) / 2;
  }
  for (int g = 0; g < parts.num_narrow_groups; ++g) {
    const int narrow_pairs = parts.narrow_begin(g + 1) - parts.narrow_begin(g);
    q.start[parts.num_wide_groups + g] =
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

// A quad of a large head's 16 wide dimensions.
template <int kRows, int kQuad>
LARDER_INLINE void dot_six_bits(I16* sum, const uint8_t* codes, const int32_t* words, int stride) {
  const Bytes64 lower = load_nibbles<kQuad % 2 != 0>(codes + kQuad / 2 * kCodeVector);
  const Bytes64 all = put_upper<2, 2 * kQuad>(lower, load_bytes(codes + 2 * kCodeVector));
  dot_bytes<kRows>(sum, all, words + 2 * kQuad, stride);
}

// The sums of the wide part's quads [begin, end).
template <int kRows>
LARDER_INLINE void dot_wide(I16* sum, const KeyParts& parts, const KeyTile& tile, int b, int begin,
                            int end, const int32_t* words, int stride) {
  const uint8_t* codes = bytes_of(tile.k[b]);
  if (!parts.is_large) {
    for (int quad = begin; quad < end; ++quad) {
      fetch<kRows>(tile.next_k[b], quad * kCodeVector);
      dot_quad<kRows, 0>(sum, codes + quad * kCodeVector, words + 2 * quad, stride);
    }
    return;
  }
  for (int quad = begin; quad < end; quad += 4) {
    const int at = quad / 4 * 3 * kCodeVector;
    for (int i = 0; i < 3; ++i) fetch<kRows>(tile.next_k[b], at + i * kCodeVector);
    dot_six_bits<kRows, 0>(sum, codes + at, words + 2 * quad, stride);
    dot_six_bits<kRows, 1>(sum, codes + at, words + 2 * quad, stride);
    dot_six_bits<kRows, 2>(sum, codes + at, words + 2 * quad, stride);
    dot_six_bits<kRows, 3>(sum, codes + at, words + 2 * quad, stride);
  }
}

template <int kRows>
LARDER_INLINE void dot_narrow(I16* sum, const KeyParts& parts, const KeyTile& tile, int b,
                              int begin, int end, const int32_t* words, int stride) {
  for (int v = begin; v < end; ++v) {
    const int at = parts.wide_bytes + v * kCodeVector;
    const uint8_t* codes = bytes_of(tile.k[b]) + at;
    fetch<kRows>(tile.next_k[b], at);
    dot_quad<kRows, 1>(sum, codes, words + 4 * v, stride);
    dot_quad<kRows, 2>(sum, codes, words + 4 * v + 2, stride);
  }
}

template <int kRows>
void score_rows_int4(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  const int stride = attention_words(work.dim);
  const int start_stride = 3 * work.num_groups;
  const KeyParts parts = key_parts(work);
  const int32_t* narrow_words = q.words + 2 * parts.num_wide;
  for (int b = 0; b < tile.num_blocks; ++b) {
    fetch_scales<kRows>(work, tile, b);
    const uint8_t* scales =
        bytes_of(tile.k[b]) + parts.wide_bytes + parts.num_narrow * kCodeVector;
    const int32_t* start = q.start;
    V16 total[kRows];
    for (int r = 0; r < kRows; ++r) total[r] = zero();
    I16 sum[kRows];
    const auto begin_group = [&] {
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(start[r * start_stride]);
      ++start;
    };
    const auto end_group = [&] {
      const V16 scale = load_scale8(scales);
      for (int r = 0; r < kRows; ++r) total[r] = fma(to_float(sum[r]), scale, total[r]);
      scales += kBlockSize;
    };
    for (int g = 0; g < parts.num_wide_groups; ++g) {
      begin_group();
      dot_wide<kRows>(sum, parts, tile, b, parts.wide_begin(g), parts.wide_begin(g + 1), q.words,
                      stride);
      end_group();
    }
    for (int g = 0; g < parts.num_narrow_groups; ++g) {
      begin_group();
      dot_narrow<kRows>(sum, parts, tile, b, parts.narrow_begin(g), parts.narrow_begin(g + 1),
                        narrow_words, stride);
      end_group();
    }
    for (int r = 0; r < kRows; ++r) {
      store(scores + r * kKeyTile + b * kLanes, mul(total[r], set1(q.scale[r])));
    }
  }
}

// How values are stored: kInt8, kInt4, and kInt4 of large heads.
enum class ValueForm { kBytes, kLevels, kFiveBits };

// Of one block's values, for one group of dimensions.
template <ValueForm kForm>
LARDER_INLINE V16 value_scales(const Work& work, const std::byte* head, int group) {
  if constexpr (kForm == ValueForm::kBytes) {
    const std::byte* scales = head + kBlockSize * (work.padded_dim + 2 * group);
    return load_bf16(reinterpret_cast<const uint16_t*>(scales));
  } else {
    const int codes = kv_padded_values(work.dim) * kv_value_bits(work.dim) / 8;
    return load_scale8(bytes_of(head) + kBlockSize * (codes + group));
  }
}

// Softmax weights of a row's tile times the values' scales, in 16 bits.
struct WeightWords {
  int32_t words[kTileBlocks * kTilePairs];
  int32_t start;  // what takes the codes' offset off the sum
  float scale;
};

template <ValueForm kForm>
void quantize_weights(const float* scores, const V16* scales, int num_blocks, WeightWords& to) {
  V16 weights[kTileBlocks];
  V16 largest = zero();
  for (int b = 0; b < num_blocks; ++b) {
    const V16 p = load(scores + b * kLanes);
    weights[b] = mul(p, scales[b]);
    // A slot that holds no token has any scale; those of a byte are all finite.
    if constexpr (kForm == ValueForm::kBytes)
      weights[b] = select_ge(p, set1(1e-38F), weights[b], zero());
    largest = max(largest, weights[b]);
  }
  const float peak = reduce_max(largest);
  const bool tiny = !(peak > 1e-30F);
  const V16 inverse = set1(tiny ? 0.0F : kLargestWord / peak);
  to.scale = tiny ? 0.0F : peak / kLargestWord;
  if constexpr (kForm == ValueForm::kLevels) to.scale *= kNormalLevelStep;
  I16 sum = set1_int(0);
  for (int b = 0; b < num_blocks; ++b) {
    const I16 words = to_int(mul(weights[b], inverse));
    store_word_pairs(to.words + b * kTilePairs, words);
    sum = add_int(sum, words);
  }
  const int32_t total = reduce_add_int(sum);
  to.start = kForm == ValueForm::kFiveBits ? -31 * total / 2 : -128 * total;
}

constexpr int kValueTileBytes = kCodeQuads * kCodeVector;
constexpr int kWeightStride = sizeof(WeightWords) / sizeof(int32_t);

// sum[r] += the tile's values of 16 dimensions from d on. kPlace: d / 16 as far as kFiveBits' codes
// need to know, as kLevels' do whether it is odd.
template <ValueForm kForm, int kPlace, int kRows>
LARDER_INLINE void dot_values(I16* sum, const KeyTile& tile, int d, const int32_t* words) {
  constexpr bool kUpper = kPlace % 2 != 0;
  int offset = d / (kForm == ValueForm::kBytes ? 16 : 32) * kValueTileBytes;
  if constexpr (kForm == ValueForm::kFiveBits) offset += d / kLargeHead * kValueTileBytes;
  // From a tile of codes to the fifth bits.
  constexpr int kToFifth = (4 - kPlace / 2) * kValueTileBytes;
  for (int b = 0; b < tile.num_blocks; ++b) {
    for (int quad = 0; quad < kCodeQuads; ++quad, words += 2) {
      const int at = offset + quad * kCodeVector;
      const uint8_t* codes = bytes_of(tile.v[b]) + at;
      if (!kUpper) fetch<kRows>(tile.next_v[b], at);
      if constexpr (kForm == ValueForm::kBytes) {
        dot_quad<kRows, 0>(sum, codes, words, kWeightStride);
      } else if constexpr (kForm == ValueForm::kLevels) {
        const Bytes64 levels = look_up(kLevelBytes, load_nibbles<kUpper>(codes));
        dot_bytes<kRows>(sum, levels, words, kWeightStride);
      } else {
        if (kPlace == 0) fetch<kRows>(tile.next_v[b], at + kToFifth);
        const Bytes64 fifth = load_bytes(codes + kToFifth);
        const Bytes64 all = put_upper<1, kPlace>(load_nibbles<kUpper>(codes), fifth);
        dot_bytes<kRows>(sum, all, words, kWeightStride);
      }
    }
  }
}

// values[r] = values[r] * factor + the tile's weights times its values, for 16 dimensions.
template <ValueForm kForm, int kPlace, int kRows>
LARDER_INLINE void add_dimensions(const Work& work, const KeyTile& tile,
                                  const WeightWords* weights, int row, int d,
                                  const Partial& partial) {
  I16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = set1_int(weights[r].start);
  dot_values<kForm, kPlace, kRows>(sum, tile, d, weights[0].words);
  for (int r = 0; r < kRows; ++r) {
    float* values = partial.values + int64_t{row + r} * work.padded_dim + d;
    const V16 kept = mul(load(values), set1(work.factor[row + r]));
    store(values, fma(to_float(sum[r]), set1(weights[r].scale), kept));
  }
}

// For [d, end), of which the first are at kPlace: at most kCount times 16.
template <ValueForm kForm, int kPlace, int kCount, int kRows>
LARDER_INLINE void add_places(const Work& work, const KeyTile& tile, const WeightWords* weights,
                              int row, int d, int end, const Partial& partial) {
  add_dimensions<kForm, kPlace, kRows>(work, tile, weights, row, d, partial);
  if constexpr (kCount > 1) {
    d += kCodeTile;
    if (d < end)
      add_places<kForm, kPlace + 1, kCount - 1, kRows>(work, tile, weights, row, d, end, partial);
  }
}

template <ValueForm kForm, int kRows>
void add_values_codes(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  constexpr int kGroup = kForm == ValueForm::kLevels     ? kLevelGroup
                         : kForm == ValueForm::kFiveBits ? kLargeHead
                                                         : kCodeGroup;
  for (int g = 0; g * kGroup < work.dim; ++g) {
    WeightWords weights[kRows];
    V16 scales[kTileBlocks];
    for (int b = 0; b < tile.num_blocks; ++b)
      scales[b] = value_scales<kForm>(work, tile.v[b], g);
    for (int r = 0; r < kRows; ++r) {
      const float* scores = work.scores + (row + r) * kKeyTile;
      quantize_weights<kForm>(scores, scales, tile.num_blocks, weights[r]);
    }
    const int begin = g * kGroup;
    const int end = min_of(work.padded_dim, begin + kGroup);
    if constexpr (kForm == ValueForm::kBytes) {
      for (int d = begin; d < end; d += kCodeTile)
        add_dimensions<kForm, 0, kRows>(work, tile, weights, row, d, partial);
    } else {
      add_places<kForm, 0, kGroup / kCodeTile, kRows>(work, tile, weights, row, begin, end, partial);
    }
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
