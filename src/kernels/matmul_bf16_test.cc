// Products of weights in BF16, and in 8 bits where a set takes them so, whose activations may be rounded: against double
// precision, and bit against bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/test_util.h"

namespace larder {
namespace {

using test::TestMatrix;

constexpr int kRows = 53;  // of the matrix: an odd number of panels, the last one partial

// Of x [rows, w.num_cols], panels [begin, end).
void multiply(const KernelTable& table, const TestMatrix& w, std::span<const float> x,
              std::span<float> y, bool rounds, int begin = 0, int end = -1) {
  const auto bias = test::random_values(static_cast<std::size_t>(w.packed.num_rows), 9);
  MatmulArgs args;
  args.w = &w.packed;
  args.x = x.data();
  args.rounds_to_bf16 = rounds;
  args.bias = bias.data();
  args.y = y.data();
  args.num_rows = static_cast<int>(y.size()) / w.packed.num_rows;
  args.ldx = w.packed.num_cols;
  args.ldy = w.packed.num_rows;
  table.matmul(args, begin, end < 0 ? w.packed.num_panels() : end);
}

std::vector<const KernelTable*> tables_with_bf16() {
  std::vector<const KernelTable*> found;
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAmx})
    if (const KernelTable* table = kernels_for(isa)) found.push_back(table);
  if (found.empty()) return found;
  found.push_back(&test::emulated_amx(*found.front()));
  return found;
}

// Products of activations rounded to BF16 with weights as weight_of() makes them.
void expect_rounded_products(const std::vector<const KernelTable*>& tables, const TestMatrix& w, float (*weight_of)(float)) {
  const int cols = w.packed.num_cols;
  constexpr int kBatch = 37;
  const auto bias = test::random_values(kRows, 9);
  const auto x = test::random_values(static_cast<std::size_t>(kBatch * cols), 5);
  for (const KernelTable* table : tables) {
    std::vector<float> y(kBatch * kRows);
    multiply(*table, w, x, y, true);
    for (int r = 0; r < kBatch; ++r) {
      for (int n = 0; n < kRows; ++n) {
        double sum = bias[static_cast<std::size_t>(n)];
        double size = std::abs(sum);
        for (int c = 0; c < cols; ++c) {
          const double rounded =
              bfloat16_to_float(float_to_bfloat16(x[static_cast<std::size_t>(r * cols + c)]));
          const double term = rounded * double{weight_of(w.values[static_cast<std::size_t>(n * cols + c)])};
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(y[static_cast<std::size_t>(r * kRows + n)], sum, size * 1e-5)
            << table->name << " columns " << cols << " row " << r << " out " << n;
      }
    }
  }
}

// Each row alone and so many of them together.
void expect_same_bits_in_batches(const std::vector<const KernelTable*>& tables, const TestMatrix& w,
                                 const std::vector<std::size_t>& batches) {
  const std::size_t num_most = *std::ranges::max_element(batches);
  const auto width = static_cast<std::size_t>(w.packed.num_cols);
  const auto outputs = static_cast<std::size_t>(w.packed.num_rows);
  const auto x = test::random_values(num_most * width, 5);
  for (const KernelTable* table : tables) {
    std::vector<float> alone(num_most * outputs), together(num_most * outputs);
    for (std::size_t r = 0; r < num_most; ++r)
      multiply(*table, w, std::span(x).subspan(r * width, width),
               std::span(alone).subspan(r * outputs, outputs), true);
    for (const std::size_t rows : batches) {
      const std::span<float> some = std::span(together).first(rows * outputs);
      multiply(*table, w, x, some, true, 0, 1);
      multiply(*table, w, x, some, true, 1);
      EXPECT_EQ(std::memcmp(some.data(), alone.data(), some.size_bytes()), 0)
          << table->name << " columns " << width << " rows " << rows;
    }
  }
}

TEST(MatmulBf16, RoundsActivationsAndNothingElse) {
  const auto tables = tables_with_bf16();
  if (tables.empty()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (const int cols : {1, 2, 77, 768})
    expect_rounded_products(tables, TestMatrix(GgmlType::kBF16, kRows, cols), [](float weight) { return weight; });
}

std::vector<const KernelTable*> tables_with_rounded_w8() {
  std::vector<const KernelTable*> found;
  for (const KernelTable* table : tables_with_bf16())
    if (table->rounds_w8) found.push_back(table);
  return found;
}

// Half up in size, as the kernels do it.
float rounded_weight(float weight) {
  const std::uint32_t bits = (std::bit_cast<std::uint32_t>(weight) + 0x8000) & 0xFFFF0000;
  return std::bit_cast<float>(bits);
}

TEST(MatmulBf16, CodesOf8BitsAreRoundedWeights) {
  const auto tables = tables_with_rounded_w8();
  if (tables.empty()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (const int cols : {32, 64, 544, 1120})
    expect_rounded_products(tables, TestMatrix(GgmlType::kQ8_0, kRows, cols), rounded_weight);
}

TEST(MatmulBf16, ARowOfCodesHasTheSameBitsInEveryBatchAndRange) {
  const auto tables = tables_with_rounded_w8();
  if (tables.empty()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (const int cols : {96, 1056, 4128, 20032})
    expect_same_bits_in_batches(tables, TestMatrix(GgmlType::kQ8_0, kRows, cols), {2, 15, 16, 17, 31, 32, 33, 49, 64, 133});
}

// Few columns, so many that rows go in several blocks and panels in several pieces, and so many that a block
// has fewer rows than a tile.
TEST(MatmulBf16, ARowHasTheSameBitsInEveryBatchAndRange) {
  const auto tables = tables_with_bf16();
  if (tables.empty()) GTEST_SKIP() << "needs AVX-512 BF16";
  for (const int cols : {77, 5000, 20001})
    expect_same_bits_in_batches(tables, TestMatrix(GgmlType::kBF16, kRows, cols),
                                {2, 3, 4, 5, 6, 7, 11, 16, 17, 31, 32, 33, 49, 64, 133});
}

// More rows than a block has, more panels than keep their sums at once, and columns of several blocks.
TEST(MatmulBf16, ARowHasTheSameBitsWhereABlockEnds) {
  const auto tables = tables_with_bf16();
  if (tables.empty()) GTEST_SKIP() << "needs AVX-512 BF16";
  expect_same_bits_in_batches(tables, TestMatrix(GgmlType::kBF16, 1101, 1365), {256, 257, 300});
  expect_same_bits_in_batches(tables_with_rounded_w8(), TestMatrix(GgmlType::kQ8_0, 1101, 1312), {256, 257, 300});
}

TEST(MatmulBf16, OtherSetsKeepFullPrecision) {
  const TestMatrix w(GgmlType::kBF16, kRows, 77);
  const auto x = test::random_values(7 * 77, 5);
  for (const Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512}) {
    const KernelTable* table = kernels_for(isa);
    if (table == nullptr) continue;
    std::vector<float> may(7 * kRows), must_not(7 * kRows);
    multiply(*table, w, x, may, true);
    multiply(*table, w, x, must_not, false);
    EXPECT_TRUE(test::same_bits(may, must_not)) << table->name;
  }
}

}  // namespace
}  // namespace larder
