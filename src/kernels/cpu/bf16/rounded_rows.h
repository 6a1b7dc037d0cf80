// Activations as BF16 products take them: rows of a block rounded to BF16, which stay in the second-level cache
// while the panels go by.
#pragma once

#include "kernels/cpu/bf16/bf16_panel.h"

namespace larder::LARDER_ISA_NAMESPACE {

inline constexpr int kFetchedPairs = 96;            // about as far as fetch_stream() looks
inline constexpr int kBlockBytes = 512 * 1024;
inline constexpr int kMaxBlockRows = 192;
// A row is longer than its columns, so that rows do not share the cache's sets.
inline constexpr int kRowPadBytes = 128;

LARDER_INLINE int num_pairs(const MatmulArgs& args) { return (args.w->num_cols + 1) / 2; }
LARDER_INLINE int row_bytes(int pairs) { return (pairs * 4 + 63) / 64 * 64 + kRowPadBytes; }
LARDER_INLINE int most_block_rows(int pairs) {
  return min_of(kBlockBytes / row_bytes(pairs), kMaxBlockRows);
}

// Zeros behind the columns, up to a multiple of 32.
LARDER_INLINE void round_row(const float* x, int cols, uint8_t* to) {
  for (int c = 0; c < (cols + 31) / 32 * 32; c += 16) {
    V16 v = zero();
    if (c < cols) v = cols - c >= 16 ? load(x + c) : load_partial(x + c, cols - c);
    const __m256bh rounded = _mm512_cvtneps_pbh(v);
    memcpy(to + 2 * c, &rounded, sizeof rounded);
  }
}
LARDER_INLINE void round_rows(const MatmulArgs& args, int row, int num_rows, uint8_t* to) {
  const int stride = row_bytes(num_pairs(args));
  for (int r = 0; r < num_rows; ++r)
    round_row(args.x + (row + r) * args.ldx, args.w->num_cols, to + r * stride);
}

}  // namespace larder::LARDER_ISA_NAMESPACE
