// Products of many rows with weights of 16 bits, by warpgroups: activations are rounded to BF16 once, in memory of
// their own, and tiles of both operands come to shared memory while those before them are multiplied. The
// sums are few_rows_kernel()'s (matmul_bf16.cu), bit for bit: 16 columns at once and in the same places among
// them, segments of kSegmentCols columns, then the segments in order.
#include "kernels/cuda/bf16_tile.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 2 * kWarpgroupThreads;

// A block's two warpgroups stand side by side, along its outputs or along its rows.
template <int kOutputGroups_, int kGroupRows_, int kBuffers_>
struct Shape {
  static constexpr int kOutputGroups = kOutputGroups_;
  static constexpr int kGroupRows = kGroupRows_;
  static constexpr int kBuffers = kBuffers_;
  static constexpr int kAhead = kBuffers - 2;  // steps whose operands are under way
  static constexpr int kPanels = kOutputGroups * 4;
  static constexpr int kRows = kGroupRows * 2 / kOutputGroups;
  using Step = StepShape<kPanels, kRows, kThreads>;
  static constexpr int kSharedBytes = kBuffers * Step::kBytes + kOperandAlignment;
};
// Outputs by rows.
using TileOf32 = Shape<1, 16, 8>;    // 64 by 32
using TileOf64 = Shape<1, 32, 6>;    // 64 by 64
using TallTile = Shape<1, 64, 8>;    // 64 by 128
using LargeTile = Shape<2, 128, 4>;  // 128 by 128

inline std::int64_t rounded_stride(int num_cols) { return device_product_bytes(1, num_cols) / 2; }

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

// A block's operands in shared memory.
template <class S>
struct Buffers {
  unsigned char* bytes;

  LARDER_MEMBER Stage<typename S::Step> stage(int step) const {
    return {bytes + step % S::kBuffers * S::Step::kBytes};
  }
};

// Grid: tiles of rows, blocks of panels. Blocks that run together share weights.
template <class S, class Weights>
LARDER_KERNEL_OF(kThreads) tiles_kernel(LARDER_PARAM ProductGroup<RoundedProduct> group) {
  LARDER_SHARED_BYTES(bytes);
  constexpr int kSums = S::kGroupRows / 2;
  const int block = static_cast<int>(blockIdx.y);
  const RoundedProduct& product = group.product(block);
  const MmaLane lane = mma_lane();
  const int warpgroup = thread_index() / kWarpgroupThreads;
  const int panel = (S::kOutputGroups == 2 ? warpgroup * 4 : 0) + thread_index() / 32 % 4;
  const int group_row = S::kOutputGroups == 2 ? 0 : warpgroup * S::kGroupRows;
  const int first_panel = group.first_panel(S::kPanels, block);
  const int first_row = static_cast<int>(blockIdx.x) * S::kRows;
  if (first_row >= product.outputs.num_rows) return wait_for_kernels_before();
  const Buffers<S> buffers = {aligned_shared(bytes, kOperandAlignment)};
  const Copies<typename S::Step, Weights> copies(product, first_panel, first_row);
  const int num_steps = product.num_steps();
  for (int step = 0; step < S::kAhead; ++step)
    if (step < num_steps) copies.weights(step, buffers.stage(step));
  wait_for_kernels_before();  // weights are nobody's result
  for (int step = 0; step < S::kAhead; ++step) {
    if (step < num_steps) copies.rows(step, buffers.stage(step));
    end_copies();
  }

  float totals[kSums] = {};
  float sums[kSums];
  StepWeights<Weights> weights[kSegmentSteps];
  // While the step before is multiplied.
  const auto prepare = [&](int step, StepWeights<Weights>& a) {
    wait_for_copies<S::kAhead - 1>();
    show_to_wgmma();
    wait_for_wgmma<1>();  // the one of two steps before has ended
    sync_block();         // now the step has all its operands, and nobody reads those of two before
    if (step + S::kAhead < num_steps) {
      copies.weights(step + S::kAhead, buffers.stage(step + S::kAhead));
      copies.rows(step + S::kAhead, buffers.stage(step + S::kAhead));
    }
    end_copies();  // a group also of none, so that they count the steps
    load_weights(buffers.stage(step).weights() + panel * kPanelPieces, lane, a);
  };
  prepare(0, weights[0]);
  LARDER_NO_UNROLL
  for (int first = 0; first < num_steps; first += kSegmentSteps) {
    LARDER_UNROLL
    for (int i = 0; i < kSegmentSteps; ++i) {
      const int step = first + i;
      if (step >= num_steps) break;
      begin_wgmma();
      multiply_step(sums, weights[i], i == 0, [&](int slab) {
        return operand_at(buffers.stage(step).rows() + group_row * kOperandRowBytes, slab * 16);
      });
      end_wgmma();
      if (step + 1 < num_steps) prepare(step + 1, weights[1 - i]);
    }
    wait_for_wgmma<0>();
    LARDER_UNROLL
    for (int i = 0; i < kSums; ++i) totals[i] += sums[i];
  }

  put_tile(product.outputs, first_panel + panel, first_row + group_row, lane, totals);
}

// Whether the group has few blocks of 64 outputs.
bool is_narrow(const ProductGroup<RoundedProduct>& group) {
  return GroupGrid(group, LargeTile::kPanels / 2, LargeTile::kRows).columns <=
         static_cast<unsigned>(num_multiprocessors());
}

template <class S, class Weights>
void launch_tiles(const ProductGroup<RoundedProduct>& group) {
  static const bool allowed = [] {
    allow_shared(tiles_kernel<S, Weights>, S::kSharedBytes);
    return true;
  }();
  static_cast<void>(allowed);
  const GroupGrid grid(group, S::kPanels, S::kRows);
  launch_with_shared(tiles_kernel<S, Weights>, dim3(grid.rows, grid.columns), kThreads, S::kSharedBytes, grid.group);
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
    return RoundedProduct{float_product(args, begin, end), rounded};
  });
  launch(round_kernel, blocks_for(first.num_rows * (rounded.stride / 4), kRoundThreads), kRoundThreads,
         float_product(first, 0, 0), rounded);
  const bool narrow = is_narrow(group);
  if (narrow && first.num_rows <= TileOf64::kRows) return matmul_bf16_narrow(group);
  with_weights_of_16_bits(first.w->format, [&]<class Weights>() {
    if (first.num_rows <= TileOf32::kRows) return launch_tiles<TileOf32, Weights>(group);
    if (first.num_rows <= TileOf64::kRows) return launch_tiles<TileOf64, Weights>(group);
    if (first.num_rows <= TallTile::kRows && narrow) return launch_tiles<TallTile, Weights>(group);
    launch_tiles<LargeTile, Weights>(group);
  });
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
