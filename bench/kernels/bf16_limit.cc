// What VDPBF16PS gives.
#include "machine_limits.h"

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {

std::int64_t multiply_bf16(int rounds) {
  constexpr int kSums = 12;  // enough to hide the latency
  const int32_t pair = 0x3F803F80 | (rounds & 1);
  const Bytes64 pairs = set1_int(pair);
  V16 sum[kSums];
  for (V16& s : sum) s = zero();
  for (int i = 0; i < rounds; ++i) {
    for (V16& s : sum) s = dot_pairs(s, pairs, pair);
  }
  float total = 0;
  for (const V16& s : sum) total += reduce_add(s);
  return int64_t{rounds} * kSums * 64 + (total == -1.0F ? 1 : 0);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
