// Parts of activations in 8 bits, and a second term of theirs.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace larder {

// The rows from first on.
inline QuantizedRows rows_from(const QuantizedRows& rows, std::int64_t first) {
  const std::int64_t values = first * rows.num_cols;
  return {.q = rows.q + values,
          .scale = rows.scale + values / kActivationGroup,
          .sum = rows.sum + values / 16,
          .num_cols = rows.num_cols};
}

// What 8 bits leave over of rows [row_begin, row_end) of x [num_rows, codes.num_cols], as codes num_rows rows behind
// theirs: a matrix that takes both has its input in 16 bits. codes holds x already; rests: as x.
inline void quantize_rests(const KernelTable& kernels, const float* x, const QuantizedRows& codes, int num_rows,
                           float* rests, int row_begin, int row_end) {
  kernels.quantization_rests(x, codes, rests, row_begin, row_end);
  kernels.quantize_rows(rests, codes.num_cols, rows_from(codes, num_rows), row_begin, row_end);
}

}  // namespace larder
