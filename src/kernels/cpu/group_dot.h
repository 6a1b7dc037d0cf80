// Exact integer sums over a group of columns: codes of weights times 8-bit activations.
//
// begin(), then dot() for each quad of four columns, then end(): lane i is the sum of (code -
// offset) * activation. Activations are at least -127; `activation_sum` is that of the group.
// prepare() turns codes as they lie in a panel into what dot() takes, once for all rows of a tile.
#pragma once

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {

// What values a format's codes take, and what is taken off them.
enum class CodeRange {
  kFourBits,         // 0 to 15; at most 8 quads a group
  kFourBitsCentred,  // 0 to 15, less 8
  kFiveBits,         // 112 to 143, less 128; at most 8 quads a group
  kSixBits,          // 96 to 159, less 128; at most 4 quads a group
  kEightBits,        // 0 to 255, less 128
  kFiveBitsPlain,    // 0 to 31
};
static constexpr int code_offset(CodeRange range) {
  switch (range) {
    case CodeRange::kFourBits:
    case CodeRange::kFiveBitsPlain:
      return 0;
    case CodeRange::kFourBitsCentred:
      return 8;
    default:
      return 128;
  }
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

  LARDER_INLINE Codes prepare(Bytes64 codes) { return codes; }
  LARDER_INLINE Quad quad(const int8_t* x) { return broadcast4(x); }
  LARDER_INLINE I16 begin(int32_t activation_sum) {
    return set1_int(-code_offset(kRange) * activation_sum);
  }
  LARDER_INLINE I16 dot(I16 sum, Codes w, Quad x) { return dot_u8(sum, w, x); }
  LARDER_INLINE I16 end(I16 sum, int32_t) { return sum; }
};

}  // namespace larder::LARDER_ISA_NAMESPACE
#endif
