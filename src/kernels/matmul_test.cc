// Products of every format and instruction set: against double precision, and bit against bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/ops.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

using test::TestActivations;
using test::TestMatrix;

constexpr int kRows = 37;  // of the matrix: the last of three panels is partial
constexpr int kMaxBatch = 33;

int cols_of(GgmlType type) { return test::is_quantised(type) ? 768 : 77; }

MatmulArgs args_of(const PackedMatrix& w, const std::vector<float>& x, std::vector<float>& y,
                   int rows) {
  MatmulArgs args;
  args.w = &w;
  args.x = x.data();
  args.y = y.data();
  args.num_rows = rows;
  args.ldx = w.num_cols;
  args.ldy = w.num_rows;
  return args;
}

std::vector<float> product(const KernelTable& table, const TestMatrix& w,
                           const std::vector<float>& x, int rows, bool int8) {
  std::vector<float> y(static_cast<std::size_t>(rows * w.packed.num_rows), -1);
  MatmulArgs args = args_of(w.packed, x, y, rows);
  if (!int8) {
    table.matmul(args, 0, w.packed.num_panels());
    return y;
  }
  const TestActivations activations(table, x, rows, w.packed.num_cols);
  args.xq = &activations.view;
  table.matmul(args, 0, w.packed.num_panels());
  return y;
}

// With the values that the kernel is given, so that only its own rounding is left.
void expect_near_reference(const TestMatrix& w, const std::vector<float>& x,
                           const std::vector<float>& y, int rows, const char* name) {
  const int cols = w.packed.num_cols;
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < w.packed.num_rows; ++n) {
      double sum = 0;
      double size = 0;
      for (int c = 0; c < cols; ++c) {
        const double term = double{x[static_cast<std::size_t>(r * cols + c)]} *
                            w.values[static_cast<std::size_t>(n * cols + c)];
        sum += term;
        size += std::abs(term);
      }
      ASSERT_NEAR(y[static_cast<std::size_t>(r * w.packed.num_rows + n)], sum, size * 1e-5)
          << name << " format " << static_cast<int>(w.packed.format) << " row " << r << " out "
          << n;
    }
  }
}

std::vector<float> dequantised(const TestActivations& a, int rows, int cols) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(a.q[i]) * a.scale[i / 32];
  }
  return x;
}

TEST(Matmul, FloatActivationsMatchDoublePrecision) {
  for (const GgmlType type : test::kAllTypes) {
    const TestMatrix w(type, kRows, cols_of(type));
    const auto x = test::random_values(static_cast<std::size_t>(kMaxBatch * cols_of(type)), 5);
    for (const KernelTable* table : test::tables_of_products()) {
      const auto y = product(*table, w, x, kMaxBatch, false);
      expect_near_reference(w, x, y, kMaxBatch, table->name);
    }
  }
}

TEST(Matmul, Int8ActivationsMatchDoublePrecision) {
  for (const GgmlType type : test::kAllTypes) {
    if (!test::is_quantised(type)) continue;
    const int cols = cols_of(type);
    const TestMatrix w(type, kRows, cols);
    const auto x = test::random_values(static_cast<std::size_t>(kMaxBatch * cols), 5);
    for (const KernelTable* table : test::tables_of_products()) {
      const auto y = product(*table, w, x, kMaxBatch, true);
      const TestActivations activations(*table, x, kMaxBatch, cols);
      expect_near_reference(w, dequantised(activations, kMaxBatch, cols), y, kMaxBatch,
                            table->name);
    }
  }
}

// A block of a type whose scale is 1, whose minimum is 0 and whose codes' bytes are all the same.
struct ExtremeBlock {
  GgmlType type;
  int cols;            // of a block
  int codes_bytes;     // first, or behind the scale and minimum
  bool scale_is_last;  // behind 16 scale codes of 1
  std::uint8_t low, high;
  float low_value, high_value;
};

std::vector<std::byte> bytes_of(const ExtremeBlock& block, bool high) {
  const std::uint16_t one = float_to_half(1);
  const std::vector<std::byte> scale = {std::byte(one & 255), std::byte(one >> 8)};
  std::vector<std::byte> bytes(static_cast<std::size_t>(block.codes_bytes),
                               std::byte(high ? block.high : block.low));
  if (block.type == GgmlType::kMXFP4) {
    bytes.insert(bytes.begin(), std::byte{128});  // levels are halves
  } else if (!block.scale_is_last) {
    const bool has_min = block.type == GgmlType::kQ4_1 || block.type == GgmlType::kQ5_1;
    bytes.insert(bytes.begin(), has_min ? 2 : 0, std::byte{0});
    bytes.insert(bytes.begin(), scale.begin(), scale.end());
  } else {
    bytes.insert(bytes.end(), 16, std::byte{1});
    bytes.insert(bytes.end(), scale.begin(), scale.end());
  }
  return bytes;
}

