// The quantised blocks of GGUF files taken apart into codes and scales. Inside this folder only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ggml_types.h"

namespace larder {

// value[i] = scale * (code[i] - offset) + minimum, where for group = i / group_size
// scale = d * scale_code[group] and minimum = m * min_code[group]. With levels, they stand in for codes.
// Every product is exact in FP32; the sum rounds once.
struct GgmlBlock {
  float d = 0;
  float m = 0;  // negated in K-quants, whose minimum is taken off
  int offset = 0;
  int group_size = 32;
  std::int8_t scale_code[16] = {};
  std::uint8_t min_code[16] = {};
  bool has_min = false;
  std::uint16_t d_half = 0;  // d and m as stored, m not negated
  std::uint16_t m_half = 0;
  std::uint8_t exponent = 0;               // MXFP4's: d = 2^(exponent - 128), NaN of 255
  const std::uint8_t* levels = nullptr;  // [16] or null
  std::uint8_t code[256];  // as many as the type's block has
};

// type: a quantised one.
void unpack_block(GgmlType type, const std::byte* bytes, GgmlBlock& block);
float group_scale(const GgmlBlock& block, int group);
float group_minimum(const GgmlBlock& block, int group);

}  // namespace larder
