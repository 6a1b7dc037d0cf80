// GroupDot on AVX2, see group_dot.h: products of bytes are summed in pairs to 16 bits (maddubs,
// which saturates above 32767), then in pairs to 32. In assembly, since GCC 12 hoists and keeps
// more products than there are registers. Included by group_dot.h alone.
#pragma once

namespace larder::LARDER_ISA_NAMESPACE {

// Four activation bytes that are broadcast with each use, since registers are few.
struct ActivationQuad {
  typedef int32_t Bits __attribute__((may_alias, aligned(1)));
  const Bits* bits;
};
LARDER_INLINE ActivationQuad activation_quad(const int8_t* x) {
  return {reinterpret_cast<const ActivationQuad::Bits*>(x)};
}

// 16-bit sums to 32-bit ones.
LARDER_INLINE I16 widen_pairs(I16 sum) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sum.a, ones), _mm256_madd_epi16(sum.b, ones)};
}

// Codes below 8 bits as they are, the offset apart. In 16 bits 8 quads of two pairs of 4-bit codes
// reach 8 * 2 * 15 * 127 = 30480; 4 quads of 5 bits reach 31496 (of E2M1's levels 24384), and 2 of 6 bits 32004.
template <CodeRange kRange>
struct GroupDot {
  using Codes = Bytes64;
  static constexpr int kPartQuads = kRange == CodeRange::kSixBitsCentred ? 2
                                    : kRange == CodeRange::kFiveBits ||
                                            kRange == CodeRange::kFiveBitsCentred ||
                                            kRange == CodeRange::kE2m1Levels
                                        ? 4
                                        : 8;

  LARDER_INLINE Codes prepare(Bytes64 codes) { return codes; }
  LARDER_INLINE ActivationQuad quad(const int8_t* x) { return activation_quad(x); }
  LARDER_INLINE I16 start(int32_t activation_sum) {
    return set1_int(-code_offset(kRange) * activation_sum);
  }
  LARDER_INLINE I16 dot(I16 part, Codes w, ActivationQuad x) {
    __m256i both, product;
    __asm__(
        "vpbroadcastd %[x], %[both]\n\t"
        "vpmaddubsw %[both], %[wa], %[product]\n\t"
        "vpmaddubsw %[both], %[wb], %[both]\n\t"
        "vpaddw %[product], %[a], %[a]\n\t"
        "vpaddw %[both], %[b], %[b]"
        : [a] "+x"(part.a), [b] "+x"(part.b), [both] "=&x"(both), [product] "=&x"(product)
        : [wa] "x"(w.a), [wb] "x"(w.b), [x] "m"(*x.bits));
    return part;
  }
  LARDER_INLINE I16 add_part(I16 sum, I16 part) {
    const I16 wide = widen_pairs(part);
    return {_mm256_add_epi32(sum.a, wide.a), _mm256_add_epi32(sum.b, wide.b)};
  }
};

// Centred codes: magnitudes as the unsigned factor, their signs moved to the activations.
struct CentredCodes {
  Bytes64 centred, magnitude;
};
LARDER_INLINE CentredCodes centre(Bytes64 codes) {
  const __m256i top = _mm256_set1_epi8(-128);
  const Bytes64 centred = {_mm256_xor_si256(codes.a, top), _mm256_xor_si256(codes.b, top)};
  return {centred, {_mm256_abs_epi8(centred.a), _mm256_abs_epi8(centred.b)}};
}

// Codes of 8 bits: one pair reaches 2 * 128 * 127 = 32512, so each is widened at once.
template <>
struct GroupDot<CodeRange::kEightBitsCentred> {
  using Codes = CentredCodes;
  static constexpr int kPartQuads = 0;

  LARDER_INLINE Codes prepare(Bytes64 codes) { return centre(codes); }
  LARDER_INLINE ActivationQuad quad(const int8_t* x) { return activation_quad(x); }
  LARDER_INLINE I16 start(int32_t) { return set1_int(0); }
  LARDER_INLINE I16 dot(I16 sum, const Codes& w, ActivationQuad x) {
    __m256i both, product;
    __asm__(
        "vpbroadcastd %[x], %[both]\n\t"
        "vpsignb %[sa], %[both], %[product]\n\t"
        "vpsignb %[sb], %[both], %[both]\n\t"
        "vpmaddubsw %[product], %[wa], %[product]\n\t"
        "vpmaddubsw %[both], %[wb], %[both]\n\t"
        "vpmaddwd %[ones], %[product], %[product]\n\t"
        "vpmaddwd %[ones], %[both], %[both]\n\t"
        "vpaddd %[product], %[a], %[a]\n\t"
        "vpaddd %[both], %[b], %[b]"
        : [a] "+x"(sum.a), [b] "+x"(sum.b), [both] "=&x"(both), [product] "=&x"(product)
        : [wa] "x"(w.magnitude.a), [wb] "x"(w.magnitude.b), [sa] "x"(w.centred.a),
          [sb] "x"(w.centred.b), [ones] "x"(_mm256_set1_epi16(1)), [x] "m"(*x.bits));
    return sum;
  }
};

}  // namespace larder::LARDER_ISA_NAMESPACE
