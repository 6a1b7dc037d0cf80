// Products of many rows with BF16 weights, by warpgroups: activations are rounded to BF16 once, in memory of
// their own, and tiles of both operands come to shared memory while those before them are multiplied. The
// sums are few_rows_kernel()'s (matmul_bf16.cu), bit for bit: 16 columns at once and in the same places among
// them, segments of kSegmentCols columns, then the segments in order.
#include "kernels/cuda/float_product.h"
#include "kernels/cuda/warp_tile.h"
#include "kernels/cuda/wgmma.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 2 * kWarpgroupThreads;
constexpr int kStepCols = 64;
constexpr int kStepSlabs = kStepCols / 16;
constexpr int kSegmentSteps = kSegmentCols / kStepCols;
constexpr int kPanelPieces = kStepCols / 2 * 4;  // of 16 bytes, of a step: a pair of columns is four
static_assert(kSegmentSteps == 2);

// A block's two warpgroups stand side by side, along its outputs or along its rows.
template <int kOutputGroups_, int kGroupRows_, int kBuffers_>
struct Shape {
  static constexpr int kOutputGroups = kOutputGroups_;
  static constexpr int kGroupRows = kGroupRows_;
  static constexpr int kBuffers = kBuffers_;
  static constexpr int kAhead = kBuffers - 2;  // steps whose operands are under way
  static constexpr int kPanels = kOutputGroups * 4;
  static constexpr int kRows = kGroupRows * 2 / kOutputGroups;
  static constexpr int kRowBytes = kRows * kOperandRowBytes;
  static constexpr int kStepBytes = kRowBytes + kPanels * kPanelPieces * 16;
  static constexpr int kSharedBytes = kBuffers * kStepBytes + kOperandAlignment;
  static_assert(kStepBytes % kOperandAlignment == 0);
};
// Outputs by rows; where there is a block for each multiprocessor at most, more is under way.
template <bool kDeep>
using TileOf32 = Shape<1, 16, kDeep ? 16 : 8>;  // 64 by 32
template <bool kDeep>
using TileOf64 = Shape<1, 32, kDeep ? 12 : 6>;  // 64 by 64
using TallTile = Shape<1, 64, 8>;               // 64 by 128
using LargeTile = Shape<2, 128, 4>;             // 128 by 128

// Activations as the kernels read them: [num_rows, stride] BF16, zeros behind the columns. Of each 16 columns
// the first two of every four come first: where an operand of mma_bf16() has them.
struct RoundedRows {
  std::uint16_t* values;
  std::int64_t stride;
};
inline std::int64_t rounded_stride(int num_cols) { return device_product_bytes(1, num_cols) / 2; }

struct Product : FloatProduct {
  RoundedRows rounded;
};

// A thread for each four columns.
constexpr int kRoundThreads = 256;
LARDER_KERNEL_OF(kRoundThreads) round_kernel(FloatProduct product, RoundedRows to) {
  wait_for_kernels_before();
  const std::int64_t index = grid_index();
  const std::int64_t fours = to.stride / 4;
  const std::int64_t row = index / fours;
  if (row >= product.outputs.num_rows) return;
  const int col = static_cast<int>(index % fours) * 4;
  const Floats4 x = load_x(product.x + row * product.ldx + col, product.w.num_cols - col, product.aligned);
  auto* slab = reinterpret_cast<std::uint32_t*>(to.values + row * to.stride + col / 16 * 16);
  slab[col % 16 / 4] = bf16_pair(x.value[0], x.value[1]);
  slab[4 + col % 16 / 4] = bf16_pair(x.value[2], x.value[3]);
}

// A block's operands in shared memory: [buffers] of [rows] of activations and [panels][pieces] of weights.
template <class S>
struct Buffers {
  unsigned char* bytes;

