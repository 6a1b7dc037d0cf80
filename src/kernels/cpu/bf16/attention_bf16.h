// Attention's sums over FP16, BF16 and E4M3 blocks by VDPBF16PS, which multiplies two pairs of BF16 values
// a lane, exactly, and adds them to FP32 sums: twice as many products as in FP32. Queries, keys,
// values and softmax weights are rounded to BF16; scores, maxima and sums stay in FP32. Included by
// attention.cc alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kMaxPairDim = 512;
static_assert(kAttentionVectors == kTileBlocks, "all of a tile's keys are scored at once");

// What decides is the layer's alone, so all rows take the same way.
LARDER_INLINE bool multiplies_pairs(const AttentionArgs& args, KvType type) {
  return args.rounds_to_bf16 && !has_codes(type) && args.kv.head_dim % 2 == 0 &&
         args.kv.head_dim <= kMaxPairDim;
}

// A tile's keys and values in pairs: those of two dimensions of a key, those of one dimension of two
// keys.
struct TilePairs {
  alignas(64) uint8_t k[kMaxPairDim / 2 * kTileBlocks * 64];  // [dim / 2][blocks][16 keys][2]
  alignas(64) uint8_t v[kKeyTile / 2 * kMaxPairDim * 4];      // [key pairs][padded_dim][2]
};

// Of 16 lanes: values of one, then of the other, in pairs.
LARDER_INLINE __m512i in_pairs(__m512i halves) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves);
}
LARDER_INLINE __m512i rounded(V16 first, V16 second) {
  const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
  __m512i bits;
  memcpy(&bits, &both, sizeof bits);
  return bits;
}
// E4M3's bits, signs extended to 16, as BF16's of the number divided by kE4m3InHalf.
LARDER_INLINE __m512i bf16_of_e4m3(__m512i bits) {
  constexpr int16_t kBias = (127 - 7 - 8) << 7;
  const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(bits, 4), _mm512_set1_epi16(0x7F0));
  const __m512i normal = _mm512_add_epi16(magnitude, _mm512_set1_epi16(kBias));
  // Subnormals are 0 to 7 times 2^-9.
  alignas(64) static constexpr uint16_t kSubnormals[32] = {0,      0x3700, 0x3780, 0x37C0,
                                                           0x3800, 0x3820, 0x3840, 0x3860};
  const __mmask32 is_subnormal = _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x78));
  const __m512i number = _mm512_mask_permutexvar_epi16(normal, is_subnormal, bits,
                                                       _mm512_load_si512(kSubnormals));
  // number | (bits & the sign's bit)
  return _mm512_ternarylogic_epi32(number, bits, _mm512_set1_epi16(INT16_MIN), 0xF8);
}

// lanes: how many of first's and of second's exist.
template <KvType kType>
LARDER_INLINE __m512i pair_up(const Number<kType>* first, const Number<kType>* second, int lanes) {
  if constexpr (kType == KvType::kBF16) {
    const auto load_halves = [lanes](const uint16_t* from) {
      if (lanes == kLanes) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      return _mm256_maskz_loadu_epi16(first_lanes(lanes), from);
    };
    return in_pairs(_mm512_inserti64x4(_mm512_castsi256_si512(load_halves(first)),
                                       load_halves(second), 1));
  } else if constexpr (kType == KvType::kFp8) {
    const auto load_numbers = [lanes](const uint8_t* from) {
      if (lanes == kLanes) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      return _mm_maskz_loadu_epi8(first_lanes(lanes), from);
    };
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load_numbers(first)),
                                                 load_numbers(second), 1);
    return bf16_of_e4m3(in_pairs(_mm512_cvtepi8_epi16(both)));
  } else {
    if (lanes == kLanes) return in_pairs(rounded(load_value<kType>(first), load_value<kType>(second)));
    return in_pairs(rounded(load_value_partial<kType>(first, lanes),
                            load_value_partial<kType>(second, lanes)));
  }
}

