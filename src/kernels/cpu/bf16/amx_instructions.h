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
// TDPBSUD: kSum[m][n] += sum over k and i of signed kA[m][4k + i] * unsigned kB[k][4n + i].
template <int kSum, int kA, int kB>
LARDER_INLINE void tile_dot_s8u8() {
  const TileShapes& s = product_shapes<kSum, kA, kB>();
  for (int m = 0; m < s.rows[kSum]; ++m) {
    for (int n = 0; n < s.row_bytes[kSum] / 4; ++n) {
      int32_t sum;
      uint8_t* at = &emulated_tiles[kSum].data[m][4 * n];
      memcpy(&sum, at, 4);
      for (int k = 0; k < s.rows[kB]; ++k) {
        for (int i = 0; i < 4; ++i) {
          sum += static_cast<int8_t>(emulated_tiles[kA].data[m][4 * k + i]) *
                 int32_t{emulated_tiles[kB].data[k][4 * n + i]};
        }
      }
      memcpy(at, &sum, 4);
    }
  }
}

LARDER_INLINE float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126F ? __builtin_copysignf(0, x) : x; }
LARDER_INLINE float bf16_at(const uint8_t* row, int i) {
  uint16_t half;
  memcpy(&half, row + 2 * i, sizeof half);
  return flushed(__builtin_bit_cast(float, uint32_t{half} << 16));
}
// TDPBF16PS: kSum[m][n] += (sum over k of kA[m][2k] * kB[k][2n]) + (the same of 2k + 1 and 2n + 1): each term is
// added in FP32, subnormals are zeros.
template <int kSum, int kA, int kB>
LARDER_INLINE void tile_dot_bf16() {
  const TileShapes& s = product_shapes<kSum, kA, kB>();
  for (int m = 0; m < s.rows[kSum]; ++m) {
    for (int n = 0; n < s.row_bytes[kSum] / 4; ++n) {
      float parts[2] = {};
      for (int k = 0; k < s.rows[kB]; ++k) {
        for (int i = 0; i < 2; ++i) {
          const float a = bf16_at(emulated_tiles[kA].data[m], 2 * k + i);
          const float b = bf16_at(emulated_tiles[kB].data[k], 2 * n + i);
          parts[i] = flushed(__builtin_fmaf(a, b, parts[i]));
        }
      }
      float sum;
      uint8_t* at = &emulated_tiles[kSum].data[m][4 * n];
      memcpy(&sum, at, 4);
      sum = flushed(sum + flushed(parts[0] + parts[1]));
      memcpy(at, &sum, 4);
    }
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
template <int kTile>
LARDER_INLINE void tile_store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// TDPBSUD: kSum[m][n] += sum over k and i of signed kA[m][4k + i] * unsigned kB[k][4n + i].
template <int kSum, int kA, int kB>
LARDER_INLINE void tile_dot_s8u8() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}
// TDPBF16PS: kSum[m][n] += (sum over k of kA[m][2k] * kB[k][2n]) + (the same of 2k + 1 and 2n + 1).
template <int kSum, int kA, int kB>
LARDER_INLINE void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

#endif

}  // namespace larder::LARDER_ISA_NAMESPACE