  LARDER_MEMBER unsigned char* rows(int step) const {
    return bytes + step % S::kBuffers * S::kStepBytes;
  }
  LARDER_MEMBER Words4* weights(int step) const {
    return reinterpret_cast<Words4*>(rows(step) + S::kRowBytes);
  }
};
// What a thread copies of every step: a piece of some panels, and one of some rows.
template <class S>
class Copies {
 public:
  LARDER_MEMBER Copies(const Product& product, int first_panel, int first_row)
      : piece_(thread_index() % kPanelPieces), num_pieces_(product.num_pairs() * 4) {
    LARDER_UNROLL
    for (int i = 0; i < kPanels; ++i)
      panels_[i] = product.panel(first_panel + i * kPanelStep + thread_index() / kPanelPieces) + piece_;
    LARDER_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const int row = min_of(first_row + i * kRowStep + thread_index() / kRowPieces,
                             product.outputs.num_rows - 1);
      rows_[i] = product.rounded.values + row * product.rounded.stride + thread_index() % kRowPieces * 8;
    }
  }
  LARDER_MEMBER void weights(int step, const Buffers<S>& to) const {
    int piece = step * kPanelPieces;
    // Past the end, the last pair: no activation meets it but zeros.
    if (piece + kPanelPieces > num_pieces_)
      piece = min_of(piece, num_pieces_ - 4 + piece_ % 4 - piece_);
    Words4* place = to.weights(step) + thread_index() / kPanelPieces * kPanelPieces + place_of_every_other(piece_);
    LARDER_UNROLL
    for (int i = 0; i < kPanels; ++i)
      copy_later(place + i * (kPanelStep * kPanelPieces), panels_[i] + piece);
  }
  LARDER_MEMBER void rows(int step, const Buffers<S>& to) const {
    unsigned char* place =
        to.rows(step) + operand_piece(thread_index() / kRowPieces, thread_index() % kRowPieces) * 16;
    LARDER_UNROLL
    for (int i = 0; i < kRows; ++i)
      copy_later(place + i * (kRowStep * kOperandRowBytes), rows_[i] + step * kStepCols);
  }

 private:
  static constexpr int kRowPieces = kOperandRowBytes / 16;
  static constexpr int kPanelStep = kThreads / kPanelPieces;  // a thread's panels are so far apart
  static constexpr int kRowStep = kThreads / kRowPieces;
  static constexpr int kPanels = S::kPanels / kPanelStep;
  static constexpr int kRows = S::kRows / kRowStep;
  static_assert(kRowStep % 8 == 0 && kPanels * kPanelStep == S::kPanels && kRows * kRowStep == S::kRows);

  int piece_;
  int num_pieces_;  // of a panel
  const Words4* panels_[kPanels];
  const std::uint16_t* rows_[kRows];
};

// A warp's left operands of a step: its panel's outputs 2 group and 2 group + 1.
LARDER_DEVICE void load_weights(const Words4* panel, MmaLane lane,
                                std::uint32_t (&a)[kStepSlabs][4]) {
  LARDER_UNROLL
  for (int slab = 0; slab < kStepSlabs; ++slab)
    LARDER_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int piece = (slab * 8 + 2 * lane.member + i) * 4 + lane.group / 2;
      const auto* words = reinterpret_cast<const std::uint32_t*>(panel + place_of_every_other(piece));
      Several<std::uint32_t, 2> two;
      load_several(two, words, lane.group % 2 * 2);
      a[slab][2 * i] = two.value[0];
      a[slab][2 * i + 1] = two.value[1];
    }
}

