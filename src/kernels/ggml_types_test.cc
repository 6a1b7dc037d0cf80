#include "kernels/ggml_types.h"

#include <cmath>
#include <fstream>

#include "kernels/test_util.h"

namespace larder {
namespace {

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::uint32_t take_u32(const std::vector<char>& data, std::size_t& at) {
  std::uint32_t value;
  std::memcpy(&value, data.data() + at, 4);
  at += 4;
  return value;
}

TEST(GgmlTypes, ValuesEqualThePublishedReference) {
  const std::vector<char> data =
      read_file(LARDER_SOURCE_DIR "/tests/golden/kernels/ggml_types.bin");
  ASSERT_GT(data.size(), 0U);
  std::size_t at = 0;
  int types = 0;
  while (at < data.size()) {
    const auto type = static_cast<GgmlType>(take_u32(data, at));
    const std::uint32_t num_values = take_u32(data, at);
    const std::uint32_t num_bytes = take_u32(data, at);
    const auto* bytes = reinterpret_cast<const std::byte*>(data.data() + at);
    std::vector<float> expected(num_values);
    std::memcpy(expected.data(), data.data() + at + num_bytes, num_values * sizeof(float));
    std::vector<float> values(num_values);
    dequantize_row(type, bytes, values.data(), num_values);
    const auto name = ggml_type_traits(static_cast<std::uint32_t>(type))->name;
    for (std::size_t i = 0; i < num_values; ++i) {
      ASSERT_EQ(values[i], expected[i]) << name << " value " << i;
    }
    at += num_bytes + num_values * sizeof(float);
    ++types;
  }
  EXPECT_EQ(types, 15);
}

TEST(GgmlTypes, UnknownTypesAreRefused) {
  EXPECT_FALSE(ggml_type_traits(4).has_value());
  EXPECT_FALSE(ggml_type_traits(9).has_value());
  EXPECT_FALSE(ggml_type_traits(31).has_value());
  EXPECT_FALSE(ggml_type_traits(~0U).has_value());
}

TEST(GgmlTypes, AllHaveTheirNames) {
  EXPECT_EQ(ggml_type_name(12), "Q4_K");
  EXPECT_EQ(ggml_type_name(16), "IQ2_XXS");
  EXPECT_EQ(ggml_type_name(34), "TQ1_0");
  EXPECT_EQ(ggml_type_name(77), "type 77");
}

TEST(GgmlTypes, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_to_float(float_to_half(value))));
    } else {
      ASSERT_EQ(float_to_half(value), half) << value;
    }
  }
}

// Against the definition: the nearest of the two neighbours, the even one at half way.
TEST(GgmlTypes, HalvesRoundToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const float middle = (half_to_float(low) + half_to_float(high)) / 2;
    const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? low : high);
    ASSERT_EQ(float_to_half(middle), even);
    ASSERT_EQ(float_to_half(std::nextafterf(middle, 0)), low);
    ASSERT_EQ(float_to_half(std::nextafterf(middle, 1e9F)), high);
    ASSERT_EQ(float_to_half(-middle), even | 0x8000);
  }
  EXPECT_EQ(float_to_half(65519.9F), 0x7BFF);
  EXPECT_EQ(float_to_half(65520.0F), 0x7C00);
  EXPECT_EQ(float_to_half(1e-9F), 0);
}

TEST(GgmlTypes, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bfloat16(1.0F), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x3p-8F), 0x3F82);
  EXPECT_EQ(float_to_bfloat16(1.0F + 0x1.2p-8F), 0x3F81);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(NAN))));
}

}  // namespace
}  // namespace larder
