// What every product with 8-bit activations shares: the rows, and the one order of its FP32 sums.
#pragma once

#include "kernels/cpu/panel.h"

namespace larder::LARDER_ISA_NAMESPACE {

// Activations of a tile's rows.
struct Activations {
  const int8_t* q;
  const float* scale;
  const int32_t* sum;
  int num_cols;
};

LARDER_INLINE Activations rows_from(const QuantizedRows& x, int row) {
  const int64_t groups = x.num_cols / kActivationGroup;
  return {x.q + int64_t{row} * x.num_cols, x.scale + row * groups, x.sum + 2 * row * groups,
          x.num_cols};
}

// Sum of q over the g-th group of kGroup columns of row r, and its scale.
template <int kGroup>
LARDER_INLINE int32_t q_sum(const Activations& x, int r, int g) {
  const int32_t* sums = x.sum + int64_t{r} * (x.num_cols / 16) + g * (kGroup / 16);
  return kGroup == 32 ? sums[0] + sums[1] : sums[0];
}
template <int kGroup>
LARDER_INLINE float q_scale(const Activations& x, int r, int g) {
  return x.scale[int64_t{r} * (x.num_cols / kActivationGroup) + g * kGroup / kActivationGroup];
}

// A group's part of row r: total = fma(float(integers), weight scale * activation scale, total),
// then total = fma(minimum, activation scale * float(sum of q), total).
template <class Format>
LARDER_INLINE V16 add_group(V16 total, I16 integers, V16 scale, V16 minimum, const Activations& x,
                            int r, int g) {
  const float a_scale = q_scale<Format::kGroup>(x, r, g);
  total = fma(to_float(integers), mul(scale, set1(a_scale)), total);
  if constexpr (Format::kHasMin) {
    const auto group_sum = static_cast<float>(q_sum<Format::kGroup>(x, r, g));
    total = fma(minimum, set1(a_scale * group_sum), total);
  }
  return total;
}

}  // namespace larder::LARDER_ISA_NAMESPACE
