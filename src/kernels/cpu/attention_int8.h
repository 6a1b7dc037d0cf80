// Attention's sums over 8-bit codes (kv_type.h): queries and softmax weights in 16 bits, exact
// integer sums over a group of dimensions or a tile of keys, scaled in FP32. Included by
// attention.cc alone.
#pragma once

#include "kernels/cpu/attention_work.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

constexpr float kLargestWord = 32767;
constexpr int kCodeOffset = 128;
constexpr int kTileBytes = kCodeTile * kCodeTile;
constexpr int kQuadBytes = 4 * kCodeTile;
constexpr int kTilePairs = kCodeTile / 2;
// Sums stay within 31 bits: a group or a tile of 64 items, 255 * 32767 * 64 < 2^30.
static_assert(kInt8Group <= 64 && kKeyTile <= 64);

LARDER_INLINE const uint16_t* int8_scales(const Work& work, const std::byte* head, int group) {
  return reinterpret_cast<const uint16_t*>(head + work.padded_dim * kBlockSize) +
         group * kBlockSize;
}

// The row's query in 16 bits.
void quantize_query(const Work& work, const Queries& q) {
  V16 largest = zero();
  for (int d = 0; d < work.padded_dim; d += kLanes) largest = max(largest, abs(load(q.values + d)));
  const float peak = reduce_max(largest);
  const bool tiny = !(peak > 1e-30F);
  const V16 inverse = set1(tiny ? 0.0F : kLargestWord / peak);
  *q.scale = tiny ? 0.0F : peak / kLargestWord;
  for (int g = 0; g < work.num_groups; ++g) {
    V16 sum = zero();  // of whole numbers below 2^24: exact
    const int end = min_of(work.padded_dim, (g + 1) * kInt8Group);
    for (int d = g * kInt8Group; d < end; d += kLanes) {
      const V16 v = round_to_int(mul(load(q.values + d), inverse));
      store_word_pairs(q.words + d / 2, to_int(v));
      sum = add(sum, v);
    }
    q.start[g] = -kCodeOffset * static_cast<int32_t>(reduce_add(sum));
  }
}

// sum[r] += the 4 quads of a tile times the words of row r.
template <int kRows>
LARDER_INLINE void dot_tile(I16* sum, const std::byte* tile, const std::byte* next,
                            const int32_t* const* words, int at) {
  for (int quad = 0; quad < 4; ++quad) {
    if constexpr (kRows <= kFetchRows) prefetch(next + quad * kQuadBytes);
    const Bytes64 codes =
        load_bytes(reinterpret_cast<const uint8_t*>(tile) + quad * kQuadBytes);
    const Bytes64 even = word_bits<0, 8>(codes);
    const Bytes64 odd = word_bits<8, 8>(codes);
    for (int r = 0; r < kRows; ++r) {
      sum[r] = dot_words(sum[r], even, broadcast_words(words[r] + at + 2 * quad));
      sum[r] = dot_words(sum[r], odd, broadcast_words(words[r] + at + 2 * quad + 1));
    }
  }
}

// scores[r][16 b + lane] = q[r] . k[b][lane]
template <int kRows>
void score_rows_int8(const Work& work, const KeyTile& tile, const Queries& q, float* scores) {
  const int32_t* words[kRows];
  for (int r = 0; r < kRows; ++r) words[r] = q.words + r * (work.padded_dim / 2);
  for (int b = 0; b < tile.num_blocks; ++b) {
    V16 total[kRows];
    for (int r = 0; r < kRows; ++r) total[r] = zero();
    for (int g = 0; g < work.num_groups; ++g) {
      I16 sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(q.start[r * work.num_groups + g]);
      const int end = min_of(work.padded_dim, (g + 1) * kInt8Group);
      for (int d = g * kInt8Group; d < end; d += kCodeTile) {
        dot_tile<kRows>(sum, tile.k[b] + d * kBlockSize, tile.next_k[b] + d * kBlockSize, words,
                        d / 2);
      }
      const V16 scale = load_bf16(int8_scales(work, tile.k[b], g));
      for (int r = 0; r < kRows; ++r) {
        total[r] = fma(to_float(sum[r]), scale, total[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      store(scores + r * kKeyTile + b * kLanes, mul(total[r], set1(q.scale[r])));
    }
  }
}

// Softmax weights of a row's tile times the values' scales, in 16 bits.
struct WeightWords {
  int32_t words[kTileBlocks * kTilePairs];
  int32_t start;  // what takes the codes' offset off the sum
  float scale;
};

void quantize_weights(const Work& work, const KeyTile& tile, int row, int group, WeightWords& to) {
  V16 weights[kTileBlocks];
  V16 largest = zero();
  for (int b = 0; b < tile.num_blocks; ++b) {
    const V16 p = load(work.scores + row * kKeyTile + b * kLanes);
    const V16 product = mul(p, load_bf16(int8_scales(work, tile.v[b], group)));
    // A slot that holds no token has any scale.
    weights[b] = select_ge(p, set1(1e-38F), product, zero());
    largest = max(largest, weights[b]);
  }
  const float peak = reduce_max(largest);
  const bool tiny = !(peak > 1e-30F);
  const V16 inverse = set1(tiny ? 0.0F : kLargestWord / peak);
  to.scale = tiny ? 0.0F : peak / kLargestWord;
  V16 sum = zero();  // of whole numbers below 2^24: exact
  for (int b = 0; b < tile.num_blocks; ++b) {
    const V16 v = round_to_int(mul(weights[b], inverse));
    store_word_pairs(to.words + b * kTilePairs, to_int(v));
    sum = add(sum, v);
  }
  to.start = -kCodeOffset * static_cast<int32_t>(reduce_add(sum));
}

// values[r] = values[r] * factor + the tile's weights times its values.
template <int kRows>
void add_values_int8(const Work& work, const KeyTile& tile, int row, const Partial& partial) {
  for (int g = 0; g < work.num_groups; ++g) {
    WeightWords weights[kRows];
    const int32_t* words[kRows];
    for (int r = 0; r < kRows; ++r) {
      quantize_weights(work, tile, row + r, g, weights[r]);
      words[r] = weights[r].words;
    }
    const int end = min_of(work.padded_dim, (g + 1) * kInt8Group);
    for (int d = g * kInt8Group; d < end; d += kCodeTile) {
      I16 sum[kRows];
      for (int r = 0; r < kRows; ++r) sum[r] = set1_int(weights[r].start);
      for (int b = 0; b < tile.num_blocks; ++b) {
        dot_tile<kRows>(sum, tile.v[b] + d * kBlockSize, tile.next_v[b] + d * kBlockSize, words,
                        b * kTilePairs);
      }
      for (int r = 0; r < kRows; ++r) {
        float* values = partial.values + int64_t{row + r} * work.padded_dim + d;
        const V16 kept = mul(load(values), set1(work.factor[row + r]));
        store(values, fma(to_float(sum[r]), set1(weights[r].scale), kept));
      }
    }
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
