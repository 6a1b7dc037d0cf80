// Products of many rows on AMX tiles. Columns go by in blocks, whose rows stay in the second-level cache while the panels
// go by; two panels' weights of half a block, a piece, stay in the first-level cache while the rows go by.
#pragma once

#include "kernels/cpu/bf16/row_tiles.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kMaxPieceSteps = 20;
inline constexpr int kPieceBytes = kMaxPieceSteps * kStepBytes;  // of one panel
inline constexpr int kBlockPieces = 2;
inline constexpr int kBlockTiles = 16;  // of rows
inline constexpr int kGroupPanels = 64;  // whose sums stay in the second-level cache, too
// That weights are ready ahead of the tiles, which would wait for what was just stored.
inline constexpr int kLeadSteps = 2;

struct Block {
  uint8_t rows[kBlockTiles * kAmxRows * kBlockPieces * kMaxPieceSteps * 64];
  alignas(64) uint8_t weights[2 * kPieceBytes];
  alignas(64) TileSums sums[kGroupPanels * kBlockTiles];  // of two panels at a time: [tiles][panels]
};

// Whether weights pass as a stream, all columns of the rows being at hand: one or two tiles of them.
LARDER_INLINE bool are_few(const MatmulArgs& args) {
  const int64_t tile_bytes = num_steps(args) * row_step_bytes(args);
  return args.num_rows <= 2 * kAmxRows && num_row_tiles(args.num_rows) * tile_bytes <= int64_t{sizeof(Block::rows)};
}

// Of a product: some rows and columns, which go by piece by piece, of panels [panel_begin, panel_end).
struct BlockRange {
  const MatmulArgs& args;
  RowsAndSteps rows;
  int panel_begin;
  int panel_end;
  int piece_steps;
};

// Some columns of neighbouring panels.
struct Piece {
  int panel;
  int first_step;
  int num_steps;
};

// Prepare()(args, panel, step, to) puts a panel's step there, as tiles take it.
template <class Prepare, int kPanels>
void multiply_piece(const BlockRange& range, const Piece& piece, const PackedRows& rows, Block& block) {
  const MatmulArgs& args = range.args;
  const int num_tiles = range.rows.tile_end - range.rows.tile_begin;
  const bool begins = piece.first_step == 0;
  const bool ends = piece.first_step + piece.num_steps == num_steps(args);
  TileSums* const sums = block.sums + (piece.panel - range.panel_begin) * num_tiles;
  const auto prepare_step = [&](int s) LARDER_INLINE_LAMBDA {
    if (s >= piece.num_steps) return;
    for (int p = 0; p < kPanels; ++p)
      Prepare()(args, piece.panel + p, piece.first_step + s, block.weights + p * kPieceBytes + s * kStepBytes);
  };
  // The same columns of the panels behind these come into the second-level cache, evenly: only so many lines can be
  // under way.
  const int64_t panel_bytes = args.w->panel_stride_bytes;
  const std::byte* next = panel_of(*args.w, piece.panel + kPanels) + panel_bytes * piece.first_step / num_steps(args);
  const bool has_next = piece.panel + 2 * kPanels <= range.panel_end;
  const int num_lines = has_next ? static_cast<int>(panel_bytes * piece.num_steps / num_steps(args) / 64) + 1 : 0;
  const int num_due = (num_tiles + 1) / 2 * piece.num_steps;
  int due = 0;
  const auto fetch_some = [&]() LARDER_INLINE_LAMBDA {
    for (due += num_lines; due >= num_due; due -= num_due, next += 64) {
      for (int p = 0; p < kPanels; ++p) prefetch_l2(next + p * panel_bytes);
    }
  };
  const auto turn = [&]<int kTiles, bool kPrepares>(int t) LARDER_INLINE_LAMBDA {
    TileSums* const of_turn = begins && ends ? block.sums : sums + t * kPanels;  // none of them have to stay
    if (begins)
      zero_sums();
    else
      load_sums<kTiles, kPanels>(of_turn);
    if (ends) fetch_results<kTiles, kPanels>(args, range.rows.tile_begin + t, piece.panel);
    const int64_t at = (piece.first_step - range.rows.step_begin) * rows.step_bytes;
    const uint8_t* first = rows.tile(t) + at;
    const uint8_t* second = rows.tile(t + kTiles - 1) + at;
    const uint8_t* weights = block.weights;
    for (int s = 0; kPrepares && s < kLeadSteps; ++s) prepare_step(s);
    for (int s = 0; s < piece.num_steps; ++s, weights += kStepBytes, first += rows.step_bytes, second += rows.step_bytes) {
      if constexpr (kPrepares) prepare_step(s + kLeadSteps);
      fetch_some();
      multiply_step<kTiles, kPanels, true>(weights, kPieceBytes, first, second);
    }
    store_sums<kTiles, kPanels>(of_turn);
    if (ends) write_tiles<kTiles, kPanels>(args, range.rows.tile_begin + t, piece.panel, of_turn);
  };
  if (num_tiles == 1) return turn.template operator()<1, true>(0);
  turn.template operator()<2, true>(0);
  int t = 2;
  for (; t + 2 <= num_tiles; t += 2) turn.template operator()<2, false>(t);
  if (t < num_tiles) turn.template operator()<1, false>(t);
}

