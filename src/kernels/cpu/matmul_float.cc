// Products with FP32 activations: sums of fused products in order of the columns. Panels of values
// are taken as they lie; those of codes are unpacked, a few columns at a time for many rows.
#include "kernels/cpu/functions.h"
#include "kernels/cpu/panel.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kFetchAheadBytes = 2048;

// Two columns of a panel of values, and how many bytes they take.
template <PackedFormat kFormat>
LARDER_INLINE void load_two_columns(const std::byte* at, V16& even, V16& odd) {
  const auto* halves = reinterpret_cast<const uint16_t*>(at);
  const auto* floats = reinterpret_cast<const float*>(at);
  if constexpr (kFormat == PackedFormat::kBF16) {
    load_bf16_pairs(halves, even, odd);
  } else if constexpr (kFormat == PackedFormat::kF16) {
    even = load_f16(halves);
    odd = load_f16(halves + kPanelRows);
  } else {
    even = load(floats);
    odd = load(floats + kPanelRows);
  }
}

// Rows [row, row + kRows) of panels of values [panel, panel + kPanels).
template <PackedFormat kFormat, int kRows, int kPanels>
void value_rows(const MatmulArgs& args, int row, int panel) {
  constexpr int kPairBytes = packed_shape(kFormat, false).chunk_bytes;  // two columns
  const int cols = args.w->num_cols;
  const float* x = args.x + row * args.ldx;
  const std::byte* at[kPanels];
  V16 sum[kRows][kPanels];
  for (int p = 0; p < kPanels; ++p) {
    at[p] = panel_of(*args.w, panel + p);
    for (int r = 0; r < kRows; ++r) sum[r][p] = zero();
  }
  for (int c = 0; c < cols; c += 2) {
    for (int p = 0; p < kPanels; ++p) {
      V16 even;
      V16 odd;
      load_two_columns<kFormat>(at[p], even, odd);
      for (int i = 0; i < kPairBytes; i += 64) prefetch(at[p] + kFetchAheadBytes + i);
      at[p] += kPairBytes;
      for (int r = 0; r < kRows; ++r) {
        sum[r][p] = fma(even, set1(x[r * args.ldx + c]), sum[r][p]);
        if (c + 1 < cols) sum[r][p] = fma(odd, set1(x[r * args.ldx + c + 1]), sum[r][p]);
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) write_sums(args, row + r, panel + p, sum[r][p]);
  }
}

// Every row of kPanels panels, four rows at a time, which keep the units busy, and up to six at the
// end, since one alone would take as long: after the first tile the panels are in the cache.
template <PackedFormat kFormat, int kPanels>
void all_rows(const MatmulArgs& args, int panel) {
  int row = 0;
  for (; row + 6 < args.num_rows || row + 4 == args.num_rows; row += 4) {
    value_rows<kFormat, 4, kPanels>(args, row, panel);
  }
  switch (args.num_rows - row) {
    case 1:
      return value_rows<kFormat, 1, kPanels>(args, row, panel);
    case 2:
      return value_rows<kFormat, 2, kPanels>(args, row, panel);
    case 3:
      return value_rows<kFormat, 3, kPanels>(args, row, panel);
    case 5:
      return value_rows<kFormat, 5, kPanels>(args, row, panel);
    case 6:
      return value_rows<kFormat, 6, kPanels>(args, row, panel);
  }
}

template <PackedFormat kFormat>
void multiply_values(const MatmulArgs& args, int panel, int panel_end) {
  for (; panel + kTilePanels <= panel_end; panel += kTilePanels) {
    all_rows<kFormat, kTilePanels>(args, panel);
  }
  for (; panel < panel_end; ++panel) all_rows<kFormat, 1>(args, panel);
}

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
  for (int r = 0; r < rows; ++r) write_sums(args, row_begin + r, panel, load(sums + r * 16));
}

}  // namespace

void matmul_float(const MatmulArgs& args, int panel_begin, int panel_end) {
  using enum PackedFormat;
  switch (args.w->format) {
    case kF32:
      return multiply_values<kF32>(args, panel_begin, panel_end);
    case kF16:
      return multiply_values<kF16>(args, panel_begin, panel_end);
    case kBF16:
      return multiply_values<kBF16>(args, panel_begin, panel_end);
    default:
      break;
  }
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
