// Products of 9 to 64 rows with weights of 16 bits that have few outputs: the sums of matmul_bf16_tiles.cu, bit for
// bit. There are few blocks, and the steps of one after the other, each with its waits, would take longer than
// memory does. So the warpgroups of a block, or of a pair of blocks, take its tile's segments in turn, each with
// stages and barriers of its own. Segments are added in order all the same: the totals lie in shared memory and
// pass from warpgroup to warpgroup, each of which adds its segment when it is its turn.
#include "kernels/cuda/bf16_tile.h"
#include "kernels/cuda/block_pair.h"

namespace larder::LARDER_CUDA_NAMESPACE {
namespace {

constexpr int kPanels = 4;  // of a tile: a warp of each warpgroup takes one
constexpr int kGroupWarps = kWarpgroupThreads / 32;
static_assert(kGroupWarps == kPanels);

// kStages: a warpgroup's steps in shared memory.
template <int kRows_, int kWarpgroups_, int kStages_>
struct Shape {
  static constexpr int kRows = kRows_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kStages = kStages_;
  static constexpr int kAhead = kStages - 1;  // steps whose operands are under way
  static constexpr int kThreads = kWarpgroups * kWarpgroupThreads;
  static constexpr int kSums = kRows / 2;  // of a thread
  using Step = StepShape<kPanels, kRows, kWarpgroupThreads>;
  static constexpr int kStageBytes = kWarpgroups * kStages * Step::kBytes;
  static constexpr int kTotalBytes = kSums * kWarpgroupThreads * 4;
  static constexpr int kTurnBytes = kWarpgroups * kGroupWarps * static_cast<int>(sizeof(Arrivals));
  static constexpr int kSharedBytes = kStageBytes + kTotalBytes + kTurnBytes + kOperandAlignment;
  static_assert(kSharedBytes <= kCudaMostSharedBytes);
};

// The totals of a tile, and whose turn it is: warp i of a warpgroup adds to those of warp i before it. With kBlocks
// of 2 the warpgroups of the pair's first block come first, then those of the second.
template <class S, int kBlocks>
class Totals {
 public:
  LARDER_MEMBER explicit Totals(unsigned char* shared)
      : values_(reinterpret_cast<Floats4*>(shared) + thread_index() % kWarpgroupThreads),
        turns_(reinterpret_cast<Arrivals*>(shared + S::kTotalBytes)) {}

  // By all threads, before the first segment.
  LARDER_MEMBER void begin() const {
    if (thread_index() == 0) {
      for (int i = 0; i < S::kWarpgroups * kGroupWarps; ++i) begin_arrivals(&turns_[i], 1);
      show_arrivals();
    }
    kBlocks == 2 ? sync_pair() : sync_block();
  }
  // Adds a segment's sums to those before it, which then are the totals. is_last: none has to know of them.
  LARDER_MEMBER void add(float (&sums)[S::kSums], bool is_first, bool is_last) {
    if (!is_first) await_turn();
    LARDER_UNROLL
    for (int i = 0; i < S::kSums / 4; ++i) {
      const Floats4 before = is_first ? Floats4{} : values_[i * kWarpgroupThreads];
      LARDER_UNROLL
      for (int j = 0; j < 4; ++j) sums[4 * i + j] = before.value[j] + sums[4 * i + j];
    }
    if (is_last) return;
    if (warpgroup() + 1 < S::kWarpgroups || kBlocks == 1) {
      put(values_, sums);
      arrive_as_warp(turn((warpgroup() + 1) % S::kWarpgroups));
    } else {
      put(in_other_block(values_), sums);
      arrive_as_warp_in_other_block(turn(0));
    }
  }

 private:
  static LARDER_MEMBER int warpgroup() { return thread_index() / kWarpgroupThreads; }
  LARDER_MEMBER Arrivals* turn(int of) const { return &turns_[of * kGroupWarps + thread_index() / 32 % kGroupWarps]; }
  LARDER_MEMBER void await_turn() {
    if (kBlocks == 2 && warpgroup() == 0)
      wait_for_other_block(turn(0), phase_);
    else
      wait_for_arrivals(turn(warpgroup()), phase_);
    phase_ ^= 1;
  }
  static LARDER_MEMBER void put(Floats4* to, const float (&sums)[S::kSums]) {
    LARDER_UNROLL
    for (int i = 0; i < S::kSums / 4; ++i)
      to[i * kWarpgroupThreads] = {{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}};
  }

