#include "kernels/ggml_types.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/ggml_blocks.h"

namespace larder {

std::optional<GgmlTypeTraits> ggml_type_traits(std::uint32_t type) {
  switch (static_cast<GgmlType>(type)) {
    case GgmlType::kF32:
      return GgmlTypeTraits{"F32", 1, 4};
    case GgmlType::kF16:
      return GgmlTypeTraits{"F16", 1, 2};
    case GgmlType::kBF16:
      return GgmlTypeTraits{"BF16", 1, 2};
    case GgmlType::kQ4_0:
      return GgmlTypeTraits{"Q4_0", 32, 18};
    case GgmlType::kQ4_1:
      return GgmlTypeTraits{"Q4_1", 32, 20};
    case GgmlType::kQ5_0:
      return GgmlTypeTraits{"Q5_0", 32, 22};
    case GgmlType::kQ5_1:
      return GgmlTypeTraits{"Q5_1", 32, 24};
    case GgmlType::kQ8_0:
      return GgmlTypeTraits{"Q8_0", 32, 34};
    case GgmlType::kQ2_K:
      return GgmlTypeTraits{"Q2_K", 256, 84};
    case GgmlType::kQ3_K:
      return GgmlTypeTraits{"Q3_K", 256, 110};
    case GgmlType::kQ4_K:
      return GgmlTypeTraits{"Q4_K", 256, 144};
    case GgmlType::kQ5_K:
      return GgmlTypeTraits{"Q5_K", 256, 176};
    case GgmlType::kQ6_K:
      return GgmlTypeTraits{"Q6_K", 256, 210};
    case GgmlType::kIQ4_NL:
      return GgmlTypeTraits{"IQ4_NL", 32, 18};
    case GgmlType::kIQ4_XS:
      return GgmlTypeTraits{"IQ4_XS", 256, 136};
    case GgmlType::kMXFP4:
      return GgmlTypeTraits{"MXFP4", 32, 17};
  }
  return std::nullopt;
}

std::string ggml_type_name(std::uint32_t type) {
  if (const auto traits = ggml_type_traits(type)) return std::string(traits->name);
  constexpr struct {
    std::uint32_t type;
    const char* name;
  } kOthers[] = {{4, "Q4_2"},      {5, "Q4_3"},      {9, "Q8_1"},        {15, "Q8_K"},       {16, "IQ2_XXS"},    {17, "IQ2_XS"},
                 {18, "IQ3_XXS"},  {19, "IQ1_S"},    {21, "IQ3_S"},      {22, "IQ2_S"},      {24, "I8"},         {25, "I16"},
                 {26, "I32"},      {27, "I64"},      {28, "F64"},        {29, "IQ1_M"},      {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
                 {33, "Q4_0_8_8"}, {34, "TQ1_0"},    {35, "TQ2_0"},      {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
                 {40, "NVFP4"}};
  for (const auto& other : kOthers)
    if (other.type == type) return other.name;
  return "type " + std::to_string(type);
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 31U;
  const std::uint32_t fraction = half & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | fraction << 13);
  if (exponent == 0) {
    // Subnormal: fraction * 2^-24, exact in FP32.
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112U) << 23 | fraction << 13);
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);  // NaN
  // From 65520 on, halfway to the next power of two, rounding gives infinity.
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {
    // Subnormal in FP16: adding 0.5 puts its last bit at FP32's last bit and rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  const std::uint32_t rounded = magnitude + 0xFFFU + odd;
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

float bfloat16_to_float(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

namespace {

void dequantize_values(GgmlType type, const std::byte* row, float* values, std::int64_t count) {
  if (type == GgmlType::kF32) {
    std::memcpy(values, row, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    values[i] = type == GgmlType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
}

}  // namespace

void dequantize_row(GgmlType type, const std::byte* row, float* values, std::int64_t num_values) {
  const auto traits = ggml_type_traits(static_cast<std::uint32_t>(type));
  CHECK(traits.has_value(), static_cast<std::uint32_t>(type));
  CHECK(num_values % traits->block_size == 0, num_values, traits->block_size);
  if (traits->block_size == 1) return dequantize_values(type, row, values, num_values);
  GgmlBlock block;
  for (std::int64_t begin = 0; begin < num_values; begin += traits->block_size) {
    unpack_block(type, row, block);
    for (int i = 0; i < traits->block_size; ++i) {
      const int group = i / block.group_size;
      float value = group_scale(block, group) * static_cast<float>((block.levels ? block.levels[block.code[i]] : block.code[i]) - block.offset);
      if (block.has_min) value += group_minimum(block, group);
      values[begin + i] = value;
    }
    row += traits->block_size_bytes;
  }
}

}  // namespace larder
