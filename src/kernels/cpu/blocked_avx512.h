// Products of many rows on AVX-512. A piece of two panels is unpacked once, into the first-level
// cache, and six rows at a time go by it; what a group of columns needs of its rows is worked out
// once for all panels. The integers are exact and the FP32 sums take int8_rows.h's order, so the
// bits are those of a row alone.
#pragma once

#include "kernels/cpu/int8_rows.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kBlockedRows = 6;    // of a tile
inline constexpr int kBlockedPanels = 2;  // of a tile
// Of a piece of a panel, at most: pieces are as long as each other, and so much is just in the
// first-level cache.
inline constexpr int kBlockedCols = 640;
inline constexpr int kMaxBlockRows = 32 * kBlockedRows;
// Of what a block of rows brings, at most: it stays in the second-level cache.
inline constexpr int kBlockBytes = 640 * 1024;
// Fewer rows do not pay for working out scales of two levels once or, of other formats, for putting
// rows in order; nor does a last tile that lacks more.
template <class Format>
inline constexpr int kMinBlockedRows = (Format::kShape.two_level ? 3 : 7) * kBlockedRows;
inline constexpr int kMinLastRows = 4;

// What six rows bring to a group of columns.
template <class Format>
struct RowGroup {
  int32_t q[kBlockedRows][Format::kGroup / 4];
  float scale[kBlockedRows];
  int32_t start[kBlockedRows];   // -offset * sum of q
  float minimum[kBlockedRows];  // scale * sum of q; of formats with minima
};

// A piece of neighbouring panels. Codes of 8 bits stay where they are.
template <class Format, int kPanels>
struct Piece {
  static constexpr bool kIsUnpacked = Format::kBits != 8;
  static constexpr int kGroups = kBlockedCols / Format::kGroup;
  const std::byte* panels[kPanels];
  int first_group;
  Bytes64 unpacked[kIsUnpacked ? kGroups : 1][Format::kGroup / 4][kPanels];

  // Of group i.
  const uint8_t* codes(int i, int p) const {
    return kIsUnpacked ? reinterpret_cast<const uint8_t*>(&unpacked[i][0][p])
                       : Format::codes(panels[p], first_group + i);
  }
  // From a quad to the next.
  static constexpr int kQuadBytes = kIsUnpacked ? 64 * kPanels : 64;

  V16 scale[kGroups][kPanels];
  V16 minimum[Format::kHasMin ? kGroups : 1][kPanels];
};

// Rows in the order in which they are read: [piece][tile][group of the piece].
template <class Format>
struct RowBlock {
  static constexpr int kGroups = kBlockBytes / sizeof(RowGroup<Format>);
  RowGroup<Format> groups[kGroups];
  V16 totals[kMaxBlockRows * kBlockedPanels];
};

// Of both, on the stack.
template <class Format>
inline constexpr int64_t kBlockedStackBytes = sizeof(RowBlock<Format>) + sizeof(Piece<Format, kBlockedPanels>);

// Whole chunks, as next_lines() counts them.
template <class Format>
LARDER_INLINE int piece_groups_of(int num_groups) {
  constexpr int kChunk = Format::kGroupsPerChunk;
  constexpr int kMost = kBlockedCols / Format::kGroup / kChunk * kChunk;
  const int pieces = (num_groups + kMost - 1) / kMost;
  const int groups = (num_groups + pieces - 1) / pieces;
  return (groups + kChunk - 1) / kChunk * kChunk;
}

template <class Format, int kPanels>
LARDER_INLINE void unpack_piece(const MatmulArgs& args, int panel, int first_group, int groups,
                                Piece<Format, kPanels>& piece) {
  piece.first_group = first_group;
  for (int p = 0; p < kPanels; ++p) {
    const std::byte* from = panel_of(*args.w, panel + p);
    piece.panels[p] = from;
    for (int i = 0; i < groups; ++i) {
      const int g = first_group + i;
      if constexpr (Piece<Format, kPanels>::kIsUnpacked) {
        const uint8_t* codes = Format::codes(from, g);
        for_each_pair<Format>([&]<int kPair>() LARDER_INLINE_LAMBDA {
          Format::template load_quads<kPair>(codes, piece.unpacked[i][2 * kPair][p],
                                             piece.unpacked[i][2 * kPair + 1][p]);
        });
      }
      piece.scale[i][p] = Format::scale(from, g);
      if constexpr (Format::kHasMin) piece.minimum[i][p] = Format::minimum(from, g);
    }
  }
}

