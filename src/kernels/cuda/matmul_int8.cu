// Products with 8-bit activations: exact integers over a group of columns, then FP32.
#include "kernels/cuda/product.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

struct Product {
  PackedMatrix w;
  QuantizedRows x;
  Outputs outputs;
  int panel_begin;
  int panel_end;
};

// Scales of one output over a unit, which is one group of 32 columns or two of 16.
template <class Format>
struct UnitScales {
  static constexpr int kGroups = kUnitCols / Format::kGroup;
  float scale[kGroups];
  float minimum[kGroups];

  LARDER_MEMBER void load(const std::byte* panel, int unit, int lane) {
    LARDER_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      scale[i] = Format::scale(panel, unit * kGroups + i, lane);
      minimum[i] = Format::minimum(panel, unit * kGroups + i, lane);
    }
  }
};

// A unit's part of a sum, without the activations' scale. dots: per group; x_sums: of the
// activations over each 16 columns.
template <class Format>
LARDER_DEVICE float unit_term(const int* dots, const int* x_sums,
                              const UnitScales<Format>& scales) {
  float term = 0;
  LARDER_UNROLL
  for (int i = 0; i < UnitScales<Format>::kGroups; ++i) {
    const int x_sum = Format::kGroup == 16 ? x_sums[i] : x_sums[0] + x_sums[1];
    term = fmaf(scales.scale[i], static_cast<float>(dots[i] - Format::kOffset * x_sum), term);
    if constexpr (Format::kHasMin)
      term = fmaf(scales.minimum[i], static_cast<float>(x_sum), term);
  }
  return term;
}

// The 8 quads of a unit.
template <class Format>
LARDER_DEVICE void load_unit(const std::byte* panel, int unit, int lane, std::uint32_t* quads) {
  constexpr int kPairs = Format::kGroup / 8;
  LARDER_UNROLL
  for (int pair = 0; pair < 4; ++pair) {
    const int g = unit * (kUnitCols / Format::kGroup) + pair / kPairs;
    Format::load_pair(Format::codes(panel, g, lane), pair % kPairs, quads + 2 * pair);
  }
}

LARDER_DEVICE const Words4* x_words(const QuantizedRows& x, int row, int unit) {
  return reinterpret_cast<const Words4*>(x.q + std::int64_t{row} * x.num_cols +
                                         std::int64_t{unit} * kUnitCols);
}

template <class Format, int kRows>
LARDER_KERNEL_OF(kMaxSlots* kPanelRows) few_rows_kernel(Product product) {
  const int panel_index = product.panel_begin + static_cast<int>(blockIdx.x);
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const std::byte* panel = product.w.data + panel_index * product.w.panel_stride_bytes;
  const QuantizedRows& x = product.x;
  const int num_units = x.num_cols / kUnitCols;
  const int last_row = product.outputs.num_rows - 1;
  const auto segment_sums = [&](int segment, int lane, float* sums) {
    LARDER_UNROLL
    for (int i = 0; i < kSegmentUnits; ++i) {
      const int unit = segment * kSegmentUnits + i;
      if (unit >= num_units) break;
      std::uint32_t quads[8];
      load_unit<Format>(panel, unit, lane, quads);
      UnitScales<Format> scales;
      scales.load(panel, unit, lane);
      LARDER_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const int row = min_of(first_row + r, last_row);
        const Words4* words = x_words(x, row, unit);
        const Words4 low = words[0];
        const Words4 high = words[1];
        int dots[2] = {0, 0};
        LARDER_UNROLL
        for (int q = 0; q < 8; ++q) {
          int& dot = dots[q * 4 / Format::kGroup];
          dot = dot4(static_cast<int>(quads[q]), q < 4 ? low.word[q] : high.word[q - 4], dot);
        }
        const std::int64_t at = std::int64_t{row} * num_units + unit;
        const int x_sums[2] = {x.sum[2 * at], x.sum[2 * at + 1]};
        sums[r] = fmaf(unit_term<Format>(dots, x_sums, scales), x.scale[at], sums[r]);
      }
    }
  };
  few_rows<kRows>(product.outputs, (num_units + kSegmentUnits - 1) / kSegmentUnits, first_row,
                  panel_index, segment_sums);
}

// A unit's operands of a tile.
struct Staged {
  std::uint32_t quads[8][kTileOutputs];
  float scale[2][kTileOutputs];
  float minimum[2][kTileOutputs];
  int x[kTileRows][9];  // 8 quads; one more, so that rows lie in different banks
  float x_scale[kTileRows];
  int x_sums[kTileRows][2];
};

