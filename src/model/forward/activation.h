// Which kernel an MLP's activation is.
#pragma once

#include "kernels/kernels.h"
#include "model/model_config.h"

namespace larder {

inline auto activation_kernel(const KernelTable& kernels, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      break;
    case Activation::kGeluTanh:
      return kernels.gelu_mul;
    case Activation::kClampedSwiglu:
      return kernels.clamped_swiglu;
  }
  return kernels.silu_mul;
}

}  // namespace larder
