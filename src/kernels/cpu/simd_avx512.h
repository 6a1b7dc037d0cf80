// AVX-512 F, BW, DQ, VL, VNNI: a vector is one register. See simd.h.
#pragma once

#include <immintrin.h>

namespace larder::LARDER_ISA_NAMESPACE {

using V16 = __m512;
using I16 = __m512i;
using Bytes64 = __m512i;
using Mask16 = __mmask16;

// Register tiles: 32 registers hold 6 x 2 integer and 6 x 2 float sums, weights and broadcasts.
inline constexpr int kTileRows = 6;
inline constexpr int kTilePanels = 2;
inline constexpr int kAttentionRows = 6;
inline constexpr int kAttentionVectors = 4;

LARDER_INLINE V16 zero() { return _mm512_setzero_ps(); }
LARDER_INLINE V16 set1(float x) { return _mm512_set1_ps(x); }
LARDER_INLINE V16 load(const float* p) { return _mm512_loadu_ps(p); }
LARDER_INLINE void store(float* p, V16 v) { _mm512_storeu_ps(p, v); }
LARDER_INLINE Mask16 first_lanes(int n) { return static_cast<Mask16>((1U << n) - 1U); }
LARDER_INLINE V16 load_partial(const float* p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
LARDER_INLINE void store_partial(float* p, V16 v, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
LARDER_INLINE V16 load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
LARDER_INLINE void store_f16_partial(uint16_t* p, V16 v, int n) {
  const __m256i half = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_mask_storeu_epi16(p, first_lanes(n), half);
}

// 16 bytes of E4M3, as what their bits stand for in FP16 (kE4m3InHalf).
LARDER_INLINE V16 load_e4m3(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i upper = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
  const __m256i sign = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  // The bits of sign from `upper`, the others from a place further down: 0x80 is the sign's bit.
  const __m256i lower = _mm256_srli_epi16(_mm256_andnot_si256(sign, upper), 1);
  return _mm512_cvtph_ps(_mm256_ternarylogic_epi32(sign, upper, lower, 0xCA));
}

LARDER_INLINE V16 load_bf16(const uint16_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

LARDER_INLINE V16 add(V16 a, V16 b) { return _mm512_add_ps(a, b); }
LARDER_INLINE V16 sub(V16 a, V16 b) { return _mm512_sub_ps(a, b); }
LARDER_INLINE V16 mul(V16 a, V16 b) { return _mm512_mul_ps(a, b); }
LARDER_INLINE V16 div(V16 a, V16 b) { return _mm512_div_ps(a, b); }
LARDER_INLINE V16 fma(V16 a, V16 b, V16 c) { return _mm512_fmadd_ps(a, b, c); }
// As the instruction: b when either is NaN.
LARDER_INLINE V16 max(V16 a, V16 b) { return _mm512_max_ps(a, b); }
LARDER_INLINE V16 min(V16 a, V16 b) { return _mm512_min_ps(a, b); }
LARDER_INLINE V16 abs(V16 a) { return _mm512_abs_ps(a); }

LARDER_INLINE V16 select(Mask16 mask, V16 yes, V16 no) {
  return _mm512_mask_blend_ps(mask, no, yes);
}
// Per lane a >= b ? yes : no (no when NaN).
LARDER_INLINE V16 select_ge(V16 a, V16 b, V16 yes, V16 no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), no, yes);
}
// Per lane a >= b ? yes : 0.
LARDER_INLINE V16 keep_ge(V16 a, V16 b, V16 yes) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), yes);
}
// Lanes i with begin <= i < end; begin and end may lie outside [0, 16].
LARDER_INLINE Mask16 lanes_between(int begin, int end) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin)) &
         _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
}

// Nearest even.
LARDER_INLINE V16 round_to_int(V16 a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
LARDER_INLINE V16 floor(V16 a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
// Lanes in pairs that lie kHalf apart: their sum in the lower one, their difference in the other.
template <int kHalf>
LARDER_INLINE V16 butterfly(V16 v) {
  V16 other;
  __mmask16 upper;
  if constexpr (kHalf == 8) {
    other = _mm512_shuffle_f32x4(v, v, 0x4E);
    upper = 0xFF00;
  } else if constexpr (kHalf == 4) {
    other = _mm512_shuffle_f32x4(v, v, 0xB1);
    upper = 0xF0F0;
  } else if constexpr (kHalf == 2) {
    other = _mm512_permute_ps(v, 0x4E);
    upper = 0xCCCC;
  } else {
    other = _mm512_permute_ps(v, 0xB1);
    upper = 0xAAAA;
  }
  return _mm512_mask_sub_ps(_mm512_add_ps(other, v), upper, other, v);
}
// Lanes 2i and 2i + 1 are a pair, turned by the angle whose cosine and sine are cos[i] and sin[i]:
// (a cos - b sin, a sin + b cos), the products rounded.
LARDER_INLINE V16 rotate_pairs(V16 v, const float* cos, const float* sin) {
  const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  const V16 c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos)));
  const V16 s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin)));
  const V16 along = _mm512_mul_ps(v, c);
  const V16 across = _mm512_mul_ps(_mm512_permute_ps(v, 0xB1), s);
  return _mm512_mask_sub_ps(_mm512_add_ps(along, across), 0x5555, along, across);
}
// x * 2^n for whole n, where x and that are normal numbers: n is added to the exponent.
LARDER_INLINE V16 times_power_of_two(V16 x, V16 n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}
// ((0 + 8) + (4 + 12)) + ...: halves folded onto each other.
LARDER_INLINE float reduce_add(V16 v) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
LARDER_INLINE float reduce_max(V16 v) { return _mm512_reduce_max_ps(v); }
// Of magnitudes the larger ones, NaN where one is: without signs, the bits of floats have their
// order, those of NaN at the end.
LARDER_INLINE V16 max_magnitude(V16 a, V16 b) {
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
// The largest of both vectors' lanes.
LARDER_INLINE float largest_magnitude(V16 a, V16 b) {
  const int32_t bits = _mm512_reduce_max_epi32(_mm512_castps_si512(max_magnitude(abs(a), abs(b))));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
}

LARDER_INLINE I16 set1_int(int32_t x) { return _mm512_set1_epi32(x); }
LARDER_INLINE V16 to_float(I16 v) { return _mm512_cvtepi32_ps(v); }
LARDER_INLINE I16 to_int(V16 v) { return _mm512_cvtps_epi32(v); }
LARDER_INLINE I16 add_int(I16 x, I16 y) { return _mm512_add_epi32(x, y); }
LARDER_INLINE int32_t reduce_add_int(I16 v) { return _mm512_reduce_add_epi32(v); }
LARDER_INLINE void store_int8(int8_t* p, I16 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
LARDER_INLINE V16 load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LARDER_INLINE V16 load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// 32 bfloat16 values in pairs: the even ones, the odd ones.
LARDER_INLINE void load_bf16_pairs(const uint16_t* p, V16& even, V16& odd) {
  const __m512i v = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(~0xFFFF)));
}

