// Keys and values as kInt4 (kv_type.h). Included by store_kv.cc alone.
#pragma once

#include "kernels/cpu/functions.h"
#include "kernels/cpu/hadamard.h"

namespace larder::LARDER_ISA_NAMESPACE {
namespace {

LARDER_INLINE uint8_t encode_scale8(float scale) {
  int32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  const int32_t code = ((bits + (1 << (kScale8Shift - 1))) >> kScale8Shift) - kScale8Bias;
  return static_cast<uint8_t>(min_of(255, max_of(0, code)));
}
LARDER_INLINE float decode_scale8(uint8_t code) {
  const int32_t bits = (code + kScale8Bias) << kScale8Shift;
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return scale;
}

// Of one head: place i gets dimension order[i] of what is balanced; then the narrow part is turned, and
// the wide one of large heads. `to` has room for its padding.
inline void into_int4_basis(const PagedKvView& kv, int head, const float* balanced, float* to) {
  const int dim = kv.head_dim;
  const int16_t* order = kv.key_order != nullptr ? kv.key_order + head * dim : nullptr;
  for (int i = 0; i < dim; ++i) to[i] = balanced[order != nullptr ? order[i] : i];
  const int wide = kv_num_wide(dim);
  if (kv_is_large(dim)) hadamard_blocks(to, wide);
  hadamard_blocks(to + wide, dim - wide);
}

LARDER_INLINE int least_of(const float* errors, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i) best = errors[i] < errors[best] ? i : best;
  return best;
}

// Lanes [i, i + 16) of x[0, size), of which there is room to read 15 more; zeros behind the end.
LARDER_INLINE V16 load_group(const float* x, int i, int size) {
  return select(lanes_between(0, size - i), load(x + i), zero());
}
// Downwards to the codes' places, [-half, half).
LARDER_INLINE V16 place_of(V16 scaled, float half) {
  return floor(min(max(scaled, set1(-half)), set1(half - 1)));
}

// Of the scale whose steps just reach the largest value, the next coarser one and four finer ones,
// which clip it, the one with the least squared error.
inline uint8_t step_for(const float* x, int size, float half) {
  V16 largest = zero();
  for (int i = 0; i < size; i += 16) largest = max(largest, abs(load_group(x, i, size)));
  const uint8_t widest = encode_scale8(reduce_max(largest) / (half - 0.5F));
  // By steps: none waits for the error of the one before it.
  constexpr int kTries = 6;
  float errors[kTries];
  const auto code_of = [&](int i) { return min_of(255, max_of(0, widest + 1 - i)); };
  for (int i = 0; i < kTries; ++i) {
    const float step = decode_scale8(code_of(i));
    const V16 inverse = set1(1.0F / step);
    V16 sum = zero();
    for (int d = 0; d < size; d += 16) {
      const V16 scaled = mul(load(x + d), inverse);
      const V16 error = sub(sub(scaled, place_of(scaled, half)), set1(0.5F));
      sum = add(sum, select(lanes_between(0, size - d), mul(error, error), zero()));
    }
    errors[i] = reduce_add(sum) * step * step;
  }
  return static_cast<uint8_t>(code_of(least_of(errors, kTries)));
}

// x / scale rounded to the nearest of (place + 0.5), a code less half of the codes; returns the scale's
// code. Of x 15 more may be read, and of places written.
inline uint8_t round_group(const float* x, int size, float half, int8_t* places) {
  const uint8_t scale = step_for(x, size, half);
  const V16 inverse = set1(1.0F / decode_scale8(scale));
  for (int i = 0; i < size; i += 16)
    store_int8(places + i, to_int(place_of(mul(load(x + i), inverse), half)));
  return scale;
}

// Two quads in a vector: places of eight dimensions as codes, their lower 4 bits.
LARDER_INLINE void store_quads(const int8_t* places, int half, uint8_t* vector, int offset) {
  for (int j = 0; j < 4; ++j) {
    const int low = (places[j] + half) & 15;
    const int high = (places[4 + j] + half) & 15;
    vector[offset * 4 + j] = static_cast<uint8_t>(low | high << 4);
  }
}

inline void store_wide_codes(const int8_t* places, int num_wide, bool is_large, uint8_t* to,
                             int offset) {
  if (!is_large) {
    for (int i = 0; i < num_wide; ++i)
      to[i / 4 * kCodeVector + offset * 4 + i % 4] = static_cast<uint8_t>(places[i] + 128);
    return;
  }
  for (int i = 0; i < num_wide; i += 16, to += 3 * kCodeVector) {
    store_quads(places + i, 32, to, offset);
    store_quads(places + i + 8, 32, to + kCodeVector, offset);
    for (int j = 0; j < 4; ++j) {
      int bits = 0;
      for (int quad = 0; quad < 4; ++quad) bits |= (places[i + 4 * quad + j] + 32) >> 4 << 2 * quad;
      to[2 * kCodeVector + offset * 4 + j] = static_cast<uint8_t>(bits);
    }
  }
}

// `balanced`: [head_dim], finite.
inline void store_key_int4(const PagedKvView& kv, int head, const float* balanced, std::byte* to,
                           int offset) {
  const int num_wide = kv_num_wide(kv.head_dim);
  const int num_narrow = kv_num_narrow(kv.head_dim);
  const int num_narrow_groups = kv_num_narrow_groups(kv.head_dim);
  const bool is_large = kv_is_large(kv.head_dim);
  float basis[kMaxCodeDim + 32];
  int8_t places[kMaxCodeDim + 32];
  into_int4_basis(kv, head, balanced, basis);
  for (int d = kv.head_dim; d < kv.head_dim + 32; ++d) basis[d] = 0;
  auto* wide = reinterpret_cast<uint8_t*>(to);
  uint8_t* narrow = wide + kv_wide_size_bytes(kv.head_dim) * kBlockSize;
  uint8_t* scales = narrow + num_narrow / 2 * kBlockSize + offset;
  for (int g = 0; g < kv_num_wide_groups(kv.head_dim); ++g, scales += kBlockSize) {
    const int begin = kv_wide_begin(kv.head_dim, g);
    const int end = kv_wide_begin(kv.head_dim, g + 1);
    *scales = round_group(basis + begin, end - begin, is_large ? 32 : 128, places + begin);
  }
  for (int g = 0; g < num_narrow_groups; ++g, scales += kBlockSize) {
    const int begin = num_wide + num_narrow / 8 * g / num_narrow_groups * 8;
    const int end = num_wide + num_narrow / 8 * (g + 1) / num_narrow_groups * 8;
    *scales = round_group(basis + begin, end - begin, 8, places + begin);
  }
  store_wide_codes(places, num_wide, is_large, wide, offset);
  for (int i = 0; i < num_narrow; i += 8)
    store_quads(places + num_wide + i, 8, narrow + i / 8 * kCodeVector, offset);
}

// The nearest levels of |x|, x in steps: their place above zero (0 to 7) and themselves.
struct Levels {
  V16 place;
  V16 level;
};
LARDER_INLINE Levels nearest_levels(V16 magnitude) {
  Levels nearest = {zero(), set1(kNormalLevels[8])};
  for (int i = 8; i < 15; ++i) {
    const float low = kNormalLevels[i];
    const float high = kNormalLevels[i + 1];
    const V16 middle = set1((low + high) / 2);
    nearest.place = add(nearest.place, keep_ge(magnitude, middle, set1(1)));
    nearest.level = add(nearest.level, keep_ge(magnitude, middle, set1(high - low)));
  }
  return nearest;
}

// The code of the scale with the least squared error, of nine around the values' deviation.
// x: [num_vectors * 16], of which `size` exist and the rest is 0.
inline uint8_t best_scale(const float* x, int size, int num_vectors) {
  V16 squares = zero();
  for (int v = 0; v < num_vectors; ++v) {
    const V16 value = load(x + 16 * v);
    squares = add(squares, mul(value, value));
  }
  const float deviation = __builtin_sqrtf(reduce_add(squares) / static_cast<float>(size));
  constexpr int kTries = 9;
  float errors[kTries];
  const auto code_of = [&](int i) {
    return encode_scale8(deviation * (0.75F + 0.075F * static_cast<float>(i)));
  };
  for (int i = 0; i < kTries; ++i) {
    const float step = decode_scale8(code_of(i)) * kNormalLevelStep;
    const V16 inverse = set1(1.0F / step);
    V16 sum = zero();
    for (int v = 0; v < num_vectors; ++v) {
      const V16 magnitude = mul(abs(load(x + 16 * v)), inverse);
      const V16 error = sub(magnitude, nearest_levels(magnitude).level);
      sum = add(sum, mul(error, error));
    }
    errors[i] = reduce_add(sum) * step * step;
  }
  return code_of(least_of(errors, kTries));
}

// Codes as levels, a scale per kLevelGroup. x: [kv_padded_values()], zeros behind dim.
inline void level_codes(const float* x, int dim, uint8_t* codes, uint8_t* scales) {
  for (int begin = 0; begin < dim; begin += kLevelGroup, scales += kBlockSize) {
    const int end = begin + kLevelGroup;
    *scales = best_scale(x + begin, min_of(kLevelGroup, dim - begin), kLevelGroup / 16);
    const V16 inverse = set1(1.0F / (decode_scale8(*scales) * kNormalLevelStep));
    for (int d = begin; d < end; d += 16) {
      float places[16];
      store(places, nearest_levels(mul(abs(load(x + d)), inverse)).place);
      for (int i = 0; i < 16; ++i) {
        const int place = static_cast<int>(places[i]);
        codes[d + i] = static_cast<uint8_t>(x[d + i] < 0 ? 7 - place : 8 + place);
      }
    }
  }
}

// The same of large heads: even steps, a scale per kLargeHead.
inline void even_codes(const float* x, int dim, uint8_t* codes, uint8_t* scales) {
  int8_t places[kLargeHead];
  for (int begin = 0; begin < dim; begin += kLargeHead, scales += kBlockSize) {
    *scales = round_group(x + begin, kLargeHead, 16, places);
    for (int i = 0; i < kLargeHead; ++i) codes[begin + i] = static_cast<uint8_t>(places[i] + 16);
  }
}

// Of 32 dimensions, the codes' lower 4 bits.
LARDER_INLINE void store_value_tile(const uint8_t* codes, uint8_t* tile, int offset) {
  for (int i = 0; i < 16; ++i) {
    tile[kv_code_offset(offset, i)] =
        static_cast<uint8_t>((codes[i] & 15) | (codes[16 + i] & 15) << 4);
  }
}

// `values`: [head_dim], finite.
inline void store_value_int4(const PagedKvView& kv, const float* values, std::byte* to,
                             int offset) {
  const int dim = kv.head_dim;
  const int padded_dim = kv_padded_values(dim);
  float turned[kMaxCodeDim + 32];
  uint8_t codes[kMaxCodeDim + 32];
  memcpy(turned, values, sizeof(float) * static_cast<size_t>(dim));
  for (int d = dim; d < padded_dim; ++d) turned[d] = 0;
  hadamard_blocks(turned, dim);
  auto* tile = reinterpret_cast<uint8_t*>(to);
  uint8_t* scales = tile + padded_dim * kv_value_bits(dim) / 8 * kBlockSize + offset;
  constexpr int kTileBytes = kCodeQuads * kCodeVector;
  if (!kv_is_large(dim)) {
    level_codes(turned, dim, codes, scales);
    for (int d = 0; d < padded_dim; d += 32, tile += kTileBytes)
      store_value_tile(codes + d, tile, offset);
    return;
  }
  even_codes(turned, dim, codes, scales);
  for (int begin = 0; begin < dim; begin += kLargeHead, tile += kTileBytes) {
    for (int d = begin; d < begin + kLargeHead; d += 32, tile += kTileBytes)
      store_value_tile(codes + d, tile, offset);
    for (int lane = 0; lane < 16; ++lane) {
      int bits = 0;
      for (int i = 0; i < 8; ++i) bits |= codes[begin + 16 * i + lane] >> 4 << i;
      tile[kv_code_offset(offset, lane)] = static_cast<uint8_t>(bits);
    }
  }
}

}  // namespace
}  // namespace larder::LARDER_ISA_NAMESPACE
