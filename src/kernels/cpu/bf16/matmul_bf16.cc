// Products of BF16 weights with activations rounded to BF16: VDPBF16PS takes two columns at a time,
// their products exact, and adds them to FP32 sums in order of the columns. Rows go by pieces of two
// panels that stay in the first-level cache; one row has the bits that it has among many.
#include "kernels/cpu/bf16/rounded_rows.h"
#include "kernels/cpu/tables.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kRowsOfTile = 6;
constexpr int kPiecePairs = 128;  // of a piece of a panel

LARDER_INLINE int block_rows(int pairs) { return most_block_rows(pairs) / kRowsOfTile * kRowsOfTile; }

struct Block {
  uint8_t rows[kBlockBytes];
  V16 totals[kMaxBlockRows * 2];
};

// A piece of kPanels neighbouring panels, and what is fetched meanwhile.
struct Piece {
  const std::byte* weights;  // of the first panel
  int64_t panel_stride;
  int pairs;
  int stream_end;   // from this pair on a stream's fetches are past the panel's end
  int fetch_begin;  // pairs of each panel, behind the piece
  int fetch_end;
};

// Adds the piece's columns of kRows rows to their totals. One tile reads the weights as a stream;
// several share out the piece behind theirs, since a core has only so many fetches under way.
template <int kRows, int kPanels, bool kIsStream>
void tile(const Piece& piece, const uint8_t* rows, int row_stride, V16* totals) {
  V16 sum[kRows][kPanels];
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) sum[r][p] = totals[r * kPanels + p];
  }
  const std::byte* fetch = piece.weights + piece.pairs * kPairBytes;
  const int num_fetched = kIsStream ? 0 : piece.fetch_end - piece.fetch_begin;
  int fetched = piece.fetch_begin;
  const int64_t behind = (kPanels - 1) * piece.panel_stride;  // the panel that this one's turns to
  int due = 0;
  for (int i = 0; i < piece.pairs; ++i) {
    Bytes64 w[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      const auto* at = reinterpret_cast<const uint8_t*>(piece.weights + p * piece.panel_stride +
                                                        i * kPairBytes);
      w[p] = load_bytes(at);
      if constexpr (kIsStream) fetch_stream(at + (i < piece.stream_end ? 0 : behind));
    }
    for (due += num_fetched; due > 0; due -= piece.pairs, ++fetched) {
      for (int p = 0; p < kPanels; ++p)
        prefetch(fetch + p * piece.panel_stride + fetched * kPairBytes);
    }
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      memcpy(&pair, rows + r * row_stride + i * 4, sizeof pair);
      for (int p = 0; p < kPanels; ++p) sum[r][p] = dot_pairs(sum[r][p], w[p], pair);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) totals[r * kPanels + p] = sum[r][p];
  }
}

template <int kPanels, bool kIsStream>
void tile_of(int num_rows, const Piece& piece, const uint8_t* rows, int row_stride, V16* totals) {
  switch (num_rows) {
    case 1:
      return tile<1, kPanels, kIsStream>(piece, rows, row_stride, totals);
    case 2:
      return tile<2, kPanels, kIsStream>(piece, rows, row_stride, totals);
    case 3:
      return tile<3, kPanels, kIsStream>(piece, rows, row_stride, totals);
    case 4:
      return tile<4, kPanels, kIsStream>(piece, rows, row_stride, totals);
    case 5:
      return tile<5, kPanels, kIsStream>(piece, rows, row_stride, totals);
    default:
      return tile<6, kPanels, kIsStream>(piece, rows, row_stride, totals);
  }
}

// Rows [row, row + num_rows), which the block holds, of kPanels panels.
template <int kPanels>
void block_of_panels(const MatmulArgs& args, int row, int num_rows, int panel, Block& block) {
  const int pairs = num_pairs(args);
  const int row_stride = row_bytes(pairs);
  memset(block.totals, 0, static_cast<size_t>(num_rows * kPanels) * sizeof(V16));
  const int num_tiles = (num_rows + kRowsOfTile - 1) / kRowsOfTile;
  for (int pair = 0; pair < pairs; pair += kPiecePairs) {
    Piece piece;
    piece.weights = panel_of(*args.w, panel) + pair * kPairBytes;
    piece.panel_stride = args.w->panel_stride_bytes;
    piece.pairs = min_of(kPiecePairs, pairs - pair);
    piece.stream_end = pairs - pair - kFetchedPairs;
    for (int t = 0; t < num_tiles; ++t) {
      const int r = t * kRowsOfTile;
      piece.fetch_begin = piece.pairs * t / num_tiles;
      piece.fetch_end = piece.pairs * (t + 1) / num_tiles;
      const int tile_rows = min_of(kRowsOfTile, num_rows - r);
      const uint8_t* rows = block.rows + r * row_stride + pair * 4;
      V16* totals = block.totals + r * kPanels;
      if (num_tiles == 1)
        tile_of<kPanels, true>(tile_rows, piece, rows, row_stride, totals);
      else
        tile_of<kPanels, false>(tile_rows, piece, rows, row_stride, totals);
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int p = 0; p < kPanels; ++p)
      write_sums(args, row + r, panel + p, block.totals[r * kPanels + p]);
  }
}

}  // namespace

bool multiplies(const MatmulArgs& args) { return has_rounded_rows(args) && block_rows(num_pairs(args)) > 0; }

int64_t matmul_bf16_stack_bytes() { return sizeof(Block); }

void matmul_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  const int pairs = num_pairs(args);
  const int most_rows = block_rows(pairs);
  Block block;
  for (int row = 0; row < args.num_rows; row += most_rows) {
    const int rows = min_of(most_rows, args.num_rows - row);
    round_rows(args, row, rows, block.rows);
    int panel = panel_begin;
    for (; panel + 2 <= panel_end; panel += 2) block_of_panels<2>(args, row, rows, panel, block);
    if (panel < panel_end) block_of_panels<1>(args, row, rows, panel, block);
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
