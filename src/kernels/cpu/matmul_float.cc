// Products with FP32 activations: sums of fused products in order of the columns.
#include "kernels/cpu/functions.h"
#include "kernels/cpu/panel.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// Rows whose sums are kept while a panel is read once.
constexpr int kRowBlock = 64;
constexpr int kFloatTileRows = 8;

// sums[r] += x[r, c] * values[c] for c in order.
template <int kRows>
LARDER_INLINE void add_columns(const float* x, int64_t ldx, const float* values, int cols,
                               float* sums) {
  V16 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = load(sums + r * 16);
  for (int c = 0; c < cols; ++c) {
    const V16 w = load(values + c * 16);
    for (int r = 0; r < kRows; ++r) sum[r] = fma(w, set1(x[r * ldx + c]), sum[r]);
  }
  for (int r = 0; r < kRows; ++r) store(sums + r * 16, sum[r]);
}

void add_columns_of_rows(const float* x, int64_t ldx, const float* values, int cols, float* sums,
                         int rows) {
  int row = 0;
  for (; row + kFloatTileRows <= rows; row += kFloatTileRows) {
    add_columns<kFloatTileRows>(x + row * ldx, ldx, values, cols, sums + row * 16);
  }
  for (; row + 2 <= rows; row += 2) {
    add_columns<2>(x + row * ldx, ldx, values, cols, sums + row * 16);
  }
  if (row < rows) add_columns<1>(x + row * ldx, ldx, values, cols, sums + row * 16);
}

// One panel, rows [row_begin, row_begin + rows).
void multiply_panel(const MatmulArgs& args, int panel, int row_begin, int rows) {
  const PackedMatrix& w = *args.w;
  alignas(64) float sums[kRowBlock * 16];
  alignas(64) float values[kUnpackCols * 16];
  for (int r = 0; r < rows; ++r) store(sums + r * 16, zero());
  const std::byte* p = panel_of(w, panel);
  const float* x = args.x + row_begin * args.ldx;
  for (int col = 0; col < w.num_cols; col += kUnpackCols) {
    unpack_columns(w, p, col, values);
    add_columns_of_rows(x + col, args.ldx, values, min_of(kUnpackCols, w.num_cols - col), sums,
                        rows);
  }
  const int first = panel * kPanelRows;
  const int lanes = min_of(kPanelRows, w.num_rows - first);
  const V16 bias = args.bias != nullptr ? load_partial(args.bias + first, lanes) : zero();
  for (int r = 0; r < rows; ++r) {
    float* y = args.y + (row_begin + r) * args.ldy + first;
    const V16 sum = load(sums + r * 16);
    store_partial(y, args.bias != nullptr ? add(sum, bias) : sum, lanes);
  }
}

}  // namespace

void matmul_float(const MatmulArgs& args, int panel_begin, int panel_end) {
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    for (int row = 0; row < args.num_rows; row += kRowBlock) {
      multiply_panel(args, panel, row, min_of(kRowBlock, args.num_rows - row));
    }
  }
}

void unpack_row(const PackedMatrix& w, int row, float* values) {
  alignas(64) float block[kUnpackCols * 16];
  const std::byte* p = panel_of(w, row / kPanelRows);
  for (int col = 0; col < w.num_cols; col += kUnpackCols) {
    unpack_columns(w, p, col, block);
    const int cols = min_of(kUnpackCols, w.num_cols - col);
    for (int c = 0; c < cols; ++c) values[col + c] = block[c * 16 + row % kPanelRows];
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
