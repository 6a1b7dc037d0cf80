// What kernels that read rows of floats have in common.
#pragma once

#include "kernels/cuda/platform.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// Rows of which four columns can be loaded at once.
inline bool are_aligned(const float* rows, std::int64_t stride) {
  return stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(rows) % 16 == 0;
}

// Four values of a row, of which `cols` are there; the others are `past`.
LARDER_DEVICE Floats4 load_x(const float* x, int cols, bool aligned, float past = 0) {
  if (aligned && cols >= 4) return *reinterpret_cast<const Floats4*>(x);
  Floats4 values;
  LARDER_UNROLL
  for (int i = 0; i < 4; ++i) values.value[i] = i < cols ? x[i] : past;
  return values;
}

// Adds the squares of four values to a sum, in order.
LARDER_DEVICE float add_squares(const Floats4& x, float sum) {
  LARDER_UNROLL
  for (const float value : x.value) sum = fmaf(value, value, sum);
  return sum;
}

// What a row is multiplied with to have a root mean square of 1.
LARDER_DEVICE float norm_scale(float sum_of_squares, int num_cols, float epsilon) {
  return 1.0F / sqrtf(sum_of_squares / static_cast<float>(num_cols) + epsilon);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
