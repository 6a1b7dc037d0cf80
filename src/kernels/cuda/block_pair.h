// Pairs of blocks (Hopper's clusters of two): neighbours in x that run at the same time, on multiprocessors of
// their own, and reach each other's shared memory. Their kernels are LARDER_KERNEL_OF_PAIRS and are started by
// launch_pairs().
#pragma once

#include "kernels/cuda/bulk_copy.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// The block's place in its pair.
LARDER_DEVICE int pair_rank() { return static_cast<int>(blockIdx.x % 2); }

#if defined(__CUDACC__)

// As sync_block(), of both blocks. Before it, the other block may not have begun.
LARDER_DEVICE void sync_pair() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the other block's shared memory, which must not have ended.
template <class T>
LARDER_DEVICE T* in_other_block(T* shared) {
  std::uint64_t address = 0;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(shared), "r"(pair_rank() ^ 1));
  return reinterpret_cast<T*>(address);
}
// As arrive_as_warp(), at the other block's.
LARDER_DEVICE void arrive_as_warp_in_other_block(Arrivals* arrivals) {
  sync_before_arrival();
  if (thread_index() % 32 != 0) return;
  asm volatile(
      "{.reg .b32 other; mapa.shared::cluster.u32 other, %0, %1;"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [other];}"
      :
      : "r"(shared_address(arrivals)), "r"(pair_rank() ^ 1)
      : "memory");
}
// As wait_for_arrivals(), of the other block's threads.
LARDER_DEVICE void wait_for_other_block(Arrivals* arrivals, int parity) {
  std::uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
        : "=r"(ended)
        : "r"(shared_address(arrivals)), "r"(parity)
        : "memory");
  }
}

#else

LARDER_DEVICE void sync_pair() { emulator::wait_for_pair(); }
template <class T>
LARDER_DEVICE T* in_other_block(T* shared) {
  return reinterpret_cast<T*>(emulator::in_other_block(reinterpret_cast<unsigned char*>(shared)));
}
LARDER_DEVICE void arrive_as_warp_in_other_block(Arrivals* arrivals) {
  sync_before_arrival();
  if (thread_index() % 32 == 0) arrive(in_other_block(arrivals));
}
LARDER_DEVICE void wait_for_other_block(Arrivals* arrivals, int parity) {
  wait_for_arrivals(arrivals, parity);
}

#endif

}  // namespace larder::LARDER_CUDA_NAMESPACE
