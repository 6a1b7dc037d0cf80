// Products with FP32 activations, for weights that are values and for the reference path.
#include "kernels/cuda/product.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

struct Product {
  PackedMatrix w;
  const float* x;
  std::int64_t ldx;
  Outputs outputs;
  int panel_begin;
  int panel_end;
  bool aligned;  // rows of x begin at 16 bytes
};

// Columns [8 part, 8 part + 8) of a unit, of one output; those past the end are anything.
template <class Format>
LARDER_DEVICE void load_values(const std::byte* panel, int unit, int part, int lane, int num_cols,
                               float* values) {
  if constexpr (requires { Format::kValue; }) {
    const int first = unit * kUnitCols + part * 8;
    LARDER_UNROLL
    for (int i = 0; i < 8; ++i)
      values[i] = first + i < num_cols ? Format::value(panel, first + i, lane) : 0.0F;
  } else {
    constexpr int kPairs = Format::kGroup / 8;
    const int g = unit * (kUnitCols / Format::kGroup) + part / kPairs;
    const float scale = Format::scale(panel, g, lane);
    const float minimum = Format::minimum(panel, g, lane);
    std::uint32_t quads[2];
    Format::load_pair(Format::codes(panel, g, lane), part % kPairs, quads);
    LARDER_UNROLL
    for (int i = 0; i < 8; ++i)
      values[i] = code_value<Format>(byte_of(quads[i / 4], i % 4), scale, minimum);
  }
}

// Four values of a row, of which `cols` are there.
LARDER_DEVICE Floats4 load_x(const float* x, int cols, bool aligned) {
  if (aligned && cols >= 4) return *reinterpret_cast<const Floats4*>(x);
  Floats4 values;
  LARDER_UNROLL
  for (int i = 0; i < 4; ++i) values.value[i] = i < cols ? x[i] : 0.0F;
  return values;
}

// sum + the products of a whole unit's columns.
LARDER_DEVICE float add_unit(const float* x, const float (&w)[4][8], float sum) {
  LARDER_UNROLL
  for (int i = 0; i < kUnitCols; i += 4) {
    const Floats4 values = *reinterpret_cast<const Floats4*>(x + i);
    LARDER_UNROLL
    for (int j = 0; j < 4; ++j) sum = fmaf(values.value[j], w[i / 8][i % 8 + j], sum);
  }
  return sum;
}

template <class Format, int kRows>
LARDER_KERNEL_OF(kMaxSlots* kPanelRows) few_rows_kernel(Product product) {
  const int panel_index = product.panel_begin + static_cast<int>(blockIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const std::byte* panel = product.w.data + panel_index * product.w.panel_stride_bytes;
  const int num_cols = product.w.num_cols;
  const float* x[kRows];
  LARDER_UNROLL
  for (int r = 0; r < kRows; ++r)
    x[r] = product.x + min_of(first_row + r, product.outputs.num_rows - 1) * product.ldx;
  const auto segment_sums = [&](int segment, int lane, float* sums) {
    const int first_unit = segment * kSegmentUnits;
    const int end = min_of(first_unit + kSegmentUnits, (num_cols + kUnitCols - 1) / kUnitCols);
    LARDER_NO_UNROLL
    for (int unit = first_unit; unit < end; ++unit) {
      const int col = unit * kUnitCols;
      if (product.aligned && col + kUnitCols <= num_cols) {
        float w[4][8];
        LARDER_UNROLL
        for (int part = 0; part < 4; ++part)
          load_values<Format>(panel, unit, part, lane, num_cols, w[part]);
        LARDER_UNROLL
        for (int r = 0; r < kRows; ++r) sums[r] = add_unit(x[r] + col, w, sums[r]);
        continue;
      }
      LARDER_NO_UNROLL
      for (int c = col; c < min_of(col + kUnitCols, num_cols); ++c) {
        const float w = weight_at<Format>(panel, c, lane);
        LARDER_UNROLL
        for (int r = 0; r < kRows; ++r) sums[r] = fmaf(x[r][c], w, sums[r]);
      }
    }
  };
  few_rows<kRows>(product.outputs, (num_cols + kSegmentCols - 1) / kSegmentCols, first_row,
                  panel_index, segment_sums);
}

// A unit's operands of a tile.
struct Staged {
  float w[kUnitCols][kTileOutputs];
  float x[kUnitCols][kTileRows + 4];
};

template <class Format>
LARDER_DEVICE void stage(const Product& product, int first_panel, int first_row, int unit,
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
  const int row = min_of(first_row + output, product.outputs.num_rows - 1);
  const int col = unit * kUnitCols + part * 8;
  const float* x = product.x + row * product.ldx + col;
  LARDER_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Floats4 values = load_x(x + half * 4, num_cols - col - half * 4, product.aligned);
    LARDER_UNROLL
    for (int i = 0; i < 4; ++i) staged.x[part * 8 + half * 4 + i][output] = values.value[i];
  }
}

template <class Format>
LARDER_KERNEL_OF(kTileThreads) many_rows_kernel(Product product) {
  LARDER_SHARED Staged staged;
  const int panel = product.panel_begin + static_cast<int>(blockIdx.x) * kTilePanels;
  const int row = static_cast<int>(blockIdx.y) * kTileRows;
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
void launch_product(const Product& product) {
  const int rows = product.outputs.num_rows;
  if (rows == 1) return launch_few_rows<1>(few_rows_kernel<Format, 1>, product);
  if (rows <= kMostFewRows)
    return launch_few_rows<kFewRows>(few_rows_kernel<Format, kFewRows>, product);
  launch_tiles(many_rows_kernel<Format>, product);
}

}  // namespace

void matmul_float(const MatmulArgs& args, int panel_begin, int panel_end) {
  const bool aligned = args.ldx % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0;
  const Product product{*args.w,     args.x,    args.ldx, outputs_of(args),
                        panel_begin, panel_end, aligned};
  with_format(*args.w, [&]<class Format>() { launch_product<Format>(product); });
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
