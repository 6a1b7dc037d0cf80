// Products of BF16 weights with activations rounded to BF16 on AMX tiles: TDPBF16PS takes 32 columns of 16 rows and
// 16 outputs at a time. It adds up in another order than VDPBF16PS (matmul_bf16.cc), so whatever number of rows
// there is goes this way, one alone, too: a row has the bits that it has among many.
#include "kernels/cpu/bf16/row_blocks.h"
#include "kernels/cpu/tables.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr int kFetchedSteps = 4;  // as far as fetch_stream() looks

LARDER_INLINE const std::byte* step_of(const MatmulArgs& args, int panel, int step) {
  return panel_of(*args.w, panel) + int64_t{step} * kStepBytes;
}
// With zeros behind a matrix's last columns, where the next panel begins.
struct CopyStep {
  LARDER_INLINE_LAMBDA void operator()(const MatmulArgs& args, int panel, int step, uint8_t* to) const {
    const auto* from = reinterpret_cast<const uint8_t*>(step_of(args, panel, step));
    const int num_pairs = (args.w->num_cols - step * kStepCols + 1) / 2;
    for (int i = 0; i < kStepPairs; ++i, from += kPairBytes, to += kPairBytes)
      _mm512_store_si512(to, i < num_pairs ? load_bytes(from) : _mm512_setzero_si512());
  }
};
LARDER_INLINE int num_whole_steps(const MatmulArgs& args) { return args.w->num_cols / kStepCols; }

// The rows, at most two tiles, of kPanels panels.
template <int kTiles, int kPanels>
void multiply_stream(const MatmulArgs& args, const PackedRows& rows, int panel) {
  const int64_t stride = args.w->panel_stride_bytes;
  const int num_whole = num_whole_steps(args);
  const uint8_t* first = rows.tile(0);
  const uint8_t* second = rows.tile(kTiles - 1);
  const auto* weights = reinterpret_cast<const uint8_t*>(panel_of(*args.w, panel));
  zero_sums();
  for (int s = 0; s < num_whole; ++s, weights += kStepBytes, first += rows.step_bytes, second += rows.step_bytes) {
    // Past its end a panel's fetches turn to the one that comes after its neighbours.
    const int64_t beyond = s < num_whole - kFetchedSteps ? 0 : (kPanels - 1) * stride;
    for (int line = 0; line < kStepBytes; line += 64) {
      for (int p = 0; p < kPanels; ++p) fetch_stream(weights + p * stride + beyond + line);
    }
    multiply_step<kTiles, kPanels, false>(weights, stride, first, second);
  }
  if (num_whole < num_steps(args)) {
    alignas(64) uint8_t last[kPanels * kStepBytes];
    for (int p = 0; p < kPanels; ++p) CopyStep()(args, panel + p, num_whole, last + p * kStepBytes);
    multiply_step<kTiles, kPanels, false>(last, kStepBytes, first, second);
  }
  alignas(64) TileSums sums[kTiles * kPanels];
  store_sums<kTiles, kPanels>(sums);
  write_tiles<kTiles, kPanels>(args, 0, panel, sums);
}

struct Bf16Product {
  using Prepare = CopyStep;

  template <int kTiles, int kPanels>
  static void stream(const MatmulArgs& args, const PackedRows& rows, int panel, int num_turns) {
    for (int turn = 0; turn < num_turns; ++turn) multiply_stream<kTiles, kPanels>(args, rows, panel + turn * kPanels);
  }
};

}  // namespace

bool multiplies(const MatmulArgs& args) { return has_rounded_rows(args); }

int64_t matmul_bf16_stack_bytes() { return sizeof(Block); }

void matmul_bf16(const MatmulArgs& args, int panel_begin, int panel_end) {
  multiply_panels<Bf16Product>(args, panel_begin, panel_end);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