template <class Format>
LARDER_DEVICE void stage(const Product& product, int first_panel, int first_row, int unit,
                         Staged& staged) {
  constexpr int kPairs = Format::kGroup / 8;
  constexpr int kGroups = kUnitCols / Format::kGroup;
  const int thread = thread_index();
  const int lane = thread % kPanelRows;
  const int output = thread % kTileOutputs;
  const int pair = thread / kTileOutputs;
  const int panel_index = min_of(first_panel + output / kPanelRows, product.panel_end - 1);
  const std::byte* panel = product.w.data + panel_index * product.w.panel_stride_bytes;
  std::uint32_t quads[2];
  Format::load_pair(Format::codes(panel, unit * kGroups + pair / kPairs, lane), pair % kPairs,
                    quads);
  staged.quads[2 * pair][output] = quads[0];
  staged.quads[2 * pair + 1][output] = quads[1];
  if (pair < kGroups) {
    staged.scale[pair][output] = Format::scale(panel, unit * kGroups + pair, lane);
    staged.minimum[pair][output] = Format::minimum(panel, unit * kGroups + pair, lane);
  }
  if (thread >= 2 * kTileRows) return;
  const int num_units = product.x.num_cols / kUnitCols;
  const int r = thread / 2;
  const int half = thread % 2;
  const int row = min_of(first_row + r, product.outputs.num_rows - 1);
  const Words4 words = x_words(product.x, row, unit)[half];
  LARDER_UNROLL
  for (int i = 0; i < 4; ++i) staged.x[r][half * 4 + i] = words.word[i];
  const std::int64_t at = std::int64_t{row} * num_units + unit;
  staged.x_sums[r][half] = product.x.sum[2 * at + half];
  if (half == 0) staged.x_scale[r] = product.x.scale[at];
}

template <class Format>
LARDER_DEVICE void add_staged(const Staged& staged, TileSums& sums) {
  constexpr int kGroups = kUnitCols / Format::kGroup;
  const int tx = thread_index() % kPanelRows;
  const int ty = thread_index() / kPanelRows;
  int dots[kThreadRows][kTilePanels][2] = {};
  LARDER_UNROLL
  for (int q = 0; q < 8; ++q) {
    int x[kThreadRows];
    LARDER_UNROLL
    for (int r = 0; r < kThreadRows; ++r) x[r] = staged.x[ty * kThreadRows + r][q];
    LARDER_UNROLL
    for (int p = 0; p < kTilePanels; ++p) {
      const int w = static_cast<int>(staged.quads[q][p * kPanelRows + tx]);
      LARDER_UNROLL
      for (int r = 0; r < kThreadRows; ++r) {
        int& dot = dots[r][p][q * 4 / Format::kGroup];
        dot = dot4(w, x[r], dot);
      }
    }
  }
  LARDER_UNROLL
  for (int p = 0; p < kTilePanels; ++p) {
    UnitScales<Format> scales;
    LARDER_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      scales.scale[i] = staged.scale[i][p * kPanelRows + tx];
      scales.minimum[i] = staged.minimum[i][p * kPanelRows + tx];
    }
    LARDER_UNROLL
    for (int r = 0; r < kThreadRows; ++r) {
      const int row = ty * kThreadRows + r;
      sums.segment[r][p] = fmaf(unit_term<Format>(dots[r][p], staged.x_sums[row], scales),
                                staged.x_scale[row], sums.segment[r][p]);
    }
  }
}

template <class Format>
LARDER_KERNEL_OF(kTileThreads) many_rows_kernel(Product product) {
  LARDER_SHARED Staged staged;
  const int panel = product.panel_begin + static_cast<int>(blockIdx.x) * kTilePanels;
  const int row = static_cast<int>(blockIdx.y) * kTileRows;
  const auto add_unit = [&](int unit, TileSums& sums) {
    stage<Format>(product, panel, row, unit, staged);
    sync_block();
    add_staged<Format>(staged, sums);
    sync_block();
  };
  tile_rows(product.outputs, product.x.num_cols / kUnitCols, panel, add_unit);
}

template <class Format>
void launch_product(const Product& product) {
  const int rows = product.outputs.num_rows;
  if (rows == 1) return launch_few_rows<1>(few_rows_kernel<Format, 1>, product);
  if (rows <= 4) return launch_few_rows<4>(few_rows_kernel<Format, 4>, product);
  if (rows <= kMostFewRows)
    return launch_few_rows<kFewRows>(few_rows_kernel<Format, kFewRows>, product);
  launch_tiles(many_rows_kernel<Format>, product);
}

}  // namespace

void matmul_int8(const MatmulArgs& args, int panel_begin, int panel_end) {
  const Product product{*args.w, *args.xq, outputs_of(args), panel_begin, panel_end};
  with_code_format<CodeFormat>(*args.w, [&]<class Format>() { launch_product<Format>(product); });
}

void matmul(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (args.num_rows == 0 || panel_begin == panel_end) return;
  if (args.xq != nullptr) return matmul_int8(args, panel_begin, panel_end);
  matmul_float(args, panel_begin, panel_end);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
