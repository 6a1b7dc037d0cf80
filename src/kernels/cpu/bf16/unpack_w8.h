// Weights of 8 bits (kW8) as BF16, in the pairs of columns that tiles take.
#pragma once

#include "kernels/cpu/panel.h"

namespace larder::LARDER_ISA_NAMESPACE {

using W8 = CodeFormat<PackedFormat::kW8, false>;

// Of a panel's group of 32 columns: scale * (code - offset), which FP32 holds exactly, rounded to the nearest BF16 (of
// two as near the one of the larger size). to: [16 pairs of columns][16 lanes][2]. fetch(line) is called in between, for
// every line of the group's codes and their scales: all fetches at once would be more than a core can have under way.
template <class Fetch>
LARDER_INLINE void unpack_group(const uint8_t* codes, V16 scale, uint8_t* to, const Fetch& fetch) {
  static_assert(W8::kGroup == 32);
  // A code in the second byte of a float from 128 on is 128 + code / 256, and what remains to be done is one operation.
  const __m512i byte = _mm512_set1_epi32(0xFF00);
  const __m512i from_128 = _mm512_set1_epi32(0x43000000);
  const V16 unit = mul(scale, set1(256));
  const V16 offset = mul(scale, set1(256 * 128 + W8::kOffset));
  const __m512i half = _mm512_set1_epi32(0x8000);  // of BF16's last place
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  const auto value_of = [&](__m512i code) LARDER_INLINE_LAMBDA {  // a & b | c
    const __m512i number = _mm512_ternarylogic_epi32(code, byte, from_128, 0xEA);
    const V16 value = _mm512_fmsub_ps(_mm512_castsi512_ps(number), unit, offset);
    return _mm512_add_epi32(_mm512_castps_si512(value), half);
  };
  const auto store_pair = [&](__m512i first, __m512i second, uint8_t* at) LARDER_INLINE_LAMBDA {
    _mm512_store_si512(at, _mm512_ternarylogic_epi32(second, upper, _mm512_srli_epi32(first, 16), 0xEA));
  };
  for (int quad = 0; quad < W8::kGroup / 4; ++quad, to += 128) {
    fetch(quad);
    const __m512i quads = load_bytes(codes + quad * 64);
    store_pair(value_of(_mm512_slli_epi32(quads, 8)), value_of(quads), to);
    store_pair(value_of(_mm512_srli_epi32(quads, 8)), value_of(_mm512_srli_epi32(quads, 16)), to + 64);
  }
  fetch(W8::kGroup / 4);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
