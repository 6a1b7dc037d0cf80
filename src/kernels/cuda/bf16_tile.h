// What kernels have in common that multiply tiles of weights of 16 bits and rounded activations by warpgroups: how
// both come to shared memory, in steps of kStepCols columns, and how a warp loads its weights from there.
#pragma once

#include "kernels/cuda/float_product.h"
#include "kernels/cuda/warp_tile.h"
#include "kernels/cuda/wgmma.h"

namespace larder::LARDER_CUDA_NAMESPACE {

inline constexpr int kStepCols = 64;
inline constexpr int kStepSlabs = kStepCols / 16;
inline constexpr int kSegmentSteps = kSegmentCols / kStepCols;
inline constexpr int kPanelPieces = kStepCols / 2 * 4;  // of 16 bytes, of a step
static_assert(kSegmentSteps == 2);

// Activations as the kernels read them: [num_rows, stride] BF16, zeros behind the columns. Of each 16 columns
// the first two of every four come first: where an operand of mma_bf16() has them.
struct RoundedRows {
  std::uint16_t* values;
  std::int64_t stride;
};

struct RoundedProduct : FloatProduct {
  RoundedRows rounded;

  LARDER_MEMBER int num_steps() const { return static_cast<int>(rounded.stride / kStepCols); }
};

// Whose operands kThreads neighbouring threads copy: kPanels panels and kRows rows.
template <int kPanels_, int kRows_, int kThreads_>
struct StepShape {
  static constexpr int kPanels = kPanels_;
  static constexpr int kRows = kRows_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kRowBytes = kRows * kOperandRowBytes;
  static constexpr int kBytes = kRowBytes + kPanels * kPanelPieces * 16;
  static_assert(kBytes % kOperandAlignment == 0);
};

// A step's operands in shared memory: [rows] of activations and [panels][pieces] of weights.
template <class S>
struct Stage {
  unsigned char* bytes;

  LARDER_MEMBER unsigned char* rows() const { return bytes; }
  LARDER_MEMBER Words4* weights() const { return reinterpret_cast<Words4*>(bytes + S::kRowBytes); }
};

// What a thread copies of every step: a piece of some panels, and one of some rows.
template <class S, class Weights>
class Copies {
 public:
  LARDER_MEMBER Copies(const RoundedProduct& product, int first_panel, int first_row)
      : piece_(thread() % kPanelPieces), num_pieces_(Weights::num_pieces(product.w.num_cols)) {
    LARDER_UNROLL
    for (int i = 0; i < kPanels; ++i)
      panels_[i] = product.panel(first_panel + i * kPanelStep + thread() / kPanelPieces) + piece_;
    LARDER_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int row = min_of(first_row + i * kRowStep + thread() / kRowPieces, product.outputs.num_rows - 1);
      rows_[i] = product.rounded.values + row * product.rounded.stride + thread() % kRowPieces * 8;
    }
  }
  LARDER_MEMBER void weights(int step, const Stage<S>& to) const {
    int piece = step * kPanelPieces;
    // Past the end, the last pair: no activation meets it but zeros.
    if (piece + kPanelPieces > num_pieces_)
      piece = piece_within<Weights>(piece + piece_, num_pieces_) - piece_;
    Words4* place = to.weights() + thread() / kPanelPieces * kPanelPieces + place_of_every_other(piece_);
    LARDER_UNROLL
    for (int i = 0; i < kPanels; ++i)
      copy_later(place + i * (kPanelStep * kPanelPieces), panels_[i] + piece);
  }
  LARDER_MEMBER void rows(int step, const Stage<S>& to) const {
    unsigned char* place = to.rows() + operand_piece(thread() / kRowPieces, thread() % kRowPieces) * 16;
    LARDER_UNROLL
    for (int i = 0; i < kRows; ++i)
      copy_later(place + i * (kRowStep * kOperandRowBytes), rows_[i] + step * kStepCols);
  }

