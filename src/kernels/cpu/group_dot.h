// Exact integer sums over a group of columns: codes of weights times 8-bit activations.
//
// From start(), dot() adds the products of a quad of four columns: in the end lane i is the sum of
// (code - offset) * activation. Activations are at least -127; `activation_sum` is that of the
// group. prepare() turns codes as they lie in a panel into what dot() takes, once for all rows of a
// tile. Where kPartQuads is not 0, dot() adds in 16 bits, which hold the products of that many
// quads: add_part() adds such a part, begun at nothing, to the sum.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/packed_shape.h"

namespace larder::LARDER_ISA_NAMESPACE {

// What values a format's codes take, and what is taken off them.
enum class CodeRange {
  kFourBits,          // 0 to 15
  kFourBitsCentred,   // 0 to 15, less 8
  kFiveBits,          // 0 to 31
  kFiveBitsCentred,   // 0 to 31, less 16
  kSixBitsCentred,    // 0 to 63, less 32
  kEightBitsCentred,  // 0 to 255, less 128
  kE2m1Levels,        // 0 to 24, less 12
};
static constexpr int code_offset(CodeRange range) {
  switch (range) {
    case CodeRange::kFourBits:
    case CodeRange::kFiveBits:
      return 0;
    case CodeRange::kFourBitsCentred:
      return 8;
    case CodeRange::kFiveBitsCentred:
      return 16;
    case CodeRange::kSixBitsCentred:
      return 32;
    case CodeRange::kEightBitsCentred:
      return 128;
    case CodeRange::kE2m1Levels:
      return kE2m1Offset;
  }
  return 0;
}

}  // namespace larder::LARDER_ISA_NAMESPACE

#if defined(LARDER_ISA_AVX2)
#include "kernels/cpu/group_dot_avx2.h"
#else
namespace larder::LARDER_ISA_NAMESPACE {

// One instruction for all ranges: the offset is where the sum starts.
template <CodeRange kRange>
struct GroupDot {
  using Codes = Bytes64;
  using Quad = Bytes64;
  static constexpr int kPartQuads = 0;

  LARDER_INLINE Codes prepare(Bytes64 codes) { return codes; }
  LARDER_INLINE Quad quad(const int8_t* x) { return broadcast4(x); }
  LARDER_INLINE I16 start(int32_t activation_sum) {
    return set1_int(-code_offset(kRange) * activation_sum);
  }
  LARDER_INLINE I16 dot(I16 sum, Codes w, Quad x) { return dot_u8(sum, w, x); }
};

}  // namespace larder::LARDER_ISA_NAMESPACE
#endif
