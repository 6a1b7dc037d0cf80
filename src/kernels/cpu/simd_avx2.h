// AVX2, FMA, F16C: a vector is two registers. See simd.h.
#pragma once

#include <immintrin.h>

namespace larder::LARDER_ISA_NAMESPACE {

struct V16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};
using Bytes64 = I16;
using Mask16 = I16;

// 16 registers.
inline constexpr int kTileRows = 4;
inline constexpr int kTilePanels = 1;
inline constexpr int kAttentionRows = 6;
inline constexpr int kAttentionVectors = 1;

LARDER_INLINE V16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
LARDER_INLINE V16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LARDER_INLINE V16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LARDER_INLINE void store(float* p, V16 v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
LARDER_INLINE V16 load_partial(const float* p, int n) {
  float lanes[16] = {};
  memcpy(lanes, p, sizeof(float) * static_cast<size_t>(n));
  return load(lanes);
}
LARDER_INLINE void store_partial(float* p, V16 v, int n) {
  float lanes[16];
  store(lanes, v);
  memcpy(p, lanes, sizeof(float) * static_cast<size_t>(n));
}
LARDER_INLINE V16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
LARDER_INLINE void store_f16_partial(uint16_t* p, V16 v, int n) {
  uint16_t lanes[16];
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), _mm256_cvtps_ph(v.a, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes + 8), _mm256_cvtps_ph(v.b, kNearest));
  memcpy(p, lanes, sizeof(uint16_t) * static_cast<size_t>(n));
}

// 16 bytes of E4M3, as what their bits stand for in FP16 (kE4m3InHalf).
LARDER_INLINE V16 load_e4m3(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i upper = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
  const __m256i magnitude =
      _mm256_srli_epi16(_mm256_and_si256(upper, _mm256_set1_epi16(0x7F00)), 1);
  const __m256i sign = _mm256_andnot_si256(_mm256_set1_epi16(0x7FFF), upper);
  const __m256i halves = _mm256_or_si256(sign, magnitude);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

LARDER_INLINE __m256 load_bf16_half(const uint16_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
LARDER_INLINE V16 load_bf16(const uint16_t* p) {
  return {load_bf16_half(p), load_bf16_half(p + 8)};
}

LARDER_INLINE V16 add(V16 x, V16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LARDER_INLINE V16 sub(V16 x, V16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LARDER_INLINE V16 mul(V16 x, V16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LARDER_INLINE V16 div(V16 x, V16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LARDER_INLINE V16 fma(V16 x, V16 y, V16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// As the instruction: y when either is NaN.
LARDER_INLINE V16 max(V16 x, V16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LARDER_INLINE V16 min(V16 x, V16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LARDER_INLINE V16 abs(V16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}

LARDER_INLINE V16 select(Mask16 mask, V16 yes, V16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(mask.a)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(mask.b))};
}
// Per lane x >= y ? yes : no (no when NaN).
LARDER_INLINE V16 select_ge(V16 x, V16 y, V16 yes, V16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ))};
}
// Per lane x >= y ? yes : 0.
LARDER_INLINE V16 keep_ge(V16 x, V16 y, V16 yes) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ), yes.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ), yes.b)};
}
// Lanes i with begin <= i < end; begin and end may lie outside [0, 16].
LARDER_INLINE Mask16 lanes_between(int begin, int end) {
  const __m256i low = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  const __m256i high = _mm256_set_epi32(15, 14, 13, 12, 11, 10, 9, 8);
  const __m256i before = _mm256_set1_epi32(begin);
  const __m256i past = _mm256_set1_epi32(end);
  return {_mm256_andnot_si256(_mm256_cmpgt_epi32(before, low), _mm256_cmpgt_epi32(past, low)),
          _mm256_andnot_si256(_mm256_cmpgt_epi32(before, high), _mm256_cmpgt_epi32(past, high))};
}