LARDER_INLINE Bytes64 load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
LARDER_INLINE void store_bytes(uint8_t* p, Bytes64 v) { _mm512_storeu_si512(p, v); }
LARDER_INLINE Bytes64 low_nibbles(Bytes64 v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x0F)); }
LARDER_INLINE Bytes64 high_nibbles(Bytes64 v) {
  return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(0x0F));
}
// Each byte of low, below 16, with the kBits from kShift on of upper's byte above its 4 bits.
template <int kBits, int kShift>
LARDER_INLINE Bytes64 put_upper(Bytes64 low, Bytes64 upper) {
  if constexpr (kShift < 4) {
    upper = _mm512_slli_epi16(upper, 4 - kShift);
  } else if constexpr (kShift > 4) {
    upper = _mm512_srli_epi16(upper, kShift - 4);
  }
  const __m512i mask = _mm512_set1_epi8(((1 << kBits) - 1) << 4);
  return _mm512_or_si512(low, _mm512_and_si512(upper, mask));
}
// Four activation bytes for every lane.
LARDER_INLINE Bytes64 broadcast4(const int8_t* p) {
  int32_t bits;
  memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}
// sum[i] += w[4i] * a[0] + ... + w[4i + 3] * a[3], w unsigned, a signed; exact.
LARDER_INLINE I16 dot_u8(I16 sum, Bytes64 w, Bytes64 a) { return _mm512_dpbusd_epi32(sum, w, a); }
// Lane of column 4 * quad + j in byte 4 * lane + j, as float.
LARDER_INLINE V16 byte_of_quad(Bytes64 v, int j) {
  return _mm512_cvtepi32_ps(
      _mm512_and_si512(_mm512_srlv_epi32(v, _mm512_set1_epi32(8 * j)), _mm512_set1_epi32(0xFF)));
}

// Of each 16-bit word of v the kBits from kShift on, as a word.
template <int kShift, int kBits>
LARDER_INLINE Bytes64 word_bits(Bytes64 v) {
  const Bytes64 shifted = _mm512_srli_epi16(v, kShift);
  if constexpr (kShift + kBits == 16) return shifted;
  return _mm512_and_si512(shifted, _mm512_set1_epi16((1 << kBits) - 1));
}
// sum[i] += w[2i] * x[0] + w[2i + 1] * x[1], where x are two signed words; exact.
LARDER_INLINE I16 dot_words(I16 sum, Bytes64 w, const int32_t* x) {
  return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(*x));
}
#if defined(LARDER_AVX512_BF16)
// sum[i] += pairs[2i] * pair[0] + pairs[2i + 1] * pair[1], all BF16.
LARDER_INLINE V16 dot_pairs(V16 sum, __m512i pairs, int32_t pair) {
  const __m512i same = _mm512_set1_epi32(pair);
  __m512bh a;
  __m512bh b;
  memcpy(&a, &pairs, sizeof a);
  memcpy(&b, &same, sizeof b);
  return _mm512_dpbf16_ps(sum, a, b);
}
#endif
// p[i], 8 of them = lane i as a word below and lane i + 8 as a word above.
LARDER_INLINE void store_word_pairs(int32_t* p, I16 v) {
  const __m256i above = _mm256_slli_epi32(_mm512_extracti64x4_epi64(v, 1), 16);
  const __m256i pairs = _mm256_blend_epi16(_mm512_castsi512_si256(v), above, 0xAA);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}

// Byte i of the result = table[v's byte i], which is below 16.
LARDER_INLINE Bytes64 look_up(const uint8_t* table, Bytes64 v) {
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(once), v);
}
LARDER_INLINE void store_int(int32_t* p, I16 v) { _mm512_storeu_si512(p, v); }
// Scales of one byte each, see kv_type.h.
LARDER_INLINE V16 load_scale8(const uint8_t* p) {
  const __m512i codes =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(kScale8Bias)), kScale8Shift));
}

// 2^(p[i] - 128). Twice that has p[i] for its exponent, which at 0 stands for the subnormal 2^-127.
LARDER_INLINE V16 load_powers(const uint8_t* p) {
  const __m512i exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(exponents, 23), _mm512_set1_epi32(1 << 22));
  return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5F));
}

}  // namespace larder::LARDER_ISA_NAMESPACE
