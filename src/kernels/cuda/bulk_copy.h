// Copies to shared memory that a thread starts and others wait for (Hopper's bulk copies), and what they wait
// at: arrivals that are counted (an mbarrier), and a barrier of some threads of a block.
#pragma once

#include "kernels/cuda/platform.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// In shared memory. Its phases follow each other: one ends when as many threads have arrived as were said
// at the start, and the bytes that they told of have come.
struct alignas(8) Arrivals {
  std::uint64_t state;
};

#if defined(__CUDACC__)

LARDER_DEVICE std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// By one thread, before the block's first barrier.
LARDER_DEVICE void begin_arrivals(Arrivals* arrivals, int num_threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(shared_address(arrivals)), "r"(num_threads)
               : "memory");
}
// Copies see them from then on; by the same thread.
LARDER_DEVICE void show_arrivals() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
LARDER_DEVICE void arrive(Arrivals* arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(arrivals)) : "memory");
}
// And tells of the bytes that the thread is about to copy in this phase.
LARDER_DEVICE void arrive_before_copy(Arrivals* arrivals, int num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(arrivals)), "r"(num_bytes)
               : "memory");
}
// Until the phase of this parity, 0 for the first, has ended; 1 at once in the first.
LARDER_DEVICE void wait_for_arrivals(Arrivals* arrivals, int parity) {
  std::uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(ended)
        : "r"(shared_address(arrivals)), "r"(parity)
        : "memory");
  }
}
// Multiples of 16 bytes, from and to multiples of 16.
LARDER_DEVICE void copy_in_bulk(void* shared, const void* global, int num_bytes, Arrivals* arrivals) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared_address(shared)), "l"(global), "r"(num_bytes), "r"(shared_address(arrivals))
      : "memory");
}
// As sync_warp(), before one lane arrives for all. That the mask is no constant makes it an instruction, without
// which racecheck does not know what the others' reads come before.
LARDER_DEVICE void sync_before_arrival() {
  std::uint32_t all_lanes = 0xFFFFFFFFU;
  asm volatile("" : "+r"(all_lanes));
  asm volatile("bar.warp.sync %0;" : : "r"(all_lanes) : "memory");
}
// As sync_block(), of the block's first threads: whole warps.
template <int kNumThreads>
LARDER_DEVICE void sync_first_threads() {
  asm volatile("bar.sync 1, %0;" : : "n"(kNumThreads) : "memory");
}
// As sync_block(), of each kNumThreads neighbours by themselves: whole warps.
template <int kNumThreads>
LARDER_DEVICE void sync_neighbours() {
  asm volatile("bar.sync %0, %1;" : : "r"(1 + thread_index() / kNumThreads), "n"(kNumThreads) : "memory");
}

#else

LARDER_DEVICE void begin_arrivals(Arrivals* arrivals, int num_threads) {
  emulator::begin_arrivals(&arrivals->state, num_threads);
}
LARDER_DEVICE void show_arrivals() {}
LARDER_DEVICE void arrive(Arrivals* arrivals) { emulator::arrive(&arrivals->state); }
LARDER_DEVICE void arrive_before_copy(Arrivals* arrivals, int) { emulator::arrive(&arrivals->state); }
LARDER_DEVICE void wait_for_arrivals(Arrivals* arrivals, int parity) {
  emulator::wait_for_arrivals(&arrivals->state, parity);
}
LARDER_DEVICE void copy_in_bulk(void* shared, const void* global, int num_bytes, Arrivals* arrivals) {
  emulator::copy_in_bulk(shared, global, static_cast<std::size_t>(num_bytes), &arrivals->state);
}
LARDER_DEVICE void sync_before_arrival() { sync_warp(); }
template <int kNumThreads>
LARDER_DEVICE void sync_first_threads() {
  emulator::wait_for_neighbours(0, kNumThreads);
}
template <int kNumThreads>
LARDER_DEVICE void sync_neighbours() {
  emulator::wait_for_neighbours(thread_index() / kNumThreads, kNumThreads);
}

#endif

// By all lanes of a warp, when each is done.
LARDER_DEVICE void arrive_as_warp(Arrivals* arrivals) {
  sync_before_arrival();
  if (thread_index() % 32 == 0) arrive(arrivals);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