// rows: how many there are; the last one stands in for those that a tile lacks.
template <class Format>
LARDER_INLINE void fill_group(const Activations& x, int g, int rows, RowGroup<Format>& group) {
  for (int i = 0; i < kBlockedRows; ++i) {
    const int r = min_of(i, rows - 1);
    const int8_t* q = x.q + int64_t{r} * x.num_cols + int64_t{g} * Format::kGroup;
    memcpy(group.q[i], q, Format::kGroup);
    const int32_t sum = q_sum<Format::kGroup>(x, r, g);
    group.scale[i] = q_scale<Format::kGroup>(x, r, g);
    group.start[i] = -Format::kOffset * sum;
    group.minimum[i] = group.scale[i] * static_cast<float>(sum);
  }
}

template <class Format>
LARDER_INLINE void fill_block(const QuantizedRows& x, int row_begin, int row_end, int tiles,
                              RowGroup<Format>* to) {
  const int num_groups = x.num_cols / Format::kGroup;
  const int max_groups = piece_groups_of<Format>(num_groups);
  for (int tile = 0; tile < tiles; ++tile) {
    const int row = row_begin + tile * kBlockedRows;
    const Activations rows = rows_from(x, row);
    for (int piece = 0; piece < num_groups; piece += max_groups) {
      const int groups = min_of(max_groups, num_groups - piece);
      RowGroup<Format>* at = to + piece * tiles + tile * groups;
      for (int g = 0; g < groups; ++g) {
        fill_group<Format>(rows, piece + g, row_end - row, at[g]);
      }
    }
  }
}

// A tile's part of what the next panels have in place of its piece, into the second-level cache: some
// lines a group. All at once would be more than a core can have under way, and it would wait for them
// as for loads.
template <int kPanels>
struct NextLines {
  const uint8_t* panels[kPanels];
  int line;
  int end;
  int per_group;

  __attribute__((always_inline)) void fetch_some() {
    const int to = min_of(line + per_group, end);
    for (; line < to; ++line) {
      for (int p = 0; p < kPanels; ++p) prefetch_l2(panels[p] + 64 * line);
    }
  }
};
// Part `part` of `parts`.
template <class Format, int kPanels>
LARDER_INLINE NextLines<kPanels> next_lines(const MatmulArgs& args, int panel, int first_group,
                                            int groups, int part, int parts) {
  const int lines = groups / Format::kGroupsPerChunk * Format::kShape.chunk_bytes / 64;
  NextLines<kPanels> next;
  for (int p = 0; p < kPanels; ++p)
    next.panels[p] = Format::chunk(panel_of(*args.w, panel + kPanels + p), first_group);
  next.line = lines * part / parts;
  next.end = lines * (part + 1) / parts;
  next.per_group = (next.end - next.line + groups - 1) / groups;
  return next;
}

// Groups [0, num_groups) of a piece of the panels from `panel` on, for the six rows of tile `tile` of `tiles`. What it
// fetches is worked out here: handed over in memory, it would wait there for the stores of the tile before it.
template <class Format, int kPanels>
void blocked_tile(const MatmulArgs& args, int panel, const Piece<Format, kPanels>& piece,
                  int num_groups, const RowGroup<Format>* groups, int tile, int tiles,
                  V16* totals) {
  auto next = next_lines<Format, kPanels>(args, panel, piece.first_group, num_groups, tile, tiles);
  V16 total[kBlockedRows][kPanels];
  for (int r = 0; r < kBlockedRows; ++r) {
    for (int p = 0; p < kPanels; ++p) total[r][p] = totals[r * kPanels + p];
  }
  for (int g = 0; g < num_groups; ++g) {
    next.fetch_some();
    const RowGroup<Format>& rows = groups[g];
    const uint8_t* codes[kPanels];
    for (int p = 0; p < kPanels; ++p) codes[p] = piece.codes(g, p);
    I16 sum[kBlockedRows][kPanels];
    for (int r = 0; r < kBlockedRows; ++r) {
      for (int p = 0; p < kPanels; ++p) sum[r][p] = set1_int(rows.start[r]);
    }
    for (int quad = 0; quad < Format::kGroup / 4; ++quad) {
      for (int r = 0; r < kBlockedRows; ++r) {
        const Bytes64 x = set1_int(rows.q[r][quad]);
        for (int p = 0; p < kPanels; ++p)
          sum[r][p] = dot_u8(sum[r][p], load_bytes(codes[p] + quad * piece.kQuadBytes), x);
      }
    }
    for (int r = 0; r < kBlockedRows; ++r) {
      for (int p = 0; p < kPanels; ++p) {
        total[r][p] =
            fma(to_float(sum[r][p]), mul(piece.scale[g][p], set1(rows.scale[r])), total[r][p]);
        if constexpr (Format::kHasMin)
          total[r][p] = fma(piece.minimum[g][p], set1(rows.minimum[r]), total[r][p]);
      }
    }
  }
  for (int r = 0; r < kBlockedRows; ++r) {
    for (int p = 0; p < kPanels; ++p) totals[r * kPanels + p] = total[r][p];
  }
}