// Rows of 127, or of 127 and -127 or 0 by turns of 1, 2, 4, 8 and 16 columns, so that every part of
// a sum that is kept apart meets its greatest values; and each with the signs changed.
std::vector<float> extreme_activations(int rows, int cols) {
  std::vector<float> x;
  for (int row = 0; row < rows; ++row) {
    const int period = row / 2 % 6;
    for (int col = 0; col < cols; ++col) {
      const bool odd = period > 0 && (col >> (period - 1)) % 2 == 1;
      const float value = row % 2 == 0 ? 127 : -127;
      x.push_back(!odd ? value : row < 12 ? -value : 0);
    }
  }
  return x;
}

// The greatest codes on both sides: nothing may saturate.
TEST(Matmul, ExtremeCodesDoNotSaturate) {
  constexpr ExtremeBlock kBlocks[] = {
      {GgmlType::kQ4_0, 32, 16, false, 0x00, 0xFF, -8, 7},
      {GgmlType::kQ4_1, 32, 16, false, 0x00, 0xFF, 0, 15},
      {GgmlType::kQ5_0, 32, 20, false, 0x00, 0xFF, -16, 15},
      {GgmlType::kQ5_1, 32, 20, false, 0x00, 0xFF, 0, 31},
      {GgmlType::kQ8_0, 32, 32, false, 0x80, 0x7F, -128, 127},
      {GgmlType::kQ6_K, 256, 192, true, 0x00, 0xFF, -32, 31},
      {GgmlType::kMXFP4, 32, 16, false, 0xFF, 0x77, -12, 12},
      {GgmlType::kIQ4_NL, 32, 16, false, 0x00, 0xFF, -127, 113},
  };
  ThreadPool pool(1);
  for (const ExtremeBlock& block : kBlocks) {
    std::vector<std::byte> source;
    for (int row = 0; row < 16; ++row) {
      for (int col = 0; col < 256; col += block.cols) {
        const auto bytes = bytes_of(block, row % 2 == 0);
        source.insert(source.end(), bytes.begin(), bytes.end());
      }
    }
    AlignedBuffer memory(
        static_cast<std::size_t>(packed_size_bytes(packed_layout(block.type, 16, 256))));
    const PackedMatrix w = pack_matrix(block.type, source, 16, 256, memory.data(), pool);
    for (const int rows : {1, 4, 25}) {
      const auto x = extreme_activations(rows, 256);
      for (const KernelTable* table : test::tables_of_products()) {
        const TestActivations activations(*table, x, rows, 256);
        std::vector<float> y(static_cast<std::size_t>(rows) * 16);
        MatmulArgs args = args_of(w, x, y, rows);
        args.xq = &activations.view;
        table->matmul(args, 0, 1);
        for (std::size_t i = 0; i < y.size(); ++i) {
          const auto row = x.begin() + static_cast<std::ptrdiff_t>(i / 16 * 256);
          const float value = i % 2 == 0 ? block.high_value : block.low_value;
          EXPECT_EQ(y[i], std::accumulate(row, row + 256, 0.0F) * value)
              << table->name << " type " << static_cast<int>(block.type) << " row " << i / 16;
        }
      }
    }
  }
}

// The same values in 8 bits: what a format of fewer bits unpacks to must be the same integers, and
// what it adds up to in the same order.
TEST(Matmul, CodesOfFiveBitsHaveTheBitsOfEight) {
  constexpr int kCols = 352;  // a half-filled last chunk
  const auto narrow = test::random_rows(GgmlType::kQ5_0, kRows, kCols, 3);
  std::vector<std::byte> wide;
  for (std::size_t at = 0; at < narrow.size(); at += 22) {
    float values[32];
    dequantize_row(GgmlType::kQ5_0, narrow.data() + at, values, 32);
    std::uint16_t half;
    std::memcpy(&half, narrow.data() + at, 2);
    const float scale = half_to_float(half);
    wide.insert(wide.end(), {narrow[at], narrow[at + 1]});
    for (const float value : values) {
      wide.push_back(std::byte(static_cast<std::int8_t>(std::lround(value / scale))));
    }
  }
  const TestMatrix five(GgmlType::kQ5_0, kRows, kCols, narrow);
  const TestMatrix eight(GgmlType::kQ8_0, kRows, kCols, wide);
  const auto x = test::random_values(std::size_t{kMaxBatch} * kCols, 5);
  for (const KernelTable* table : test::tables_of_products()) {
    for (const int rows : {1, 3, 7, 8, 20, kMaxBatch}) {
      EXPECT_TRUE(test::same_bits(product(*table, five, x, rows, true),
                                  product(*table, eight, x, rows, true)))
          << table->name << " rows " << rows;
    }
  }
}

