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

// Vectors of codes whose sums stand in registers at once: they share the rows' words and do not
// wait for each other. More than two were slower with six rows.
constexpr int kCodeVectors = kAttentionVectors < 2 ? 1 : 2;

// Exact sums of a tile's rows over vectors of codes.
template <int kRows, int kVectors>
using Integers = I16[kRows][kVectors];

template <int kRows, int kVectors>
LARDER_INLINE void dot_half(Integers<kRows, kVectors>& sum, const Bytes64 (&codes)[kVectors],
                            const int32_t* words, int stride) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = dot_words(sum[r][v], codes[v], words + r * stride);
  }
}

// sum[r][v] += vector v's quads times the words of row r, words[r * stride] and the next.
// codes_of(v): where they lie. They are loaded twice, so that only even or odd words take room
// beside the sums.
// kNibbles: 0 whole bytes, 1 the lower, 2 the upper bits.
template <int kNibbles, int kRows, int kVectors, class CodesOf>
LARDER_INLINE void dot_quad(Integers<kRows, kVectors>& sum, const int32_t* words, int stride,
                            const CodesOf& codes_of) {
  constexpr int kBits = kNibbles == 0 ? 8 : 4;
  constexpr int kShift = kNibbles == 2 ? 4 : 0;
  Bytes64 half[kVectors];
  for (int v = 0; v < kVectors; ++v) half[v] = word_bits<kShift, kBits>(load_bytes(codes_of(v)));
  dot_half(sum, half, words, stride);
  for (int v = 0; v < kVectors; ++v)
    half[v] = word_bits<8 + kShift, kBits>(load_bytes(opaque(codes_of(v))));
  dot_half(sum, half, words + 1, stride);
}

// The same of codes that were put together in registers.
template <int kRows, int kVectors>
LARDER_INLINE void dot_bytes(Integers<kRows, kVectors>& sum, const Bytes64 (&codes)[kVectors],
                             const int32_t* words, int stride) {
  Bytes64 half[kVectors];
  for (int v = 0; v < kVectors; ++v) half[v] = word_bits<0, 8>(codes[v]);
  dot_half(sum, half, words, stride);
  for (int v = 0; v < kVectors; ++v) half[v] = word_bits<8, 8>(codes[v]);
  dot_half(sum, half, words + 1, stride);
}
template <bool kUpper>
LARDER_INLINE Bytes64 load_nibbles(const uint8_t* codes) {
  const Bytes64 both = load_bytes(codes);
  return kUpper ? high_nibbles(both) : low_nibbles(both);
}

// Codes of 8 bits are read nearly as fast as they come; those of 4 take longer to unpack. turn: of
// fetch_line().
template <int kRows, KvType kType>
LARDER_INLINE void fetch(const std::byte* next, int64_t offset, int turn = 0) {
  if constexpr (kRows <= kFetchRows)
    fetch_line(next + offset, kType != KvType::kInt8, turn % 2 != 0);
}

