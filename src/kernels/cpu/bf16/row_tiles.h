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

// Rows rounded to BF16, of some steps: [tiles][steps][rows of a tile][32 columns].
class PackedRows {
 public:
  PackedRows(uint8_t* data, int num_rows, int num_steps)
      : data_(data), num_rows_(num_rows), num_steps_(num_steps), step_bytes_(min_of(num_rows, kAmxRows) * 64) {}

  int64_t step_bytes() const { return step_bytes_; }
  const uint8_t* tile(int t) const { return data_ + int64_t{t} * num_steps_ * step_bytes_; }

  // Rows from `row` on, steps from first_step on.
  void pack(const MatmulArgs& args, int row, int first_step) {
    uint8_t* to = data_;
    const int first_col = first_step * kStepCols;
    for (int t = 0; t < num_row_tiles(num_rows_); ++t, to += int64_t{num_steps_} * step_bytes_) {
      for (int r = 0; r < min_of(num_rows_, kAmxRows); ++r) {
        const float* x = args.x + (row + first_row(t, num_rows_) + r) * args.ldx + first_col;
        for (int s = 0; s < num_steps_; ++s)
          round_step(x + s * kStepCols, args.w->num_cols - first_col - s * kStepCols, to + s * step_bytes_ + r * 64);
      }
    }
  }

 private:
  uint8_t* const data_;
  const int num_rows_;
  const int num_steps_;
  const int64_t step_bytes_;
};

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

struct RowRange {
  int begin;
  int count;
};

// Where write_tiles() will write.
template <int kTiles, int kPanels>
LARDER_INLINE void fetch_results(const MatmulArgs& args, RowRange rows, int t, int panel) {
  for (int tile = 0; tile < kTiles; ++tile) {
    const float* y = args.y + (rows.begin + first_row(t + tile, rows.count)) * args.ldy + panel * kPanelRows;
    for (int r = 0; r < min_of(rows.count, kAmxRows); ++r, y += args.ldy) {
      for (int p = 0; p < kPanels; ++p) prefetch_to_write(y + p * kPanelRows);
    }
  }
}

// Of kTiles tiles from t on of the rows, to where they belong.
template <int kTiles, int kPanels>
LARDER_INLINE void write_tiles(const MatmulArgs& args, RowRange rows, int t, int panel, const TileSums* sums) {
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = rows.begin + first_row(t + tile, rows.count);
    for (int r = 0; r < min_of(rows.count, kAmxRows); ++r) {
      for (int p = 0; p < kPanels; ++p) write_sums(args, row + r, panel + p, load(sums[tile * kPanels + p][r]));
    }
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
