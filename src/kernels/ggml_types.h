// The tensor types of GGUF files: sizes, and the exact FP32 values they stand for.
// Sources: the GGUF specification and the published block layouts of ggml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace larder {

enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct GgmlTypeTraits {
  std::string_view name;
  int block_size;        // values per block
  int block_size_bytes;  // bytes per block
};

// nullopt: a type that Larder does not read.
std::optional<GgmlTypeTraits> ggml_type_traits(std::uint32_t type);

// As files' authors call any type of ggml, such as "IQ2_XXS"; "type 77" for a number that is none.
std::string ggml_type_name(std::uint32_t type);

// values[0, num_values) of the row that starts at `row`; num_values a multiple of the block size.
void dequantize_row(GgmlType type, const std::byte* row, float* values, std::int64_t num_values);

// Scalar conversions, round to nearest even. Out of line on purpose: see kernels.h.
float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);
float bfloat16_to_float(std::uint16_t value);
std::uint16_t float_to_bfloat16(float value);

}  // namespace larder
