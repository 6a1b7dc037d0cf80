// Intel AMX's tile instructions, or the same written in C++ so that code over them is tested on
// machines that have none (Intel SDM volume 1, chapter 18; the operations as in volume 2).
#pragma once

#include "kernels/cpu/simd.h"

namespace larder::LARDER_ISA_NAMESPACE {

// LDTILECFG's operand.
struct TileShapes {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileShapes) == 64);

#if defined(LARDER_AMX_EMULATED)

struct EmulatedTile {
  uint8_t data[16][64];
};
static thread_local TileShapes emulated_shapes;
static thread_local EmulatedTile emulated_tiles[8];

LARDER_INLINE void tiles_begin(const TileShapes& shapes) { emulated_shapes = shapes; }
LARDER_INLINE void tiles_end() { emulated_shapes.palette = 0; }

template <int kTile>
LARDER_INLINE void tile_zero() {
  memset(&emulated_tiles[kTile], 0, sizeof(EmulatedTile));
}
// Rows `stride` bytes apart; what the shape does not hold becomes zero.
template <int kTile>
LARDER_INLINE void tile_load(const void* from, int64_t stride) {
  tile_zero<kTile>();
  for (int r = 0; r < emulated_shapes.rows[kTile]; ++r) {
    memcpy(emulated_tiles[kTile].data[r], static_cast<const uint8_t*>(from) + r * stride,
           emulated_shapes.row_bytes[kTile]);
  }
}
template <int kTile>
LARDER_INLINE void tile_load_once(const void* from, int64_t stride) {
  tile_load<kTile>(from, stride);
}
template <int kTile>
LARDER_INLINE void tile_store(void* to, int64_t stride) {
  for (int r = 0; r < emulated_shapes.rows[kTile]; ++r) {
    memcpy(static_cast<uint8_t*>(to) + r * stride, emulated_tiles[kTile].data[r],
           emulated_shapes.row_bytes[kTile]);
  }
}
// A product's shapes; the processor faults unless they agree.
template <int kSum, int kA, int kB>
LARDER_INLINE const TileShapes& product_shapes() {
  const TileShapes& s = emulated_shapes;
  if (s.palette != 1 || s.rows[kSum] != s.rows[kA] || s.row_bytes[kA] != 4 * s.rows[kB] ||
      s.row_bytes[kB] != s.row_bytes[kSum]) {
    __builtin_trap();
  }
  return s;
}
LARDER_INLINE float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126F ? __builtin_copysignf(0, x) : x; }
// Element 2 * i + half of a row of pairs.
LARDER_INLINE float bf16_at(const uint8_t* row, int i, int half) {
  uint16_t bits;
  memcpy(&bits, row + 4 * i + 2 * half, sizeof bits);
  return flushed(__builtin_bit_cast(float, uint32_t{bits} << 16));
}
// TDPBF16PS: kSum[m][n] += (sum over k of kA[m][2k] * kB[k][2n]) + (the same of 2k + 1 and 2n + 1): each term is
// added in FP32, subnormals are zeros.
template <int kSum, int kA, int kB>
LARDER_INLINE void tile_dot_bf16() {
  const TileShapes& s = product_shapes<kSum, kA, kB>();
  const int num_pairs = s.rows[kB];
  float b[2][16][16];  // [half][k][n]
  for (int k = 0; k < num_pairs; ++k) {
    for (int n = 0; n < 16; ++n) {
      for (int half = 0; half < 2; ++half) b[half][k][n] = bf16_at(emulated_tiles[kB].data[k], n, half);
    }
  }
  for (int m = 0; m < s.rows[kSum]; ++m) {
    float parts[2][16] = {};
    for (int k = 0; k < num_pairs; ++k) {
      for (int half = 0; half < 2; ++half) {
        const float a = bf16_at(emulated_tiles[kA].data[m], k, half);
        for (int n = 0; n < 16; ++n) parts[half][n] = flushed(__builtin_fmaf(a, b[half][k][n], parts[half][n]));
      }
    }
    float sums[16];
    memcpy(sums, emulated_tiles[kSum].data[m], sizeof sums);
    for (int n = 0; n < 16; ++n) sums[n] = flushed(flushed(sums[n]) + flushed(parts[0][n] + parts[1][n]));
    memcpy(emulated_tiles[kSum].data[m], sums, s.row_bytes[kSum]);
  }
}

#else

// As assembly, since the compiler's intrinsics take no template parameter for a tile's number.
LARDER_INLINE void tiles_begin(const TileShapes& shapes) {
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}
LARDER_INLINE void tiles_end() { __asm__ volatile("tilerelease"); }

template <int kTile>
LARDER_INLINE void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// Rows `stride` bytes apart; what the shape does not hold becomes zero.
template <int kTile>
LARDER_INLINE void tile_load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
// The same of what is not soon read again: it takes no place in the first-level cache from what is.
template <int kTile>
LARDER_INLINE void tile_load_once(const void* from, int64_t stride) {
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
LARDER_INLINE void tile_store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// TDPBF16PS: kSum[m][n] += (sum over k of kA[m][2k] * kB[k][2n]) + (the same of 2k + 1 and 2n + 1).
template <int kSum, int kA, int kB>
LARDER_INLINE void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

#endif

}  // namespace larder::LARDER_ISA_NAMESPACE
