// A GPU played by the host, for the tests: kernels compiled as plain C++. Blocks, or pairs of them, run one
// after the other; their threads are fibers that take turns at barriers and warp exchanges, in every
// other block the last one first. It finds errors of arithmetic, of indices and of barriers, also most
// missing ones, not races between blocks, and says nothing about speed.
//
// Thread: one at a time.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>

#include "kernels/cuda/limits.h"
#include "kernels/ggml_types.h"

#define LARDER_CUDA_NAMESPACE cuda_emulated
#define LARDER_KERNEL static void
#define LARDER_KERNEL_OF(num_threads) static void
#define LARDER_KERNEL_OF_1(num_threads) static void
#define LARDER_KERNEL_OF_2(num_threads) static void
#define LARDER_KERNEL_OF_PAIRS(num_threads) static void
#define LARDER_DEVICE static inline
#define LARDER_MEMBER inline
#define LARDER_HOST_AND_DEVICE inline
#define LARDER_SHARED static
// Of each block of a pair.
#define LARDER_SHARED_BYTES(name)                                               \
  alignas(16) static unsigned char name##_of_pair[2 * kCudaMostSharedBytes];    \
  unsigned char* const name = emulator::shared_of_block(name##_of_pair)
#define LARDER_PARAM const
#define LARDER_UNROLL
#define LARDER_NO_UNROLL

namespace larder::cuda_emulated {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace emulator {

inline constexpr int kWarp = 32;

// Runs body in num_threads fibers of num_blocks blocks, neighbours in x, to their ends. All of them must wait for
// the kernels before.
void run_blocks(int num_blocks, int num_threads, void (*body)(void* context), void* context);
// Of the running fiber: its place in its block, and that of the block among those that run.
int current_thread();
int current_rank();
int current_num_threads();
void note_wait_for_kernels();
// Returns when every fiber of the block that has not ended has come.
void wait_for_block();
// When the block's threads index * num_threads to (index + 1) * num_threads - 1 have.
void wait_for_neighbours(int index, int num_threads);
// When every fiber of two blocks has.
void wait_for_pair();
// Of each block of what comes next; a block that writes behind them is an error.
void give_shared(int shared_bytes);
// Of the running block, of a pair's. Nothing is in it when the block begins.
unsigned char* shared_of_block(unsigned char* of_pair);
// The same place of the other block's LARDER_SHARED_BYTES.
unsigned char* in_other_block(unsigned char* shared);
// Gives value to the warp; returns all that its lanes gave, valid until the call after next.
const std::uint32_t* exchange(std::uint32_t value);
// The same of what a lane brings to a product of matrices.
struct Fragment {
  std::uint32_t word[12];
};
const Fragment* exchange(const Fragment& fragment);

// Copies of the running fiber; none is made before a wait needs it, so that who reads without one
// finds what was there before.
void copy_later(void* to, const void* from, std::size_t size_bytes);
void end_copies();
void wait_for_copies(int num_left);

// bulk_copy.h; no copy is made before somebody waits for its arrivals.
void begin_arrivals(std::uint64_t* state, int num_threads);
void arrive(std::uint64_t* state);
void wait_for_arrivals(const std::uint64_t* state, int parity);
void copy_in_bulk(void* to, const void* from, std::size_t size_bytes, const std::uint64_t* arrivals);

}  // namespace emulator

extern dim3 blockIdx;

void require(bool condition, const char* what);

template <class... Params, class... Args>
void launch_blocks(unsigned num_blocks, void (*kernel)(Params...), dim3 grid, int num_threads, const Args&... args) {
  require(grid.x % num_blocks == 0, "whole pairs");
  require(grid.y <= kCudaMaxGrid && grid.z <= kCudaMaxGrid, "a grid that a GPU takes");
  auto call = [&] { kernel(args...); };
  const auto body = [](void* context) { (*static_cast<decltype(call)*>(context))(); };
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x += num_blocks)
        emulator::run_blocks(static_cast<int>(num_blocks), num_threads, body, &call);
}
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int num_threads, const Args&... args) {
  launch_blocks(1, kernel, grid, num_threads, args...);
}

// Of a kernel, beyond what every one may have.
template <class... Params>
int& allowed_shared(void (*kernel)(Params...)) {
  constexpr int kAllowedAnyway = 48 << 10;
  static std::map<void (*)(Params...), int> allowed;
  return allowed.try_emplace(kernel, kAllowedAnyway).first->second;
}
template <class... Params>
void allow_shared(void (*kernel)(Params...), int shared_bytes) {
  require(shared_bytes <= kCudaMostSharedBytes, "as much shared memory as a GPU has");
  allowed_shared(kernel) = shared_bytes;
}
template <class... Params, class... Args>
void launch_with_shared(unsigned num_blocks, void (*kernel)(Params...), dim3 grid, int num_threads, int shared_bytes,
                        const Args&... args) {
  require(shared_bytes <= allowed_shared(kernel), "shared memory that was allowed");
  emulator::give_shared(shared_bytes);
  launch_blocks(num_blocks, kernel, grid, num_threads, args...);
  emulator::give_shared(0);
}
template <class... Params, class... Args>
void launch_with_shared(void (*kernel)(Params...), dim3 grid, int num_threads, int shared_bytes, const Args&... args) {
  launch_with_shared(1U, kernel, grid, num_threads, shared_bytes, args...);
}
template <class... Params, class... Args>
void launch_pairs(void (*kernel)(Params...), dim3 grid, int num_threads, int shared_bytes, const Args&... args) {
  launch_with_shared(2U, kernel, grid, num_threads, shared_bytes, args...);
}

