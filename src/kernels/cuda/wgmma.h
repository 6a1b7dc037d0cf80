// Products by four warps together (a warpgroup of 128 threads), in tensor cores: the left operand lies in
// registers, the right one in shared memory. They run in the background. Hopper's alone (sm_90a); their sums
// are those of mma_bf16(), bit for bit.
#pragma once

#include "kernels/cuda/tensor_core.h"

namespace larder::LARDER_CUDA_NAMESPACE {

inline constexpr int kWarpgroupThreads = 128;

// How a right operand lies: rows of 64 numbers of 16 bits, 128 bytes each, the first at a multiple of 1024;
// piece i of 16 bytes at this place, so that eight rows' lie in different banks.
inline constexpr int kOperandRowBytes = 128;
inline constexpr int kOperandAlignment = 1024;
LARDER_DEVICE int operand_piece(int row, int i) { return row * 8 + (i ^ row % 8); }

#if defined(__CUDACC__)

// Nothing in the form for later devices, which is never started; see has_wgmma().
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LARDER_HOPPER(...) __VA_ARGS__
#else
#define LARDER_HOPPER(...) static_cast<void>(0)
#endif

// Registers of a thread, from a kernel's whole warpgroups to others: a multiple of 8, at most 256.
template <int kCount>
LARDER_DEVICE void give_registers() {
  LARDER_HOPPER(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kCount)));
}
template <int kCount>
LARDER_DEVICE void take_registers() {
  LARDER_HOPPER(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kCount)));
}

// Before the first of a series, and where its registers were written since.
LARDER_DEVICE void begin_wgmma() { LARDER_HOPPER(asm volatile("wgmma.fence.sync.aligned;" ::: "memory")); }
LARDER_DEVICE void end_wgmma() {
  LARDER_HOPPER(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"));
}
// Until all series but the last kLeft have ended.
template <int kLeft>
LARDER_DEVICE void wait_for_wgmma() {
  LARDER_HOPPER(asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kLeft) : "memory"));
}
// Tensor cores see what the thread has written to shared memory.
LARDER_DEVICE void show_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The columns of rows from a multiple of eight on, from a multiple of 16 numbers on.
LARDER_DEVICE std::uint64_t operand_at(const unsigned char* rows, int number) {
  constexpr std::uint64_t kEightRows = 8 * kOperandRowBytes / 16;
  constexpr std::uint64_t kSwizzle128 = 1;
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(rows)) + number * 2;
  return (at & 0x3FFFFU) / 16 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

// The sums' places among the operands of the assembly below, and the sums themselves.
#define LARDER_PLACES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LARDER_PLACES_16 LARDER_PLACES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LARDER_PLACES_32                                                                            \
  LARDER_PLACES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LARDER_PLACES_64                                                                            \
  LARDER_PLACES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
                   ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LARDER_EIGHT(i)                                                                             \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]),        \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define LARDER_SUMS_8 LARDER_EIGHT(0)
#define LARDER_SUMS_16 LARDER_SUMS_8, LARDER_EIGHT(8)
#define LARDER_SUMS_32 LARDER_SUMS_16, LARDER_EIGHT(16), LARDER_EIGHT(24)
#define LARDER_SUMS_64                                                                              \
  LARDER_SUMS_32, LARDER_EIGHT(32), LARDER_EIGHT(40), LARDER_EIGHT(48), LARDER_EIGHT(56)

// sums [64, rows] (+)= a [64, 16] b [16, rows]; keeps: 0, they begin from nothing. A warp's 16 rows of a and the
// sums lie as mma_bf16()'s, those of b's rows 8 j to 8 j + 7 in sums[4 j] to sums[4 j + 3]. Behind the sums'
// places come those of a, b and keeps.
#define LARDER_WGMMA(rows, num_sums, a0, a1, a2, a3, b_place, keeps_place)                          \
  LARDER_DEVICE void wgmma_bf16(float (&sums)[num_sums], const std::uint32_t (&a)[4],               \
                                std::uint64_t b, int keeps) {                                       \
    LARDER_HOPPER(asm volatile(                                                                     \
        "{.reg .pred keeps; setp.ne.b32 keeps, %" #keeps_place ", 0;"                               \
        "wgmma.mma_async.sync.aligned.m64n" #rows "k16.f32.bf16.bf16 "                              \
        "{" LARDER_PLACES_##num_sums "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_place      \
        ", keeps, 1, 1, 0;}"                                                                        \
        : LARDER_SUMS_##num_sums                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keeps)                            \
        : "memory"));                                                                               \
  }
LARDER_WGMMA(16, 8, 8, 9, 10, 11, 12, 13)
LARDER_WGMMA(32, 16, 16, 17, 18, 19, 20, 21)
LARDER_WGMMA(64, 32, 32, 33, 34, 35, 36, 37)
LARDER_WGMMA(128, 64, 64, 65, 66, 67, 68, 69)

#undef LARDER_WGMMA
#undef LARDER_SUMS_64
#undef LARDER_SUMS_32
#undef LARDER_SUMS_16
#undef LARDER_SUMS_8
#undef LARDER_EIGHT
#undef LARDER_PLACES_64
#undef LARDER_PLACES_32
#undef LARDER_PLACES_16
#undef LARDER_PLACES_8
#undef LARDER_HOPPER

#else

template <int kCount>
LARDER_DEVICE void give_registers() {}
template <int kCount>
LARDER_DEVICE void take_registers() {}
LARDER_DEVICE void begin_wgmma() {}
LARDER_DEVICE void end_wgmma() {}
template <int kLeft>
LARDER_DEVICE void wait_for_wgmma() {}
LARDER_DEVICE void show_to_wgmma() {}

struct Operand {
  const unsigned char* rows;
  int number;
};
LARDER_DEVICE Operand operand_at(const unsigned char* rows, int number) { return {rows, number}; }

template <int kSums>
LARDER_DEVICE void wgmma_bf16(float (&sums)[kSums], const std::uint32_t (&a)[4], const Operand& b,
                              int keeps) {
  const MmaLane lane = mma_lane();
  for (int j = 0; j < kSums / 4; ++j) {
    const int row = 8 * j + lane.group;
    const auto word = [&](int number) {
      const int piece = operand_piece(row, (b.number + number) / 8);
      return *reinterpret_cast<const std::uint32_t*>(b.rows + piece * 16 + number % 8 * 2);
    };
    float upper[2] = {}, lower[2] = {};
    for (int i = 0; keeps != 0 && i < 2; ++i) {
      upper[i] = sums[4 * j + i];
      lower[i] = sums[4 * j + 2 + i];
    }
    mma_bf16(upper, lower, a, word(2 * lane.member), word(8 + 2 * lane.member));
    for (int i = 0; i < 2; ++i) {
      sums[4 * j + i] = upper[i];
      sums[4 * j + 2 + i] = lower[i];
    }
  }
}

#endif

}  // namespace larder::LARDER_CUDA_NAMESPACE
