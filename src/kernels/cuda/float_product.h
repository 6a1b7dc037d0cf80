// What products with FP32 activations have in common, and weights of 16 bits in tensor cores.
#pragma once

#include "kernels/cuda/product.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/tensor_core.h"

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
  // Where a panel begins. As with rows, those past the end are the last.
  LARDER_MEMBER const Words4* panel(int index) const {
    return reinterpret_cast<const Words4*>(w.data +
                                           min_of(index, panel_end - 1) * w.panel_stride_bytes);
  }
};

// How weights of 16 bits lie in a panel, and the BF16 numbers whose sum each is: kParts. A piece is 16 bytes.
// 16 columns are 32 pieces; those of the same outputs come again after kRowPieces.
struct Bf16Weights {
  static constexpr int kParts = 1;
  static constexpr int kRowPieces = 4;  // two columns of an output side by side, of 16 outputs

  static LARDER_HOST_AND_DEVICE int num_pieces(int num_cols) { return (num_cols + 1) / 2 * kRowPieces; }
};
struct HalfWeights {
  static constexpr int kParts = 2;
  static constexpr int kRowPieces = 2;  // one column of 16 outputs

  static LARDER_HOST_AND_DEVICE int num_pieces(int num_cols) { return num_cols * kRowPieces; }
};
// Past the last column, the last one: no activation meets it but zeros.
template <class Weights>
LARDER_DEVICE int piece_within(int piece, int num_pieces) {
  return min_of(piece, num_pieces - Weights::kRowPieces + piece % Weights::kRowPieces);
}
// Two columns of FP16 weights, of two neighbouring outputs each, as those of one output: BF16 parts.
LARDER_DEVICE void half_parts(std::uint32_t first, std::uint32_t second, int output,
                              std::uint32_t (&parts)[HalfWeights::kParts]) {
  const std::uint32_t two = pick_bytes(first, second, output == 0 ? 0x5410U : 0x7632U);
  bf16_parts(half_value(static_cast<std::uint16_t>(two)), half_value(static_cast<std::uint16_t>(two >> 16)), parts);
}
// function.template operator()<Weights>()
template <class Function>
void with_weights_of_16_bits(PackedFormat format, const Function& function) {
  if (format == PackedFormat::kBF16)
    function.template operator()<Bf16Weights>();
  else
    function.template operator()<HalfWeights>();
}

inline FloatProduct float_product(const MatmulArgs& args, int panel_begin, int panel_end) {
  return {*args.w,     args.x,    args.ldx, outputs_of(args, panel_end),
          panel_begin, panel_end, are_aligned(args.x, args.ldx)};
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
