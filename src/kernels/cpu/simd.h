// Sixteen lanes of float or int32, the same operations for every instruction set.
//
// Exactly one of the headers below is compiled into an object, inside the namespace
// LARDER_ISA_NAMESPACE, and everything in it is static and always inlined, so no object can lend
// its code to another.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/stream_fetch.h"
#include "kernels/kernels.h"

#define LARDER_INLINE static inline __attribute__((always_inline))
#define LARDER_INLINE_LAMBDA __attribute__((always_inline))

#if defined(LARDER_ISA_GENERIC)
#define LARDER_ISA_NAMESPACE isa_generic
#include "kernels/cpu/simd_generic.h"
#elif defined(LARDER_ISA_AVX2)
#define LARDER_ISA_NAMESPACE isa_avx2
#include "kernels/cpu/simd_avx2.h"
#elif defined(LARDER_AMX_EMULATED)  // beside LARDER_AMX, for the tests
#define LARDER_ISA_NAMESPACE isa_amx_emulated
#include "kernels/cpu/simd_avx512.h"
#elif defined(LARDER_AMX)  // beside LARDER_AVX512_BF16
#define LARDER_ISA_NAMESPACE isa_amx
#include "kernels/cpu/simd_avx512.h"
#elif defined(LARDER_AVX512_BF16)  // beside LARDER_ISA_AVX512
#define LARDER_ISA_NAMESPACE isa_avx512_bf16
#include "kernels/cpu/simd_avx512.h"
#elif defined(LARDER_ISA_AVX512)
#define LARDER_ISA_NAMESPACE isa_avx512
#include "kernels/cpu/simd_avx512.h"
#else
#error "Compile with one of LARDER_ISA_GENERIC, _AVX2, _AVX512"
#endif

namespace larder::LARDER_ISA_NAMESPACE {

LARDER_INLINE int min_of(int a, int b) { return a < b ? a : b; }
LARDER_INLINE int max_of(int a, int b) { return a > b ? a : b; }

// p, of which the compiler does not know that it is p: a load through it stays a load.
template <class T>
LARDER_INLINE T* opaque(T* p) {
  __asm__("" : "+r"(p));
  return p;
}

// Into the first-level cache, or the second.
LARDER_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
LARDER_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
// To be read once: it goes from the first-level cache to nowhere.
LARDER_INLINE void prefetch_once(const void* p) { __builtin_prefetch(p, 0, 0); }
LARDER_INLINE void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1); }

// Beside the line at p of a stream that is read once.
LARDER_INLINE void fetch_stream(const uint8_t* p) {
  constexpr uintptr_t kPageBytes = 4096;
  constexpr uintptr_t kBeginBytes = 512;
  switch (machine_stream_fetch) {
    case StreamFetch::kNear:
      return prefetch(p + 1024);
    case StreamFetch::kTwice:
      prefetch(p + 4096);
      return prefetch_l2(p + 8192);
    case StreamFetch::kTwiceNear:
      prefetch(p + 1024);
      return prefetch_l2(p + 4096);
    case StreamFetch::kNextPage:
      if (reinterpret_cast<uintptr_t>(p) % kPageBytes < kBeginBytes) prefetch_l2(p + kPageBytes);
      return;
    case StreamFetch::kFar:
      return prefetch_once(p + 6144);
  }
}

// The first `lanes` of sixteen, mostly all of them.
LARDER_INLINE V16 load_lanes(const float* p, int lanes) {
  return lanes == 16 ? load(p) : load_partial(p, lanes);
}
LARDER_INLINE void store_lanes(float* p, V16 v, int lanes) {
  if (lanes == 16) {
    store(p, v);
  } else {
    store_partial(p, v, lanes);
  }
}

// e^x to about 1 ulp: exactly 1 at 0, exactly 0 below -87.3, capped near FP32's end.
LARDER_INLINE V16 exp(V16 x) {
  const V16 clamped = min(max(x, set1(-87.3F)), set1(88.3F));
  const V16 n = round_to_int(mul(clamped, set1(1.44269504088896341F)));
  // ln 2 in two parts, so that n * ln 2 loses nothing.
  V16 r = fma(n, set1(-0.693359375F), clamped);
  r = fma(n, set1(2.12194440e-4F), r);
  V16 p = set1(1.9875691500e-4F);
  p = fma(p, r, set1(1.3981999507e-3F));
  p = fma(p, r, set1(8.3334519073e-3F));
  p = fma(p, r, set1(4.1665795894e-2F));
  p = fma(p, r, set1(1.6666665459e-1F));
  p = fma(p, r, set1(5.0000001201e-1F));
  const V16 y = add(fma(mul(r, r), p, r), set1(1.0F));
  return select_ge(x, set1(-87.3F), times_power_of_two(y, n), zero());
}

// cap * tanh(x / cap), to 4e-7 of it: a quotient of polynomials that meets tanh up to 8.66, from where on it is 1.
// inverse: 1 / cap. The bounds come first: what is NaN stays so.
LARDER_INLINE V16 soft_capped(V16 x, V16 cap, V16 inverse) {
  const V16 largest = set1(8.6643333F);
  const V16 u = max(sub(zero(), largest), min(largest, mul(x, inverse)));
  const V16 square = mul(u, u);
  V16 p = set1(1.394553628e-8F);
  p = fma(p, square, set1(2.102733560e-5F));
  p = fma(p, square, set1(3.520756727e-3F));
  p = fma(p, square, set1(1.340216100e-1F));
  p = fma(p, square, set1(1.0F));
  V16 q = set1(8.015776984e-7F);
  q = fma(q, square, set1(3.326951409e-4F));
  q = fma(q, square, set1(2.597254514e-2F));
  q = fma(q, square, set1(4.673548340e-1F));
  q = fma(q, square, set1(1.0F));
  return mul(div(mul(u, p), q), cap);
}

// 2^x for x up to 0, to 1.6e-7 of it: exactly 1 at 0; as 2^-125 below that.
LARDER_INLINE V16 exp2_to_one(V16 x) {
  const V16 clamped = max(x, set1(-125.0F));
  const V16 n = round_to_int(clamped);
  const V16 r = sub(clamped, n);
  V16 p = set1(1.326472731307149e-3F);
  p = fma(p, r, set1(9.671512991189957e-3F));
  p = fma(p, r, set1(5.550733581185341e-2F));
  p = fma(p, r, set1(2.4022242426872253e-1F));
  p = fma(p, r, set1(6.931470036506653e-1F));
  p = fma(p, r, set1(1.0F));
  return times_power_of_two(p, n);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
