// What products on AMX tiles have in common: rows of activations by 16, rounded and packed as tiles take them, and panels
// of weights by two. Sums stay in tiles or go by memory, piece by piece of the columns: their bits are the same.
#pragma once

#include "kernels/cpu/bf16/amx_instructions.h"
#include "kernels/cpu/bf16/bf16_panel.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kAmxRows = 16;
inline constexpr int kStepPairs = 16;  // of a tile: pairs of columns
inline constexpr int kStepCols = 2 * kStepPairs;
inline constexpr int kStepBytes = kStepPairs * kPairBytes;

LARDER_INLINE int num_steps(const MatmulArgs& args) { return (args.w->num_cols + kStepCols - 1) / kStepCols; }
LARDER_INLINE int num_row_tiles(int num_rows) { return (num_rows + kAmxRows - 1) / kAmxRows; }

// Where tile t of so many rows begins. The last one of many is whole, too: what it has of the rows before it comes
// out the same once more.
LARDER_INLINE int first_row(int t, int num_rows) { return max_of(0, min_of(t * kAmxRows, num_rows - kAmxRows)); }

// Tiles 0 to 3: sums, [row tile][panel]; 4 and 5: activations; 6 and 7: weights.
LARDER_INLINE TileShapes shapes_of(int num_rows) {
  TileShapes shapes = {};
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = static_cast<uint8_t>(tile < 6 ? min_of(num_rows, kAmxRows) : kStepPairs);
    shapes.row_bytes[tile] = 64;
  }
  return shapes;
}

// 32 columns of a row, of which there may be fewer.
LARDER_INLINE void round_step(const float* x, int cols, uint8_t* to) {
  V16 first = zero();
  V16 second = zero();
  if (cols >= kStepCols) {
    first = load(x);
    second = load(x + 16);
  } else {
    first = load_lanes(x, min_of(cols, 16));
    if (cols > 16) second = load_partial(x + 16, cols - 16);
  }
  const __m512bh rounded = _mm512_cvtne2ps_pbh(second, first);
  memcpy(to, &rounded, sizeof rounded);
}

LARDER_INLINE int64_t row_step_bytes(const MatmulArgs& args) { return int64_t{min_of(args.num_rows, kAmxRows)} * 64; }

// Some tiles of rows rounded to BF16, of some steps: [tiles][steps][rows of a tile][32 columns].
struct PackedRows {
  const uint8_t* data;  // of the first tile and step
  int64_t tile_bytes;
  int64_t step_bytes;

  const uint8_t* tile(int t) const { return data + t * tile_bytes; }
};

// Where some rows, or all, and some columns of them are.
struct RowsAndSteps {
  int tile_begin;
  int tile_end;
  int step_begin;
  int step_end;
};
LARDER_INLINE RowsAndSteps all_rows(const MatmulArgs& args) { return {0, num_row_tiles(args.num_rows), 0, num_steps(args)}; }

LARDER_INLINE PackedRows pack(const MatmulArgs& args, const RowsAndSteps& some, uint8_t* data) {
  const int num = some.step_end - some.step_begin;
  const int64_t step_bytes = row_step_bytes(args);
  const int first_col = some.step_begin * kStepCols;
  uint8_t* to = data;
  for (int t = some.tile_begin; t < some.tile_end; ++t, to += num * step_bytes) {
    for (int r = 0; r < min_of(args.num_rows, kAmxRows); ++r) {
      const float* x = args.x + (first_row(t, args.num_rows) + r) * args.ldx + first_col;
      for (int s = 0; s < num; ++s)
        round_step(x + s * kStepCols, args.w->num_cols - first_col - s * kStepCols, to + s * step_bytes + r * 64);
    }
  }
  return {data, num * step_bytes, step_bytes};
}

// weights: of a step, the second panel's `stride` behind the first one's; rows: of each tile. kOnce: which of them pass
// by, while the weights are multiplied again and again.
template <int kTiles, int kPanels, bool kOnce>
LARDER_INLINE void multiply_step(const void* weights, int64_t stride, const uint8_t* first, const uint8_t* second) {
  const auto load_rows = [&]<int kTile>(const uint8_t* rows) LARDER_INLINE_LAMBDA {
    if constexpr (kOnce)
      tile_load_once<kTile>(rows, 64);
    else
      tile_load<kTile>(rows, 64);
  };
  tile_load<6>(weights, kPairBytes);
  if constexpr (kPanels > 1) tile_load<7>(static_cast<const uint8_t*>(weights) + stride, kPairBytes);
  load_rows.template operator()<4>(first);
  tile_dot_bf16<0, 4, 6>();
  if constexpr (kPanels > 1) tile_dot_bf16<1, 4, 7>();
  if constexpr (kTiles > 1) {
    load_rows.template operator()<5>(second);
    tile_dot_bf16<2, 5, 6>();
    if constexpr (kPanels > 1) tile_dot_bf16<3, 5, 7>();
  }
}

// Sums of 16 rows of a panel.
using TileSums = float[kAmxRows][16];

LARDER_INLINE void zero_sums() {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
}
// sums: [tiles][panels].
template <int kTiles, int kPanels>
LARDER_INLINE void load_sums(const TileSums* sums) {
  tile_load<0>(sums[0], 64);
  if constexpr (kPanels > 1) tile_load<1>(sums[1], 64);
  if constexpr (kTiles > 1) tile_load<2>(sums[kPanels], 64);
  if constexpr (kTiles > 1 && kPanels > 1) tile_load<3>(sums[kPanels + 1], 64);
}
template <int kTiles, int kPanels>
LARDER_INLINE void store_sums(TileSums* sums) {
  tile_store<0>(sums[0], 64);
  if constexpr (kPanels > 1) tile_store<1>(sums[1], 64);
  if constexpr (kTiles > 1) tile_store<2>(sums[kPanels], 64);
  if constexpr (kTiles > 1 && kPanels > 1) tile_store<3>(sums[kPanels + 1], 64);
}

// Where write_tiles() will write.
template <int kTiles, int kPanels>
LARDER_INLINE void fetch_results(const MatmulArgs& args, int t, int panel) {
  for (int tile = 0; tile < kTiles; ++tile) {
    const float* y = args.y + first_row(t + tile, args.num_rows) * args.ldy + panel * kPanelRows;
    for (int r = 0; r < min_of(args.num_rows, kAmxRows); ++r, y += args.ldy) {
      for (int p = 0; p < kPanels; ++p) prefetch_to_write(y + p * kPanelRows);
    }
  }
}

// Of kTiles tiles of rows from t on, to where they belong.
template <int kTiles, int kPanels>
LARDER_INLINE void write_tiles(const MatmulArgs& args, int t, int panel, const TileSums* sums) {
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = first_row(t + tile, args.num_rows);
    for (int r = 0; r < min_of(args.num_rows, kAmxRows); ++r) {
      for (int p = 0; p < kPanels; ++p) write_sums(args, row + r, panel + p, load(sums[tile * kPanels + p][r]));
    }
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
