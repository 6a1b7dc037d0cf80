// What products with FP32 activations have in common.
#pragma once

#include "kernels/cuda/product.h"
#include "kernels/cuda/rows.h"

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
  // Of BF16 weights: pairs of columns, and where a panel's begin. As with rows, those past the end are the last.
  LARDER_MEMBER int num_pairs() const { return (w.num_cols + 1) / 2; }
  LARDER_MEMBER const Words4* panel(int index) const {
    return reinterpret_cast<const Words4*>(w.data +
                                           min_of(index, panel_end - 1) * w.panel_stride_bytes);
  }
};

inline FloatProduct float_product(const MatmulArgs& args, int panel_begin, int panel_end) {
  return {*args.w,     args.x,    args.ldx, outputs_of(args, panel_end),
          panel_begin, panel_end, are_aligned(args.x, args.ldx)};
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
