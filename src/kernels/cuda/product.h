// How both forms of the matrix product are cut up.
//
// A sum runs over segments of kSegmentCols columns: within a segment in order, from nothing; then
// the segments in order. Few rows: 16 threads, one per output of a panel, take a segment each, so
// that the weights are read once by as many threads as there are. Many rows: tiles of 64 rows by 64
// outputs walk over all segments. Both add up alike, so a row's bits do not tell which one it was.
#pragma once

#include "kernels/cuda/functions.h"
#include "kernels/cuda/packed.h"

namespace larder::LARDER_CUDA_NAMESPACE {

inline constexpr int kSegmentCols = 128;
inline constexpr int kUnitCols = 32;  // that are taken together
inline constexpr int kSegmentUnits = kSegmentCols / kUnitCols;

inline constexpr int kFewRows = 8;          // of one block
inline constexpr int kMostFewRows = 16;     // beyond these, tiles
inline constexpr int kMaxSlots = 16;        // segments that a block has in hand
inline constexpr int kTileRows = 64;
inline constexpr int kTilePanels = 4;
inline constexpr int kTileOutputs = kTilePanels * kPanelRows;
inline constexpr int kTileThreads = 256;
inline constexpr int kThreadRows = 4;  // of a tile; and kTilePanels outputs

// Where the results go.
struct Outputs {
  const float* bias;
  float* y;
  std::int64_t ldy;
  int num_rows;
  int num_outputs;

  LARDER_MEMBER void put(int row, int output, float sum) const {
    if (row >= num_rows || output >= num_outputs) return;
    y[row * ldy + output] = bias != nullptr ? sum + bias[output] : sum;
  }
};

inline Outputs outputs_of(const MatmulArgs& args) {
  return {args.bias, args.y, args.ldy, args.num_rows, args.w->num_rows};
}

// The body of a kernel of few rows: rows [first_row, + kRows) of one panel.
// segment_sums(segment, lane, sums) gives a segment's sums, of one output, per row.
template <int kRows, class SegmentSums>
LARDER_DEVICE void few_rows(const Outputs& outputs, int num_segments, int first_row, int panel,
                            const SegmentSums& segment_sums) {
  LARDER_SHARED float partials[kMaxSlots][kRows * kPanelRows];
  LARDER_SHARED float totals[kRows * kPanelRows];
  const int lane = thread_index() % kPanelRows;
  const int slot = thread_index() / kPanelRows;
  const int num_slots = num_block_threads() / kPanelRows;
  for (int i = thread_index(); i < kRows * kPanelRows; i += num_block_threads()) totals[i] = 0;
  for (int base = 0; base < num_segments; base += num_slots) {
    float sums[kRows] = {};
    if (base + slot < num_segments) segment_sums(base + slot, lane, sums);
    LARDER_UNROLL
    for (int r = 0; r < kRows; ++r) partials[slot][r * kPanelRows + lane] = sums[r];
    sync_block();
    const int num_done = min_of(num_slots, num_segments - base);
    for (int i = thread_index(); i < kRows * kPanelRows; i += num_block_threads()) {
      float total = totals[i];
      for (int s = 0; s < num_done; ++s) total += partials[s][i];
      totals[i] = total;
    }
    sync_block();
  }
  for (int i = thread_index(); i < kRows * kPanelRows; i += num_block_threads())
    outputs.put(first_row + i / kPanelRows, panel * kPanelRows + i % kPanelRows, totals[i]);
}

// A block for each panel and kRows rows, of whole warps. Product: has panel_begin, panel_end, w and
// outputs.
template <int kRows, class Product>
void launch_few_rows(void (*kernel)(Product), const Product& product) {
  const int segments = (product.w.num_cols + kSegmentCols - 1) / kSegmentCols;
  const int slots = segments < kMaxSlots ? segments : kMaxSlots;
  const auto num_panels = static_cast<unsigned>(product.panel_end - product.panel_begin);
  const auto row_blocks = static_cast<unsigned>((product.outputs.num_rows + kRows - 1) / kRows);
  launch(kernel, dim3(num_panels, row_blocks), (slots + 1) / 2 * 2 * kPanelRows, product);
}

// A block for each tile.
template <class Product>
void launch_tiles(void (*kernel)(Product), const Product& product) {
  const int num_panels = product.panel_end - product.panel_begin;
  launch(kernel,
         dim3(static_cast<unsigned>((num_panels + kTilePanels - 1) / kTilePanels),
              static_cast<unsigned>((product.outputs.num_rows + kTileRows - 1) / kTileRows)),
         kTileThreads, product);
}

// A thread's sums in a tile: rows ty * kThreadRows + r, outputs p * kPanelRows + tx.
struct TileSums {
  float segment[kThreadRows][kTilePanels];
  float total[kThreadRows][kTilePanels];

  LARDER_MEMBER void clear() {
    LARDER_UNROLL
    for (int r = 0; r < kThreadRows; ++r)
      LARDER_UNROLL
      for (int p = 0; p < kTilePanels; ++p) segment[r][p] = total[r][p] = 0;
  }
  LARDER_MEMBER void end_segment() {
    LARDER_UNROLL
    for (int r = 0; r < kThreadRows; ++r)
      LARDER_UNROLL
      for (int p = 0; p < kTilePanels; ++p) {
        total[r][p] += segment[r][p];
        segment[r][p] = 0;
      }
  }
};

// The body of a kernel of many rows. add_unit(unit, sums) adds a unit's products to the segment's;
// it begins and ends with the block's barrier open to it.
template <class AddUnit>
LARDER_DEVICE void tile_rows(const Outputs& outputs, int num_units, int panel_begin,
                             const AddUnit& add_unit) {
  TileSums sums;
  sums.clear();
  for (int unit = 0; unit < num_units; ++unit) {
    add_unit(unit, sums);
    if (unit % kSegmentUnits == kSegmentUnits - 1 || unit + 1 == num_units) sums.end_segment();
  }
  const int row = static_cast<int>(blockIdx.y) * kTileRows + thread_index() / 16 * kThreadRows;
  LARDER_UNROLL
  for (int r = 0; r < kThreadRows; ++r)
    LARDER_UNROLL
    for (int p = 0; p < kTilePanels; ++p)
      outputs.put(row + r, (panel_begin + p) * kPanelRows + thread_index() % 16, sums.total[r][p]);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