// The codes fetch the next tile's codes; the scales lie behind them, in a line of their own.
template <int kRows, KvType kType>
LARDER_INLINE void fetch_scales(const Work& work, const KeyTile& tile, int b) {
  const KvTypes& types = work.args.kv.types;
  fetch<kRows, kType>(tile.next_k[b], kv_key_size_bytes(types.k, work.dim) - 1);
  fetch<kRows, kType>(tile.next_v[b], kv_value_size_bytes(types.v, work.dim) - 1);
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

// kCodeVectors blocks of a tile from `begin` on; those past its last repeat one, see KeyTile.
struct KeyBlocks {
  const KeyTile& tile;
  int begin;

  const uint8_t* codes(int v, int64_t at) const { return bytes_of(tile.k[begin + v]) + at; }
};
template <int kRows, KvType kType>
LARDER_INLINE void fetch_keys(const KeyBlocks& blocks, int64_t at) {
  for (int v = 0; v < kCodeVectors; ++v)
    fetch<kRows, kType>(blocks.tile.next_k[blocks.begin + v], at, v);
}

// scores[r][16 b + lane] = q[r] . k[b][lane], group by group of dimensions. dot(blocks, g, sum)
// adds group g's integers to the sums; scale_of(codes, g): its scales, of a block whose codes
// begin there.
template <KvType kType, int kRows, class Dot, class ScaleOf>
LARDER_INLINE void score_groups(const Work& work, const KeyTile& tile, const Queries& q,
                                int num_groups, float* scores, const Dot& dot,
                                const ScaleOf& scale_of) {
  for (int b = 0; b < tile.num_blocks; b += kCodeVectors) {
    const KeyBlocks blocks{tile, b};
    for (int v = 0; v < kCodeVectors; ++v) fetch_scales<kRows, kType>(work, tile, b + v);
    V16 total[kRows][kCodeVectors];
    for (auto& row : total) {
      for (V16& sum : row) sum = zero();
    }
    for (int g = 0; g < num_groups; ++g) {
      Integers<kRows, kCodeVectors> sum;
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kCodeVectors; ++v)
          sum[r][v] = set1_int(q.start[r * 3 * work.num_groups + g]);
      }
      dot(blocks, g, sum);
      V16 scale[kCodeVectors];
      for (int v = 0; v < kCodeVectors; ++v) scale[v] = scale_of(blocks.codes(v, 0), g);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kCodeVectors; ++v)
          total[r][v] = fma(to_float(sum[r][v]), scale[v], total[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kCodeVectors; ++v)
        store(scores + r * kKeyTile + (b + v) * kLanes, mul(total[r][v], set1(q.scale[r])));
    }
  }
}

template <int kRows>
void score_rows_int8(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  const int stride = attention_words(work.dim);
  score_groups<KvType::kInt8, kRows>(
      work, tile, q, work.num_groups, scores,
      [&](const KeyBlocks& blocks, int g, Integers<kRows, kCodeVectors>& sum) LARDER_INLINE_LAMBDA {
        const int end = min_of(work.padded_dim, (g + 1) * kCodeGroup) / 4;
        for (int quad = g * kCodeGroup / 4; quad < end; ++quad) {
          fetch_keys<kRows, KvType::kInt8>(blocks, quad * kCodeVector);
          dot_quad<0>(sum, q.words + 2 * quad, stride, [&](int v) LARDER_INLINE_LAMBDA {
            return blocks.codes(v, quad * kCodeVector);
          });
        }
      },
      [&](const uint8_t* codes, int g) LARDER_INLINE_LAMBDA {
        const uint8_t* scales = codes + kBlockSize * (work.padded_dim + 2 * g);
        return load_bf16(reinterpret_cast<const uint16_t*>(scales));
      });
}

// A quad of a large head's 16 wide dimensions, whose codes lie at `at`.
template <int kQuad, int kRows>
LARDER_INLINE void dot_six_bits(Integers<kRows, kCodeVectors>& sum, const KeyBlocks& blocks,
                                int at, const int32_t* words, int stride) {
  Bytes64 all[kCodeVectors];
  for (int v = 0; v < kCodeVectors; ++v) {
    const uint8_t* codes = blocks.codes(v, at);
    const Bytes64 lower = load_nibbles<kQuad % 2 != 0>(codes + kQuad / 2 * kCodeVector);
    all[v] = put_upper<2, 2 * kQuad>(lower, load_bytes(codes + 2 * kCodeVector));
  }
  dot_bytes(sum, all, words + 2 * kQuad, stride);
}

