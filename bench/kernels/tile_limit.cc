// What TDPBF16PS gives: of 16 rows, 16 outputs and 32 columns at a time, as the kernels take them.
#include "kernels/cpu/bf16/amx_instructions.h"
#include "machine_limits.h"

namespace larder::LARDER_ISA_NAMESPACE {

std::int64_t multiply_bf16(int rounds) {
  constexpr int kTiles = 8;  // four of sums, two each of rows and of weights
  constexpr int kSums = 4;
  TileShapes shapes{};
  shapes.palette = 1;
  for (int tile = 0; tile < kTiles; ++tile) {
    shapes.row_bytes[tile] = 64;
    shapes.rows[tile] = 16;
  }
  tiles_begin(shapes);  // all of them zeros
  for (int i = 0; i < rounds; ++i) {
    tile_dot_bf16<0, 4, 6>();
    tile_dot_bf16<1, 4, 7>();
    tile_dot_bf16<2, 5, 6>();
    tile_dot_bf16<3, 5, 7>();
  }
  tiles_end();
  return int64_t{rounds} * kSums * (2 * 16 * 16 * 32);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