// Nearest even.
LARDER_INLINE V16 round_to_int(V16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}
LARDER_INLINE V16 floor(V16 x) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, kDown), _mm256_round_ps(x.b, kDown)};
}
template <int kHalf>
LARDER_INLINE __m256 butterfly_half(__m256 v) {
  __m256 other;
  __m256i upper;  // the sign of whom the other is less
  if constexpr (kHalf == 4) {
    other = _mm256_permute2f128_ps(v, v, 1);
    upper = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
  } else if constexpr (kHalf == 2) {
    other = _mm256_permute_ps(v, 0x4E);
    upper = _mm256_set_epi32(1, 1, 0, 0, 1, 1, 0, 0);
  } else {
    other = _mm256_permute_ps(v, 0xB1);
    upper = _mm256_set_epi32(1, 0, 1, 0, 1, 0, 1, 0);
  }
  const __m256 signs = _mm256_castsi256_ps(_mm256_slli_epi32(upper, 31));
  return _mm256_add_ps(other, _mm256_xor_ps(v, signs));
}
// Lanes in pairs that lie kHalf apart: their sum in the lower one, their difference in the other.
template <int kHalf>
LARDER_INLINE V16 butterfly(V16 v) {
  if constexpr (kHalf == 8) {
    return {_mm256_add_ps(v.a, v.b), _mm256_sub_ps(v.a, v.b)};
  } else {
    return {butterfly_half<kHalf>(v.a), butterfly_half<kHalf>(v.b)};
  }
}
LARDER_INLINE __m256 twice(const float* p) {
  const __m128 v = _mm_loadu_ps(p);
  return _mm256_set_m128(_mm_unpackhi_ps(v, v), _mm_unpacklo_ps(v, v));
}
LARDER_INLINE __m256 rotate_half(__m256 v, const float* cos, const float* sin) {
  const __m256 along = _mm256_mul_ps(v, twice(cos));
  return _mm256_addsub_ps(along, _mm256_mul_ps(_mm256_permute_ps(v, 0xB1), twice(sin)));
}
// Lanes 2i and 2i + 1 are a pair, turned by the angle whose cosine and sine are cos[i] and sin[i]:
// (a cos - b sin, a sin + b cos), the products rounded.
LARDER_INLINE V16 rotate_pairs(V16 v, const float* cos, const float* sin) {
  return {rotate_half(v.a, cos, sin), rotate_half(v.b, cos + 4, sin + 4)};
}
LARDER_INLINE __m256 times_power_of_two_half(__m256 x, __m256 n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
// x * 2^n for whole n, where x and that are normal numbers: n is added to the exponent.
LARDER_INLINE V16 times_power_of_two(V16 x, V16 n) {
  return {times_power_of_two_half(x.a, n.a), times_power_of_two_half(x.b, n.b)};
}
// ((0 + 8) + (4 + 12)) + ...: halves folded onto each other.
LARDER_INLINE float reduce_add(V16 v) {
  const __m256 a = _mm256_add_ps(v.a, v.b);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
LARDER_INLINE float reduce_max(V16 v) {
  const __m256 a = _mm256_max_ps(v.a, v.b);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
LARDER_INLINE __m256i larger_magnitudes(V16 v) {
  const V16 magnitude = abs(v);
  return _mm256_max_epi32(_mm256_castps_si256(magnitude.a), _mm256_castps_si256(magnitude.b));
}
// The largest magnitude of both vectors' lanes, NaN where one is: without signs, the bits of floats
// have their order, those of NaN at the end.
LARDER_INLINE float largest_magnitude(V16 x, V16 y) {
  const __m256i a = _mm256_max_epi32(larger_magnitudes(x), larger_magnitudes(y));
  const __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i c = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4E));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xB1))));
}

LARDER_INLINE I16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LARDER_INLINE V16 to_float(I16 v) { return {_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
LARDER_INLINE I16 to_int(V16 v) { return {_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)}; }
LARDER_INLINE I16 add_int(I16 x, I16 y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
LARDER_INLINE int32_t reduce_add_int(I16 v) {
  const __m256i a = _mm256_add_epi32(v.a, v.b);
  const __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i c = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xB1)));
}
LARDER_INLINE void store_int8(int8_t* p, I16 v) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
LARDER_INLINE V16 load_u8(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return to_float({_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))});
}
LARDER_INLINE V16 load_i8(const int8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return to_float({_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))});
}
// 32 bfloat16 values in pairs: the even ones, the odd ones.
LARDER_INLINE void load_bf16_pairs(const uint16_t* p, V16& even, V16& odd) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i upper = _mm256_set1_epi32(~0xFFFF);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)),
         _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}

