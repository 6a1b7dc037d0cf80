// Products of BF16 and FP16 weights with FP32 activations, in tensor cores.
//
// An FP16 weight is the sum of two BF16 numbers, 11 bits of it, so all products are of BF16 numbers.
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

// A lane's weights of a slab: columns 4 member and 4 member + 1 of its four outputs, and the two behind them.
// BF16: a word is an output's two; FP16: words 0 and 1 are one column of four outputs, 2 and 3 the other.
struct SlabWords {
  Words4 first;
  Words4 second;
};
// at(piece): where a slab's piece lies.
template <class Weights, class At>
LARDER_DEVICE SlabWords load_slab(MmaLane lane, const At& at) {
  SlabWords words;
  if constexpr (std::is_same_v<Weights, Bf16Weights>) {
    const int piece = lane.member * 8 + lane.group % 4;
    words = {*at(piece), *at(piece + 4)};
  } else {
    LARDER_UNROLL
    for (int col = 0; col < 4; ++col) {
      Several<int, 2> outputs;
      load_several(outputs, at(lane.member * 8 + col * 2 + lane.group % 4 / 2), lane.group % 2 * 2);
      Words4& two = col < 2 ? words.first : words.second;
      two.word[col % 2 * 2] = outputs.value[0];
      two.word[col % 2 * 2 + 1] = outputs.value[1];
    }
  }
  return words;
}
// Of output i of the lane's four.
template <class Weights>
LARDER_DEVICE void weight_parts(const Words4& two_columns, int i, std::uint32_t (&parts)[Weights::kParts]) {
  if constexpr (std::is_same_v<Weights, Bf16Weights>)
    parts[0] = static_cast<std::uint32_t>(two_columns.word[i]);
  else
    half_parts(static_cast<std::uint32_t>(two_columns.word[i / 2]),
               static_cast<std::uint32_t>(two_columns.word[2 + i / 2]), i % 2, parts);
}

// sums += a slab's products; x: columns 4 member to 4 member + 3 of row `group`, as kParts numbers.
template <class Weights, int kParts>
LARDER_DEVICE void add_slab(const SlabWords& words, const Floats4& x,
                            float (&sums)[kLaneOutputs][kLaneRows]) {
  std::uint32_t low[kParts], high[kParts];
  bf16_parts(x.value[0], x.value[1], low);
  bf16_parts(x.value[2], x.value[3], high);
  LARDER_UNROLL
  for (int i = 0; i < kLaneOutputs; i += 2) {
    std::uint32_t weights[Weights::kParts][4];
    LARDER_UNROLL
    for (int j = 0; j < 4; ++j) {
      std::uint32_t parts[Weights::kParts];
      weight_parts<Weights>(j < 2 ? words.first : words.second, i + j % 2, parts);
      LARDER_UNROLL
      for (int part = 0; part < Weights::kParts; ++part) weights[part][j] = parts[part];
    }
    LARDER_UNROLL
    for (int of_weight = Weights::kParts - 1; of_weight >= 0; --of_weight)  // the small ones first
      LARDER_UNROLL
      for (int part = kParts - 1; part >= 0; --part)
        mma_bf16(sums[i], sums[i + 1], weights[of_weight], low[part], high[part]);
  }
}

// Few rows: a warp takes a segment of all rows and of two panels.
template <int kRows>
using FewRowsOf = FewRows<kRows, kWarpPanels, kRows <= kMmaRows ? 16 : 8, 32>;

// A lane's weights of a segment, all loaded before any is used.
template <class Weights>
struct SegmentWords {
  SlabWords slabs[kSegmentSlabs];

  LARDER_MEMBER void load(const Words4* panel, int segment, int num_pieces, MmaLane lane) {
    const int first = segment * (kSegmentSlabs * kSlabPieces);
    if (first + kSegmentSlabs * kSlabPieces <= num_pieces) {
      LARDER_UNROLL
      for (int i = 0; i < kSegmentSlabs; ++i)
        slabs[i] = load_slab<Weights>(lane, [&](int piece) { return panel + first + i * kSlabPieces + piece; });
    } else {
      LARDER_UNROLL
      for (int i = 0; i < kSegmentSlabs; ++i)
        slabs[i] = load_slab<Weights>(lane, [&](int piece) {
          return panel + piece_within<Weights>(first + i * kSlabPieces + piece, num_pieces);
        });
    }
  }
};

