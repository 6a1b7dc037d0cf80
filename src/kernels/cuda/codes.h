// How codes of keys and values lie (kv_type.h), in numbers that the host works out, and what turns
// them to values and back.
#pragma once

#include <algorithm>

#include "kernels/cuda/limits.h"
#include "kernels/cuda/platform.h"

namespace larder::LARDER_CUDA_NAMESPACE {

// Groups of a head with a scale each, at most.
constexpr int kMostCodeGroups = kCudaMaxHeadDim / kLevelGroup;
// Four vectors of codes: 16 items by 16 tokens in bytes, or twice as many in 4 bits.
constexpr int kCodeTileBytes = kCodeQuads * kCodeVector;

// Columns of tensor cores' products of bytes.
constexpr int kCodeStepDims = 32;

// Of one layer's heads. Keys are kInt4's where they are said to have parts.
struct CodeParts {
  int dim;
  bool is_large;        // as kv_is_large()
  int num_wide;         // dimensions
  int wide_bytes;       // of a block
  int num_narrow;       // with what fills up the last vector
  int num_wide_groups;  // which come first
  int num_key_groups;
  std::int16_t key_begin[kMostCodeGroups + 1];  // a group's dimensions, as they lie, and the end
  std::int16_t key_step[kMostCodeGroups + 1];   // its first step of kCodeStepDims, and their number
  int padded_values;                            // kInt4's
  std::int64_t key_bytes;                       // of a head in a block
  std::int64_t value_bytes;
  std::int64_t key_scale_offset;  // where the first group's scales lie
  std::int64_t value_scale_offset;
};

// head_dim: at most kCudaMaxHeadDim.
inline CodeParts code_parts(const PagedKvView& kv) {
  const int dim = kv.head_dim;
  const std::int64_t bytes = std::int64_t{kBlockSize} * ((dim + 15) / 16 * 16);
  const std::int64_t wide_bytes = std::int64_t{kBlockSize} * kv_wide_size_bytes(dim);
  CodeParts parts = {
      .dim = dim,
      .is_large = kv_is_large(dim),
      .num_wide = kv_num_wide(dim),
      .wide_bytes = static_cast<int>(wide_bytes),
      .num_narrow = kv_num_narrow(dim),
      .num_wide_groups = kv_num_wide_groups(dim),
      .num_key_groups = kv.types.k == KvType::kInt4
                            ? kv_num_wide_groups(dim) + kv_num_narrow_groups(dim)
                            : kv_num_groups(dim),
      .key_begin = {},
      .key_step = {},
      .padded_values = kv_padded_values(dim),
      .key_bytes = kv_key_size_bytes(kv.types.k, dim),
      .value_bytes = kv_value_size_bytes(kv.types.v, dim),
      .key_scale_offset = kv.types.k == KvType::kInt4
                              ? wide_bytes + kBlockSize * kv_num_narrow(dim) / 2
                              : bytes,
      .value_scale_offset = kv.types.v == KvType::kInt4
                                ? kBlockSize * kv_padded_values(dim) * kv_value_bits(dim) / 8
                                : bytes};
  const auto begin_of = [&](int g) {
    if (kv.types.k != KvType::kInt4) return std::min(g * kCodeGroup, (dim + 15) / 16 * 16);
    if (g < parts.num_wide_groups) return kv_wide_begin(dim, g);
    const int narrow = g - parts.num_wide_groups;
    return parts.num_wide + parts.num_narrow / 8 * narrow / kv_num_narrow_groups(dim) * 8;
  };
  for (int g = 0; g <= parts.num_key_groups; ++g) {
    parts.key_begin[g] = static_cast<std::int16_t>(begin_of(g));
    if (g == 0) continue;
    const int size = parts.key_begin[g] - parts.key_begin[g - 1];
    parts.key_step[g] = static_cast<std::int16_t>(parts.key_step[g - 1] +
                                                  (size + kCodeStepDims - 1) / kCodeStepDims);
  }
  return parts;
}

// As kv_code_offset().
LARDER_DEVICE int code_offset(int i, int lane) {
  return i % 8 / 2 * kCodeVector + lane * 4 + i % 2 + i / 8 * 2;
}

LARDER_DEVICE float scale8_value(int code) {
  return as_float(static_cast<std::uint32_t>(code + kScale8Bias) << kScale8Shift);
}
LARDER_DEVICE int scale8_code(float scale) {
  const int bits = static_cast<int>(as_bits(scale));
  const int code = ((bits + (1 << (kScale8Shift - 1))) >> kScale8Shift) - kScale8Bias;
  return min_of(255, max_of(0, code));
}

// The nearest E4M3 number of a value that is at most kLargestE4m3.
LARDER_DEVICE std::uint8_t e4m3_bits(float value) {
  constexpr float kSubnormalPlace = 0x1p14F;  // a unit of the last place is a subnormal's
  const std::uint32_t bits = as_bits(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t normal = ((magnitude + 0x7FFFFU + (magnitude >> 20 & 1)) >> 20) - (120U << 3);
  const std::uint32_t subnormal = as_bits(as_float(magnitude) + kSubnormalPlace) - as_bits(kSubnormalPlace);
  const bool is_normal = magnitude >= (121U << 23);
  return static_cast<std::uint8_t>((bits >> 24 & 0x80U) | (is_normal ? normal : subnormal));
}
// Of bytes j of two words, as FP16 numbers (kE4m3InHalf).
LARDER_DEVICE std::uint32_t e4m3_pair(std::uint32_t a, std::uint32_t b, int j) {
  const std::uint32_t upper = pick_bytes(a, b, 0x4400U + static_cast<std::uint32_t>(j) * 0x1111U);
  return (upper & 0x80008000U) | (upper >> 1 & 0x3F803F80U);
}

// Eight numbers below 256 in a word; a device cannot index an array of constants.
template <class Number>
constexpr std::uint64_t bytes_of(const Number& number) {
  std::uint64_t bytes = 0;
  for (int i = 7; i >= 0; --i) bytes = bytes << 8 | (static_cast<std::uint64_t>(number(i)) & 255);
  return bytes;
}
constexpr std::uint64_t kLowerLevels = bytes_of([](int i) { return kNormalLevels[i]; });
constexpr std::uint64_t kUpperLevels = bytes_of([](int i) { return kNormalLevels[8 + i]; });
// Where an upper level gives way to the next one, twice.
constexpr std::uint64_t kTwiceMiddles =
    bytes_of([](int i) { return i < 7 ? kNormalLevels[8 + i] + kNormalLevels[9 + i] : 0; });

// Levels of the codes in four bytes, as signed bytes.
LARDER_DEVICE std::uint32_t levels_of(std::uint32_t nibbles) {
  const std::uint32_t pairs = nibbles | nibbles >> 4;  // two codes in byte 0, two in byte 2
  const std::uint32_t places = ((pairs & 0xFFU) | (pairs >> 8 & 0xFF00U)) & 0x7777U;
  const std::uint32_t lower = pick_bytes(static_cast<std::uint32_t>(kLowerLevels),
                                         static_cast<std::uint32_t>(kLowerLevels >> 32), places);
  const std::uint32_t upper = pick_bytes(static_cast<std::uint32_t>(kUpperLevels),
                                         static_cast<std::uint32_t>(kUpperLevels >> 32), places);
  const std::uint32_t is_upper = (nibbles >> 3 & 0x01010101U) * 255U;
  return (upper & is_upper) | (lower & ~is_upper);
}

}  // namespace larder::LARDER_CUDA_NAMESPACE