// Pairs of the tile's keys for dimensions d and d + 1 of block b, of its values for key pair i from
// dimension d on.
template <KvType kType>
LARDER_INLINE __m512i key_pairs(const KeyTile& tile, int64_t d, int b) {
  const Number<kType>* from = keys_in<kType>(tile.k[b]) + d * kLanes;
  return pair_up<kType>(from, from + kLanes, kLanes);
}
template <KvType kType>
LARDER_INLINE __m512i value_pairs(const Work& work, const KeyTile& tile, int i, int d) {
  constexpr int kBlockPairs = kBlockSize / 2;
  const Number<kType>* block = values_in<kType>(tile.v[i / kBlockPairs]);
  const Number<kType>* from = block + i % kBlockPairs * 2 * work.dim + d;
  return pair_up<kType>(from, from + work.dim, min_of(kLanes, work.dim - d));
}

template <KvType kType>
void store_key_pairs(const Work& work, const KeyTile& tile, uint8_t* to) {
  for (int d = 0; d < work.dim; d += 2) {
    for (int b = 0; b < kTileBlocks; ++b, to += 64)
      _mm512_store_si512(to, key_pairs<kType>(tile, d, b));
  }
}
template <KvType kType>
void store_value_pairs(const Work& work, const KeyTile& tile, uint8_t* to) {
  for (int i = 0; i < tile.num_blocks * kBlockSize / 2; ++i) {
    for (int d = 0; d < work.dim; d += kLanes, to += 64)
      _mm512_store_si512(to, value_pairs<kType>(work, tile, i, d));
  }
}

// Few rows take their pairs from the blocks as they come, while the units that multiply are busy; for
// more they are stored once. Counted over the whole task.
constexpr int kDirectRows = 24;
LARDER_INLINE bool stores_pairs(const Work& work) { return work.rows > kDirectRows; }

void store_pairs(const Work& work, const KeyTile& tile, TilePairs& pairs) {
  if (!stores_pairs(work)) return;
  const KvTypes& types = work.args.kv.types;
  if (multiplies_pairs(work.args, types.k)) {
    with_float_type(types.k, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
      store_key_pairs<kType>(work, tile, pairs.k);
    });
  }
  if (multiplies_pairs(work.args, types.v)) {
    with_float_type(types.v, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
      store_value_pairs<kType>(work, tile, pairs.v);
    });
  }
}

// A row's query into its words.
void pair_query(const Work& work, const Queries& q) {
  for (int d = 0; d < work.padded_dim; d += kLanes) {
    const __m256bh half = _mm512_cvtneps_pbh(load(q.values + d));
    memcpy(q.words + d / 2, &half, sizeof half);
  }
}

// scores[r][key] = sum over d in order of q[r][d] * k[key][d], for the whole tile. load_keys(d, b):
// key_pairs().
template <int kRows, class Load>
LARDER_INLINE void score_rows_with(const Work& work, const int32_t* words, float* scores,
                                   const Load& load_keys) {
  const int32_t* of_row[kRows];
  V16 sum[kRows][kTileBlocks];
  for (int r = 0; r < kRows; ++r) {
    of_row[r] = words + int64_t{r} * attention_words(work.dim);
    for (int b = 0; b < kTileBlocks; ++b) sum[r][b] = zero();
  }
  const int64_t num_pairs = work.dim / 2;
  for (int64_t i = 0; i < num_pairs; ++i) {
    __m512i keys[kTileBlocks];
    for (int b = 0; b < kTileBlocks; ++b) keys[b] = load_keys(2 * i, b);
    for (int r = 0; r < kRows; ++r) {
      for (int b = 0; b < kTileBlocks; ++b) sum[r][b] = dot_pairs(sum[r][b], keys[b], of_row[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kTileBlocks; ++b) store(scores + r * kKeyTile + b * kLanes, sum[r][b]);
  }
}

template <KvType kType, int kRows>
LARDER_INLINE void score_rows_direct(const Work& work, const KeyTile& tile, const int32_t* words,
                                     float* scores) {
  score_rows_with<kRows>(work, words, scores, [&](int64_t d, int b) LARDER_INLINE_LAMBDA {
    if (kType != KvType::kFp8 || d % 4 == 0)
      fetch_line(keys_in<kType>(tile.next_k[b]) + d * kLanes, false, b % 2 != 0);
    return key_pairs<kType>(tile, d, b);
  });
}

template <int kRows>
void score_rows_pairs(const Work& work, const KeyTile& tile, const int32_t* words, float* scores) {
  if (!stores_pairs(work)) {
    return with_float_type(work.args.kv.types.k, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
      score_rows_direct<kType, kRows>(work, tile, words, scores);
    });
  }
  const uint8_t* k = tile.pairs->k;
  score_rows_with<kRows>(work, words, scores, [&](int64_t d, int b) LARDER_INLINE_LAMBDA {
    return _mm512_load_si512(k + (d / 2 * kTileBlocks + b) * 64);
  });
}

// values[r][d..] = values * factor + sum over keys in order of weight[r][key] * v[key][d..], kVectors
// of 16 dimensions. load_values(i, d): value_pairs().
template <int kRows, int kVectors, class Load>
LARDER_INLINE void add_values_of_pairs(const Work& work, int num_pairs,
                                       const int32_t (*weights)[kKeyTile / 2], int row, int d,
                                       const Partial& partial, const Load& load_values) {
  float* values = partial.values + int64_t{row} * work.padded_dim + d;
  V16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    const V16 factor = set1(work.factor[row + r]);
    for (int i = 0; i < kVectors; ++i)
      sum[r][i] = mul(load(values + r * work.padded_dim + i * kLanes), factor);
  }
  for (int pair = 0; pair < num_pairs; ++pair) {
    __m512i x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = load_values(pair, d + i * kLanes);
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kVectors; ++i) sum[r][i] = dot_pairs(sum[r][i], x[i], weights[r][pair]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i)
      store(values + r * work.padded_dim + i * kLanes, sum[r][i]);
  }
}

