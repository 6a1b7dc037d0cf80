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
  // Unpacking is as long as memory takes, so every operation counts.
  const __m512i byte = _mm512_set1_epi32(0xFF00);
  const __m512i from_128 = _mm512_set1_epi32(0x43000000);
  const V16 unit = mul(scale, set1(256));
  const V16 offset = mul(scale, set1(256 * 128 + W8::kOffset));
  const __m512i half = _mm512_set1_epi32(0x8000);  // of BF16's last place
  const __m512i upper_to_lower = _mm512_broadcast_i32x4(_mm_setr_epi32(0x0302, 0x0706, 0x0B0A, 0x0F0E));
  const auto number_of = [&]<int kByte>(__m512i quads) LARDER_INLINE_LAMBDA {
    // Not a shuffle, too: one port alone does those.
    if constexpr (kByte == 1) return _mm512_ternarylogic_epi32(quads, byte, from_128, 0xEA);  // quads & byte | from_128
    constexpr int kTo = kByte << 8;
    const __m512i to_second = _mm512_broadcast_i32x4(_mm_setr_epi32(kTo, kTo + 0x400, kTo + 0x800, kTo + 0xC00));
    return _mm512_mask_shuffle_epi8(from_128, 0x2222222222222222, quads, to_second);
  };
  const auto value_of = [&](__m512i number) LARDER_INLINE_LAMBDA {
    const V16 value = _mm512_fmsub_ps(_mm512_castsi512_ps(number), unit, offset);
    return _mm512_add_epi32(_mm512_castps_si512(value), half);
  };
  const auto store_pair = [&]<int kFirst>(__m512i quads, uint8_t* at) LARDER_INLINE_LAMBDA {
    const __m512i first = value_of(number_of.template operator()<kFirst>(quads));
    const __m512i second = value_of(number_of.template operator()<kFirst + 1>(quads));
    _mm512_store_si512(at, _mm512_mask_shuffle_epi8(second, 0x3333333333333333, first, upper_to_lower));
  };
  for (int quad = 0; quad < W8::kGroup / 4; ++quad, to += 128) {
    fetch(quad);
    const __m512i quads = load_bytes(codes + quad * 64);
    store_pair.template operator()<0>(quads, to);
    store_pair.template operator()<2>(quads, to + 64);
  }
  fetch(W8::kGroup / 4);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