// The sums of the wide part's quads [begin, end).
template <int kRows>
LARDER_INLINE void dot_wide(Integers<kRows, kCodeVectors>& sum, const KeyParts& parts,
                            const KeyBlocks& blocks, int begin, int end, const int32_t* words,
                            int stride) {
  if (!parts.is_large) {
    for (int quad = begin; quad < end; ++quad) {
      fetch_keys<kRows, KvType::kInt4>(blocks, quad * kCodeVector);
      dot_quad<0>(sum, words + 2 * quad, stride, [&](int v) LARDER_INLINE_LAMBDA {
        return blocks.codes(v, quad * kCodeVector);
      });
    }
    return;
  }
  for (int quad = begin; quad < end; quad += 4) {
    const int at = quad / 4 * 3 * kCodeVector;
    for (int i = 0; i < 3; ++i) fetch_keys<kRows, KvType::kInt4>(blocks, at + i * kCodeVector);
    dot_six_bits<0>(sum, blocks, at, words + 2 * quad, stride);
    dot_six_bits<1>(sum, blocks, at, words + 2 * quad, stride);
    dot_six_bits<2>(sum, blocks, at, words + 2 * quad, stride);
    dot_six_bits<3>(sum, blocks, at, words + 2 * quad, stride);
  }
}

template <int kRows>
LARDER_INLINE void dot_narrow(Integers<kRows, kCodeVectors>& sum, const KeyParts& parts,
                              const KeyBlocks& blocks, int begin, int end, const int32_t* words,
                              int stride) {
  for (int i = begin; i < end; ++i) {
    const int at = parts.wide_bytes + i * kCodeVector;
    const auto codes_of = [&](int v) LARDER_INLINE_LAMBDA { return blocks.codes(v, at); };
    fetch_keys<kRows, KvType::kInt4>(blocks, at);
    dot_quad<1>(sum, words + 4 * i, stride, codes_of);
    dot_quad<2>(sum, words + 4 * i + 2, stride, codes_of);
  }
}

