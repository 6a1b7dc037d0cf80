// Products of BF16 weights with FP32 activations, in tensor cores.
//
// An activation is the sum of three BF16 numbers, 8 bits of it each, so every product of a weight
// and one of them is exact; or it is rounded to one, where that is allowed. Tensor cores add those of 16 columns to a sum at once; how they round
// is theirs, but the same for every row and output. Few rows and tiles go through the same steps,
// so a row's bits do not tell which it was. An infinite activation gives NaN.
#include "kernels/cuda/float_product.h"
#include "kernels/cuda/warp_tile.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

// Columns that tensor cores take at once, and pieces of 16 bytes that a panel has of them: a row of
// 64 bytes is two columns of 16 outputs.
constexpr int kSlabCols = 16;
constexpr int kSlabPieces = kSlabCols / 2 * 4;
constexpr int kSegmentSlabs = kSegmentCols / kSlabCols;

struct Product : FloatProduct {
  LARDER_MEMBER int num_slabs() const { return (w.num_cols + kSlabCols - 1) / kSlabCols; }
  // Whether columns up to `end` can be loaded by four.
  LARDER_MEMBER bool has_pieces(int end) const { return aligned && end <= w.num_cols; }
};

// A lane's weights of a slab as they lie in memory: columns 4 member and 4 member + 1 of its four
// outputs, and the two behind them.
struct SlabWords {
  Words4 first;
  Words4 second;
};
LARDER_DEVICE int lane_piece(MmaLane lane) { return lane.member * 8 + lane.group % 4; }

// sums += a slab's products; x: columns 4 member to 4 member + 3 of row `group`, as kParts numbers.
template <int kParts>
LARDER_DEVICE void add_slab(const SlabWords& words, const Floats4& x,
                            float (&sums)[kLaneOutputs][kLaneRows]) {
  std::uint32_t low[kParts], high[kParts];
  bf16_parts(x.value[0], x.value[1], low);
  bf16_parts(x.value[2], x.value[3], high);
  LARDER_UNROLL
  for (int i = 0; i < kLaneOutputs; i += 2) {
    std::uint32_t weights[4];
    LARDER_UNROLL
    for (int j = 0; j < 2; ++j) {
      weights[j] = static_cast<std::uint32_t>(words.first.word[i + j]);
      weights[2 + j] = static_cast<std::uint32_t>(words.second.word[i + j]);
    }
    LARDER_UNROLL
    for (int part = kParts - 1; part >= 0; --part)  // the small ones first
      mma_bf16(sums[i], sums[i + 1], weights, low[part], high[part]);
  }
}

// Few rows: a warp takes a segment of all rows and of two panels.
template <int kRows>
using FewRowsOf = FewRows<kRows, kWarpPanels, kRows <= kMmaRows ? 16 : 8, 32>;

// A lane's weights of a segment, all loaded before any is used.
struct SegmentWords {
  SlabWords slabs[kSegmentSlabs];

  LARDER_MEMBER void load(const Words4* panel, int segment, int num_pairs, MmaLane lane) {
    const int first = segment * (kSegmentSlabs * kSlabPieces) + lane_piece(lane);
    if ((segment + 1) * (kSegmentCols / 2) <= num_pairs) {
      LARDER_UNROLL
      for (int i = 0; i < kSegmentSlabs; ++i)
        slabs[i] = {panel[first + i * kSlabPieces], panel[first + i * kSlabPieces + 4]};
    } else {
      // Past the end, the last pair: no activation meets it but zeros.
      const int last = (num_pairs - 1) * 4 + lane.group % 4;
      LARDER_UNROLL
      for (int i = 0; i < kSegmentSlabs; ++i)
        slabs[i] = {panel[min_of(first + i * kSlabPieces, last)],
                    panel[min_of(first + i * kSlabPieces + 4, last)]};
    }
  }
};

template <int kRows, int kParts>
LARDER_KERNEL_OF(FewRowsOf<kRows>::kThreads) few_rows_kernel(LARDER_PARAM ProductGroup<Product> group) {
  const Product& product = group.product();
  constexpr int kTiles = (kRows + kMmaRows - 1) / kMmaRows;
  const MmaLane lane = mma_lane();
  const int first_panel = group.first_panel(kWarpPanels);
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  if (first_row >= product.outputs.num_rows) return wait_for_kernels_before();
  const Words4* panel = product.panel(first_panel + lane_panel(lane));
  const int num_segments = (product.w.num_cols + kSegmentCols - 1) / kSegmentCols;
  const int num_warps = num_block_threads() / 32;
  const float* x[kTiles];
  LARDER_UNROLL
  for (int tile = 0; tile < kTiles; ++tile)
    x[tile] = product.row(first_row + tile * kMmaRows + lane.group);
  SegmentWords words;
  words.load(panel, thread_index() / 32, product.num_pairs(), lane);
  wait_for_kernels_before();  // weights are nobody's result
  const auto segment_sums = [&](int segment, int, float* partial) {
    float sums[kTiles][kLaneOutputs][kLaneRows] = {};
    const auto add = [&](int i, const auto& load) {
      const int col = (segment * kSegmentSlabs + i) * kSlabCols + lane.member * 4;
      LARDER_UNROLL
      for (int tile = 0; tile < kTiles; ++tile)
        add_slab<kParts>(words.slabs[i], load(x[tile], col), sums[tile]);
    };
    // Without conditions in between, a whole segment's activations can be loaded first.
    if (product.has_pieces((segment + 1) * kSegmentCols)) {
      LARDER_UNROLL
      for (int i = 0; i < kSegmentSlabs; ++i)
        add(i, [](const float* row, int col) {
          return *reinterpret_cast<const Floats4*>(row + col);
        });
    } else {
      LARDER_UNROLL
      for (int i = 0; i < kSegmentSlabs; ++i)
        if (segment * kSegmentSlabs + i < product.num_slabs())
          add(i, [&](const float* row, int col) {
            return load_x(row + col, product.w.num_cols - col, product.aligned);
          });
    }
    put_sums<kRows>(sums, partial, lane);
    // The next ones come while the block adds up.
    if (segment + num_warps < num_segments)
      words.load(panel, segment + num_warps, product.num_pairs(), lane);
  };
  few_rows<FewRowsOf<kRows>>(product.outputs, num_segments, first_row, first_panel * kPanelRows,
                             segment_sums);
}

