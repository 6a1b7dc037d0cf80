// What differs between the kernels compiled by nvcc for a GPU and compiled by the host's compiler
// for the tests (emulation.h): everything else under cuda/ is the same text.
//
// Sums: nvcc is told not to contract a * b + c (-fmad=false), and fmaf() stands where one rounding
// is wanted, so that two kernels that compute a row give it the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/kernels.h"

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define LARDER_CUDA_NAMESPACE cuda
#define LARDER_KERNEL __global__ void
#define LARDER_KERNEL_OF(num_threads) __global__ void __launch_bounds__(num_threads)
// With registers as for one block at a time: what give_registers() must know.
#define LARDER_KERNEL_OF_1(num_threads) __global__ void __launch_bounds__(num_threads, 1)
// Two blocks of these at a time on a multiprocessor: half of the registers are enough for one.
#define LARDER_KERNEL_OF_2(num_threads) __global__ void __launch_bounds__(num_threads, 2)
// For pairs of blocks (block_pair.h).
#define LARDER_KERNEL_OF_PAIRS(num_threads) __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(num_threads)
#define LARDER_DEVICE __device__ __forceinline__
#define LARDER_MEMBER __device__ __forceinline__
#define LARDER_HOST_AND_DEVICE __host__ __device__ __forceinline__
#define LARDER_SHARED __shared__
#define LARDER_SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
// An argument of a kernel that is read where it lies, whatever the index.
#define LARDER_PARAM const __grid_constant__
#define LARDER_UNROLL _Pragma("unroll")
#define LARDER_NO_UNROLL _Pragma("unroll 1")

namespace larder::cuda {

// CHECKs of the host's side: nvcc takes no header that includes fmt.
void require(bool condition, const char* what);
void require_launched(int error);
// Whether the device has the instructions of wgmma.h.
bool has_wgmma();
int num_multiprocessors();
// Starts a kernel behind what the thread has started before, at once or with others of a step
// (Device::begin_step()). args: num_args pointers to arguments of these sizes.
void start_kernel(const void* kernel, dim3 grid, int num_threads, int shared_bytes,
                  const void* const* args, const std::size_t* arg_sizes, int num_args);

// Once before a kernel is started with more than 48 KiB of shared memory.
template <class... Params>
void allow_shared(void (*kernel)(Params...), int shared_bytes) {
  require_launched(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        shared_bytes));
}

// The same arguments are the same bytes then.
template <class T>
void clear_padding(T& value) {
  if constexpr (std::is_class_v<T>) __builtin_clear_padding(&value);
}

// Starts a kernel with shared_bytes of shared memory, which LARDER_SHARED_BYTES names, behind what
// the thread has started before. It begins while the one before it ends (programmatic dependent
// launch): nothing that others write is touched before wait_for_kernels_before().
template <class... Params, class... Args>
void launch_with_shared(void (*kernel)(Params...), dim3 grid, int num_threads, int shared_bytes,
                        const Args&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  const auto start = [&](auto... params) {
    (clear_padding(params), ...);
    const void* const pointers[] = {&params...};
    const std::size_t sizes[] = {sizeof(params)...};
    start_kernel(reinterpret_cast<const void*>(kernel), grid, num_threads, shared_bytes, pointers,
                 sizes, static_cast<int>(sizeof...(params)));
  };
  start(Params(args)...);
}
// A LARDER_KERNEL_OF_PAIRS, whose grid has an even x.
template <class... Params, class... Args>
void launch_pairs(void (*kernel)(Params...), dim3 grid, int num_threads, int shared_bytes,
                  const Args&... args) {
  launch_with_shared(kernel, grid, num_threads, shared_bytes, args...);
}
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, int num_threads, const Args&... args) {
  launch_with_shared(kernel, grid, num_threads, 0, args...);
}

// Every thread of a kernel calls it before it reads or writes what another kernel may write or read.
// From here on the next kernel may begin.
LARDER_DEVICE void wait_for_kernels_before() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The first place in shared memory that is a multiple of alignment.
LARDER_DEVICE unsigned char* aligned_shared(unsigned char* bytes, int alignment) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(bytes));
  return bytes + (alignment - at % alignment) % alignment;
}

