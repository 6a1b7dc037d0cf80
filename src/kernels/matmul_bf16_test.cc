// Products of weights in BF16, and in 8 bits where a set takes them so, whose activations may be rounded: against double
// precision, and bit against bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <cstddef>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
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

// Once for all tasks and products of one input; one of another input, and one of weights that take rows as they are.
TEST(MatmulBf16, RowsThatWerePackedBeforeHaveTheSameBits) {
  constexpr int kCols = 1056;
  const TestMatrix w8(GgmlType::kQ8_0, kRows, kCols), bf16(GgmlType::kBF16, 200, kCols), f32(GgmlType::kF32, kRows, kCols);
  ThreadPool pool(2);
  for (const KernelTable* table : tables_with_bf16()) {
    if (table->pack_rows == nullptr) continue;
    for (const int rows : {1, 32, 33, 48, 257, 300}) {
      const auto x = test::random_values(static_cast<std::size_t>(2 * rows * kCols), 5);
      std::vector<std::byte> room(static_cast<std::size_t>(packed_rows_size_bytes(rows, kCols)));
      std::vector<MatmulArgs> products;
      std::vector<std::vector<float>> packed, alone;
      for (const TestMatrix* w : {&w8, &bf16, &f32, &w8}) {
        const auto size = static_cast<std::size_t>(rows * w->packed.num_rows);
        MatmulArgs args;
        args.w = &w->packed;
        args.x = x.data() + (products.size() == 3 ? rows * kCols : 0);
        args.rounds_to_bf16 = true;
        args.num_rows = rows;
        args.ldx = kCols;
        args.ldy = w->packed.num_rows;
        args.y = alone.emplace_back(size).data();
        table->matmul(args, 0, w->packed.num_panels());
        args.y = packed.emplace_back(size).data();
        args.row_room = room.data();
        EXPECT_EQ(table->num_row_tiles(args), w == &f32 || rows <= 32 ? 0 : (rows + 15) / 16);
        products.push_back(args);
      }
      matmul(*table, pool, products);
      EXPECT_EQ(packed, alone) << table->name << " rows " << rows;
    }
  }
}

}  // namespace
}  // namespace larder
