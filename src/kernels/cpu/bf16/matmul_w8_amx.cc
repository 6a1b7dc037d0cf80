// Products of weights in 8 bits, unpacked to BF16, with activations rounded to BF16 on AMX tiles, for whatever number
// of rows: see matmul_bf16_amx.cc. Many rows are multiplied twice as fast as with activations in 8 bits, whose sums would
// have to leave the tiles for every group of columns; one row about as fast as memory brings the weights, which those of
// fewer bits would not be.
#include "kernels/cpu/bf16/row_tiles.h"
#include "kernels/cpu/bf16/unpack_w8.h"
#include "kernels/cpu/tables.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

static_assert(kStepPairs * 2 == W8::kGroup);  // a step is a group of columns

// Of rows, which stay in the second-level cache while the panels go by: machines with tiles have 2 MiB of it.
constexpr int kRowBlockBytes = 1280 * 1024;
// Of a piece of two panels, which stays in the first-level cache while the rows go by.
constexpr int kPieceSteps = 16;
constexpr int kPieceBytes = kPieceSteps * kStepBytes;  // of one panel
static_assert(kPieceSteps % W8::kGroupsPerChunk == 0);
// That groups are unpacked ahead of the tiles, which find them stored.
constexpr int kLeadSteps = 2;
constexpr int kRingSteps = 4;
constexpr int kFetchedGroups = 8 * 1024 / (W8::kShape.chunk_bytes / W8::kGroupsPerChunk);  // as far as fetch_stream() looks

LARDER_INLINE int block_rows(int pairs) {
  return whole_tiles(min_of(kRowBlockBytes / row_bytes(pairs), kMaxBlockRows));
}
LARDER_INLINE int num_groups(const MatmulArgs& args) { return args.w->num_cols / W8::kGroup; }

struct Block {
  uint8_t rows[kRowBlockBytes];
  alignas(64) uint8_t unpacked[2][kPieceBytes];
  alignas(64) float totals[kMostTiles * kAmxRows * 2][16];  // [tiles, rows of one, panels]
};

// Where the weights of up to two tiles of rows are in their panels, which they pass as a stream.
template <int kPanels>
class Stream {
 public:
  Stream(const MatmulArgs& args, int panel_begin, int num_turns, Block& block)
      : panels_(panel_of(*args.w, panel_begin)),
        stride_(args.w->panel_stride_bytes),
        groups_(num_groups(args)),
        turns_(num_turns),
        ring_(block.unpacked[0]) {}

  // The next group of every panel, unpacked kLeadSteps ahead of it. The second panel's is kRingSteps behind.
  LARDER_INLINE_LAMBDA const uint8_t* next() {
    unpack();
    const uint8_t* step = ring_ + taken_ * kStepBytes;
    taken_ = (taken_ + 1) % kRingSteps;
    return step;
  }
  LARDER_INLINE_LAMBDA void unpack() {
    if (turns_ == 0) return;
    // Past its end a panel's fetches turn to the one that comes after its neighbours.
    const int64_t beyond = group_ < groups_ - kFetchedGroups ? 0 : (kPanels - 1) * stride_;
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* panel = panels_ + p * stride_;
      const uint8_t* codes = W8::codes(panel, group_);
      unpack_group(codes, W8::scale(panel, group_), ring_ + (p * kRingSteps + unpacked_) * kStepBytes,
                   [&](int line) LARDER_INLINE_LAMBDA { fetch_stream(codes + beyond + line * 64); });
    }
    unpacked_ = (unpacked_ + 1) % kRingSteps;
    if (++group_ < groups_) return;
    group_ = 0;
    panels_ += kPanels * stride_;
    --turns_;
  }

 private:
  const std::byte* panels_;
  const int64_t stride_;
  const int groups_;
  int turns_;  // that are left
  int group_ = 0;
  uint8_t* const ring_;
  int unpacked_ = 0;
  int taken_ = 0;
};

// The block's rows, at most two tiles, of num_turns * kPanels panels.
template <int kTiles, int kPanels>
void multiply_stream(const MatmulArgs& args, int row, int num_rows, int panel, int num_turns, Block& block) {
  const int row_stride = row_bytes(num_pairs(args));
  Stream<kPanels> stream(args, panel, num_turns, block);
  for (int s = 0; s < kLeadSteps; ++s) stream.unpack();
  for (int turn = 0; turn < num_turns; ++turn, panel += kPanels) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    const uint8_t* rows[2] = {block.rows, block.rows + first_row(kTiles - 1, num_rows) * row_stride};
    for (int g = 0; g < num_groups(args); ++g, rows[0] += 64, rows[1] += 64)
      multiply_step<kTiles, kPanels>(stream.next(), kRingSteps * kStepBytes, rows, row_stride);
    store_totals<kTiles, kPanels>(block.totals);
    write_tiles<kPanels>(args, row, num_rows, panel, block.totals);
  }
}

// A piece of neighbouring panels, and what is fetched meanwhile.
struct Piece {
  const std::byte* panels[2];
  int first_group;
  int steps;
  uint8_t* unpacked;
  const std::byte* behind[2];  // what comes after it
  int fetch_begin;             // lines of that, of each panel
  int fetch_end;
};

