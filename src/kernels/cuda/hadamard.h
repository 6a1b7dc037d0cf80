// Fast Walsh-Hadamard transforms by the threads of a block: the bits of cpu/hadamard.h.
#pragma once

#include "kernels/cuda/bulk_copy.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// The block that a dimension is in: they are of the largest powers of two that fit, the binary digits
// of size.
LARDER_DEVICE int hadamard_block(int size, int i) {
  int begin = 0;
  int block = 1 << 30;
  for (;; block /= 2) {
    if ((size & block) == 0) continue;
    if (i < begin + block) return block;
    begin += block;
  }
}

// Rows of shared memory, x[row * stride + i] for i in [0, size). All threads of the block, or its first
// kFirstThreads, call it when the rows are written, and may read them when it returns.
template <int kFirstThreads = 0>
LARDER_DEVICE void hadamard_rows(float* x, int num_rows, int stride, int size) {
  const int num_threads = kFirstThreads > 0 ? kFirstThreads : num_block_threads();
  const auto sync = [] {
    if constexpr (kFirstThreads > 0)
      sync_first_threads<kFirstThreads>();
    else
      sync_block();
  };
  for (int distance = 1; 2 * distance <= size; distance *= 2) {
    sync();
    const int num_pairs = size / (2 * distance) * distance;  // of the blocks large enough
    for (int i = thread_index(); i < num_rows * num_pairs; i += num_threads) {
      const int pair = i % num_pairs;
      float* low = x + i / num_pairs * stride + pair / distance * 2 * distance +
                   pair % distance;
      const float a = low[0];
      const float b = low[distance];
      low[0] = a + b;
      low[distance] = a - b;
    }
  }
  sync();
  for (int i = thread_index(); i < num_rows * size; i += num_threads) {
    const int block = hadamard_block(size, i % size);
    x[i / size * stride + i % size] *= 1.0F / sqrtf(static_cast<float>(block));
  }
  sync();
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