TEST(Matmul, ARowHasTheSameBitsInEveryBatch) {
  for (const GgmlType type : test::kAllTypes) {
    const int cols = cols_of(type);
    const TestMatrix w(type, kRows, cols);
    const auto x = test::random_values(static_cast<std::size_t>(kMaxBatch * cols), 5);
    for (const KernelTable* table : test::tables_of_products()) {
      for (const bool int8 : {false, true}) {
        if (int8 && !test::is_quantised(type)) continue;
        std::vector<float> alone;
        for (int r = 0; r < kMaxBatch; ++r) {
          const std::vector<float> row(x.begin() + r * cols, x.begin() + (r + 1) * cols);
          const auto y = product(*table, w, row, 1, int8);
          alone.insert(alone.end(), y.begin(), y.end());
        }
        for (int rows = 1; rows <= kMaxBatch; ++rows) {
          const auto y = product(*table, w, x, rows, int8);
          ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * sizeof(float)), 0)
              << table->name << " type " << static_cast<int>(type) << " int8 " << int8 << " rows "
              << rows;
        }
      }
    }
  }
}

TEST(Matmul, WhatIsNoNumberIsSeenInItsRowAndInNoOther) {
  constexpr int kCols = 768;
  constexpr int kNumRows = 32;
  constexpr int kRow = 5;
  using Limits = std::numeric_limits<float>;
  const auto is_nan = [](float y) { return std::isnan(y); };
  for (const float value : {Limits::quiet_NaN(), -Limits::infinity()}) {
    auto x = test::random_values(std::size_t{kNumRows} * kCols, 5);
    const auto numbers = x;
    x[kRow * kCols + 100] = value;
    const std::vector<float> row(x.begin() + kRow * kCols, x.begin() + (kRow + 1) * kCols);
    for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ5_0, GgmlType::kQ6_K, GgmlType::kMXFP4, GgmlType::kIQ4_XS}) {
      const TestMatrix w(type, kRows, kCols);
      for (const KernelTable* table : test::tables_of_products()) {
        const auto alone = product(*table, w, row, 1, true);
        EXPECT_TRUE(std::ranges::all_of(alone, is_nan)) << table->name;
        auto expected = product(*table, w, numbers, kNumRows, true);
        std::ranges::copy(alone, expected.begin() + kRow * kRows);
        EXPECT_TRUE(test::same_bits(product(*table, w, x, kNumRows, true), expected))
            << table->name << " type " << static_cast<int>(type);
      }
    }
  }
}

// Many rows of many columns go in several blocks, one after another.
TEST(Matmul, WideRowsHaveTheSameBitsInEveryBatch) {
  constexpr int kWide = 30 * 256;
  constexpr std::size_t kBatch = 67;
  const auto bias = test::random_values(kRows, 9);
  for (const GgmlType type :
       {GgmlType::kQ4_0, GgmlType::kQ5_1, GgmlType::kQ6_K, GgmlType::kQ8_0, GgmlType::kMXFP4, GgmlType::kIQ4_NL,
        GgmlType::kIQ4_XS}) {
    const TestMatrix w(type, kRows, kWide);
    const auto x = test::random_values(kBatch * kWide, 5);
    for (const KernelTable* table : test::tables_of_products()) {
      const TestActivations activations(*table, x, kBatch, kWide);
      std::vector<float> together(kBatch * kRows, 7), alone(kBatch * kRows);
      MatmulArgs args = args_of(w.packed, x, together, kBatch);
      args.xq = &activations.view;
      args.bias = bias.data();
      table->matmul(args, 0, w.packed.num_panels());
      args.num_rows = 1;
      for (std::size_t row = 0; row < kBatch; ++row) {
        QuantizedRows one = activations.view;
        one.q += row * kWide;
        one.scale += row * kWide / kActivationGroup;
        one.sum += row * kWide / 16;
        args.xq = &one;
        args.y = alone.data() + row * kRows;
        table->matmul(args, 0, w.packed.num_panels());
      }
      EXPECT_TRUE(test::same_bits(together, alone))
          << table->name << " type " << static_cast<int>(type);
    }
  }
}

