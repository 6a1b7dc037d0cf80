// Products with FP32 activations, for weights in FP32 (those of 16 bits: matmul_bf16.cu) and for the
// reference path.
#include "kernels/cuda/float_product.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// Columns [8 part, 8 part + 8) of a unit, of one output; those past the end are 0.
template <class Format>
LARDER_DEVICE void load_values(const std::byte* panel, int unit, int part, int lane, int num_cols,
                               float* values) {
  if constexpr (requires { Format::kValue; }) {
    const int first = unit * kUnitCols + part * 8;
    LARDER_UNROLL
    for (int i = 0; i < 8; ++i)
      values[i] = first + i < num_cols ? Format::value(panel, first + i, lane) : 0.0F;
  } else {
    const int g = unit * (kUnitCols / Format::kGroup) + part / Format::kPairs;
    typename Format::template Scales<1> scales;
    scales.load(panel, g, lane);
    std::uint32_t quads[2];
    Format::load_pair(Format::codes(panel, g, lane), part % Format::kPairs, quads);
    LARDER_UNROLL
    for (int i = 0; i < 8; ++i)
      values[i] = Format::value(byte_of(quads[i / 4], i % 4), scales.scale(0), scales.minimum(0));
  }
}

// A slot's threads have kLoadOutputs outputs each.
template <class Format, int kRows>
using FewRowsOf = FewRows<kRows, 1, 32, kPanelRows / Format::kLoadOutputs>;

// sums[r][j] + the products of columns from col on; x: rows, which begin at 16 bytes.
template <int kRows, int kCols, int kOutputs>
LARDER_DEVICE void add_columns(const float* const (&x)[kRows], int col,
                               const float (&w)[kCols][kOutputs], float (&sums)[kRows][kOutputs]) {
  LARDER_UNROLL
  for (int r = 0; r < kRows; ++r) {
    LARDER_UNROLL
    for (int c = 0; c < kCols; c += 4) {
      const Floats4 values = *reinterpret_cast<const Floats4*>(x[r] + col + c);
      LARDER_UNROLL
      for (int i = 0; i < 4; ++i)
        LARDER_UNROLL
        for (int j = 0; j < kOutputs; ++j)
          sums[r][j] = fmaf(values.value[i], w[c + i][j], sums[r][j]);
    }
  }
}

template <class Format, int kRows>
LARDER_KERNEL_OF((FewRowsOf<Format, kRows>::kThreads)) few_rows_kernel(LARDER_PARAM ProductGroup<FloatProduct> group) {
  using Shape = FewRowsOf<Format, kRows>;
  wait_for_kernels_before();
  const FloatProduct& product = group.product();
  constexpr int kOutputs = Format::kLoadOutputs;
  constexpr int kCols = Format::kLoadCols;
  const int panel_index = group.first_panel(1);
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  if (first_row >= product.outputs.num_rows) return;
  const std::byte* panel = product.w.data + panel_index * product.w.panel_stride_bytes;
  const int num_cols = product.w.num_cols;
  const float* x[kRows];
  LARDER_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = product.row(first_row + r);
  const auto segment_sums = [&](int segment, int thread, float* partial) {
    const int lane = thread * kOutputs;
    const int end = min_of((segment + 1) * kSegmentCols, num_cols);
    int col = segment * kSegmentCols;
    float sums[kRows][kOutputs] = {};
    const auto is_whole = [&](int c) { return product.aligned && c + kCols <= end; };
    typename Format::Columns next;
    if (is_whole(col)) next.load(panel, col, lane);
    LARDER_NO_UNROLL
    for (; is_whole(col); col += kCols) {
      float w[kCols][kOutputs];
      next.unpack_to(w);
      // The next ones are on their way while these are multiplied.
      if (is_whole(col + kCols)) next.load(panel, col + kCols, lane);
      add_columns(x, col, w, sums);
    }
    LARDER_NO_UNROLL
    for (; col < end; ++col) {
      LARDER_UNROLL
      for (int j = 0; j < kOutputs; ++j) {
        const float w = weight_at<Format>(panel, col, lane + j);
        LARDER_UNROLL
        for (int r = 0; r < kRows; ++r) sums[r][j] = fmaf(x[r][col], w, sums[r][j]);
      }
    }
    LARDER_UNROLL
    for (int r = 0; r < kRows; ++r)
      LARDER_UNROLL
      for (int j = 0; j < kOutputs; ++j) partial[r * kPanelRows + lane + j] = sums[r][j];
  };
  few_rows<Shape>(product.outputs, (num_cols + kSegmentCols - 1) / kSegmentCols, first_row,
                  panel_index * kPanelRows, segment_sums);
}

inline constexpr int kTileThreads = 256;
inline constexpr int kThreadRows = 4;  // of a tile; and kTilePanels outputs

// A thread's sums in a tile: rows ty * kThreadRows + r, outputs p * kPanelRows + tx.
struct TileSums {
  float segment[kThreadRows][kTilePanels];
  float total[kThreadRows][kTilePanels];