  Floats4* values_;
  Arrivals* turns_;
  int phase_ = 0;
};

// Grid: tiles of rows, each of kBlocks blocks, by blocks of panels.
template <class S, class Weights, int kBlocks>
LARDER_DEVICE void multiply_tile(const ProductGroup<RoundedProduct>& group, unsigned char* bytes) {
  constexpr int kTakers = kBlocks * S::kWarpgroups;
  const int block = static_cast<int>(blockIdx.y);
  const RoundedProduct& product = group.product(block);
  const MmaLane lane = mma_lane();
  const int warpgroup = thread_index() / kWarpgroupThreads;
  const int panel = thread_index() / 32 % kGroupWarps;
  const int first_panel = group.first_panel(kPanels, block);
  const int first_row = static_cast<int>(blockIdx.x) / kBlocks * S::kRows;
  if (first_row >= product.outputs.num_rows) return wait_for_kernels_before();
  unsigned char* shared = aligned_shared(bytes, kOperandAlignment);
  Totals<S, kBlocks> totals(shared + S::kStageBytes);
  const auto stage = [&](int i) {
    return Stage<typename S::Step>{shared + (warpgroup * S::kStages + i) * S::Step::kBytes};
  };
  const Copies<typename S::Step, Weights> copies(product, first_panel, first_row);
  const int num_steps = product.num_steps();
  const int taker = (kBlocks == 2 ? pair_rank() * S::kWarpgroups : 0) + warpgroup;
  // The warpgroup's i-th step.
  const auto step_at = [&](int i) {
    return (taker + i / kSegmentSteps * kTakers) * kSegmentSteps + i % kSegmentSteps;
  };
  LARDER_UNROLL
  for (int i = 0; i < S::kAhead; ++i)
    if (step_at(i) < num_steps) copies.weights(step_at(i), stage(i));
  totals.begin();
  wait_for_kernels_before();  // weights are nobody's result
  LARDER_UNROLL
  for (int i = 0; i < S::kAhead; ++i) {
    if (step_at(i) < num_steps) copies.rows(step_at(i), stage(i));
    end_copies();
  }

  float sums[S::kSums];
  int current = 0;  // stage
  LARDER_NO_UNROLL
  for (int i = 0; step_at(i) < num_steps; ++i) {
    const int step = step_at(i);
    wait_for_copies<S::kAhead - 1>();
    show_to_wgmma();
    sync_neighbours<kWarpgroupThreads>();  // now the step has all its operands, and nobody reads the one's before
    if (step_at(i + S::kAhead) < num_steps) {
      const auto free = stage(current == 0 ? S::kStages - 1 : current - 1);
      copies.weights(step_at(i + S::kAhead), free);
      copies.rows(step_at(i + S::kAhead), free);
    }
    end_copies();  // a group also of none, so that they count the steps
    StepWeights<Weights> weights;
    load_weights(stage(current).weights() + panel * kPanelPieces, lane, weights);
    begin_wgmma();
    multiply_step(sums, weights, i % kSegmentSteps == 0,
                  [&](int slab) { return operand_at(stage(current).rows(), slab * 16); });
    end_wgmma();
    wait_for_wgmma<0>();
    if (i % kSegmentSteps == kSegmentSteps - 1 || step + 1 == num_steps)
      totals.add(sums, step < kSegmentSteps, step + 1 == num_steps);
    if (step + 1 == num_steps) put_tile(product.outputs, first_panel + panel, first_row, lane, sums);
    current = current + 1 == S::kStages ? 0 : current + 1;
  }
}

template <class S, class Weights>
LARDER_KERNEL_OF(S::kThreads) block_kernel(LARDER_PARAM ProductGroup<RoundedProduct> group) {
  LARDER_SHARED_BYTES(bytes);
  multiply_tile<S, Weights, 1>(group, bytes);
}
template <class S, class Weights>
LARDER_KERNEL_OF_PAIRS(S::kThreads) pair_kernel(LARDER_PARAM ProductGroup<RoundedProduct> group) {
  LARDER_SHARED_BYTES(bytes);
  multiply_tile<S, Weights, 2>(group, bytes);
}

// By pairs where all of them run at once.
template <class S, class Weights>
void launch_tiles(const ProductGroup<RoundedProduct>& group) {
  static const bool allowed = [] {
    allow_shared(block_kernel<S, Weights>, S::kSharedBytes);
    allow_shared(pair_kernel<S, Weights>, S::kSharedBytes);
    return true;
  }();
  static_cast<void>(allowed);
  static_assert(2 * S::kSharedBytes > kCudaMostSharedBytes, "a multiprocessor has one block at a time");
  const GroupGrid grid(group, kPanels, S::kRows);
  if (2 * grid.rows * grid.columns <= static_cast<unsigned>(num_multiprocessors()))
    launch_pairs(pair_kernel<S, Weights>, dim3(2 * grid.rows, grid.columns), S::kThreads, S::kSharedBytes, grid.group);
  else
    launch_with_shared(block_kernel<S, Weights>, dim3(grid.rows, grid.columns), S::kThreads, S::kSharedBytes, grid.group);
}

}  // namespace

void matmul_bf16_narrow(const ProductGroup<RoundedProduct>& group) {
  const int num_rows = group.of[0].outputs.num_rows;
  with_weights_of_16_bits(group.of[0].w.format, [&]<class Weights>() {
    if (num_rows <= 16) return launch_tiles<Shape<16, 4, 5>, Weights>(group);
    if (num_rows <= 32) return launch_tiles<Shape<32, 4, 4>, Weights>(group);
    launch_tiles<Shape<64, 4, 3>, Weights>(group);
  });
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
