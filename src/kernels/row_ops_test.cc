// Row operations of every instruction set, against double precision and bit against bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/test_util.h"

namespace larder {
namespace {

using test::random_values;

TEST(RowOps, RmsNormMatchesDoublePrecision) {
  for (const KernelTable* table : test::tables()) {
    for (const int cols : {1, 15, 16, 64, 80, 577, 2048}) {
      const int rows = 5;
      auto x = random_values(static_cast<std::size_t>(rows * cols), 1, 3);
      const auto weight = random_values(static_cast<std::size_t>(cols), 2);
      std::vector<float> out(x.size());
      RmsNormArgs args{.x = x.data(), .weight = weight.data(), .epsilon = 1e-5F, .out = out.data(), .num_cols = cols};
      table->rms_norm(args, 0, rows);
      for (int r = 0; r < rows; ++r) {
        double squares = 0;
        for (int c = 0; c < cols; ++c) squares += std::pow(double{x[r * cols + c]}, 2);
        const double scale = 1 / std::sqrt(squares / cols + 1e-5);
        for (int c = 0; c < cols; ++c) {
          const double expected = x[r * cols + c] * scale * weight[c];
          ASSERT_NEAR(out[r * cols + c], expected, std::abs(expected) * 1e-6) << table->name;
        }
      }
      // In place and from another row on.
      auto again = x;
      args.x = args.out = again.data();
      table->rms_norm(args, 2, rows);
      EXPECT_EQ(std::memcmp(again.data() + 2 * cols, out.data() + 2 * cols, 12 * cols), 0);
      EXPECT_EQ(std::memcmp(again.data(), x.data(), 8 * cols), 0);
    }
  }
}

// Whatever is added first, normed itself or not.
TEST(RowOps, RmsNormAddsAsIfApart) {
  const int rows = 4;
  for (const KernelTable* table : test::tables()) {
    for (const int cols : {1, 16, 80, 577}) {
      const auto size = static_cast<std::size_t>(rows * cols);
      const auto given = random_values(size, 1, 3);
      const auto weight = random_values(static_cast<std::size_t>(cols), 2);
      const auto added_weight = random_values(static_cast<std::size_t>(cols), 3);
      for (const bool norms_added : {false, true}) {
        const auto norm = [&](std::vector<float>& x, const std::vector<float>& by, std::vector<float>& out) {
          table->rms_norm(
              {.x = x.data(), .weight = by.data(), .epsilon = 1e-5F, .out = out.data(), .num_cols = cols}, 1, rows);
        };
        std::vector<float> expected = given, added = random_values(size, 4, 5);
        std::vector<float> out = added;
        if (norms_added) norm(added, added_weight, added);
        table->add(expected.data() + cols, added.data() + cols, (rows - 1) * cols);
        norm(expected, weight, added);
        std::vector<float> x = given;
        table->rms_norm({.x = x.data(),
                         .added = out.data(),
                         .added_weight = norms_added ? added_weight.data() : nullptr,
                         .weight = weight.data(),
                         .epsilon = 1e-5F,
                         .out = out.data(),
                         .num_cols = cols},
                        1, rows);
        EXPECT_TRUE(test::same_bits(x, expected)) << table->name << ' ' << cols;
        EXPECT_TRUE(test::same_bits(out, added)) << table->name << ' ' << cols;
      }
    }
  }
}

TEST(RowOps, QuantizedRowsHaveTheSameBitsEverywhere) {
  const int rows = 7;
  const int cols = 352;  // eleven groups
  auto x = random_values(static_cast<std::size_t>(rows * cols), 1, 3);
  for (int c = 0; c < 32; ++c) x[c] = 0;           // a group of zeros
  for (int c = 32; c < 64; ++c) x[c] = 1e-35F;     // and one of next to nothing
  for (int c = 64; c < 96; ++c) x[c] = c - 80.5F;  // and one with ties
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // In either half, in a group by itself and among four.
  x[cols + 5] = x[cols + 9 * 32 + 31] = nan;
  x[cols + 10 * 32] = -nan;
  x[2 * cols + 64] = infinity;
  x[2 * cols + 10 * 32 + 17] = -infinity;
  for (int c = 3 * cols + 32; c < 3 * cols + 64; ++c) x[c] = nan;
  const test::TestActivations reference(*kernels_for(Isa::kGeneric), x, rows, cols);
  for (std::size_t i = 0; i < x.size(); i += 32) {
    const float scale = reference.scale[i / 32];
    const bool has_codes =
        std::all_of(&x[i], &x[i] + 32, [](float value) { return std::isfinite(value); });
    ASSERT_EQ(std::isnan(scale), !has_codes) << i;
    for (std::size_t j = i; j < i + 32; ++j) {
      if (has_codes) {
        ASSERT_NEAR(scale * reference.q[j], x[j], scale * 0.5001 + 1e-30);
      } else {
        ASSERT_EQ(reference.q[j], 0) << j;
      }
    }
  }
  for (std::size_t i = 0; i < reference.sum.size(); ++i) {
    int sum = 0;
    for (std::size_t j = 0; j < 16; ++j) sum += reference.q[i * 16 + j];
    ASSERT_EQ(reference.sum[i], sum);
  }
  for (const KernelTable* table : test::tables()) {
    const test::TestActivations other(*table, x, rows, cols);
    EXPECT_EQ(other.q, reference.q) << table->name;
    EXPECT_EQ(other.sum, reference.sum) << table->name;
    EXPECT_TRUE(test::same_bits(other.scale, reference.scale)) << table->name;
  }
}

// Both are x / (1 + e^u); tanh itself would lose its digits near -1.
double exponent(double x, bool is_silu) {
  return is_silu ? -x : -2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

TEST(RowOps, ActivationsMatchDoublePrecision) {
  std::vector<float> gate;
  for (float x = -12; x < 12; x += 0.003F) gate.push_back(x);
  for (const float x : {0.0F, 30.0F, -30.0F, 1000.0F, -1000.0F, 1e-20F, 1e20F, -1e20F}) {
    gate.push_back(x);
  }
  const auto up = random_values(gate.size(), 4);
  for (const KernelTable* table : test::tables()) {
    std::vector<float> out(gate.size());
    const auto count = static_cast<std::int64_t>(gate.size());
    for (const bool is_silu : {true, false}) {
      const auto run = is_silu ? table->silu_mul : table->gelu_mul;
      run(gate.data(), up.data(), out.data(), count);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const double u = exponent(gate[i], is_silu);
        const double expected = gate[i] / (1 + std::exp(u)) * up[i];
        // u is rounded a few times to 2^-24 of itself, and e^u turns that into a relative error.
        // The absolute part is where e^u leaves FP32's range.
        const double relative = 4e-7 + (u > 0 ? u * 1.8e-7 : 0);
        ASSERT_NEAR(out[i], expected, std::abs(expected) * relative + 1e-30) << gate[i];
      }
      auto in_place = gate;
      run(in_place.data(), up.data(), in_place.data(), count);
      EXPECT_TRUE(test::same_bits(in_place, out));
      // A value's bits do not depend on its place in the array.
      std::vector<float> shifted(gate.size());
      run(gate.data() + 3, up.data() + 3, shifted.data() + 3, count - 3);
      EXPECT_EQ(std::memcmp(shifted.data() + 3, out.data() + 3, (gate.size() - 3) * 4), 0);
    }
  }
}

TEST(RowOps, ClampedSwigluMatchesDoublePrecision) {
  std::vector<float> gate, up;
  for (float x = -12; x < 12; x += 0.003F) gate.push_back(x);
  for (const float x : {0.0F, 7.0F, 30.0F, -30.0F, -INFINITY, INFINITY}) gate.push_back(x);
  for (std::size_t i = 0; i < gate.size(); ++i) up.push_back(gate[i * 37 % gate.size()]);
  gate[40] = NAN;
  up[50] = NAN;
  for (const KernelTable* table : test::tables()) {
    std::vector<float> out(gate.size());
    table->clamped_swiglu(gate.data(), up.data(), out.data(), static_cast<std::int64_t>(gate.size()));
    for (std::size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min<double>(gate[i], 7), u = std::clamp<double>(up[i], -7, 7);
      const double expected = g == -INFINITY ? 0 : g / (1 + std::exp(-1.702 * g)) * (u + 1);
      if (i == 40 || i == 50)
        EXPECT_TRUE(std::isnan(out[i])) << table->name << ' ' << i;
      else
        ASSERT_NEAR(out[i], expected, std::abs(expected) * 4e-6 + 1e-6) << table->name << ' ' << gate[i] << ' ' << up[i];
    }
    auto in_place = gate;
    table->clamped_swiglu(in_place.data(), up.data(), in_place.data(), static_cast<std::int64_t>(gate.size()));
    EXPECT_TRUE(test::same_bits(in_place, out));
  }
}

TEST(RowOps, SoftCapMatchesDoublePrecision) {
  std::vector<float> x;
  for (float value = -12; value < 12; value += 0.003F) x.push_back(value);
  for (const float value : {0.0F, -0.0F, 1e-38F, 1e-10F, 100.0F, 1e30F, -1e30F, INFINITY, -INFINITY, NAN}) x.push_back(value);
  const auto count = static_cast<std::int64_t>(x.size());
  for (const KernelTable* table : test::tables()) {
    for (const float cap : {1.0F, 0.3F, 30.0F, 50.0F}) {
      std::vector<float> out = x;
      table->soft_cap(out.data(), count, cap);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = cap * std::tanh(double{x[i]} / cap);
        if (std::isnan(x[i]))
          EXPECT_TRUE(std::isnan(out[i])) << table->name;
        else
          ASSERT_NEAR(out[i], expected, std::abs(expected) * 5e-7 + 1e-38) << table->name << ' ' << x[i] << " cap " << cap;
      }
      // A value's bits do not depend on its place in the array, and neither its sign nor what stands beside it on it.
      std::vector<float> shifted = x;
      for (float& value : shifted) value = -value;
      table->soft_cap(shifted.data() + 3, count - 5, cap);
      for (std::size_t i = 3; i < x.size() - 2; ++i) ASSERT_EQ(shifted[i], -out[i]) << table->name << ' ' << x[i];
      EXPECT_TRUE(std::isnan(shifted.back()));
      EXPECT_EQ(shifted[0], -x[0]);
    }
  }
}

TEST(RowOps, AddAddsEveryValue) {
  for (const KernelTable* table : test::tables()) {
    for (const std::int64_t count : {1, 16, 33}) {
      auto x = random_values(40, 1);
      const auto before = x;
      const auto y = random_values(40, 2);
      table->add(x.data(), y.data(), count);
      for (std::size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(x[i], static_cast<std::int64_t>(i) < count ? before[i] + y[i] : before[i]);
      }
    }
  }
}

TEST(RowOps, StoreKvRoundsClampsAndTakesNoNan) {
  const int dim = 18, heads = 2, rows = 3;
  auto k = random_values(rows * 40, 1);
  auto v = random_values(rows * 40, 2);
  k[0] = 1e6F;
  k[1] = -std::numeric_limits<float>::infinity();
  v[2] = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t slots[] = {5 * 16 + 3, 0, 2 * 16 + 15};
  const std::int64_t layer_halves = heads * dim * 16;
  for (const KernelTable* table : test::tables()) {
    std::vector<std::uint16_t> memory(static_cast<std::size_t>(6 * 2 * layer_halves + 8));
    StoreKvArgs args;
    args.kv = {reinterpret_cast<std::byte*>(memory.data()),
               4 * layer_halves,
               0,
               2 * layer_halves,
               heads,
               dim,
               {}};
    args.k = k.data();
    args.v = v.data();
    args.ldk = args.ldv = 40;
    args.slots = slots;
    table->store_kv(args, 0, rows);
    std::vector<std::uint16_t> expected(memory.size());
    for (int r = 0; r < rows; ++r) {
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < dim; ++d) {
          const auto half = [&](float value) {
            if (std::isnan(value)) value = 0;
            return float_to_half(std::min(std::max(value, -65504.0F), 65504.0F));
          };
          const std::int64_t block = slots[r] / 16 * 2 * layer_halves;
          const std::int64_t offset = slots[r] % 16;
          expected[block + h * dim * 16 + d * 16 + offset] = half(k[r * 40 + h * dim + d]);
          expected[block + layer_halves + h * dim * 16 + offset * dim + d] =
              half(v[r * 40 + h * dim + d]);
        }
      }
    }
    EXPECT_EQ(memory, expected) << table->name;
  }
}

}  // namespace
}  // namespace larder
