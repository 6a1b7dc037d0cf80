// Products with 8-bit activations on AMX tiles: 16 rows x 16 outputs x one group of columns at a
// time. The integers are exact and the FP32 sums take int8_rows.h's order, so the bits are
// AVX-512's.
#pragma once

#include "kernels/cpu/amx_instructions.h"
#include "kernels/cpu/int8_rows.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kAmxRows = 16;  // of a tile

// Tiles 0 to 3: sums, [row tile][panel]; 4 and 5: activations; 6 and 7: weights.
template <class Format>
LARDER_INLINE TileShapes amx_shapes() {
  TileShapes shapes = {};
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.rows[tile] = tile < 6 ? kAmxRows : Format::kGroup / 4;
    shapes.row_bytes[tile] = tile == 4 || tile == 5 ? Format::kGroup : 64;
  }
  return shapes;
}

// Codes of one group as TDPBSUD wants them, which is how panels hold 8-bit codes.
template <class Format, int kTile>
LARDER_INLINE void load_weights(const std::byte* panel, int g, uint8_t* unpacked) {
  const uint8_t* codes = Format::codes(panel, g);
  if constexpr (Format::kBits == 8) {
    tile_load<kTile>(codes, 64);
  } else {
    for_each_pair<Format>([&]<int kPair>() LARDER_INLINE_LAMBDA {
      Bytes64 even;
      Bytes64 odd;
      Format::template load_quads<kPair>(codes, even, odd);
      store_bytes(unpacked + kPair * 128, even);
      store_bytes(unpacked + kPair * 128 + 64, odd);
    });
    tile_load<kTile>(unpacked, 64);
  }
}

// One group's sums of all rows: integers[row tile][panel][row][output].
template <class Format, int kRowTiles, int kPanels>
LARDER_INLINE void multiply_group(const Activations& x, const std::byte* const* panels, int g,
                                  uint8_t (*unpacked)[8 * 64],
                                  int32_t (*integers)[2][kAmxRows][16]) {
  const int8_t* q = x.q + int64_t{g} * Format::kGroup;
  load_weights<Format, 6>(panels[0], g, unpacked[0]);
  if constexpr (kPanels > 1) load_weights<Format, 7>(panels[1], g, unpacked[1]);
  tile_load<4>(q, x.num_cols);
  tile_zero<0>();
  tile_dot_s8u8<0, 4, 6>();
  tile_store<0>(integers[0][0], 64);
  if constexpr (kPanels > 1) {
    tile_zero<1>();
    tile_dot_s8u8<1, 4, 7>();
    tile_store<1>(integers[0][1], 64);
  }
  if constexpr (kRowTiles > 1) {
    tile_load<5>(q + int64_t{kAmxRows} * x.num_cols, x.num_cols);
    tile_zero<2>();
    tile_dot_s8u8<2, 5, 6>();
    tile_store<2>(integers[1][0], 64);
    if constexpr (kPanels > 1) {
      tile_zero<3>();
      tile_dot_s8u8<3, 5, 7>();
      tile_store<3>(integers[1][1], 64);
    }
  }
}

// Rows [row, row + 16 * kRowTiles) of panels [panel, panel + kPanels), every column.
template <class Format, int kRowTiles, int kPanels>
void amx_tile(const MatmulArgs& args, int row, int panel) {
  const Activations x = rows_from(*args.xq, row);
  constexpr int kRows = kAmxRows * kRowTiles;
  alignas(64) float totals[kRows][kPanels][16];
  alignas(64) int32_t integers[2][2][kAmxRows][16];
  alignas(64) uint8_t unpacked[2][8 * 64];
  const std::byte* panels[kPanels];
  for (int p = 0; p < kPanels; ++p) panels[p] = panel_of(*args.w, panel + p);
  memset(totals, 0, sizeof totals);
  for (int g = 0; g < x.num_cols / Format::kGroup; ++g) {
    multiply_group<Format, kRowTiles, kPanels>(x, panels, g, unpacked, integers);
    for (int p = 0; p < kPanels; ++p) {
      const V16 scale = Format::scale(panels[p], g);
      const V16 minimum = Format::minimum(panels[p], g);
      for (int r = 0; r < kRows; ++r) {
        const int32_t offset = Format::kOffset * q_sum<Format::kGroup>(x, r, g);
        const I16 sum =
            sub_int(load_int(integers[r / kAmxRows][p][r % kAmxRows]), set1_int(offset));
        store(totals[r][p], add_group<Format>(load(totals[r][p]), sum, scale, minimum, x, r, g));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) write_sums(args, row + r, panel + p, load(totals[r][p]));
  }
}

}  // namespace larder::LARDER_ISA_NAMESPACE