template <int kRows, class Load>
LARDER_INLINE void add_values_with(const Work& work, const KeyTile& tile, int row,
                                   const Partial& partial, const Load& load_values) {
  alignas(64) int32_t weights[kRows][kKeyTile / 2];
  for (int r = 0; r < kRows; ++r) {
    const float* p = work.scores + (row + r) * kKeyTile;
    for (int i = 0; i < kKeyTile; i += 2 * kLanes)
      _mm512_store_si512(weights[r] + i / 2, rounded(load(p + i), load(p + i + kLanes)));
  }
  const int num_pairs = tile.num_blocks * kBlockSize / 2;
  int d = 0;
  for (; d + kAttentionVectors * kLanes <= work.dim; d += kAttentionVectors * kLanes)
    add_values_of_pairs<kRows, kAttentionVectors>(work, num_pairs, weights, row, d, partial,
                                                  load_values);
  for (; d < work.dim; d += kLanes)
    add_values_of_pairs<kRows, 1>(work, num_pairs, weights, row, d, partial, load_values);
}

template <KvType kType, int kRows>
LARDER_INLINE void add_values_direct(const Work& work, const KeyTile& tile, int row,
                                     const Partial& partial) {
  constexpr int kBlockPairs = kBlockSize / 2;
  add_values_with<kRows>(work, tile, row, partial, [&](int i, int d) LARDER_INLINE_LAMBDA {
    // Two rows of values are as many lines as they have vectors, or half as many.
    constexpr int kLine = kType == KvType::kFp8 ? 2 : 1;
    if (d / kLanes % kLine == 0) {
      const Number<kType>* next = values_in<kType>(tile.next_v[i / kBlockPairs]);
      fetch_line(next + i % kBlockPairs * 2 * work.dim + 2 * d, false,
                 d / (kLine * kLanes) % 2 != 0);
    }
    return value_pairs<kType>(work, tile, i, d);
  });
}

template <int kRows>
void add_values_pairs(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  if (!stores_pairs(work)) {
    return with_float_type(work.args.kv.types.v, [&]<KvType kType>() LARDER_INLINE_LAMBDA {
      add_values_direct<kType, kRows>(work, tile, row, partial);
    });
  }
  const uint8_t* v = tile.pairs->v;
  add_values_with<kRows>(work, tile, row, partial, [&](int i, int d) LARDER_INLINE_LAMBDA {
    return _mm512_load_si512(v + (i * work.padded_dim + d) * 4);
  });
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
