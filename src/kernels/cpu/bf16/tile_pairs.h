// Keys, values and queries in pairs of BF16 numbers, as VDPBF16PS and AMX's tiles take them. Included by attention.cc
// alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kMaxPairDim = 576;

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

// AMX multiplies so fast that memory bounds what is read for any number of rows: the next tile's lines are fetched
// while this one's are stored.
#if defined(LARDER_AMX)
constexpr bool kFetchesNext = true;
#else
constexpr bool kFetchesNext = false;
#endif

// Of key dimensions 2i and 2i + 1, of value pair i: a quarter or half of the lines of codes of one byte.
template <KvType kType>
LARDER_INLINE void fetch_next_keys(const KeyTile& tile, int64_t d, int b) {
  if (kType != KvType::kFp8 || d % 4 == 0)
    fetch_line(keys_in<kType>(tile.next_k[b]) + d * kLanes, false, b % 2 != 0);
}
template <KvType kType>
LARDER_INLINE void fetch_next_values(const Work& work, const KeyTile& tile, int i, int d) {
  constexpr int kBlockPairs = kBlockSize / 2;
  // Two rows of values are as many lines as they have vectors, or half as many.
  constexpr int kLine = kType == KvType::kFp8 ? 2 : 1;
  if (d / kLanes % kLine != 0) return;
  const Number<kType>* next = values_in<kType>(tile.next_v[i / kBlockPairs]);
  fetch_line(next + i % kBlockPairs * 2 * work.dim + 2 * d, false, d / (kLine * kLanes) % 2 != 0);
}

template <KvType kType>
void store_key_pairs(const Work& work, const KeyTile& tile, uint8_t* to) {
  for (int d = 0; d < work.dim; d += 2) {
    for (int b = 0; b < kTileBlocks; ++b, to += 64) {
      if constexpr (kFetchesNext) fetch_next_keys<kType>(tile, d, b);
      _mm512_store_si512(to, key_pairs<kType>(tile, d, b));
    }
  }
}
template <KvType kType>
void store_value_pairs(const Work& work, const KeyTile& tile, uint8_t* to) {
  for (int i = 0; i < tile.num_blocks * kBlockSize / 2; ++i) {
    for (int d = 0; d < work.dim; d += kLanes, to += 64) {
      if constexpr (kFetchesNext) fetch_next_values<kType>(work, tile, i, d);
      _mm512_store_si512(to, value_pairs<kType>(work, tile, i, d));
    }
  }
}

// Of those types that are multiplied in pairs.
void store_keys_in_pairs(const Work& work, const KeyTile& tile, TilePairs& pairs) {
  const KvType type = work.args.kv.types.k;
  if (!multiplies_pairs(work.args, type)) return;
  with_float_type(type, [&]<KvType kType>() LARDER_INLINE_LAMBDA { store_key_pairs<kType>(work, tile, pairs.k); });
}
void store_values_in_pairs(const Work& work, const KeyTile& tile, TilePairs& pairs) {
  const KvType type = work.args.kv.types.v;
  if (!multiplies_pairs(work.args, type)) return;
  with_float_type(type, [&]<KvType kType>() LARDER_INLINE_LAMBDA { store_value_pairs<kType>(work, tile, pairs.v); });
}

// A row's query into its words.
void pair_query(const Work& work, const Queries& q) {
  for (int d = 0; d < work.padded_dim; d += kLanes) {
    const __m256bh half = _mm512_cvtneps_pbh(load(q.values + d));
    memcpy(q.words + d / 2, &half, sizeof half);
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