template <int kPanels>
LARDER_INLINE Piece piece_of(const MatmulArgs& args, int panel, int group, Block& block) {
  const int64_t stride = args.w->panel_stride_bytes;
  const int end = num_groups(args);
  const int next = group + kPieceSteps < end ? group + kPieceSteps : 0;
  Piece piece = {};
  piece.first_group = group;
  piece.steps = min_of(kPieceSteps, end - group);
  piece.unpacked = block.unpacked[0];
  for (int p = 0; p < kPanels; ++p) {
    piece.panels[p] = panel_of(*args.w, panel + p);
    const std::byte* from = piece.panels[p] + (next == 0 ? kPanels * stride : 0);
    piece.behind[p] = reinterpret_cast<const std::byte*>(W8::chunk(from, next));
  }
  const int chunks = (min_of(kPieceSteps, end - next) + W8::kGroupsPerChunk - 1) / W8::kGroupsPerChunk;
  piece.fetch_end = chunks * W8::kShape.chunk_bytes / 64;
  return piece;
}

template <int kPanels>
LARDER_INLINE void unpack_step(const Piece& piece, int s) {
  if (s >= piece.steps) return;
  const int g = piece.first_group + s;
  for (int p = 0; p < kPanels; ++p)
    unpack_group(W8::codes(piece.panels[p], g), W8::scale(piece.panels[p], g),
                 piece.unpacked + p * kPieceBytes + s * kStepBytes, [](int) LARDER_INLINE_LAMBDA {});
}

// Adds the piece's columns of kTiles tiles of rows to their totals. kUnpacks: the first to do so, it unpacks the piece.
template <int kTiles, int kPanels, bool kUnpacks>
void add_piece(const Piece& piece, const uint8_t* first, const uint8_t* second, int row_stride, float (*totals)[16]) {
  load_totals<kTiles, kPanels>(totals);
  if constexpr (kUnpacks) {
    for (int s = 0; s < kLeadSteps; ++s) unpack_step<kPanels>(piece, s);
  }
  const int num_fetched = piece.fetch_end - piece.fetch_begin;
  int fetched = piece.fetch_begin;
  for (int s = 0; s < piece.steps; ++s) {
    for (const int end = piece.fetch_begin + num_fetched * (s + 1) / piece.steps; fetched < end; ++fetched) {
      for (int p = 0; p < kPanels; ++p) prefetch(piece.behind[p] + int64_t{fetched} * 64);
    }
    if constexpr (kUnpacks) unpack_step<kPanels>(piece, s + kLeadSteps);
    const uint8_t* rows[2] = {first + s * 64, second + s * 64};
    multiply_step<kTiles, kPanels>(piece.unpacked + s * kStepBytes, kPieceBytes, rows, row_stride);
  }
  store_totals<kTiles, kPanels>(totals);
}

// The block's rows, more than two tiles, of kPanels panels.
template <int kPanels>
void multiply_pieces(const MatmulArgs& args, int row, int num_rows, int panel, Block& block) {
  const int row_stride = row_bytes(num_pairs(args));
  const int num_tiles = (num_rows + kAmxRows - 1) / kAmxRows;
  const int num_turns = (num_tiles + 1) / 2;
  memset(block.totals, 0, static_cast<size_t>(num_tiles * kAmxRows * kPanels) * 64);
  for (int group = 0; group < num_groups(args); group += kPieceSteps) {
    Piece piece = piece_of<kPanels>(args, panel, group, block);
    const int num_lines = piece.fetch_end;
    for (int turn = 0; turn < num_turns; ++turn) {
      piece.fetch_begin = num_lines * turn / num_turns;
      piece.fetch_end = num_lines * (turn + 1) / num_turns;
      const int t = 2 * turn;
      const auto rows_at = [&](int tile) { return block.rows + first_row(tile, num_rows) * row_stride + group * 64; };
      float(*to)[16] = block.totals + t * kAmxRows * kPanels;
      if (turn == 0)
        add_piece<2, kPanels, true>(piece, rows_at(t), rows_at(t + 1), row_stride, to);
      else if (t + 1 < num_tiles)
        add_piece<2, kPanels, false>(piece, rows_at(t), rows_at(t + 1), row_stride, to);
      else
        add_piece<1, kPanels, false>(piece, rows_at(t), rows_at(t), row_stride, to);
    }
  }
  write_tiles<kPanels>(args, row, num_rows, panel, block.totals);
}

template <int kPanels>
void multiply_block(const MatmulArgs& args, int row, int num_rows, int panel, int num_turns, Block& block) {
  if (num_rows <= kAmxRows) return multiply_stream<1, kPanels>(args, row, num_rows, panel, num_turns, block);
  if (num_rows <= 2 * kAmxRows) return multiply_stream<2, kPanels>(args, row, num_rows, panel, num_turns, block);
  for (int turn = 0; turn < num_turns; ++turn)
    multiply_pieces<kPanels>(args, row, num_rows, panel + turn * kPanels, block);
}

}  // namespace

bool multiplies_w8(const MatmulArgs& args) {
  return args.w->format == PackedFormat::kW8 && args.rounds_to_bf16 && args.xq == nullptr &&
         block_rows(num_pairs(args)) > 0;
}

int64_t matmul_w8_stack_bytes() { return sizeof(Block); }

void matmul_w8(const MatmulArgs& args, int panel_begin, int panel_end) {
  const int most_rows = block_rows(num_pairs(args));
  const int num_pairs_of_panels = (panel_end - panel_begin) / 2;
  Block block;
  for (int row = 0; row < args.num_rows; row += most_rows) {
    const int rows = min_of(most_rows, args.num_rows - row);
    round_rows(args, row, rows, block.rows);
    tiles_begin(shapes_of(rows));
    multiply_block<2>(args, row, rows, panel_begin, num_pairs_of_panels, block);
    if ((panel_end - panel_begin) % 2 != 0) multiply_block<1>(args, row, rows, panel_end - 1, 1, block);
    tiles_end();
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
