// Products of small matrices by a whole warp, in tensor cores, and the copies that feed them.
#pragma once

#include "kernels/cuda/platform.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// A lane's place in such a product: the operands lie in a warp's registers as PTX has it for
// mma.m16n8k32, groupID and threadID_in_group.
struct MmaLane {
  int group;   // 8 of
  int member;  // 4 lanes
};
LARDER_DEVICE MmaLane mma_lane() { return {thread_index() % 32 / 4, thread_index() % 4}; }

#if defined(__CUDACC__)

#define LARDER_MMA(shape_and_types, constraint, sum0, sum1, sum2, sum3)                            \
  asm volatile("mma.sync.aligned." shape_and_types                                                  \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
               : constraint(sum0), constraint(sum1), constraint(sum2), constraint(sum3)             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high))

// sums [16, 8] += a [16, 32] b [32, 8] of signed bytes. A lane has of a row `group` and row
// `group` + 8 of columns [4 member, + 4), then both of those 16 further; of b rows [4 member, + 4)
// and those 16 further of column `group`; of sums row `group`, then row `group` + 8, of columns
// 2 member and 2 member + 1. All lanes of the warp come.
LARDER_DEVICE void mma_int8(int (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b_low,
                            std::uint32_t b_high) {
  LARDER_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r", sums[0], sums[1], sums[2], sums[3]);
}

// The same where the bytes of a are unsigned.
LARDER_DEVICE void mma_unsigned(int (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b_low,
                                std::uint32_t b_high) {
  LARDER_MMA("m16n8k32.row.col.s32.u8.s8.s32", "+r", sums[0], sums[1], sums[2], sums[3]);
}

// The same of BF16: a [16, 16], b [16, 8], two numbers a register, columns and rows [2 member, + 2)
// and those 8 further. A lane's sums of row `group`, then of row `group` + 8.
LARDER_DEVICE void mma_bf16(float (&sums)[2], float (&lower_sums)[2], const std::uint32_t (&a)[4],
                            std::uint32_t b_low, std::uint32_t b_high) {
  LARDER_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f", sums[0], sums[1], lower_sums[0],
             lower_sums[1]);
}

// The same of FP16.
LARDER_DEVICE void mma_half(float (&sums)[2], float (&lower_sums)[2], const std::uint32_t (&a)[4],
                            std::uint32_t b_low, std::uint32_t b_high) {
  LARDER_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f", sums[0], sums[1], lower_sums[0],
             lower_sums[1]);
}

#undef LARDER_MMA

// 16 bytes to shared memory, while the thread goes on.
LARDER_DEVICE void copy_later(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(global)
               : "memory");
}
// Those that the thread has begun since the last call are a group.
LARDER_DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all of the thread's groups but the last kLeft have come. Other threads' need a barrier.
template <int kLeft>
LARDER_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

#else

// dot(a, b, sum): of four bytes each.
template <class Dot>
LARDER_DEVICE void mma_bytes(int (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b_low,
                             std::uint32_t b_high, const Dot& dot) {
  const auto* given = emulator::exchange({{a[0], a[1], a[2], a[3], b_low, b_high}});
  const MmaLane lane = mma_lane();
  for (int i = 0; i < 4; ++i) {
    const auto* row = given + lane.group * 4;
    const auto* column = given + (lane.member * 2 + i % 2) * 4;
    for (int part = 0; part < 4; ++part)
      for (int half = 0; half < 2; ++half)
        sums[i] = dot(static_cast<int>(row[part].word[i / 2 + 2 * half]),
                      static_cast<int>(column[part].word[4 + half]), sums[i]);
  }
}
LARDER_DEVICE void mma_int8(int (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b_low,
                            std::uint32_t b_high) {
  mma_bytes(sums, a, b_low, b_high, dot4);
}
LARDER_DEVICE void mma_unsigned(int (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b_low,
                                std::uint32_t b_high) {
  mma_bytes(sums, a, b_low, b_high, [](int four, int codes, int sum) {
    for (int shift = 0; shift < 32; shift += 8)
      sum += static_cast<std::uint8_t>(four >> shift) * static_cast<std::int8_t>(codes >> shift);
    return sum;
  });
}

// Sums of 16 columns that are rounded once; value: of 16 bits. A lane gives its numbers as FP32.
template <class Value>
LARDER_DEVICE void mma_16_bits(float (&sums)[2], float (&lower_sums)[2],
                               const std::uint32_t (&a)[4], std::uint32_t b_low,
                               std::uint32_t b_high, const Value& value) {
  const std::uint32_t words[] = {a[0], a[1], a[2], a[3], b_low, b_high};
  emulator::Fragment own;
  for (int i = 0; i < 12; ++i)
    own.word[i] = as_bits(value(static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16)));
  const auto* given = emulator::exchange(own);
  const MmaLane lane = mma_lane();
  for (int i = 0; i < 4; ++i) {
    const auto* row = given + lane.group * 4;
    const auto* column = given + (lane.member * 2 + i % 2) * 4;
    float& to = i < 2 ? sums[i] : lower_sums[i - 2];
    double sum = to;
    for (int part = 0; part < 4; ++part)
      for (int k = 0; k < 4; ++k)
        sum += double{as_float(row[part].word[i / 2 * 2 + k / 2 * 4 + k % 2])} *
               double{as_float(column[part].word[8 + k])};
    to = static_cast<float>(sum);
  }
}
LARDER_DEVICE void mma_bf16(float (&sums)[2], float (&lower_sums)[2], const std::uint32_t (&a)[4],
                            std::uint32_t b_low, std::uint32_t b_high) {
  mma_16_bits(sums, lower_sums, a, b_low, b_high, bf16_value);
}
LARDER_DEVICE void mma_half(float (&sums)[2], float (&lower_sums)[2], const std::uint32_t (&a)[4],
                            std::uint32_t b_low, std::uint32_t b_high) {
  mma_16_bits(sums, lower_sums, a, b_low, b_high, half_value);
}

LARDER_DEVICE void copy_later(void* shared, const void* global) {
  emulator::copy_later(shared, global, 16);
}
LARDER_DEVICE void end_copies() { emulator::end_copies(); }
template <int kLeft>
LARDER_DEVICE void wait_for_copies() {
  emulator::wait_for_copies(kLeft);
}

#endif

// Two numbers, each as the sum of kParts BF16 numbers: of three exactly, of one rounded.
template <int kParts>
LARDER_DEVICE void bf16_parts(float a, float b, std::uint32_t (&parts)[kParts]) {
  LARDER_UNROLL
  for (std::uint32_t& part : parts) {
    part = bf16_pair(a, b);
    a -= as_float(part << 16);
    b -= as_float(part & 0xFFFF0000U);
  }
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
