// How keys and values are stored, and where a value lies in its block.
//
// A token's bytes depend on that token alone: a block holds, for each KV head, the values of its 16
// tokens and their scales, so blocks are copied and sent as they are.
//
// kF16, kBF16: K as [head_dim][16 tokens], V as [16 tokens][head_dim], the order in which attention
// reads them.
//
// kInt8: value = scale * (code - 128), one scale (bfloat16: it has FP32's range, and codes are
// chosen for the rounded scale) per token and kInt8Group dimensions. Codes lie in tiles of 16
// dimensions by 16 tokens, bytes [4 quads][16 lanes][4]; K's lanes are tokens and its quads
// dimensions, V's lanes are dimensions and its quads tokens, so that both are sums over quads of
// the same form. What is summed over is at quad (i % 8) / 2, byte i % 2 + 2 * (i / 8): the even
// bytes of a quad, as 16-bit words, are items i and i + 8, and so are the odd ones. Behind the
// codes lie the scales, [groups][16 tokens].
#pragma once

#include <cstdint>

#include "base/types.h"

namespace larder {

enum class KvType : std::uint8_t { kF16, kBF16, kInt8 };

struct KvTypes {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;

  bool operator==(const KvTypes&) const = default;
};

inline constexpr int kInt8Group = 64;
inline constexpr int kCodeTile = 16;  // dimensions and tokens of a tile of codes

static constexpr int kv_num_groups(int head_dim) { return (head_dim + kInt8Group - 1) / kInt8Group; }

// Bytes of one head's keys (or values) in a block.
static constexpr std::int64_t kv_head_size_bytes(KvType type, int head_dim) {
  if (type != KvType::kInt8) return std::int64_t{head_dim} * kBlockSize * 2;
  const std::int64_t num_tiles = (head_dim + kCodeTile - 1) / kCodeTile;
  return (num_tiles * kCodeTile + kv_num_groups(head_dim) * 2) * kBlockSize;
}

// Of item i of the 16 that are summed over, in `lane` of a tile.
static constexpr int kv_code_offset(int i, int lane) {
  return i % 8 / 2 * (4 * kCodeTile) + lane * 4 + i % 2 + i / 8 * 2;
}

}  // namespace larder