  LARDER_MEMBER void clear() {
    LARDER_UNROLL
    for (int r = 0; r < kThreadRows; ++r)
      LARDER_UNROLL
      for (int p = 0; p < kTilePanels; ++p) segment[r][p] = total[r][p] = 0;
  }
  LARDER_MEMBER void end_segment() {
    LARDER_UNROLL
    for (int r = 0; r < kThreadRows; ++r)
      LARDER_UNROLL
      for (int p = 0; p < kTilePanels; ++p) {
        total[r][p] += segment[r][p];
        segment[r][p] = 0;
      }
  }
};

// The body of a kernel of many rows. add_unit(unit, sums) adds a unit's products to the segment's;
// it begins and ends with the block's barrier open to it.
template <class AddUnit>
LARDER_DEVICE void tile_rows(const Outputs& outputs, int num_units, int panel_begin,
                             const AddUnit& add_unit) {
  TileSums sums;
  sums.clear();
  for (int unit = 0; unit < num_units; ++unit) {
    add_unit(unit, sums);
    if (unit % kSegmentUnits == kSegmentUnits - 1 || unit + 1 == num_units) sums.end_segment();
  }
  const int row = static_cast<int>(blockIdx.y) * kTileRows + thread_index() / 16 * kThreadRows;
  LARDER_UNROLL
  for (int r = 0; r < kThreadRows; ++r)
    LARDER_UNROLL
    for (int p = 0; p < kTilePanels; ++p)
      outputs.put(row + r, (panel_begin + p) * kPanelRows + thread_index() % 16, sums.total[r][p]);
}

// A unit's operands of a tile.
struct Staged {
  float w[kUnitCols][kTileOutputs];
  float x[kUnitCols][kTileRows + 4];
};

template <class Format>
LARDER_DEVICE void stage(const FloatProduct& product, int first_panel, int first_row, int unit,
                         Staged& staged) {
  const int thread = thread_index();
  const int output = thread % kTileOutputs;
  const int part = thread / kTileOutputs;
  const int num_cols = product.w.num_cols;
  const int panel_index = min_of(first_panel + output / kPanelRows, product.panel_end - 1);
  float w[8];
  load_values<Format>(product.w.data + panel_index * product.w.panel_stride_bytes, unit, part,
                      output % kPanelRows, num_cols, w);
  LARDER_UNROLL
  for (int i = 0; i < 8; ++i) staged.w[part * 8 + i][output] = w[i];
  const int col = unit * kUnitCols + part * 8;
  const float* x = product.row(first_row + output) + col;
  LARDER_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Floats4 values = load_x(x + half * 4, num_cols - col - half * 4, product.aligned);
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) staged.x[part * 8 + half * 4 + i][output] = values.value[i];
  }
}

template <class Format>
LARDER_KERNEL_OF(kTileThreads) many_rows_kernel(LARDER_PARAM ProductGroup<FloatProduct> group) {
  LARDER_SHARED Staged staged;
  wait_for_kernels_before();
  const FloatProduct& product = group.product();
  const int panel = group.first_panel(kTilePanels);
  const int row = static_cast<int>(blockIdx.y) * kTileRows;
  if (row >= product.outputs.num_rows) return;
  const int num_cols = product.w.num_cols;
  const auto add_unit = [&](int unit, TileSums& sums) {
    stage<Format>(product, panel, row, unit, staged);
    sync_block();
    const int tx = thread_index() % kPanelRows;
    const int ty = thread_index() / kPanelRows;
    const int cols = min_of(kUnitCols, num_cols - unit * kUnitCols);
    for (int col = 0; col < cols; ++col) {
      float x[kThreadRows];
      LARDER_UNROLL
      for (int r = 0; r < kThreadRows; ++r) x[r] = staged.x[col][ty * kThreadRows + r];
      LARDER_UNROLL
      for (int p = 0; p < kTilePanels; ++p) {
        const float w = staged.w[col][p * kPanelRows + tx];
        LARDER_UNROLL
        for (int r = 0; r < kThreadRows; ++r)
          sums.segment[r][p] = fmaf(x[r], w, sums.segment[r][p]);
      }
    }
    sync_block();
  };
  tile_rows(product.outputs, (num_cols + kUnitCols - 1) / kUnitCols, panel, add_unit);
}

template <class Format>
void launch_rows(const ProductGroup<FloatProduct>& group) {
  switch (row_count(group.of[0].outputs.num_rows)) {
    case RowCount::kOne:
      return launch_few_rows<FewRowsOf<Format, 1>>(few_rows_kernel<Format, 1>, group);
    case RowCount::kUpTo8:
    case RowCount::kUpTo16:
      return launch_few_rows<FewRowsOf<Format, 8>>(few_rows_kernel<Format, 8>, group);
    case RowCount::kMany:
      return launch_tiles(many_rows_kernel<Format>, kTileThreads, group);
  }
}

}  // namespace

void matmul_float(const ProductList& products) {
  const auto group = group_of(products, float_product);
  with_format(*products.of[0]->w, [&]<class Format>() {
    if constexpr (!std::is_same_v<Format, ValueFormat<PackedFormat::kBF16>> &&
                  !std::is_same_v<Format, ValueFormat<PackedFormat::kF16>>)
      launch_rows<Format>(group);
  });
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