template <class Weights, int kRows, int kParts>
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
  const int num_pieces = Weights::num_pieces(product.w.num_cols);
  SegmentWords<Weights> words;
  words.load(panel, thread_index() / 32, num_pieces, lane);
  wait_for_kernels_before();  // weights are nobody's result
  const auto segment_sums = [&](int segment, int, float* partial) {
    float sums[kTiles][kLaneOutputs][kLaneRows] = {};
    const auto add = [&](int i, const auto& load) {
      const int col = (segment * kSegmentSlabs + i) * kSlabCols + lane.member * 4;
      LARDER_UNROLL
      for (int tile = 0; tile < kTiles; ++tile)
        add_slab<Weights, kParts>(words.slabs[i], load(x[tile], col), sums[tile]);
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
      words.load(panel, segment + num_warps, num_pieces, lane);
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

template <class Weights>
struct Supply {
  const Product& product;
  const Words4* panel;
  int first_row;

  LARDER_MEMBER void copy(int step, Step& to) const {
    const int lane = thread_index() % 32;
    const int num_pieces = Weights::num_pieces(product.w.num_cols);
    LARDER_UNROLL
    for (int slab = 0; slab < kStepSlabs; ++slab) {
      const int piece = (step * kStepSlabs + slab) * kSlabPieces + lane;
      copy_later(&to.w[thread_index() / 32][slab][place_of_every_other(lane)],
                 panel + piece_within<Weights>(piece, num_pieces));
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

template <class Weights, int kParts>
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
  const Supply<Weights> supply{product, product.panel(first_panel + thread_index() / 32), first_row};
  const int panel = TileSums::first_output() / kPanelRows + lane_panel(lane);
  TileSums sums;
  walk_steps(steps, num_steps, supply, [&](int step, const Step& operands) {
    LARDER_UNROLL
    for (int slab = 0; slab < kStepSlabs; ++slab) {
      if (step * kStepSlabs + slab >= num_slabs) break;
      const Words4* pieces = operands.w[panel][slab];
      const SlabWords words =
          load_slab<Weights>(lane, [&](int piece) { return pieces + place_of_every_other(piece); });
      LARDER_UNROLL
      for (int tile = 0; tile < TileSums::kTiles; ++tile) {
        const int row = TileSums::first_row() + tile * kMmaRows + lane.group;
        add_slab<Weights, kParts>(words, operands.x[row][Step::place_of_x(row, slab * 4 + lane.member)],
                         sums.segment[tile]);
      }
    }
    constexpr int kSegmentSteps = kSegmentCols / kStepCols;
    if (step % kSegmentSteps == kSegmentSteps - 1 || step + 1 == num_steps) sums.end_segment();
  });
  sums.put(product.outputs, first_row, first_panel * kPanelRows, lane);
}

template <class Weights, int kRows, int kParts>
void launch_few(const ProductGroup<Product>& group) {
  launch_few_rows<FewRowsOf<kRows>>(few_rows_kernel<Weights, kRows, kParts>, group);
}
template <class Weights, int kParts>
void launch_rows(const ProductGroup<Product>& group) {
  switch (row_count(group.of[0].outputs.num_rows)) {
    case RowCount::kOne:
      return launch_few<Weights, 1, kParts>(group);
    case RowCount::kUpTo8:
      return launch_few<Weights, 8, kParts>(group);
    case RowCount::kUpTo16:
      return launch_few<Weights, 16, kParts>(group);
    case RowCount::kMany:
      return launch_tiles(many_rows_kernel<Weights, kParts>, kTileThreads, group);
  }
}

}  // namespace

void matmul_bf16(const ProductList& products) {
  if (takes_bf16_tiles(products)) return matmul_bf16_tiles(products);
  const auto group = group_of(products, [](const MatmulArgs& args, int begin, int end) {
    return Product{float_product(args, begin, end)};
  });
  with_weights_of_16_bits(group.of[0].w.format, [&]<class Weights>() {
    products.of[0]->rounds_to_bf16 ? launch_rows<Weights, 1>(group) : launch_rows<Weights, 3>(group);
  });
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