LARDER_DEVICE int thread_index() { return emulator::current_thread(); }
LARDER_DEVICE int num_block_threads() { return emulator::current_num_threads(); }
LARDER_DEVICE void wait_for_kernels_before() { emulator::note_wait_for_kernels(); }
LARDER_DEVICE void sync_block() { emulator::wait_for_block(); }
LARDER_DEVICE unsigned char* aligned_shared(unsigned char* bytes, int alignment) {
  const auto at = static_cast<int>(reinterpret_cast<std::uintptr_t>(bytes) % static_cast<unsigned>(alignment));
  return bytes + (alignment - at) % alignment;
}
inline bool has_wgmma() { return true; }
inline int num_multiprocessors() { return 3; }
LARDER_DEVICE void sync_warp() { static_cast<void>(emulator::exchange(0)); }

// What every lane of the warp gave.
template <class T>
void exchange_all(const T& value, T (&lanes)[emulator::kWarp]) {
  constexpr std::size_t kWordBytes = sizeof(std::uint32_t);
  static_assert(sizeof(T) % kWordBytes == 0);
  for (std::size_t at = 0; at < sizeof(T); at += kWordBytes) {
    std::uint32_t word;
    std::memcpy(&word, reinterpret_cast<const std::byte*>(&value) + at, kWordBytes);
    const std::uint32_t* given = emulator::exchange(word);
    for (int i = 0; i < emulator::kWarp; ++i)
      std::memcpy(reinterpret_cast<std::byte*>(&lanes[i]) + at, &given[i], kWordBytes);
  }
}
template <int kWidth, class T, class Function>
T warp_reduce(T value, const Function& combine) {
  T lanes[emulator::kWarp], folded[emulator::kWarp];
  exchange_all(value, lanes);
  const int lane = emulator::current_thread() % emulator::kWarp;
  const int first = lane / kWidth * kWidth;
  for (int mask = kWidth / 2; mask > 0; mask /= 2) {
    for (int i = first; i < first + kWidth; ++i) folded[i] = combine(lanes[i], lanes[i ^ mask]);
    std::memcpy(lanes + first, folded + first, sizeof(T) * kWidth);
  }
  return lanes[lane];
}

template <class T>
T warp_prefix(T value) {
  T lanes[emulator::kWarp];
  exchange_all(value, lanes);
  for (int i = 0; i < emulator::current_thread() % emulator::kWarp; ++i) value += lanes[i];
  return value;
}
LARDER_DEVICE void add_in_block(std::uint32_t* to, std::uint32_t value) { *to += value; }
LARDER_DEVICE void add_in_block(std::uint64_t* to, std::uint64_t value) { *to += value; }
LARDER_DEVICE std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{a} * b >> 64);
}

LARDER_DEVICE float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
LARDER_DEVICE std::uint32_t as_bits(float value) { return std::bit_cast<std::uint32_t>(value); }
LARDER_DEVICE float half_value(std::uint16_t bits) { return half_to_float(bits); }
LARDER_DEVICE std::uint16_t half_bits(float value) { return float_to_half(value); }
LARDER_DEVICE std::uint32_t half_pair(float low, float high) {
  return std::uint32_t{float_to_half(low)} | std::uint32_t{float_to_half(high)} << 16;
}
LARDER_DEVICE std::uint32_t bf16_pair(float low, float high) {
  return std::uint32_t{float_to_bfloat16(low)} | std::uint32_t{float_to_bfloat16(high)} << 16;
}
LARDER_DEVICE int nearest_int(float value) { return static_cast<int>(std::lrintf(value)); }
LARDER_DEVICE float power_of_2(float exponent) { return exponent < -126 ? 0.0F : exp2f(exponent); }
LARDER_DEVICE int dot4(int a, int b, int sum) {
  for (int shift = 0; shift < 32; shift += 8)
    sum += static_cast<std::int8_t>(a >> shift) * static_cast<std::int8_t>(b >> shift);
  return sum;
}
LARDER_DEVICE std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t places) {
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  std::uint32_t picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= static_cast<std::uint32_t>(both >> (places >> 4 * i & 7) * 8 & 255) << 8 * i;
  return picked;
}

}  // namespace larder::cuda_emulated
