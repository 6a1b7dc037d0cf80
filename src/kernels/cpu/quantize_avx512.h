// Four groups of activations at once on AVX-512: what a group is folded to, its largest value and
// its sums, is folded in one vector for all of them. The bits are those of one group alone.
#pragma once

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {

// The largest of each vector's magnitudes, in each of four lanes.
LARDER_INLINE V16 largest_of_each(V16 a, V16 b, V16 c, V16 d) {
  const V16 ab = max_magnitude(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const V16 cd = max_magnitude(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  V16 all = max_magnitude(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  all = max_magnitude(all, _mm512_permute_ps(all, 0x4E));
  return max_magnitude(all, _mm512_permute_ps(all, 0xB1));
}

// Two groups, as bytes in order.
LARDER_INLINE Bytes64 to_bytes(const I16* v) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i words[2] = {_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3])};
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
}

// Sums of every 16 bytes of low, then of high.
LARDER_INLINE __m256i sums_of_16(Bytes64 low, Bytes64 high) {
  const __m512i ones = _mm512_set1_epi8(1);
  const I16 of_low = dot_u8(set1_int(0), ones, low);  // of every 4 bytes
  const I16 of_high = dot_u8(set1_int(0), ones, high);
  const I16 pairs = add_int(_mm512_unpacklo_epi32(of_low, of_high),
                            _mm512_unpackhi_epi32(of_low, of_high));
  const I16 sums = add_int(pairs, _mm512_shuffle_epi32(pairs, _MM_PERM_BADC));
  const __m512i order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 13, 9, 5, 1, 12, 8, 4, 0);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, sums));
}

// See quantize_group(). False, and nothing is written, where one of the groups has none.
LARDER_INLINE bool quantize_four_groups(const float* x, int8_t* q, float* scale, int32_t* sum) {
  V16 v[8];
  for (int i = 0; i < 8; ++i) v[i] = load(x + 16 * i);
  const V16 largest =
      largest_of_each(max_magnitude(abs(v[0]), abs(v[1])), max_magnitude(abs(v[2]), abs(v[3])),
                      max_magnitude(abs(v[4]), abs(v[5])), max_magnitude(abs(v[6]), abs(v[7])));
  if (_mm512_cmp_ps_mask(largest, set1(__builtin_inff()), _CMP_NLT_UQ) != 0) return false;
  const Mask16 counts = _mm512_cmp_ps_mask(largest, set1(1e-30F), _CMP_GT_OQ);
  const V16 all = _mm512_maskz_div_ps(counts, set1(127.0F), largest);
  const V16 inverse[4] = {_mm512_shuffle_f32x4(all, all, 0x00), _mm512_shuffle_f32x4(all, all, 0x55),
                          _mm512_shuffle_f32x4(all, all, 0xAA), _mm512_shuffle_f32x4(all, all, 0xFF)};
  I16 codes[8];
  for (int i = 0; i < 8; ++i) codes[i] = to_int(mul(v[i], inverse[i / 2]));
  const Bytes64 low = to_bytes(codes);
  const Bytes64 high = to_bytes(codes + 4);
  _mm512_storeu_si512(q, low);
  _mm512_storeu_si512(q + 64, high);
  const V16 scales = _mm512_maskz_div_ps(counts, largest, set1(127.0F));
  const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  _mm_storeu_ps(scale, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, scales)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sum), sums_of_16(low, high));
  return true;
}

}  // namespace larder::LARDER_ISA_NAMESPACE
