// Products with 8-bit activations: exact integers over a group of columns, then FP32 over the
// groups.
#include "kernels/cpu/functions.h"
#include "kernels/cpu/int8_rows.h"
#if defined(LARDER_ISA_AVX2)
#include "kernels/cpu/blocked_avx2.h"
#elif defined(LARDER_ISA_AVX512)
#include "kernels/cpu/blocked_avx512.h"
#endif

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// Rows of activations that stay in the second-level cache while the panels go by.
constexpr int64_t kRowBlockBytes = 512 * 1024;

// How a tile's weights come from memory: read front to back, with what lies behind them, or with the
// panels after them. Of these each of the first `turns` tiles of rows fetches its share, every
// turns-th line from its turn on.
struct Fetch {
  bool is_stream;
  int turn;
  int turns;
};

// All of them on AVX-512, or memory would have nothing to do while the rows after the first tile are
// multiplied. AVX2 takes so long over them that it does not matter, or costs (Zen 5: six rows 0.93).
LARDER_INLINE int fetching_tiles(int num_rows) {
  return kTileRows >= 6 ? (num_rows + kTileRows - 1) / kTileRows : 1;
}

// Rows of one tile are bound by memory. Where AMD's Zen 5 reads two panels at a time, it reads a fifth
// less; elsewhere more than one row was not measured.
LARDER_INLINE bool reads_stream(int num_rows) {
  return num_rows == 1 ||
         (num_rows <= kTileRows && machine_stream_fetch == StreamFetch::kFar);
}

// Of group g. Fetching past the end does nothing.
template <class Format>
LARDER_INLINE void fetch_ahead(const std::byte* panel, int g, int64_t next_panels,
                               const Fetch& fetch) {
  constexpr int kGroupShare = Format::kShape.chunk_bytes / Format::kGroupsPerChunk;
  const uint8_t* at = Format::chunk(panel, g) + g % Format::kGroupsPerChunk * kGroupShare;
  if (fetch.is_stream) {
    for (int i = 0; i < kGroupShare; i += 64) fetch_stream(at + i);
  } else if (fetch.turn < fetch.turns) {
    for (int i = 64 * fetch.turn; i < kGroupShare; i += 64 * fetch.turns)
      prefetch_l2(at + next_panels + i);
  }
}

// A tile's rows x panels: integers of one group of columns, and what the groups add up to.
template <int kRows, int kPanels>
struct Sums {
  I16 group[kRows][kPanels];
  V16 total[kRows][kPanels];
};

template <class Format, int kRows, int kPanels>
LARDER_INLINE void add_integers(const Activations& x, const std::byte* const* panels, int g,
                                Sums<kRows, kPanels>& sums) {
  using Dot = GroupDot<Format::kRange>;
  for (int r = 0; r < kRows; ++r) {
    const I16 start = Dot::start(q_sum<Format::kGroup>(x, r, g));
    for (int p = 0; p < kPanels; ++p) sums.group[r][p] = start;
  }
  I16 parts[kRows][kPanels];
  const int8_t* q = x.q + int64_t{g} * Format::kGroup;
  for_each_pair<Format>([&]<int kPair>() LARDER_INLINE_LAMBDA {
    constexpr int kPartPairs = Dot::kPartQuads / 2;
    Bytes64 quads[2][kPanels];
    for (int p = 0; p < kPanels; ++p) {
      Format::template load_quads<kPair>(Format::codes(panels[p], g), quads[0][p], quads[1][p]);
    }
    for (int half = 0; half < 2; ++half) {
      typename Dot::Codes codes[kPanels];
      for (int p = 0; p < kPanels; ++p) codes[p] = Dot::prepare(quads[half][p]);
      for (int r = 0; r < kRows; ++r) {
        const auto a = Dot::quad(q + int64_t{r} * x.num_cols + kPair * 8 + half * 4);
        for (int p = 0; p < kPanels; ++p) {
          I16& sum = kPartPairs > 0 ? parts[r][p] : sums.group[r][p];
          if constexpr (kPartPairs > 0) {
            if (kPair % kPartPairs == 0 && half == 0) sum = set1_int(0);
          }
          sum = Dot::dot(sum, codes[p], a);
        }
      }
    }
    if constexpr (kPartPairs > 0) {
      if (kPair % kPartPairs != kPartPairs - 1 && kPair != Format::kGroup / 8 - 1) return;
      for (int r = 0; r < kRows; ++r) {
        for (int p = 0; p < kPanels; ++p) {
          sums.group[r][p] = Dot::add_part(sums.group[r][p], parts[r][p]);
        }
      }
    }
  });
}

