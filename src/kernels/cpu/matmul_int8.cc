// Products with 8-bit activations: exact integers over a group of columns, then FP32 over the
// groups.
#include "kernels/cpu/functions.h"
#include "kernels/cpu/panel.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// Rows of activations that stay in the second-level cache while the panels go by.
constexpr int64_t kRowBlockBytes = 512 * 1024;

// Activations of a tile's rows.
struct Activations {
  const int8_t* q;
  const float* scale;
  const int32_t* sum;
  int num_cols;
};

// One row is bound by memory, and the processor's own prefetcher stops at every page. A prefetch
// past the end of the matrix does nothing.
constexpr int kPrefetchBytes = 4096;

template <class Format>
LARDER_INLINE void prefetch_group(const std::byte* panel, int g) {
  const uint8_t* ahead = Format::codes(panel, g) + kPrefetchBytes;
  for (int i = 0; i < Format::kShape.chunk_bytes / Format::kGroupsPerChunk; i += 64) {
    prefetch(ahead + i);
  }
}

// Rows x panels of output, every column.
// Per lane and group: sum = fma(float(integer sum), weight scale * activation scale, sum), then
// sum = fma(minimum, activation scale * float(sum of q), sum).
template <class Format, int kRows, int kPanels>
void tile(const MatmulArgs& args, const Activations& x, int row, int panel) {
  constexpr int kQuads = Format::kGroup / 4;
  const int num_cols = x.num_cols;
  const int num_groups = num_cols / Format::kGroup;
  const std::byte* panels[kPanels];
  for (int p = 0; p < kPanels; ++p) panels[p] = panel_of(*args.w, panel + p);
  V16 total[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) total[r][p] = zero();
  }
  for (int g = 0; g < num_groups; ++g) {
    constexpr int kPerActivationGroup = kActivationGroup / Format::kGroup;
    const int64_t activation_groups = num_cols / kActivationGroup;
    I16 isum[kRows][kPanels];
    float group_sum[kRows];
    for (int r = 0; r < kRows; ++r) {
      const int32_t* s = x.sum + (r * activation_groups) * 2 + g * (Format::kGroup / 16);
      const int32_t q_sum = Format::kGroup == 32 ? s[0] + s[1] : s[0];
      group_sum[r] = static_cast<float>(q_sum);
      for (int p = 0; p < kPanels; ++p) isum[r][p] = set1_int(-Format::kOffset * q_sum);
    }
    const int col = g * Format::kGroup;
    if constexpr (kRows == 1) prefetch_group<Format>(panels[0], g);
    for (int q = 0; q < kQuads; q += 2) {
      Bytes64 even[kPanels];
      Bytes64 odd[kPanels];
      for (int p = 0; p < kPanels; ++p) {
        Format::load_quads(Format::codes(panels[p], g), q / 2, even[p], odd[p]);
      }
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < kRows; ++r) {
          const Bytes64 a = broadcast4(x.q + int64_t{r} * num_cols + col + (q + half) * 4);
          for (int p = 0; p < kPanels; ++p) {
            const Bytes64 w = half == 0 ? even[p] : odd[p];
            isum[r][p] =
                Format::kBits == 4 ? dot_u4s8(isum[r][p], w, a) : dot_u8s8(isum[r][p], w, a);
          }
        }
      }
    }
    for (int p = 0; p < kPanels; ++p) {
      const V16 scale = Format::scale(panels[p], g);
      const V16 minimum = Format::minimum(panels[p], g);
      for (int r = 0; r < kRows; ++r) {
        const float a_scale = x.scale[r * activation_groups + g / kPerActivationGroup];
        total[r][p] = fma(to_float(isum[r][p]), mul(scale, set1(a_scale)), total[r][p]);
        if constexpr (Format::kHasMin) {
          total[r][p] = fma(minimum, set1(a_scale * group_sum[r]), total[r][p]);
        }
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    const int first = (panel + p) * kPanelRows;
    const int lanes = min_of(kPanelRows, args.w->num_rows - first);
    for (int r = 0; r < kRows; ++r) {
      V16 v = total[r][p];
      if (args.bias != nullptr) v = add(v, load_partial(args.bias + first, lanes));
      store_partial(args.y + (row + r) * args.ldy + first, v, lanes);
    }
  }
}

LARDER_INLINE Activations rows_from(const QuantizedRows& x, int row) {
  const int64_t groups = x.num_cols / kActivationGroup;
  return {x.q + int64_t{row} * x.num_cols, x.scale + row * groups, x.sum + 2 * row * groups,
          x.num_cols};
}

// Rows [row, row_end) of kPanels panels: full tiles, then the rest in powers of two.
template <class Format, int kPanels>
void multiply_rows(const MatmulArgs& args, int row, int row_end, int panel) {
  const QuantizedRows& x = *args.xq;
  for (; row + kTileRows <= row_end; row += kTileRows) {
    tile<Format, kTileRows, kPanels>(args, rows_from(x, row), row, panel);
  }
  if constexpr (kTileRows > 4) {
    for (; row + 4 <= row_end; row += 4) {
      tile<Format, 4, kPanels>(args, rows_from(x, row), row, panel);
    }
  }
  if constexpr (kTileRows > 2) {
    for (; row + 2 <= row_end; row += 2) {
      tile<Format, 2, kPanels>(args, rows_from(x, row), row, panel);
    }
  }
  for (; row < row_end; ++row) tile<Format, 1, kPanels>(args, rows_from(x, row), row, panel);
}

template <class Format>
void multiply_panels(const MatmulArgs& args, int panel_begin, int panel_end) {
  const int64_t block = kRowBlockBytes / args.xq->num_cols / kTileRows * kTileRows;
  const int row_block = block < kTileRows ? kTileRows : static_cast<int>(block);
  for (int row = 0; row < args.num_rows; row += row_block) {
    const int row_end = min_of(row + row_block, args.num_rows);
    int panel = panel_begin;
    if constexpr (kTilePanels > 1) {
      if (args.num_rows > 1) {
        for (; panel + kTilePanels <= panel_end; panel += kTilePanels) {
          multiply_rows<Format, kTilePanels>(args, row, row_end, panel);
        }
      }
    }
    for (; panel < panel_end; ++panel) multiply_rows<Format, 1>(args, row, row_end, panel);
  }
}

}  // namespace

void matmul_int8(const MatmulArgs& args, int panel_begin, int panel_end) {
  with_code_format(*args.w,
                   [&]<class Format>() { multiply_panels<Format>(args, panel_begin, panel_end); });
}

void matmul(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (args.xq != nullptr) {
    matmul_int8(args, panel_begin, panel_end);
  } else {
    matmul_float(args, panel_begin, panel_end);
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
