// Fast Walsh-Hadamard transforms, orthonormal: their own inverse. Additions in one order, then one
// product: the same bits on every instruction set.
#pragma once

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// The butterflies of sums over less than a vector.
LARDER_INLINE V16 hadamard_lanes(V16 v) {
  return butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(v))));
}

// size a power of two from 16 on.
inline void hadamard_vectors(float* x, int size) {
  const V16 scale = set1(1.0F / __builtin_sqrtf(static_cast<float>(size)));
  for (int i = 0; i < size; i += 16) store(x + i, hadamard_lanes(load(x + i)));
  for (int half = 16; half < size; half *= 2) {
    for (int begin = 0; begin < size; begin += 2 * half) {
      for (int i = begin; i < begin + half; i += 16) {
        const V16 a = load(x + i);
        const V16 b = load(x + i + half);
        store(x + i, add(a, b));
        store(x + i + half, sub(a, b));
      }
    }
  }
  for (int i = 0; i < size; i += 16) store(x + i, mul(load(x + i), scale));
}

// x[0, size), size a power of two.
inline void hadamard(float* x, int size) {
  if (size >= 16) return hadamard_vectors(x, size);
  for (int half = 1; half < size; half *= 2) {
    for (int begin = 0; begin < size; begin += 2 * half) {
      float* low = x + begin;
      float* high = low + half;
      for (int i = 0; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  }
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(size));
  for (int i = 0; i < size; ++i) x[i] *= scale;
}

// In blocks of the largest powers of two that fit: 40 = 32 + 8.
inline void hadamard_blocks(float* x, int size) {
  while (size > 0) {
    int block = 1;
    while (2 * block <= size) block *= 2;
    hadamard(x, block);
    x += block;
    size -= block;
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
