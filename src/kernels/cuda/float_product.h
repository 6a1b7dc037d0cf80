// What products with FP32 activations have in common.
#pragma once

#include "kernels/cuda/product.h"

namespace larder::LARDER_CUDA_NAMESPACE {

struct FloatProduct {
  PackedMatrix w;
  const float* x;
  std::int64_t ldx;
  Outputs outputs;
  int panel_begin;
  int panel_end;
  bool aligned;  // rows of x begin at 16 bytes

  // Those past the end are the last: what comes of them is put nowhere.
  LARDER_MEMBER const float* row(int r) const {
    return x + min_of(r, outputs.num_rows - 1) * ldx;
  }
};

inline FloatProduct float_product(const MatmulArgs& args, int panel_begin, int panel_end) {
  const bool aligned = args.ldx % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0;
  return {*args.w,     args.x,    args.ldx, outputs_of(args, panel_end),
          panel_begin, panel_end, aligned};
}

// Four values of a row, of which `cols` are there; the others are 0.
LARDER_DEVICE Floats4 load_x(const float* x, int cols, bool aligned) {
  if (aligned && cols >= 4) return *reinterpret_cast<const Floats4*>(x);
  Floats4 values;
  LARDER_UNROLL
  for (int i = 0; i < 4; ++i) values.value[i] = i < cols ? x[i] : 0.0F;
  return values;
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
