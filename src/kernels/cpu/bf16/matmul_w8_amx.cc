// Products of weights in 8 bits, unpacked to BF16, with activations rounded to BF16 on AMX tiles, for whatever number
// of rows: see matmul_bf16_amx.cc. Many rows are multiplied twice as fast as with activations in 8 bits, whose sums would
// have to leave the tiles for every group of columns; one row about as fast as memory brings the weights, which those of
// fewer bits would not be.
#include "kernels/cpu/bf16/row_blocks.h"
#include "kernels/cpu/bf16/unpack_w8.h"
#include "kernels/cpu/tables.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

static_assert(kStepCols == W8::kGroup);
constexpr int kRingSteps = 4;
// Of each panel. Twice, as fetch_stream() has it on Intel's other machines, costs an eighth here.
constexpr int kFetchedBytes = 2 * 1024;
constexpr int kFetchedGroups = kFetchedBytes / (W8::kShape.chunk_bytes / W8::kGroupsPerChunk);

// Where the weights of up to two tiles of rows are in their panels, which they pass as a stream.
template <int kPanels>
class Stream {
 public:
  Stream(const MatmulArgs& args, int panel_begin, int num_turns)
      : panels_(panel_of(*args.w, panel_begin)),
        stride_(args.w->panel_stride_bytes),
        groups_(num_steps(args)),
        turns_(num_turns) {
    for (int s = 0; s < kLeadSteps; ++s) unpack();
  }

  // The next group of every panel, unpacked kLeadSteps ahead of it. The second panel's is kRingSteps behind.
  LARDER_INLINE_LAMBDA const uint8_t* next() {
    unpack();
    const uint8_t* step = ring_ + taken_ * kStepBytes;
    taken_ = (taken_ + 1) % kRingSteps;
    return step;
  }

 private:
  LARDER_INLINE_LAMBDA void unpack() {
    if (turns_ == 0) return;
    // Past its end a panel's fetches turn to the one that comes after its neighbours.
    const int64_t beyond = group_ < groups_ - kFetchedGroups ? 0 : (kPanels - 1) * stride_;
    for (int p = 0; p < kPanels; ++p) {
      const std::byte* panel = panels_ + p * stride_;
      const uint8_t* codes = W8::codes(panel, group_);
      unpack_group(codes, W8::scale(panel, group_), ring_ + (p * kRingSteps + unpacked_) * kStepBytes,
                   [&](int line) LARDER_INLINE_LAMBDA { prefetch(codes + beyond + kFetchedBytes + line * 64); });
    }
    unpacked_ = (unpacked_ + 1) % kRingSteps;
    if (++group_ < groups_) return;
    group_ = 0;
    panels_ += kPanels * stride_;
    --turns_;
  }

  const std::byte* panels_;
  const int64_t stride_;
  const int groups_;
  int turns_;  // that are left
  int group_ = 0;
  int unpacked_ = 0;
  int taken_ = 0;
  alignas(64) uint8_t ring_[kPanels * kRingSteps * kStepBytes];
};

struct UnpackStep {
  LARDER_INLINE_LAMBDA void operator()(const MatmulArgs& args, int panel, int step, uint8_t* to) const {
    const std::byte* from = panel_of(*args.w, panel);
    unpack_group(W8::codes(from, step), W8::scale(from, step), to, [](int) LARDER_INLINE_LAMBDA {});
  }
};

struct W8Product {
  using Prepare = UnpackStep;

  template <int kTiles, int kPanels>
  static void stream(const MatmulArgs& args, const PackedRows& rows, int panel, int num_turns) {
    Stream<kPanels> stream(args, panel, num_turns);
    for (int turn = 0; turn < num_turns; ++turn, panel += kPanels) {
      const uint8_t* first = rows.tile(0);
      const uint8_t* second = rows.tile(kTiles - 1);
      zero_sums();
      for (int s = 0; s < num_steps(args); ++s, first += rows.step_bytes, second += rows.step_bytes)
        multiply_step<kTiles, kPanels, false>(stream.next(), kRingSteps * kStepBytes, first, second);
      alignas(64) TileSums sums[kTiles * kPanels];
      store_sums<kTiles, kPanels>(sums);
      write_tiles<kTiles, kPanels>(args, 0, panel, sums);
    }
  }
};

}  // namespace

bool multiplies_w8(const MatmulArgs& args) {
  return args.w->format == PackedFormat::kW8 && args.rounds_to_bf16 && args.xq == nullptr;
}

int num_packed_tiles(const MatmulArgs& args) {
  if (!(multiplies(args) || multiplies_w8(args)) || are_few(args)) return 0;
  return num_row_tiles(args.num_rows);
}

void pack_rows(const MatmulArgs& args, std::byte* to, int tile_begin, int tile_end) {
  const int64_t tile_bytes = num_steps(args) * row_step_bytes(args);
  pack(args, {tile_begin, tile_end, 0, num_steps(args)}, reinterpret_cast<uint8_t*>(to) + tile_begin * tile_bytes);
}

int64_t matmul_w8_stack_bytes() { return sizeof(Block); }

void matmul_w8(const MatmulArgs& args, int panel_begin, int panel_end) {
  multiply_panels<W8Product>(args, panel_begin, panel_end);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
