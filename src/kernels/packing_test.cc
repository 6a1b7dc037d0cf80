#include "kernels/packing.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

TEST(Packing, EveryRowComesBackExactly) {
  for (const GgmlType type : test::kAllTypes) {
    const int cols = test::is_quantised(type) ? 768 : 77;
    const int rows = 37;
    const test::TestMatrix matrix(type, rows, cols);
    for (const KernelTable* table : test::tables()) {
      std::vector<float> row(static_cast<std::size_t>(cols));
      for (int r = 0; r < rows; ++r) {
        const TokenId token = r;
        table->embed({.w = &matrix.packed, .tokens = &token, .out = row.data()}, 0, 1);
        for (int c = 0; c < cols; ++c) {
          ASSERT_EQ(row[static_cast<std::size_t>(c)],
                    matrix.values[static_cast<std::size_t>(r * cols + c)])
              << table->name << " type " << static_cast<int>(type) << " row " << r << " col " << c;
        }
      }
    }
  }
}

TEST(Packing, SizesStayNearTheFiles) {
  // Bits per weight of a wide matrix.
  const auto bits = [](GgmlType type) {
    const PackedMatrix layout = packed_layout(type, 1024, 2048);
    return static_cast<double>(packed_size_bytes(layout)) * 8 / (1024 * 2048);
  };
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ4_0), 4.5);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ4_1), 5.0);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ4_K), 4.625);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ8_0), 8.5);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ5_0), 5.5);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ5_1), 6.0);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ5_K), 5.625);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ6_K), 6.625);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ2_K), 5.125);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kQ3_K), 4.625);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kMXFP4), 4.25);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kIQ4_NL), 4.5);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kIQ4_XS), 4.375);
  EXPECT_DOUBLE_EQ(bits(GgmlType::kBF16), 16);
}

// In the last block of a row: one of its scales, its minimum or, of plain numbers, the last one.
TEST(Packing, ValuesThatAreNotFiniteAreRefused) {
  const struct {
    GgmlType type;
    int offset;  // in the block
    std::uint16_t bits;
  } cases[] = {{GgmlType::kQ8_0, 0, 0x7C00},  {GgmlType::kQ4_0, 0, 0xFC00},   {GgmlType::kQ4_1, 2, 0x7E00},
               {GgmlType::kQ5_0, 0, 0x7C00},  {GgmlType::kQ5_1, 2, 0x7C00},   {GgmlType::kQ2_K, 82, 0x7C00},
               {GgmlType::kQ3_K, 108, 0x7C00}, {GgmlType::kQ4_K, 2, 0x7C01},  {GgmlType::kQ5_K, 0, 0x7C00},
               {GgmlType::kQ6_K, 208, 0x7C00}, {GgmlType::kF16, 0, 0x7C00},   {GgmlType::kBF16, 0, 0x7F80},
               {GgmlType::kF32, 2, 0xFF80},   {GgmlType::kMXFP4, 0, 0x00FF},  {GgmlType::kMXFP4, 0, 0x07FD},
               {GgmlType::kIQ4_NL, 0, 0x7C00}, {GgmlType::kIQ4_XS, 0, 0xFE00}};
  constexpr int kRows = 37, kCols = 256;
  ThreadPool pool(2);
  for (const auto& [type, offset, bits] : cases) {
    std::vector<std::byte> source = test::random_rows(type, kRows, kCols, 3);
    AlignedBuffer packed(static_cast<std::size_t>(packed_size_bytes(packed_layout(type, kRows, kCols))));
    EXPECT_NO_THROW(pack_matrix(type, source, kRows, kCols, packed.data(), pool)) << static_cast<int>(type);
    const std::size_t row_bytes = source.size() / kRows;
    const std::size_t block_bytes = static_cast<std::size_t>(
        ggml_type_traits(static_cast<std::uint32_t>(type))->block_size_bytes);
    for (const std::size_t row : {33U, 21U})
      std::memcpy(&source[(row + 1) * row_bytes - block_bytes + static_cast<std::size_t>(offset)], &bits, 2);
    try {
      pack_matrix(type, source, kRows, kCols, packed.data(), pool);
      ADD_FAILURE() << static_cast<int>(type);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 7), "row 21 ") << static_cast<int>(type);
    }
  }
}

// Powers of two at both ends, subnormal ones among them: 4 * 2^126 is infinite, 3 * 2^126 is not.
TEST(Packing, PowersOfTwoAreExactToTheirEnds) {
  ThreadPool pool(1);
  std::vector<std::byte> source;
  for (const int exponent : {0, 1, 2, 3, 127, 128, 252, 253}) {
    source.push_back(std::byte(exponent));
    for (int i = 0; i < 16; ++i) source.push_back(exponent < 253 ? std::byte(i * 17) : std::byte{0x52});
  }
  constexpr int kCols = 8 * 32;
  const test::TestMatrix matrix(GgmlType::kMXFP4, 1, kCols, source);
  EXPECT_EQ(matrix.values[1], 0x1p-128F);
  EXPECT_EQ(matrix.values[7 * 32 + 16], 0x1.8p127F);
  std::vector<float> row(kCols);
  const TokenId token = 0;
  for (const KernelTable* table : test::tables()) {
    table->embed({.w = &matrix.packed, .tokens = &token, .out = row.data()}, 0, 1);
    for (std::size_t i = 0; i < row.size(); ++i) EXPECT_EQ(row[i], matrix.values[i]) << table->name << ' ' << i;
  }
}

TEST(Packing, LargeOnesAreToldOfInParts) {
  const int rows = 4100, cols = 1024;
  const std::vector<std::byte> source = test::random_rows(GgmlType::kF32, rows, cols, 3);
  const PackedMatrix layout = packed_layout(GgmlType::kF32, rows, cols);
  AlignedBuffer packed(static_cast<std::size_t>(packed_size_bytes(layout)));
  ThreadPool pool(2);
  std::vector<std::int64_t> told;
  const PackedMatrix matrix = pack_matrix(GgmlType::kF32, source, rows, cols, packed.data(), pool,
                                          [&](std::int64_t bytes) { told.push_back(bytes); });
  EXPECT_GE(told.size(), 3u);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_EQ(told.back(), packed_size_bytes(layout));
  std::vector<float> row(cols);
  for (const TokenId token : {0, 2047, 2048, 4099}) {
    test::tables().front()->embed({.w = &matrix, .tokens = &token, .out = row.data()}, 0, 1);
    EXPECT_EQ(std::memcmp(row.data(), &source[static_cast<std::size_t>(token) * cols * sizeof(float)],
                          cols * sizeof(float)), 0) << token;
  }
}

TEST(Packing, ThreadsDoNotChangeABit) {
  const int rows = 100;
  const int cols = 512;
  const std::vector<std::byte> source = test::random_rows(GgmlType::kQ4_K, rows, cols, 3);
  const auto size =
      static_cast<std::size_t>(packed_size_bytes(packed_layout(GgmlType::kQ4_K, rows, cols)));
  AlignedBuffer one(size);
  AlignedBuffer two(size);
  ThreadPool single(1);
  ThreadPool pair(2);
  pack_matrix(GgmlType::kQ4_K, source, rows, cols, one.data(), single);
  pack_matrix(GgmlType::kQ4_K, source, rows, cols, two.data(), pair);
  EXPECT_EQ(std::memcmp(one.data(), two.data(), size), 0);
}

}  // namespace
}  // namespace larder