// As they were packed for all panels, or packed here.
LARDER_INLINE PackedRows rows_of(const BlockRange& range, Block& block) {
  const MatmulArgs& args = range.args;
  if (args.packed_rows == nullptr) return pack(args, range.rows, block.rows);
  const int64_t step_bytes = row_step_bytes(args);
  const int64_t tile_bytes = num_steps(args) * step_bytes;
  const auto* all = reinterpret_cast<const uint8_t*>(args.packed_rows);
  return {all + range.rows.tile_begin * tile_bytes + range.rows.step_begin * step_bytes, tile_bytes, step_bytes};
}

template <class Prepare>
void multiply_block(const BlockRange& range, Block& block) {
  const PackedRows rows = rows_of(range, block);
  for (int panel = range.panel_begin; panel < range.panel_end; panel += 2) {
    for (int step = range.rows.step_begin; step < range.rows.step_end; step += range.piece_steps) {
      const Piece piece{panel, step, min_of(range.piece_steps, range.rows.step_end - step)};
      if (panel + 1 < range.panel_end)
        multiply_piece<Prepare, 2>(range, piece, rows, block);
      else
        multiply_piece<Prepare, 1>(range, piece, rows, block);
    }
  }
}

// Any number of rows.
template <class Prepare>
void multiply_blocks(const MatmulArgs& args, int panel_begin, int panel_end, Block& block) {
  const RowsAndSteps all = all_rows(args);
  const int num_pieces = (all.step_end + kMaxPieceSteps - 1) / kMaxPieceSteps;
  const int piece_steps = (all.step_end + num_pieces - 1) / num_pieces;
  tiles_begin(shapes_of(args.num_rows));
  for (int tile = 0; tile < all.tile_end; tile += kBlockTiles) {
    const int tile_end = min_of(tile + kBlockTiles, all.tile_end);
    for (int panel = panel_begin; panel < panel_end; panel += kGroupPanels) {
      const int group_end = min_of(panel + kGroupPanels, panel_end);
      for (int step = 0; step < all.step_end; step += kBlockPieces * piece_steps) {
        const int step_end = min_of(step + kBlockPieces * piece_steps, all.step_end);
        multiply_block<Prepare>({args, {tile, tile_end, step, step_end}, panel, group_end, piece_steps}, block);
      }
    }
  }
  tiles_end();
}

template <class Product, int kTiles>
void multiply_few(const MatmulArgs& args, int panel_begin, int panel_end, Block& block) {
  const PackedRows rows = pack(args, all_rows(args), block.rows);
  tiles_begin(shapes_of(args.num_rows));
  Product::template stream<kTiles, 2>(args, rows, panel_begin, (panel_end - panel_begin) / 2);
  if ((panel_end - panel_begin) % 2 != 0) Product::template stream<kTiles, 1>(args, rows, panel_end - 1, 1);
  tiles_end();
}

// Product is what a format of weights is multiplied by:
//   Prepare: see multiply_piece()
//   stream<kTiles, kPanels>(args, rows, panel, num_turns): the rows, so many tiles, of num_turns * kPanels panels, whose
//     weights pass as a stream
template <class Product>
void multiply_panels(const MatmulArgs& args, int panel_begin, int panel_end) {
  Block block;
  if (!are_few(args)) return multiply_blocks<typename Product::Prepare>(args, panel_begin, panel_end, block);
  if (args.num_rows <= kAmxRows) return multiply_few<Product, 1>(args, panel_begin, panel_end, block);
  multiply_few<Product, 2>(args, panel_begin, panel_end, block);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
