// How tensor cores are used by products: what a warp's lanes have of them, and tiles of many rows.
//
// The order of columns and outputs within a warp's operands is free, as long as both operands keep
// to it, so it is the packed layout's: a lane has four neighbouring outputs, of two panels side by
// side, brings as many columns of them as of row `group`, and gets the sums of its four outputs in
// rows 2 member and 2 member + 1.
#pragma once

#include "kernels/cuda/product.h"
#include "kernels/cuda/tensor_core.h"

namespace larder::LARDER_CUDA_NAMESPACE {

inline constexpr int kLaneOutputs = 4;
inline constexpr int kLaneRows = 2;
inline constexpr int kMmaRows = 8;
inline constexpr int kWarpPanels = 2;
inline constexpr int kWarpOutputs = kWarpPanels * kPanelRows;

// Its panel among the warp's, and its first output within that.
LARDER_DEVICE int lane_panel(MmaLane lane) { return lane.group / 4; }
LARDER_DEVICE int lane_output(MmaLane lane) { return lane.group % 4 * kLaneOutputs; }

// Puts a lane's sums of a segment to those of few_rows(): those of its rows that are among kRows.
template <int kRows, int kTiles>
LARDER_DEVICE void put_sums(const float (&sums)[kTiles][kLaneOutputs][kLaneRows], float* to,
                            MmaLane lane) {
  LARDER_UNROLL
  for (int tile = 0; tile < kTiles; ++tile)
    LARDER_UNROLL
    for (int r = 0; r < kLaneRows; ++r) {
      const int row = tile * kMmaRows + lane.member * kLaneRows + r;
      if (row >= kRows) continue;
      Floats4 four;
      LARDER_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i) four.value[i] = sums[tile][i][r];
      reinterpret_cast<Floats4*>(to + row * kWarpOutputs)[lane.group] = four;
    }
}

// Many rows: four warps share a tile, each takes 32 rows by 32 outputs of it, and walk in steps.
// The operands of a step come to shared memory while those before it are multiplied.
inline constexpr int kBuffers = 3;
inline constexpr int kTileThreads = 128;
inline constexpr int kWarpTileRows = 32;
static_assert(kTilePanels == kTileThreads / 32 && kTileOutputs == 2 * kWarpOutputs &&
              kTileRows == 2 * kWarpTileRows);

// Where piece i (16 bytes) of rows of 64 lies in shared memory, where the eight lanes that load at
// once are at two neighbours in each of four rows, every other one of eight: in different banks.
LARDER_DEVICE int place_of_every_other(int i) { return i ^ (i >> 2 & 6); }

// A lane's sums in a tile: of its warp's rows 8 n + 2 member + r, outputs 4 group + i.
struct TileSums {
  static constexpr int kTiles = kWarpTileRows / kMmaRows;
  float segment[kTiles][kLaneOutputs][kLaneRows] = {};
  float total[kTiles][kLaneOutputs][kLaneRows] = {};

  static LARDER_MEMBER int first_row() { return thread_index() / 64 * kWarpTileRows; }
  static LARDER_MEMBER int first_output() { return thread_index() / 32 % 2 * kWarpOutputs; }

  LARDER_MEMBER void end_segment() {
    LARDER_UNROLL
    for (int tile = 0; tile < kTiles; ++tile)
      LARDER_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i)
        LARDER_UNROLL
        for (int r = 0; r < kLaneRows; ++r) {
          total[tile][i][r] += segment[tile][i][r];
          segment[tile][i][r] = 0;
        }
  }
  LARDER_MEMBER void put(const Outputs& outputs, int tile_row, int tile_output,
                         MmaLane lane) const {
    const int row = tile_row + first_row() + lane.member * kLaneRows;
    const int output = tile_output + first_output() + lane.group * kLaneOutputs;
    LARDER_UNROLL
    for (int tile = 0; tile < kTiles; ++tile)
      LARDER_UNROLL
      for (int r = 0; r < kLaneRows; ++r)
        LARDER_UNROLL
        for (int i = 0; i < kLaneOutputs; ++i)
          outputs.put(row + tile * kMmaRows + r, output + i, total[tile][i][r]);
  }
};

// The walk. supply.copy(step, to) begins a step's copies, load(step) and put(to) bring what goes
// through registers; add(step, operands) multiplies.
template <class Step, class Supply, class Add>
LARDER_DEVICE void walk_steps(Step (&steps)[kBuffers], int num_steps, Supply& supply,
                              const Add& add) {
  const auto begin_copies = [&](int step) {
    if (step < num_steps) supply.copy(step, steps[step % kBuffers]);
    end_copies();  // a group also of none, so that they count the steps
  };
  LARDER_UNROLL
  for (int step = 0; step < kBuffers - 1; ++step) begin_copies(step);
  supply.load(0);
  supply.put(steps[0]);
  LARDER_NO_UNROLL
  for (int step = 0; step < num_steps; ++step) {
    wait_for_copies<kBuffers - 2>();
    sync_block();  // now the step has all its operands, and nobody reads those of the one before
    begin_copies(step + kBuffers - 1);
    if (step + 1 < num_steps) supply.load(step + 1);
    sync_warp();  // conditions above may have parted it, and tensor cores take it whole
    add(step, steps[step % kBuffers]);
    if (step + 1 < num_steps) supply.put(steps[(step + 1) % kBuffers]);
  }
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
