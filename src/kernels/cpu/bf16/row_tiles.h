// What products on AMX tiles have in common: rows of activations by 16, panels of weights by two.
#pragma once

#include "kernels/cpu/bf16/amx_instructions.h"
#include "kernels/cpu/bf16/rounded_rows.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kAmxRows = 16;
inline constexpr int kStepPairs = 16;  // of a tile: pairs of columns
inline constexpr int kStepBytes = kStepPairs * kPairBytes;
inline constexpr int kMostTiles = kMaxBlockRows / kAmxRows;  // of a block
static_assert(kMaxBlockRows % kAmxRows == 0);

// Whole tiles, or fewer rows than one has. most: at most.
LARDER_INLINE int whole_tiles(int most) {
  return most < kAmxRows ? most : most / kAmxRows * kAmxRows;
}

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

// weights: of a step, the second panel's `stride` behind the first one's; rows: of each tile.
template <int kTiles, int kPanels>
LARDER_INLINE void multiply_step(const void* weights, int64_t stride, const uint8_t* const* rows, int row_stride) {
  tile_load<6>(weights, kPairBytes);
  if constexpr (kPanels > 1) tile_load<7>(static_cast<const std::byte*>(weights) + stride, kPairBytes);
  tile_load<4>(rows[0], row_stride);
  tile_dot_bf16<0, 4, 6>();
  if constexpr (kPanels > 1) tile_dot_bf16<1, 4, 7>();
  if constexpr (kTiles > 1) {
    tile_load<5>(rows[1], row_stride);
    tile_dot_bf16<2, 5, 6>();
    if constexpr (kPanels > 1) tile_dot_bf16<3, 5, 7>();
  }
}

// Tiles 0 to 3 and the totals of kTiles tiles of rows, [tiles, rows of one, panels].
template <int kTiles, int kPanels>
LARDER_INLINE void load_totals(const float (*totals)[16]) {
  constexpr int kStride = kPanels * 64;
  const float(*lower)[16] = totals + kAmxRows * kPanels;
  tile_load<0>(totals[0], kStride);
  if constexpr (kPanels > 1) tile_load<1>(totals[1], kStride);
  if constexpr (kTiles > 1) tile_load<2>(lower[0], kStride);
  if constexpr (kTiles > 1 && kPanels > 1) tile_load<3>(lower[1], kStride);
}
template <int kTiles, int kPanels>
LARDER_INLINE void store_totals(float (*totals)[16]) {
  constexpr int kStride = kPanels * 64;
  float(*lower)[16] = totals + kAmxRows * kPanels;
  tile_store<0>(totals[0], kStride);
  if constexpr (kPanels > 1) tile_store<1>(totals[1], kStride);
  if constexpr (kTiles > 1) tile_store<2>(lower[0], kStride);
  if constexpr (kTiles > 1 && kPanels > 1) tile_store<3>(lower[1], kStride);
}

// Where tile t of so many rows begins. The last one of many is whole, too: what it has of the rows before it comes
// out the same once more.
LARDER_INLINE int first_row(int t, int num_rows) { return max_of(0, min_of(t * kAmxRows, num_rows - kAmxRows)); }

// The rows' totals, [tiles, rows of one, panels], to where they belong.
template <int kPanels>
LARDER_INLINE void write_tiles(const MatmulArgs& args, int row, int num_rows, int panel, const float (*totals)[16]) {
  const int num_tiles = (num_rows + kAmxRows - 1) / kAmxRows;
  for (int t = 0; t < num_tiles; ++t) {
    for (int r = 0; r < min_of(num_rows, kAmxRows); ++r) {
      for (int p = 0; p < kPanels; ++p) {
        const float* total = totals[(t * kAmxRows + r) * kPanels + p];
        write_sums(args, row + first_row(t, num_rows) + r, panel + p, load(total));
      }
    }
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