// Many rows.
constexpr int kStepSlabs = 2;
constexpr int kStepCols = kStepSlabs * kSlabCols;

struct Step {
  Words4 w[kTilePanels][kStepSlabs][kSlabPieces];
  Floats4 x[kTileRows][kStepCols / 4];

  // Where piece i of a row of x lies: eight lanes load four neighbours of two rows.
  static LARDER_MEMBER int place_of_x(int row, int i) { return i ^ row % 2 * 4; }
};

struct Supply {
  const Product& product;
  const Words4* panel;
  int first_row;

  LARDER_MEMBER void copy(int step, Step& to) const {
    const int lane = thread_index() % 32;
    const int last = (product.num_pairs() - 1) * 4 + lane % 4;
    LARDER_UNROLL
    for (int slab = 0; slab < kStepSlabs; ++slab) {
      const int piece = (step * kStepSlabs + slab) * kSlabPieces + lane;
      copy_later(&to.w[thread_index() / 32][slab][place_of_every_other(lane)],
                 panel + min_of(piece, last));
    }
    constexpr int kRowPieces = kStepCols / 4;
    LARDER_UNROLL
    for (int i = 0; i < kTileRows * kRowPieces / kTileThreads; ++i) {
      const int r = i * (kTileThreads / kRowPieces) + thread_index() / kRowPieces;
      const int piece = thread_index() % kRowPieces;
      const int col = step * kStepCols + piece * 4;
      const float* row = product.row(first_row + r);
      Floats4* place = &to.x[r][Step::place_of_x(r, piece)];
      if (product.has_pieces(col + 4))
        copy_later(place, row + col);
      else
        *place = load_x(row + col, product.w.num_cols - col, product.aligned);
    }
  }
  LARDER_MEMBER void load(int) const {}
  LARDER_MEMBER void put(Step&) const {}
};

template <int kParts>
LARDER_KERNEL_OF(kTileThreads) many_rows_kernel(LARDER_PARAM ProductGroup<Product> group) {
  LARDER_SHARED Step steps[kBuffers];
  wait_for_kernels_before();
  const Product& product = group.product();
  const MmaLane lane = mma_lane();
  const int first_panel = group.first_panel(kTilePanels);
  const int first_row = static_cast<int>(blockIdx.y) * kTileRows;
  if (first_row >= product.outputs.num_rows) return;
  const int num_slabs = product.num_slabs();
  const int num_steps = (num_slabs + kStepSlabs - 1) / kStepSlabs;
  const Supply supply{product, product.panel(first_panel + thread_index() / 32), first_row};
  const int panel = TileSums::first_output() / kPanelRows + lane_panel(lane);
  TileSums sums;
  walk_steps(steps, num_steps, supply, [&](int step, const Step& operands) {
    LARDER_UNROLL
    for (int slab = 0; slab < kStepSlabs; ++slab) {
      if (step * kStepSlabs + slab >= num_slabs) break;
      const Words4* pieces = operands.w[panel][slab];
      const SlabWords words{pieces[place_of_every_other(lane_piece(lane))],
                            pieces[place_of_every_other(lane_piece(lane) + 4)]};
      LARDER_UNROLL
      for (int tile = 0; tile < TileSums::kTiles; ++tile) {
        const int row = TileSums::first_row() + tile * kMmaRows + lane.group;
        add_slab<kParts>(words, operands.x[row][Step::place_of_x(row, slab * 4 + lane.member)],
                         sums.segment[tile]);
      }
    }
    constexpr int kSegmentSteps = kSegmentCols / kStepCols;
    if (step % kSegmentSteps == kSegmentSteps - 1 || step + 1 == num_steps) sums.end_segment();
  });
  sums.put(product.outputs, first_row, first_panel * kPanelRows, lane);
}

template <int kRows, int kParts>
void launch_few(const ProductGroup<Product>& group) {
  launch_few_rows<FewRowsOf<kRows>>(few_rows_kernel<kRows, kParts>, group);
}
template <int kParts>
void launch_rows(const ProductGroup<Product>& group) {
  switch (row_count(group.of[0].outputs.num_rows)) {
    case RowCount::kOne:
      return launch_few<1, kParts>(group);
    case RowCount::kUpTo8:
      return launch_few<8, kParts>(group);
    case RowCount::kUpTo16:
      return launch_few<16, kParts>(group);
    case RowCount::kMany:
      return launch_tiles(many_rows_kernel<kParts>, kTileThreads, group);
  }
}

}  // namespace

void matmul_bf16(const ProductList& products) {
  if (takes_bf16_tiles(products)) return matmul_bf16_tiles(products);
  const auto group = group_of(products, [](const MatmulArgs& args, int begin, int end) {
    return Product{float_product(args, begin, end)};
  });
  products.of[0]->rounds_to_bf16 ? launch_rows<1>(group) : launch_rows<3>(group);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