// Rows [row, row + kRows) of panels [panel, panel + kPanels), every column.
template <class Format, int kRows, int kPanels>
void tile(const MatmulArgs& args, int row, int panel, const Fetch& fetch) {
  const Activations x = rows_from(*args.xq, row);
  const int64_t next_panels = kPanels * args.w->panel_stride_bytes;
  const std::byte* panels[kPanels];
  for (int p = 0; p < kPanels; ++p) panels[p] = panel_of(*args.w, panel + p);
  Sums<kRows, kPanels> sums;
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) sums.total[r][p] = zero();
  }
  const int num_groups = x.num_cols / Format::kGroup;
  for (int g = 0; g < num_groups; ++g) {
    for (int p = 0; p < kPanels; ++p) fetch_ahead<Format>(panels[p], g, next_panels, fetch);
    add_integers<Format>(x, panels, g, sums);
    for (int p = 0; p < kPanels; ++p) {
      const V16 scale = Format::scale(panels[p], g);
      const V16 minimum = Format::minimum(panels[p], g);
      for (int r = 0; r < kRows; ++r) {
        sums.total[r][p] =
            add_group<Format>(sums.total[r][p], sums.group[r][p], scale, minimum, x, r, g);
      }
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) write_sums(args, row + r, panel + p, sums.total[r][p]);
  }
}

template <class Format, int kRows, int kPanels>
LARDER_INLINE void tile_of(int rows, const MatmulArgs& args, int row, int panel,
                           const Fetch& fetch) {
  if (rows == kRows) return tile<Format, kRows, kPanels>(args, row, panel, fetch);
  if constexpr (kRows > 1) tile_of<Format, kRows - 1, kPanels>(rows, args, row, panel, fetch);
}

// Of so many that are left. Two or three rows keep the units waiting, so that two tiles share eight or
// nine; the first one of eight is bound by memory and had rather six (Zen 5: 0.97 to 1.01 by four).
LARDER_INLINE int rows_of_tile(int left, bool is_first) {
  const bool is_shared = left == kTileRows + 3 || (left == kTileRows + 2 && !is_first);
  if (kTileRows >= 6 && is_shared) return (left + 1) / 2;
  return min_of(left, kTileRows);
}

// Rows [row_begin, row_end) of kPanels panels.
template <class Format, int kPanels>
void multiply_rows(const MatmulArgs& args, int row_begin, int row_end, int panel) {
  int row = row_begin;
  Fetch fetch = {reads_stream(args.num_rows), 0, fetching_tiles(row_end - row)};
  for (; row < row_end; ++fetch.turn) {
    const int rows = rows_of_tile(row_end - row, row == row_begin);
    tile_of<Format, kTileRows, kPanels>(rows, args, row, panel, fetch);
    row += rows;
  }
}

#if defined(LARDER_ISA_AVX2) || defined(LARDER_ISA_AVX512)
template <class Format>
LARDER_INLINE bool goes_by_blocks(const MatmulArgs& args) {
  constexpr int kMinRows = kMinBlockedRows<Format>;
  return args.num_rows >= kMinRows && block_rows<Format>(args.w->num_cols) >= kMinRows;
}
#endif

// As many rows from the first on as were multiplied in blocks of many.
template <class Format>
int multiply_blocks([[maybe_unused]] const MatmulArgs& args, [[maybe_unused]] int panel_begin,
                    [[maybe_unused]] int panel_end) {
#if defined(LARDER_ISA_AVX2) || defined(LARDER_ISA_AVX512)
  if (!goes_by_blocks<Format>(args)) return 0;
  const int block = block_rows<Format>(args.w->num_cols);
  const int rest = args.num_rows % kBlockedRows;
  const int rows = rest >= kMinLastRows ? args.num_rows : args.num_rows - rest;
  for (int row = 0; row < rows; row += block) {
    blocked_rows<Format>(args, row, min_of(row + block, rows), panel_begin, panel_end);
  }
  return rows;
#else
  return 0;
#endif
}

template <class Format>
void multiply_panels(const MatmulArgs& args, int panel_begin, int panel_end) {
  const int64_t block = kRowBlockBytes / args.xq->num_cols / kTileRows * kTileRows;
  const int row_block = block < kTileRows ? kTileRows : static_cast<int>(block);
  for (int row = multiply_blocks<Format>(args, panel_begin, panel_end); row < args.num_rows;
       row += row_block) {
    const int row_end = min_of(row + row_block, args.num_rows);
    int panel = panel_begin;
    if constexpr (kTilePanels > 1) {
      if (!reads_stream(args.num_rows)) {
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
  with_code_format<CodeFormat>(*args.w, [&]<class Format>() {
    multiply_panels<Format>(args, panel_begin, panel_end);
  });
}

int64_t matmul_stack_bytes([[maybe_unused]] const MatmulArgs& args) {
  int64_t bytes = 0;
#if defined(LARDER_ISA_AVX2) || defined(LARDER_ISA_AVX512)
  if (args.xq == nullptr) return 0;
  with_code_format<CodeFormat>(*args.w, [&]<class Format>() {
    if (goes_by_blocks<Format>(args)) bytes = kBlockedStackBytes<Format>;
  });
#endif
  return bytes;
}

void matmul(const MatmulArgs& args, int panel_begin, int panel_end) {
  if (args.xq != nullptr) {
    matmul_int8(args, panel_begin, panel_end);
  } else {
    matmul_float(args, panel_begin, panel_end);
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
