// Products of BF16 weights with activations rounded to BF16 on AMX tiles: TDPBF16PS takes 32 columns of 16 rows and
// 16 outputs at a time. It adds up in another order than VDPBF16PS (matmul_bf16.cc), so whatever number of rows
// there is goes this way, one alone, too: a row has the bits that it has among many.
#include "kernels/cpu/bf16/row_tiles.h"
#include "kernels/cpu/tables.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// Of a piece of two panels, which stays in the first-level cache while the rows go by.
constexpr int kPieceSteps = 16;
constexpr int kPiecePairs = kPieceSteps * kStepPairs;

LARDER_INLINE int block_rows(int pairs) { return whole_tiles(most_block_rows(pairs)); }

struct Block {
  uint8_t rows[kBlockBytes];
  alignas(64) float totals[kMostTiles * kAmxRows * 2][16];  // [tiles, rows of one, panels]
};

// A piece of neighbouring panels, and what is fetched meanwhile.
struct Piece {
  const std::byte* weights;  // of the first panel
  int64_t panel_stride;
  int steps;            // whole ones
  const uint8_t* last;  // [panels] steps with zeros behind the last pair, or null: there is none
  int num_lines;        // of each panel: pairs
  int stream_end;       // from this line on a stream's fetches are past the panel's end
  int fetch_begin;      // lines of each panel, behind the piece
  int fetch_end;
};

// Before step s. A piece of one turn reads the weights as a stream; several share out the piece behind theirs,
// since a core has only so many fetches under way.
template <int kPanels, bool kIsStream>
LARDER_INLINE void fetch_step(const Piece& piece, int s, int num_steps) {
  if constexpr (kIsStream) {
    const int64_t behind = (kPanels - 1) * piece.panel_stride;  // the panel that this one's turns to
    for (int line = s * kStepPairs; line < min_of((s + 1) * kStepPairs, piece.num_lines); ++line) {
      const int64_t at = int64_t{line} * kPairBytes + (line < piece.stream_end ? 0 : behind);
      for (int p = 0; p < kPanels; ++p)
        fetch_stream(reinterpret_cast<const uint8_t*>(piece.weights + p * piece.panel_stride + at));
    }
  } else {
    const int count = piece.fetch_end - piece.fetch_begin;
    const std::byte* behind = piece.weights + int64_t{piece.num_lines} * kPairBytes;
    for (int i = count * s / num_steps; i < count * (s + 1) / num_steps; ++i) {
      for (int p = 0; p < kPanels; ++p)
        prefetch(behind + p * piece.panel_stride + int64_t{piece.fetch_begin + i} * kPairBytes);
    }
  }
}

// Adds the piece's columns of kTiles tiles of rows to their totals.
template <int kTiles, int kPanels, bool kIsStream>
void add_piece(const Piece& piece, const uint8_t* first, const uint8_t* second, int row_stride,
               float (*totals)[16]) {
  load_totals<kTiles, kPanels>(totals);
  const int num_steps = piece.steps + (piece.last != nullptr ? 1 : 0);
  for (int s = 0; s < num_steps; ++s) {
    fetch_step<kPanels, kIsStream>(piece, s, num_steps);
    const uint8_t* rows[2] = {first + s * 64, second + s * 64};
    if (s < piece.steps)
      multiply_step<kTiles, kPanels>(piece.weights + int64_t{s} * kStepBytes, piece.panel_stride, rows, row_stride);
    else
      multiply_step<kTiles, kPanels>(piece.last, kStepBytes, rows, row_stride);
  }
  store_totals<kTiles, kPanels>(totals);
}

template <int kPanels, bool kIsStream>
void add_to_all(Piece piece, const Block& block, int num_rows, int pair, int row_stride, float (*totals)[16]) {
  const int num_tiles = (num_rows + kAmxRows - 1) / kAmxRows;
  const int num_turns = (num_tiles + 1) / 2;
  const int num_lines = piece.num_lines;
  for (int turn = 0; turn < num_turns; ++turn) {
    piece.fetch_begin = num_lines * turn / num_turns;
    piece.fetch_end = num_lines * (turn + 1) / num_turns;
    const int t = 2 * turn;
    const auto rows_at = [&](int tile) { return block.rows + first_row(tile, num_rows) * row_stride + pair * 4; };
    float(*to)[16] = totals + t * kAmxRows * kPanels;
    if (t + 1 < num_tiles)
      add_piece<2, kPanels, kIsStream>(piece, rows_at(t), rows_at(t + 1), row_stride, to);
    else
      add_piece<1, kPanels, kIsStream>(piece, rows_at(t), rows_at(t), row_stride, to);
  }
}

// Rows [row, row + num_rows), which the block holds, of kPanels panels.
template <int kPanels>
void block_of_panels(const MatmulArgs& args, int row, int num_rows, int panel, Block& block) {
  const int pairs = num_pairs(args);
  const int row_stride = row_bytes(pairs);
  const int num_tiles = (num_rows + kAmxRows - 1) / kAmxRows;
  memset(block.totals, 0, static_cast<size_t>(num_tiles * kAmxRows * kPanels) * 64);
  alignas(64) uint8_t last[kPanels * kStepBytes];
  for (int pair = 0; pair < pairs; pair += kPiecePairs) {
    Piece piece = {};
    piece.weights = panel_of(*args.w, panel) + int64_t{pair} * kPairBytes;
    piece.panel_stride = args.w->panel_stride_bytes;
    piece.num_lines = min_of(kPiecePairs, pairs - pair);
    piece.steps = piece.num_lines / kStepPairs;
    piece.stream_end = pairs - pair - kFetchedPairs;
    const int rest = piece.num_lines % kStepPairs * kPairBytes;
    if (rest > 0) {
      memset(last, 0, sizeof last);
      for (int p = 0; p < kPanels; ++p) {
        const std::byte* from = piece.weights + p * piece.panel_stride + int64_t{piece.steps} * kStepBytes;
        memcpy(last + p * kStepBytes, from, static_cast<size_t>(rest));
      }
      piece.last = last;
    }
    if (num_tiles <= 2)
      add_to_all<kPanels, true>(piece, block, num_rows, pair, row_stride, block.totals);
    else
      add_to_all<kPanels, false>(piece, block, num_rows, pair, row_stride, block.totals);
  }
  write_tiles<kPanels>(args, row, num_rows, panel, block.totals);
}

}  // namespace

bool multiplies(const MatmulArgs& args) { return has_rounded_rows(args) && block_rows(num_pairs(args)) > 0; }

int64_t matmul_bf16_stack_bytes() { return sizeof(Block) + 2 * kStepBytes; }

void matmul_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  const int most_rows = block_rows(num_pairs(args));
  Block block;
  for (int row = 0; row < args.num_rows; row += most_rows) {
    const int rows = min_of(most_rows, args.num_rows - row);
    round_rows(args, row, rows, block.rows);
    tiles_begin(shapes_of(rows));
    int panel = panel_begin;
    for (; panel + 2 <= panel_end; panel += 2) block_of_panels<2>(args, row, rows, panel, block);
    if (panel < panel_end) block_of_panels<1>(args, row, rows, panel, block);
    tiles_end();
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