template <int kRows>
void score_rows_int4(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  const int stride = attention_words(work.dim);
  const KeyParts parts = key_parts(work);
  const int32_t* narrow_words = q.words + 2 * parts.num_wide;
  const int codes_bytes = parts.wide_bytes + parts.num_narrow * kCodeVector;
  score_groups<KvType::kInt4, kRows>(
      work, tile, q, parts.num_wide_groups + parts.num_narrow_groups, scores,
      [&](const KeyBlocks& blocks, int g, Integers<kRows, kCodeVectors>& sum) LARDER_INLINE_LAMBDA {
        const int narrow = g - parts.num_wide_groups;
        if (narrow < 0) {
          dot_wide<kRows>(sum, parts, blocks, parts.wide_begin(g), parts.wide_begin(g + 1),
                          q.words, stride);
        } else {
          dot_narrow<kRows>(sum, parts, blocks, parts.narrow_begin(narrow),
                            parts.narrow_begin(narrow + 1), narrow_words, stride);
        }
      },
      [&](const uint8_t* codes, int g) LARDER_INLINE_LAMBDA {
        return load_scale8(codes + codes_bytes + g * kBlockSize);
      });
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

// sum[r][v] += the tile's values of 16 dimensions from d + 16 v on; two of small codes are the lower
// and the upper bits of a vector. kPlace: d / 16 as far as kFiveBits' codes need to know, as kLevels'
// do whether it is odd.
template <ValueForm kForm, int kPlace, int kRows, int kCount>
LARDER_INLINE void dot_values(Integers<kRows, kCount>& sum, const KeyTile& tile, int d,
                              const int32_t* words) {
  constexpr KvType kType = kForm == ValueForm::kBytes ? KvType::kInt8 : KvType::kInt4;
  constexpr bool kUpper = kPlace % 2 != 0;
  int offset = d / (kForm == ValueForm::kBytes ? 16 : 32) * kValueTileBytes;
  if constexpr (kForm == ValueForm::kFiveBits) offset += d / kLargeHead * kValueTileBytes;
  // From a tile of codes to the fifth bits.
  constexpr int kToFifth = (4 - kPlace / 2) * kValueTileBytes;
  for (int b = 0; b < tile.num_blocks; ++b) {
    for (int quad = 0; quad < kCodeQuads; ++quad, words += 2) {
      const int at = offset + quad * kCodeVector;
      const uint8_t* codes = bytes_of(tile.v[b]) + at;
      if constexpr (kForm == ValueForm::kBytes) {
        for (int v = 0; v < kCount; ++v)
          fetch<kRows, kType>(tile.next_v[b], at + v * kValueTileBytes, quad);
        dot_quad<0>(sum, words, kWeightStride,
                    [&](int v) LARDER_INLINE_LAMBDA { return codes + v * kValueTileBytes; });
        continue;
      }
      if (!kUpper) fetch<kRows, kType>(tile.next_v[b], at, quad);
      Bytes64 all[kCount];
      all[0] = load_nibbles<kUpper>(codes);
      if constexpr (kCount > 1) all[1] = load_nibbles<true>(codes);
      if constexpr (kForm == ValueForm::kLevels) {
        for (Bytes64& levels : all) levels = look_up(kLevelBytes, levels);
      } else {
        if (kPlace == 0) fetch<kRows, kType>(tile.next_v[b], at + kToFifth, quad);
        const Bytes64 fifth = load_bytes(codes + kToFifth);
        all[0] = put_upper<1, kPlace>(all[0], fifth);
        if constexpr (kCount > 1) all[1] = put_upper<1, kPlace + 1>(all[1], fifth);
      }
      dot_bytes(sum, all, words, kWeightStride);
    }
  }
}

// values[r] = values[r] * factor + the tile's weights times its values, for 16 kCount dimensions.
template <ValueForm kForm, int kPlace, int kCount, int kRows>
LARDER_INLINE void add_dimensions(const Work& work, const KeyTile& tile,
                                  const WeightWords* weights, int row, int d,
                                  const Partial& partial) {
  Integers<kRows, kCount> sum;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kCount; ++v) sum[r][v] = set1_int(weights[r].start);
  }
  dot_values<kForm, kPlace>(sum, tile, d, weights[0].words);
  for (int r = 0; r < kRows; ++r) {
    float* values = partial.values + int64_t{row + r} * work.padded_dim + d;
    for (int v = 0; v < kCount; ++v) {
      const V16 kept = mul(load(values + v * kLanes), set1(work.factor[row + r]));
      store(values + v * kLanes, fma(to_float(sum[r][v]), set1(weights[r].scale), kept));
    }
  }
}

// For [d, end), of which the first are at kPlace: at most kMost times 16.
template <ValueForm kForm, int kPlace, int kMost, int kRows>
LARDER_INLINE void add_places(const Work& work, const KeyTile& tile, const WeightWords* weights,
                              int row, int d, int end, const Partial& partial) {
  constexpr int kCount = kCodeVectors;
  if (d + kCount * kCodeTile <= end)
    add_dimensions<kForm, kPlace, kCount, kRows>(work, tile, weights, row, d, partial);
  else if constexpr (kCount > 1)
    add_dimensions<kForm, kPlace, 1, kRows>(work, tile, weights, row, d, partial);
  if constexpr (kMost > kCount) {
    d += kCount * kCodeTile;
    if (d < end) {
      add_places<kForm, kPlace + kCount, kMost - kCount, kRows>(work, tile, weights, row, d, end,
                                                                partial);
    }
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
      int d = begin;
      for (; d + kCodeVectors * kCodeTile <= end; d += kCodeVectors * kCodeTile)
        add_dimensions<kForm, 0, kCodeVectors, kRows>(work, tile, weights, row, d, partial);
      for (; d < end; d += kCodeTile)
        add_dimensions<kForm, 0, 1, kRows>(work, tile, weights, row, d, partial);
    } else {
      add_places<kForm, 0, kGroup / kCodeTile, kRows>(work, tile, weights, row, begin, end, partial);
    }
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