 private:
  static constexpr int kRowPieces = kOperandRowBytes / 16;
  static constexpr int kPanelStep = S::kThreads / kPanelPieces;  // a thread's panels are so far apart
  static constexpr int kRowStep = S::kThreads / kRowPieces;
  static constexpr int kPanels = S::kPanels / kPanelStep;
  static constexpr int kRows = S::kRows / kRowStep;
  static_assert(kRowStep % 8 == 0 && kPanels * kPanelStep == S::kPanels && kRows * kRowStep == S::kRows);

  static LARDER_MEMBER int thread() { return thread_index() % S::kThreads; }

  int piece_;
  int num_pieces_;  // of a panel
  const Words4* panels_[kPanels];
  const std::uint16_t* rows_[kRows];
};

// A warp's left operands of a step: its panel's outputs 2 group and 2 group + 1, in parts.
template <class Weights>
using StepWeights = std::uint32_t[Weights::kParts][kStepSlabs][4];
LARDER_DEVICE void load_weights(const Words4* panel, MmaLane lane, StepWeights<Bf16Weights>& a) {
  LARDER_UNROLL
  for (int slab = 0; slab < kStepSlabs; ++slab)
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int piece = (slab * 8 + 2 * lane.member + i) * 4 + lane.group / 2;
      const auto* words = reinterpret_cast<const std::uint32_t*>(panel + place_of_every_other(piece));
      Several<std::uint32_t, 2> two;
      load_several(two, words, lane.group % 2 * 2);
      a[0][slab][2 * i] = two.value[0];
      a[0][slab][2 * i + 1] = two.value[1];
    }
}
LARDER_DEVICE void load_weights(const Words4* panel, MmaLane lane, StepWeights<HalfWeights>& a) {
  LARDER_UNROLL
  for (int slab = 0; slab < kStepSlabs; ++slab)
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto word = [&](int col) {
        const int piece = (slab * 16 + 4 * lane.member + 2 * i + col) * 2 + lane.group / 4;
        return reinterpret_cast<const std::uint32_t*>(panel + place_of_every_other(piece))[lane.group % 4];
      };
      const std::uint32_t first = word(0);
      const std::uint32_t second = word(1);
      LARDER_UNROLL
      for (int output = 0; output < 2; ++output) {
        std::uint32_t parts[HalfWeights::kParts];
        half_parts(first, second, output, parts);
        LARDER_UNROLL
        for (int part = 0; part < HalfWeights::kParts; ++part) a[part][slab][2 * i + output] = parts[part];
      }
    }
}
// sums = those of a step, or those before and it; rows(slab): the right operand.
template <int kParts, int kSums, class Rows>
LARDER_DEVICE void multiply_step(float (&sums)[kSums], const std::uint32_t (&a)[kParts][kStepSlabs][4], bool begins,
                                 const Rows& rows) {
  LARDER_UNROLL
  for (int slab = 0; slab < kStepSlabs; ++slab)
    LARDER_UNROLL
    for (int part = kParts - 1; part >= 0; --part)  // the small ones first
      wgmma_bf16(sums, a[part][slab], rows(slab), begins && slab == 0 && part == kParts - 1 ? 0 : 1);
}

// A warp's sums, from nothing, of panel `panel` and rows from `row` on.
template <int kSums>
LARDER_DEVICE void put_tile(const Outputs& outputs, int panel, int row, MmaLane lane, const float (&sums)[kSums]) {
  LARDER_UNROLL
  for (int j = 0; j < kSums / 4; ++j)
    LARDER_UNROLL
    for (int r = 0; r < 2; ++r)
      outputs.put_pair(row + j * 8 + lane.member * 2 + r, panel * kPanelRows + lane.group * 2, sums[4 * j + r],
                       sums[4 * j + 2 + r]);
}

// matmul_bf16_narrow.cu: up to 64 rows, of few blocks of 64 outputs.
void matmul_bf16_narrow(const ProductGroup<RoundedProduct>& group);

}  // namespace larder::LARDER_CUDA_NAMESPACE
