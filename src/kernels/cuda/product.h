// How both forms of the matrix product are cut up.
//
// A sum runs over segments of kSegmentCols columns: within a segment in order, from nothing; then
// the segments in order. Few rows: every few threads take a segment of some outputs each, so that
// the weights are read once by as many threads as there are. Many rows: tiles of 64 rows by 64
// outputs walk over all segments. Both add up alike, so a row's bits do not tell which one it was.
#pragma once

#include <algorithm>

#include "kernels/cuda/functions.h"
#include "kernels/cuda/packed.h"

namespace larder::LARDER_CUDA_NAMESPACE {

inline constexpr int kSegmentCols = 128;
inline constexpr int kUnitCols = 32;  // that are taken together
inline constexpr int kSegmentUnits = kSegmentCols / kUnitCols;

inline constexpr int kMostFewRows = 16;  // beyond these, tiles
// What a kernel for few rows may be made for.
enum class RowCount { kOne, kUpTo8, kUpTo16, kMany };
inline RowCount row_count(int num_rows) {
  if (num_rows == 1) return RowCount::kOne;
  if (num_rows <= 8) return RowCount::kUpTo8;
  return num_rows <= kMostFewRows ? RowCount::kUpTo16 : RowCount::kMany;
}
inline constexpr int kTileRows = 64;
inline constexpr int kTilePanels = 4;
inline constexpr int kTileOutputs = kTilePanels * kPanelRows;

// Where the results go.
struct Outputs {
  const float* bias;
  float* y;
  std::int64_t ldy;
  int num_rows;
  int num_outputs;
  bool has_pairs;  // every other value of y can be written with the next one

  LARDER_MEMBER void put(int row, int output, float sum) const {
    if (row >= num_rows || output >= num_outputs) return;
    y[row * ldy + output] = bias != nullptr ? sum + bias[output] : sum;
  }
  // Of an even output and the next one.
  LARDER_MEMBER void put_pair(int row, int output, float first, float second) const {
    if (row >= num_rows || output >= num_outputs) return;
    if (output + 1 == num_outputs || !has_pairs) {
      put(row, output, first);
      put(row, output + 1, second);
      return;
    }
    Several<float, 2> pair = {{first, second}};
    if (bias != nullptr) pair = {{first + bias[output], second + bias[output + 1]}};
    *reinterpret_cast<Several<float, 2>*>(y + row * ldy + output) = pair;
  }
};

// Products of one kind in one launch: which one a block works for goes by its place in x. A product
// has panel_begin, panel_end, w and outputs.
template <class Product>
struct ProductGroup {
  Product of[kMostProducts];
  int count;
  int end_block[kMostProducts];  // set at the launch; those past the last product have no blocks

  // block: its place among all products'.
  LARDER_MEMBER const Product& product(int block) const { return of[which(block)]; }
  LARDER_MEMBER const Product& product() const { return product(static_cast<int>(blockIdx.x)); }
  // Of the block, where each has so many.
  LARDER_MEMBER int first_panel(int num_panels, int block) const {
    const int before = which(block) == 0 ? 0 : end_block[which(block) - 1];
    return product(block).panel_begin + (block - before) * num_panels;
  }
  LARDER_MEMBER int first_panel(int num_panels) const {
    return first_panel(num_panels, static_cast<int>(blockIdx.x));
  }