// Grid: tiles of rows, blocks of panels. Blocks that run together share weights.
template <class S>
LARDER_KERNEL_OF(kThreads) tiles_kernel(LARDER_PARAM ProductGroup<Product> group) {
  LARDER_SHARED_BYTES(bytes);
  constexpr int kSums = S::kGroupRows / 2;
  const int block = static_cast<int>(blockIdx.y);
  const Product& product = group.product(block);
  const MmaLane lane = mma_lane();
  const int warpgroup = thread_index() / kWarpgroupThreads;
  const int panel = (S::kOutputGroups == 2 ? warpgroup * 4 : 0) + thread_index() / 32 % 4;
  const int group_row = S::kOutputGroups == 2 ? 0 : warpgroup * S::kGroupRows;
  const int first_panel = group.first_panel(S::kPanels, block);
  const int first_row = static_cast<int>(blockIdx.x) * S::kRows;
  if (first_row >= product.outputs.num_rows) return wait_for_kernels_before();
  const Buffers<S> buffers = {aligned_shared(bytes, kOperandAlignment)};
  const Copies<S> copies(product, first_panel, first_row);
  const int num_steps = static_cast<int>(product.rounded.stride / kStepCols);
  for (int step = 0; step < S::kAhead; ++step)
    if (step < num_steps) copies.weights(step, buffers);
  wait_for_kernels_before();  // weights are nobody's result
  for (int step = 0; step < S::kAhead; ++step) {
    if (step < num_steps) copies.rows(step, buffers);
    end_copies();
  }

  float totals[kSums] = {};
  float sums[kSums];
  std::uint32_t weights[kSegmentSteps][kStepSlabs][4];
  // While the step before is multiplied.
  const auto prepare = [&](int step, std::uint32_t (&a)[kStepSlabs][4]) {
    wait_for_copies<S::kAhead - 1>();
    show_to_wgmma();
    wait_for_wgmma<1>();  // the one of two steps before has ended
    sync_block();         // now the step has all its operands, and nobody reads those of two before
    if (step + S::kAhead < num_steps) {
      copies.weights(step + S::kAhead, buffers);
      copies.rows(step + S::kAhead, buffers);
    }
    end_copies();  // a group also of none, so that they count the steps
    load_weights(buffers.weights(step) + panel * kPanelPieces, lane, a);
  };
  prepare(0, weights[0]);
  LARDER_NO_UNROLL
  for (int first = 0; first < num_steps; first += kSegmentSteps) {
    LARDER_UNROLL
    for (int i = 0; i < kSegmentSteps; ++i) {
      const int step = first + i;
      if (step >= num_steps) break;
      begin_wgmma();
      LARDER_UNROLL
      for (int slab = 0; slab < kStepSlabs; ++slab)
        wgmma_bf16(sums, weights[i][slab],
                   operand_at(buffers.rows(step) + group_row * kOperandRowBytes, slab * 16),
                   i + slab > 0 ? 1 : 0);
      end_wgmma();
      if (step + 1 < num_steps) prepare(step + 1, weights[1 - i]);
    }
    wait_for_wgmma<0>();
    LARDER_UNROLL
    for (int i = 0; i < kSums; ++i) totals[i] += sums[i];
  }

  const int output = (first_panel + panel) * kPanelRows + lane.group * 2;
  LARDER_UNROLL
  for (int j = 0; j < kSums / 4; ++j)
    LARDER_UNROLL
    for (int r = 0; r < 2; ++r)
      product.outputs.put_pair(first_row + group_row + j * 8 + lane.member * 2 + r, output,
                               totals[4 * j + r], totals[4 * j + 2 + r]);
}

// Whether the group has few blocks of 64 outputs.
bool is_narrow(const ProductGroup<Product>& group) {
  return GroupGrid(group, LargeTile::kPanels / 2, LargeTile::kRows).columns <=
         static_cast<unsigned>(num_multiprocessors());
}

template <class S>
void launch_tiles(const ProductGroup<Product>& group) {
  static const bool allowed = [] {
    allow_shared(tiles_kernel<S>, S::kSharedBytes);
    return true;
  }();
  static_cast<void>(allowed);
  const GroupGrid grid(group, S::kPanels, S::kRows);
  launch_with_shared(tiles_kernel<S>, dim3(grid.rows, grid.columns), kThreads, S::kSharedBytes, grid.group);
}

}  // namespace

bool takes_bf16_tiles(const ProductList& products) {
  const MatmulArgs& first = *products.of[0];
  return has_wgmma() && first.rounds_to_bf16 && first.device_scratch != nullptr &&
         first.num_rows > kMmaRows;
}

void matmul_bf16_tiles(const ProductList& products) {
  const MatmulArgs& first = *products.of[0];
  const RoundedRows rounded = {reinterpret_cast<std::uint16_t*>(first.device_scratch),
                               rounded_stride(first.w->num_cols)};
  const auto group = group_of(products, [&](const MatmulArgs& args, int begin, int end) {
    require(args.x == first.x && args.num_rows == first.num_rows, "products of the same rows");
    return Product{float_product(args, begin, end), rounded};
  });
  launch(round_kernel, blocks_for(first.num_rows * (rounded.stride / 4), kRoundThreads), kRoundThreads,
         float_product(first, 0, 0), rounded);
  const bool narrow = is_narrow(group);
  if (first.num_rows <= 32)
    return narrow ? launch_tiles<TileOf32<true>>(group) : launch_tiles<TileOf32<false>>(group);
  if (first.num_rows <= 64)
    return narrow ? launch_tiles<TileOf64<true>>(group) : launch_tiles<TileOf64<false>>(group);
  first.num_rows <= TallTile::kRows && narrow ? launch_tiles<TallTile>(group) : launch_tiles<LargeTile>(group);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