TEST(Matmul, RangesOfPanelsAndThreadsDoNotChangeABit) {
  const int rows = 200;
  const int cols = 256;
  const TestMatrix a(GgmlType::kQ4_0, 300, cols);
  const TestMatrix b(GgmlType::kQ6_K, 90, cols);
  const auto x = test::random_values(static_cast<std::size_t>(rows * cols), 5);
  for (const KernelTable* table : test::tables_of_products()) {
    const TestActivations activations(*table, x, rows, cols);
    std::vector<float> whole_a(300 * rows), whole_b(90 * rows);
    std::vector<float> y_a(300 * rows), y_b(90 * rows);
    MatmulArgs products[] = {args_of(a.packed, x, y_a, rows), args_of(b.packed, x, y_b, rows)};
    for (MatmulArgs& args : products) args.xq = &activations.view;
    const auto expect_whole = [&] {
      EXPECT_TRUE(test::same_bits(y_a, whole_a)) << table->name;
      EXPECT_TRUE(test::same_bits(y_b, whole_b)) << table->name;
      std::fill(y_a.begin(), y_a.end(), 0.0F);
      std::fill(y_b.begin(), y_b.end(), 0.0F);
    };
    for (const MatmulArgs& args : products) table->matmul(args, 0, args.w->num_panels());
    whole_a = y_a;
    whole_b = y_b;
    std::fill(y_a.begin(), y_a.end(), 0.0F);
    std::fill(y_b.begin(), y_b.end(), 0.0F);
    for (const MatmulArgs& args : products) {
      for (int panel = args.w->num_panels() - 1; panel >= 0; --panel) {
        table->matmul(args, panel, panel + 1);
      }
    }
    expect_whole();
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      matmul(*table, pool, products);
      expect_whole();
    }
  }
}

TEST(Matmul, MaximaOfRunsComeWithTheProduct) {
  constexpr int kOutputs = 5000;  // the last run is partial, and so is its last panel
  constexpr int kCols = 64;
  const TestMatrix w(GgmlType::kQ8_0, kOutputs, kCols);
  const auto num_runs = static_cast<std::size_t>(num_logit_runs(kOutputs));
  for (const KernelTable* table : test::tables_of_products()) {
    for (const int rows : {1, 3, 40, 100}) {
      const auto x = test::random_values(static_cast<std::size_t>(rows * kCols), 5);
      const TestActivations activations(*table, x, rows, kCols);
      const std::vector<float> expected = product(*table, w, x, rows, true);
      for (const int threads : {1, 2, 3}) {
        std::vector<float> y(expected.size());
        std::vector<float> maxima(static_cast<std::size_t>(rows) * num_runs, 99);
        MatmulArgs args = args_of(w.packed, x, y, rows);
        args.xq = &activations.view;
        args.maxima = maxima.data();
        ThreadPool pool(threads);
        matmul(*table, pool, {&args, 1});
        EXPECT_TRUE(test::same_bits(y, expected)) << table->name << " " << rows;
        std::vector<float> of_row(num_runs);
        for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
          table->run_maxima(y.data() + row * kOutputs, kOutputs, of_row.data());
          EXPECT_TRUE(std::ranges::equal(of_row, std::span(maxima).subspan(row * num_runs, num_runs)))
              << table->name << " row " << row << " of " << rows << ", threads " << threads;
        }
      }
    }
  }
}

TEST(Matmul, BiasIsAddedAndLeadingDimensionsAreKept) {
  const int rows = 5;
  const int cols = 96;
  const TestMatrix w(GgmlType::kQ8_0, 21, cols);
  const auto bias = test::random_values(21, 9);
  const auto x = test::random_values(rows * 100, 5);
  for (const KernelTable* table : test::tables_of_products()) {
    std::vector<float> plain(rows * 21);
    std::vector<float> y(rows * 40, 7);
    MatmulArgs args = args_of(w.packed, x, plain, rows);
    args.ldx = 100;
    table->matmul(args, 0, 2);
    args.y = y.data();
    args.ldy = 40;
    args.bias = bias.data();
    table->matmul(args, 0, 2);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t n = 0; n < 40; ++n) {
        EXPECT_EQ(y[r * 40 + n], n < 21 ? plain[r * 21 + n] + bias[n] : 7.0F);
      }
    }
  }
}

}  // namespace
}  // namespace larder