 private:
  LARDER_MEMBER int which(int block) const {
    return (block >= end_block[0] ? 1 : 0) + (block >= end_block[1] ? 1 : 0);
  }
};
// product_of(args, panel_begin, panel_end)
template <class ProductOf>
auto group_of(const ProductList& list, const ProductOf& product_of) {
  const auto product = [&](int i) {
    const MatmulArgs& args = *list.of[std::min(i, list.count - 1)];
    return product_of(args, list.panel_begin, std::min(list.panel_end, args.w->num_panels()));
  };
  static_assert(kMostProducts == 3);
  return ProductGroup<decltype(product(0))>{{product(0), product(1), product(2)}, list.count, {}};
}

// Those of the panels up to panel_end; a tile may reach beyond.
inline Outputs outputs_of(const MatmulArgs& args, int panel_end) {
  return {args.bias, args.y, args.ldy, args.num_rows,
          std::min(args.w->num_rows, panel_end * kPanelRows),
          args.ldy % 2 == 0 && reinterpret_cast<std::uintptr_t>(args.y) % 8 == 0};
}

// How a kernel of few rows is cut up: a block has kRows rows by kPanels panels, and kSlots segments
// in hand, of kSlotThreads threads each.
template <int kRows_, int kPanels_, int kSlots_, int kSlotThreads_>
struct FewRows {
  static constexpr int kRows = kRows_;
  static constexpr int kPanels = kPanels_;
  static constexpr int kOutputs = kPanels * kPanelRows;
  static constexpr int kSlots = kSlots_;
  static constexpr int kSlotThreads = kSlotThreads_;
  static constexpr int kThreads = kSlots * kSlotThreads;
  static_assert(kThreads % 32 == 0);
};

// The body of a kernel of few rows: rows from first_row on, outputs from first_output on.
// segment_sums(segment, thread, sums): a slot's thread puts what it has of a segment's
// sums[kRows][kOutputs].
template <class Shape, class SegmentSums>
LARDER_DEVICE void few_rows(const Outputs& outputs, int num_segments, int first_row,
                            int first_output, const SegmentSums& segment_sums) {
  constexpr int kSums = Shape::kRows * Shape::kOutputs;
  // Of two passes: while some threads add up one, the others are at the next.
  LARDER_SHARED float partials[2][Shape::kSlots][kSums];
  LARDER_SHARED float totals[kSums];  // each of one thread
  const int slot = thread_index() / Shape::kSlotThreads;
  const int num_slots = num_block_threads() / Shape::kSlotThreads;
  for (int i = thread_index(); i < kSums; i += num_block_threads()) totals[i] = 0;
  int pass = 0;
  for (int base = 0; base < num_segments; base += num_slots, pass ^= 1) {
    if (base + slot < num_segments)
      segment_sums(base + slot, thread_index() % Shape::kSlotThreads, partials[pass][slot]);
    sync_block();
    const int num_done = min_of(num_slots, num_segments - base);
    for (int i = thread_index(); i < kSums; i += num_block_threads()) {
      float total = totals[i];
      for (int s = 0; s < num_done; ++s) total += partials[pass][s][i];
      totals[i] = total;
    }
  }
  for (int i = thread_index(); i < kSums; i += num_block_threads())
    outputs.put(first_row + i / Shape::kOutputs, first_output + i % Shape::kOutputs, totals[i]);
}

// Blocks for each num_panels panels and num_rows rows of each product.
template <class Product>
struct GroupGrid {
  ProductGroup<Product> group;
  unsigned columns = 0, rows = 0;

  GroupGrid(const ProductGroup<Product>& of, int num_panels, int num_rows) : group(of) {
    const auto blocks = [](int whole, int each) {
      return static_cast<unsigned>((whole + each - 1) / each);
    };
    for (int i = 0; i < kMostProducts; ++i) {
      const Product& product = group.of[i];
      if (i < group.count) {
        columns += blocks(product.panel_end - product.panel_begin, num_panels);
        rows = std::max(rows, blocks(product.outputs.num_rows, num_rows));
      }
      group.end_block[i] = static_cast<int>(columns);
    }
  }
};
template <class Product>
void launch_group(void (*kernel)(ProductGroup<Product>), const ProductGroup<Product>& group,
                  int num_panels, int num_rows, int num_threads) {
  const GroupGrid grid(group, num_panels, num_rows);
  launch(kernel, dim3(grid.columns, grid.rows), num_threads, grid.group);
}

// Of whole warps.
template <class Shape, class Product>
void launch_few_rows(void (*kernel)(ProductGroup<Product>), const ProductGroup<Product>& group) {
  const int segments = (group.of[0].w.num_cols + kSegmentCols - 1) / kSegmentCols;
  const int threads = std::min(segments, Shape::kSlots) * Shape::kSlotThreads;
  launch_group(kernel, group, Shape::kPanels, Shape::kRows, (threads + 31) / 32 * 32);
}

// A block for each tile.
template <class Product>
void launch_tiles(void (*kernel)(ProductGroup<Product>), int num_threads,
                  const ProductGroup<Product>& group) {
  launch_group(kernel, group, kTilePanels, kTileRows, num_threads);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