LARDER_INLINE Bytes64 load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
LARDER_INLINE Bytes64 low_nibbles(Bytes64 v) {
  const __m256i mask = _mm256_set1_epi8(0x0F);
  return {_mm256_and_si256(v.a, mask), _mm256_and_si256(v.b, mask)};
}
LARDER_INLINE Bytes64 high_nibbles(Bytes64 v) {
  return low_nibbles({_mm256_srli_epi16(v.a, 4), _mm256_srli_epi16(v.b, 4)});
}
// Each byte of low, below 16, with the kBits from kShift on of upper's byte above its 4 bits.
template <int kBits, int kShift>
LARDER_INLINE __m256i put_upper_half(__m256i low, __m256i upper) {
  if constexpr (kShift < 4) {
    upper = _mm256_slli_epi16(upper, 4 - kShift);
  } else if constexpr (kShift > 4) {
    upper = _mm256_srli_epi16(upper, kShift - 4);
  }
  const __m256i mask = _mm256_set1_epi8(((1 << kBits) - 1) << 4);
  return _mm256_or_si256(low, _mm256_and_si256(upper, mask));
}
template <int kBits, int kShift>
LARDER_INLINE Bytes64 put_upper(Bytes64 low, Bytes64 upper) {
  return {put_upper_half<kBits, kShift>(low.a, upper.a),
          put_upper_half<kBits, kShift>(low.b, upper.b)};
}
LARDER_INLINE __m256 byte_of_quad_half(__m256i v, int j) {
  return _mm256_cvtepi32_ps(
      _mm256_and_si256(_mm256_srlv_epi32(v, _mm256_set1_epi32(8 * j)), _mm256_set1_epi32(0xFF)));
}
// Lane of column 4 * quad + j in byte 4 * lane + j, as float.
LARDER_INLINE V16 byte_of_quad(Bytes64 v, int j) {
  return {byte_of_quad_half(v.a, j), byte_of_quad_half(v.b, j)};
}

// Of each 16-bit word of v the kBits from kShift on, as a word.
template <int kShift, int kBits>
LARDER_INLINE Bytes64 word_bits(Bytes64 v) {
  const Bytes64 shifted = {_mm256_srli_epi16(v.a, kShift), _mm256_srli_epi16(v.b, kShift)};
  if constexpr (kShift + kBits == 16) return shifted;
  const __m256i mask = _mm256_set1_epi16((1 << kBits) - 1);
  return {_mm256_and_si256(shifted.a, mask), _mm256_and_si256(shifted.b, mask)};
}
// sum[i] += w[2i] * x[0] + w[2i + 1] * x[1], where x are two signed words; exact. In assembly,
// since GCC 12 hoists and keeps more products than there are registers.
LARDER_INLINE I16 dot_words(I16 sum, Bytes64 w, const int32_t* x) {
  __m256i both, product;
  __asm__(
      "vpbroadcastd %[x], %[both]\n\t"
      "vpmaddwd %[both], %[wa], %[product]\n\t"
      "vpmaddwd %[both], %[wb], %[both]\n\t"
      "vpaddd %[product], %[a], %[a]\n\t"
      "vpaddd %[both], %[b], %[b]"
      : [a] "+x"(sum.a), [b] "+x"(sum.b), [both] "=&x"(both), [product] "=&x"(product)
      : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*x));
  return sum;
}
// p[i], 8 of them = lane i as a word below and lane i + 8 as a word above.
LARDER_INLINE void store_word_pairs(int32_t* p, I16 v) {
  const __m256i pairs = _mm256_blend_epi16(v.a, _mm256_slli_epi32(v.b, 16), 0xAA);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}

// Byte i of the result = table[v's byte i], which is below 16.
LARDER_INLINE Bytes64 look_up(const uint8_t* table, Bytes64 v) {
  const __m256i both =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(both, v.a), _mm256_shuffle_epi8(both, v.b)};
}
LARDER_INLINE void store_int(int32_t* p, I16 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.b);
}
LARDER_INLINE __m256 scale8_half(__m256i codes) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(codes, _mm256_set1_epi32(kScale8Bias)), kScale8Shift));
}
// Scales of one byte each, see kv_type.h.
LARDER_INLINE V16 load_scale8(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {scale8_half(_mm256_cvtepu8_epi32(v)),
          scale8_half(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}

LARDER_INLINE __m256 powers_half(__m256i exponents) {
  const __m256i bits = _mm256_max_epi32(_mm256_slli_epi32(exponents, 23), _mm256_set1_epi32(1 << 22));
  return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5F));
}
// 2^(p[i] - 128). Twice that has p[i] for its exponent, which at 0 stands for the subnormal 2^-127.
LARDER_INLINE V16 load_powers(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {powers_half(_mm256_cvtepu8_epi32(v)), powers_half(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)))};
}

}  // namespace larder::LARDER_ISA_NAMESPACE
