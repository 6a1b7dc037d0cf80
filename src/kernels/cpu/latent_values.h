// Values that are kept as keys alone (PagedKvView::values_are_keys). Included by attention.cc alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

// to[column][row] = from[row][column] of 8 rows of 8, 16 apart; those of `to` are `stride` apart.
LARDER_INLINE void turn_8x8(const uint16_t* from, uint16_t* to, int64_t stride) {
  typedef uint16_t Words __attribute__((vector_size(16)));
  Words rows[8], turned[8];
  for (int i = 0; i < 8; ++i) memcpy(&rows[i], from + i * kLanes, sizeof rows[i]);
  // Three rounds of rows i and i + 4 word by word: each moves one bit of the row's number into the column's.
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 4; ++i) {
      turned[2 * i] = __builtin_shuffle(rows[i], rows[i + 4], Words{0, 8, 1, 9, 2, 10, 3, 11});
      turned[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + 4], Words{4, 12, 5, 13, 6, 14, 7, 15});
    }
    for (int i = 0; i < 8; ++i) rows[i] = turned[i];
  }
  for (int i = 0; i < 8; ++i) memcpy(to + i * stride, &rows[i], sizeof rows[i]);
}

// The tile's values from its keys, of two bytes each: [dim][16 tokens] to [16 tokens][dim], once for all rows.
void turn_keys(const Work& work, KeyTile& tile) {
  for (int b = 0; b < kTileBlocks; ++b) {
    if (b >= tile.num_blocks) {
      tile.v[b] = tile.v[0];  // never used, as the keys there
      continue;
    }
    const auto* from = reinterpret_cast<const uint16_t*>(tile.k[b]);
    uint16_t* to = work.values + int64_t{b} * kBlockSize * work.dim;
    int d = 0;
    for (; d + 8 <= work.dim; d += 8) {
      turn_8x8(from + d * kLanes, to + d, work.dim);
      turn_8x8(from + d * kLanes + 8, to + 8 * work.dim + d, work.dim);
    }
    for (; d < work.dim; ++d)
      for (int i = 0; i < kLanes; ++i) to[i * work.dim + d] = from[d * kLanes + i];
    tile.v[b] = reinterpret_cast<const std::byte*>(to);
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