// How many rows blocked_rows() takes at a time: a multiple of a tile's, 0 if columns are too many.
template <class Format>
LARDER_INLINE int block_rows(int num_cols) {
  const int tiles = RowBlock<Format>::kGroups / (num_cols / Format::kGroup);
  return min_of(tiles * kBlockedRows, kMaxBlockRows);
}

// The lines that write_tile() will write: they come while the tile is worked out.
template <int kPanels>
LARDER_INLINE void fetch_sums(const MatmulArgs& args, int row_begin, int row_end, int panel) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* y = args.y + row * args.ldy + panel * kPanelRows;
    for (int p = 0; p < kPanels; ++p) prefetch_to_write(y + p * kPanelRows);
  }
}

// What the tile's rows have added up to.
template <int kPanels>
LARDER_INLINE void write_tile(const MatmulArgs& args, int row_begin, int row_end, int panel,
                              const V16* totals) {
  for (int row = row_begin; row < row_end; ++row) {
    for (int p = 0; p < kPanels; ++p)
      write_sums(args, row, panel + p, totals[(row - row_begin) * kPanels + p]);
  }
}

// The block's rows, kPanels panels.
template <class Format, int kPanels>
void blocked_panels(const MatmulArgs& args, int row_begin, int row_end, int panel,
                    RowBlock<Format>& block) {
  const int num_groups = args.xq->num_cols / Format::kGroup;
  const int max_groups = piece_groups_of<Format>(num_groups);
  const int tiles = (row_end - row_begin + kBlockedRows - 1) / kBlockedRows;
  constexpr int kTileTotals = kBlockedRows * kPanels;
  memset(block.totals, 0, static_cast<size_t>(tiles * kTileTotals) * sizeof(V16));
  const RowGroup<Format>* groups = block.groups;
  for (int g = 0; g < num_groups; g += max_groups) {
    const int piece_groups = min_of(max_groups, num_groups - g);
    Piece<Format, kPanels> piece;
    unpack_piece<Format, kPanels>(args, panel, g, piece_groups, piece);
    const bool is_last = g + piece_groups == num_groups;
    for (int tile = 0; tile < tiles; ++tile, groups += piece_groups) {
      V16* totals = block.totals + tile * kTileTotals;
      const int row = row_begin + tile * kBlockedRows;
      const int tile_end = min_of(row + kBlockedRows, row_end);
      if (is_last) fetch_sums<kPanels>(args, row, tile_end, panel);
      blocked_tile<Format, kPanels>(args, panel, piece, piece_groups, groups, tile, tiles, totals);
      if (is_last) write_tile<kPanels>(args, row, tile_end, panel, totals);
    }
  }
}

// Rows [row_begin, row_end), at most block_rows(), of panels [panel_begin, panel_end).
template <class Format>
void blocked_rows(const MatmulArgs& args, int row_begin, int row_end, int panel_begin,
                  int panel_end) {
  const int tiles = (row_end - row_begin + kBlockedRows - 1) / kBlockedRows;
  RowBlock<Format> block;
  fill_block<Format>(*args.xq, row_begin, row_end, tiles, block.groups);
  int panel = panel_begin;
  for (; panel + kBlockedPanels <= panel_end; panel += kBlockedPanels)
    blocked_panels<Format, kBlockedPanels>(args, row_begin, row_end, panel, block);
  for (; panel < panel_end; ++panel)
    blocked_panels<Format, 1>(args, row_begin, row_end, panel, block);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