LARDER_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
LARDER_DEVICE int num_block_threads() { return static_cast<int>(blockDim.x); }
LARDER_DEVICE void sync_block() { __syncthreads(); }
LARDER_DEVICE void sync_warp() { __syncwarp(); }

template <class T>
LARDER_DEVICE T other_lane(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, mask);
}
template <int kWidth, class T, class Function>
LARDER_DEVICE T warp_reduce(T value, const Function& combine) {
  LARDER_UNROLL
  for (int mask = kWidth / 2; mask > 0; mask /= 2) value = combine(value, other_lane(value, mask));
  return value;
}

// Over the lanes of a warp up to this one; all of them call it.
template <class T>
LARDER_DEVICE T warp_prefix(T value) {
  LARDER_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const T before = __shfl_up_sync(0xFFFFFFFFU, value, distance);
    if (thread_index() % 32 >= distance) value += before;
  }
  return value;
}
// To an integer in shared memory, to which the block's other threads may add at the same time.
LARDER_DEVICE void add_in_block(std::uint32_t* to, std::uint32_t value) { atomicAdd(to, value); }
LARDER_DEVICE void add_in_block(std::uint64_t* to, std::uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
// The upper half of a product's 128 bits.
LARDER_DEVICE std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) { return __umul64hi(a, b); }

LARDER_DEVICE float as_float(std::uint32_t bits) { return __uint_as_float(bits); }
LARDER_DEVICE std::uint32_t as_bits(float value) { return __float_as_uint(value); }
LARDER_DEVICE float half_value(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
LARDER_DEVICE std::uint16_t half_bits(float value) {
  return __half_as_ushort(__float2half_rn(value));
}
// Two of them, the first in the lower bits.
LARDER_DEVICE std::uint32_t half_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return std::uint32_t{__half_as_ushort(pair.x)} | std::uint32_t{__half_as_ushort(pair.y)} << 16;
}
LARDER_DEVICE std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return std::uint32_t{__bfloat16_as_ushort(pair.x)} |
         std::uint32_t{__bfloat16_as_ushort(pair.y)} << 16;
}
LARDER_DEVICE int nearest_int(float value) { return __float2int_rn(value); }
// To about 2 units of the last place; zero where the power is below all normal numbers.
LARDER_DEVICE float power_of_2(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}
// sum + a[0] b[0] + ... + a[3] b[3] of signed bytes
LARDER_DEVICE int dot4(int a, int b, int sum) { return __dp4a(a, b, sum); }
// Of the eight bytes of a and b, a's first, those at four places of 4 bits.
LARDER_DEVICE std::uint32_t pick_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t places) {
  return __byte_perm(a, b, places);
}

}  // namespace larder::cuda

#else
#include "kernels/cuda/emulation.h"
#endif

namespace larder::LARDER_CUDA_NAMESPACE {

// Over kWidth neighbouring lanes of a warp, all of which call it: by halves, the same in each lane.
template <int kWidth = 32, class T>
LARDER_DEVICE T warp_sum(T value) {
  return warp_reduce<kWidth>(value, [](T a, T b) { return a + b; });
}
template <int kWidth = 32>
LARDER_DEVICE float warp_max(float value) {
  return warp_reduce<kWidth>(value, [](float a, float b) { return a > b ? a : b; });
}

LARDER_DEVICE int min_of(int a, int b) { return a < b ? a : b; }
LARDER_DEVICE int max_of(int a, int b) { return a > b ? a : b; }

LARDER_DEVICE float bf16_value(std::uint16_t bits) { return as_float(std::uint32_t{bits} << 16); }
LARDER_DEVICE std::uint16_t bf16_bits(float value) {
  return static_cast<std::uint16_t>(bf16_pair(value, 0));
}

// cap * tanh(x / cap)
LARDER_DEVICE float soft_capped(float x, float cap) { return cap * tanhf(x / cap); }

// 16 bytes, loaded at once.
struct alignas(16) Words4 {
  int word[4];
};
struct alignas(16) Floats4 {
  float value[4];
};

// The thread's place among all threads of a grid of one dimension.
LARDER_DEVICE std::int64_t grid_index() {
  return std::int64_t{blockIdx.x} * num_block_threads() + thread_index();
}

// Blocks of num_threads for count threads.
inline dim3 blocks_for(std::int64_t count, int num_threads) {
  return dim3(static_cast<unsigned>((count + num_threads - 1) / num_threads));
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
