// Every function of the CUDA table against the generic CPU table, and rows against themselves in
// other company. Runs on open_test_device(): emulated here, a GPU in tests/gpu.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/cuda/test_device.h"
#include "kernels/test_util.h"

namespace larder {
namespace {

using test::host;
using test::OnDevice;
using test::random_values;
using test::same_bits;

class CudaKernels : public ::testing::Test {
 protected:
  OnDevice<float> floats(const std::vector<float>& values) { return {device(), values}; }
  Device& device() { return *device_; }
  const KernelTable& cuda() { return device_->kernels(); }

 private:
  std::unique_ptr<Device> device_ = open_test_device();
};

std::size_t to_size(int n) { return static_cast<std::size_t>(n); }

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float relative,
                 const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], relative * (std::abs(b[i]) + 1e-3F)) << what << " " << i;
}

// In place; some rows are longer than a block keeps.
TEST_F(CudaKernels, RmsNorm) {
  for (const int cols : {1, 15, 64, 80, 577, 2048, 4100, 8192, 9001}) {
    const int rows = 4;
    const auto x = random_values(to_size(rows * cols), 1, 3);
    const auto weight = random_values(to_size(cols), 2);
    std::vector<float> expected = x;
    RmsNormArgs args{.x = expected.data(),
                     .weight = weight.data(),
                     .epsilon = 1e-5F,
                     .out = expected.data(),
                     .num_cols = cols};
    host().rms_norm(args, 2, rows);
    OnDevice<float> values = floats(x), device_weight = floats(weight);
    args.x = args.out = values.data();
    args.weight = device_weight.data();
    cuda().rms_norm(args, 2, rows);
    expect_near(values.read(), expected, 2e-6F, "rms_norm");
  }
}

// As if apart: the bits of additions and norms by themselves.
TEST_F(CudaKernels, RmsNormAddsFirst) {
  const int rows = 3;
  for (const int cols : {1, 30, 576, 577, 4096, 9001}) {
    OnDevice<float> weight = floats(random_values(to_size(cols), 2));
    OnDevice<float> added_weight = floats(random_values(to_size(cols), 3));
    const auto norm = [&](OnDevice<float>& x, OnDevice<float>& by) {
      cuda().rms_norm(
          {.x = x.data(), .weight = by.data(), .epsilon = 1e-5F, .out = x.data(), .num_cols = cols}, 1, rows);
    };
    for (const bool norms_added : {false, true}) {
      const auto given = random_values(to_size(rows * cols), 4, 3);
      OnDevice<float> expected = floats(given), x = floats(given);
      OnDevice<float> added = floats(random_values(to_size(rows * cols), 5, 4)), out = floats(added.read());
      if (norms_added) norm(added, added_weight);
      cuda().add(expected.data() + cols, added.data() + cols, (rows - 1) * cols);
      cuda().rms_norm({.x = x.data(),
                       .added = out.data(),
                       .added_weight = norms_added ? added_weight.data() : nullptr,
                       .weight = weight.data(),
                       .epsilon = 1e-5F,
                       .out = out.data(),
                       .num_cols = cols},
                      1, rows);
      EXPECT_TRUE(same_bits(x.read(), expected.read())) << cols;
      norm(expected, weight);
      const auto normed = expected.read(), result = out.read();
      EXPECT_TRUE(std::equal(normed.begin() + cols, normed.end(), result.begin() + cols)) << cols;
    }
  }
}

TEST_F(CudaKernels, QuantizedRowsHaveTheCpusBits) {
  const int rows = 7;
  const int cols = 160;
  auto x = random_values(to_size(rows * cols), 1, 3);
  for (std::size_t c = 0; c < 32; ++c) x[c] = 0;
  for (std::size_t c = 32; c < 64; ++c) x[c] = 1e-35F;
  for (std::size_t c = 64; c < 96; ++c) x[c] = static_cast<float>(c) - 80.5F;
  x[100] = std::numeric_limits<float>::quiet_NaN();
  x[159] = -std::numeric_limits<float>::infinity();
  const test::TestActivations expected(host(), x, rows, cols);
  OnDevice<float> values = floats(x);
  OnDevice<std::int8_t> q(device(), std::vector<std::int8_t>(x.size()));
  OnDevice<float> scale(device(), std::vector<float>(expected.scale.size()));
  OnDevice<std::int32_t> sum(device(), std::vector<std::int32_t>(expected.sum.size()));
  const QuantizedRows view{q.data(), scale.data(), sum.data(), cols};
  cuda().quantize_rows(values.data(), cols, view, 0, 3);
  cuda().quantize_rows(values.data(), cols, view, 3, rows);
  EXPECT_EQ(q.read(), expected.q);
  EXPECT_EQ(sum.read(), expected.sum);
  EXPECT_TRUE(same_bits(scale.read(), expected.scale));

  std::vector<float> rests(x.size());
  host().quantization_rests(x.data(), expected.view, rests.data(), 1, rows);
  OnDevice<float> device_rests(device(), std::vector<float>(x.size()));
  cuda().quantization_rests(values.data(), view, device_rests.data(), 1, rows);
  EXPECT_TRUE(same_bits(device_rests.read(), rests));
}

TEST_F(CudaKernels, FlatOperations) {
  const std::size_t count = 1000;
  auto gate = random_values(count, 1, 4);
  gate[0] = -200;
  gate[1] = 200;
  const auto up = random_values(count, 2);
  for (const bool is_silu : {true, false}) {
    std::vector<float> expected(count);
    (is_silu ? host().silu_mul : host().gelu_mul)(gate.data(), up.data(), expected.data(), count);
    OnDevice<float> out = floats(gate);
    (is_silu ? cuda().silu_mul : cuda().gelu_mul)(out.data(), floats(up).data(), out.data(), count);
    expect_near(out.read(), expected, 3e-6F, is_silu ? "silu" : "gelu");
  }
  std::vector<float> capped = gate;
  host().soft_cap(capped.data(), 999, 3);
  OnDevice<float> to_cap = floats(gate);
  cuda().soft_cap(to_cap.data(), 999, 3);
  expect_near(to_cap.read(), capped, 2e-6F, "soft_cap");
  std::vector<float> expected = gate;
  host().add(expected.data(), up.data(), 999);
  host().add_bias(expected.data(), up.data(), 50, 3, 20);
  const std::vector<std::int32_t> rows = {0, 3, 4, 9};
  host().gather_rows(expected.data(), 100, rows.data(), 4);
  OnDevice<float> x = floats(gate);
  OnDevice<float> y = floats(up);
  cuda().add(x.data(), y.data(), 999);
  cuda().add_bias(x.data(), y.data(), 50, 3, 20);
  cuda().gather_rows(x.data(), 100, OnDevice<std::int32_t>(device(), rows).data(), 4);
  EXPECT_TRUE(same_bits(x.read(), expected));
}

TEST_F(CudaKernels, FirstOfBest) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (const int size : {1, 31, 1024, 5000}) {
    const int rows = 6;
    std::vector<float> logits = random_values(to_size(rows * size), 1, 3);
    const auto at = [&](int row, int i) -> float& { return logits[to_size(row * size + i % size)]; };
    at(0, size - 1) = 7;
    for (const int i : {40, 41, 3000, size - 1}) at(1, i) = 8;  // the first of equals
    for (int i = 0; i < size; ++i) at(2, i) = NAN;
    for (int i = 0; i < size; ++i) at(3, i) = kLowest;
    for (int i = 0; i < size; ++i) at(4, i) = i % 3 == 1 ? -5.0F : i % 3 == 0 ? NAN : kLowest;
    at(5, 77) = std::numeric_limits<float>::infinity();
    std::vector<TokenId> expected;
    for (int row = 0; row < rows; ++row) {
      TokenId best = 0;
      for (int i = 0; i < size; ++i) {
        const float sofar = std::isnan(at(row, best)) ? kLowest : at(row, best);
        if (at(row, i) > sofar) best = i;
      }
      expected.push_back(best);
    }
    OnDevice<TokenId> best(device(), std::vector<TokenId>(to_size(rows), -1));
    cuda().first_of_best(floats(logits).data(), rows, size, best.data());
    EXPECT_EQ(best.read(), expected) << size;
  }
}

TEST_F(CudaKernels, Rotations) {
  const int rows = 5, rope_dim = 12;
  const std::vector<std::int32_t> positions = {0, 1, 77, 4095, 131071};
  const std::vector<double> frequencies = {1, 0.3, 0.05, 0.01, 1e-3, 1e-4};
  std::vector<float> cos(to_size(rows * rope_dim / 2)), sin(cos.size());
  host().rotations({positions.data(), frequencies.data(), rope_dim / 2, 1.1, cos.data(), sin.data()},
                   0, rows);
  OnDevice<float> device_cos(device(), std::vector<float>(cos.size()));
  OnDevice<float> device_sin(device(), std::vector<float>(cos.size()));
  OnDevice<std::int32_t> device_positions(device(), positions);
  OnDevice<double> device_frequencies(device(), frequencies);
  const RotationArgs args{device_positions.data(), device_frequencies.data(), rope_dim / 2, 1.1,
                          device_cos.data(), device_sin.data()};
  cuda().rotations(args, 0, 2);
  cuda().rotations(args, 2, rows);
  expect_near(device_cos.read(), cos, 2e-7F, "cos");
  expect_near(device_sin.read(), sin, 2e-7F, "sin");
}

// A packed matrix in both memories.
struct Matrix {
  Matrix(Device& device, GgmlType type, int rows, int cols)
      : on_host(type, rows, cols),
        memory(device, on_host.memory.data(), on_host.memory.size_bytes()),
        packed(on_host.packed) {
    packed.data = memory.data();
  }
  test::TestMatrix on_host;
  OnDevice<std::byte> memory;
  PackedMatrix packed;
};

// Columns that the type allows and that end inside a segment.
int odd_cols(GgmlType type) {
  const int block = ggml_type_traits(static_cast<std::uint32_t>(type))->block_size;
  return block == 1 ? 301 : block == 32 ? 416 : 768;
}

// The last three are computed on CPUs alone.
std::span<const GgmlType> device_types() {
  static_assert(std::end(test::kAllTypes)[-3] == GgmlType::kIQ4_NL);
  return std::span(test::kAllTypes).first(std::size(test::kAllTypes) - 3);
}

TEST_F(CudaKernels, RowsOfMatricesAreExact) {
  const int rows = 37;
  for (const GgmlType type : device_types()) {
    Matrix w(device(), type, rows, odd_cols(type));
    const int cols = w.packed.num_cols;
    const std::vector<TokenId> tokens = {0, 36, 5, 16};
    std::vector<float> expected(tokens.size() * to_size(cols));
    host().embed({&w.on_host.packed, tokens.data(), 3.3F, expected.data()}, 0, 4);
    OnDevice<float> out(device(), std::vector<float>(expected.size()));
    OnDevice<TokenId> device_tokens(device(), tokens);
    const EmbedArgs args{&w.packed, device_tokens.data(), 3.3F, out.data()};
    cuda().embed(args, 0, 1);
    cuda().embed(args, 1, 4);
    EXPECT_TRUE(same_bits(out.read(), expected)) << static_cast<int>(type);

    // Unscaled.
    host().embed({&w.on_host.packed, tokens.data(), 1, expected.data()}, 0, 4);
    cuda().embed({&w.packed, device_tokens.data(), 1, out.data()}, 0, 4);
    EXPECT_TRUE(same_bits(out.read(), expected)) << static_cast<int>(type);
  }
}

// What a product's rows are: kBf16 is FP32 that may be rounded.
enum class Input { kInt8, kFloat, kBf16 };
Input usual_input(GgmlType type) {
  return test::is_quantised(type) ? Input::kInt8 : Input::kFloat;
}

// A product of rows with a matrix.
class Product {
 public:
  Product(Device& device, GgmlType type, int num_outputs, int num_cols, int max_rows, Input input)
      : device_(device),
        w_(device, type, num_outputs, num_cols),
        outputs_(num_outputs),
        cols_(num_cols),
        input_(input),
        x_(random_values(to_size(max_rows * cols_), 3)),
        bias_(random_values(to_size(num_outputs), 4)),
        device_x_(device, x_),
        device_bias_(device, bias_),
        scratch_(device, std::vector<std::byte>(static_cast<std::size_t>(device_product_bytes(max_rows, cols_)),
                                                std::byte{0xFF})),
        quantized_(host(), is_int8() ? x_ : std::vector<float>(32), is_int8() ? max_rows : 1,
                   is_int8() ? cols_ : 32),
        q_(device, quantized_.q),
        scale_(device, quantized_.scale),
        sum_(device, quantized_.sum),
        xq_{q_.data(), scale_.data(), sum_.data(), cols_} {}

  bool is_int8() const { return input_ == Input::kInt8; }
  double input_at(std::size_t at) const {
    if (is_int8()) return double{quantized_.scale[at / 32]} * quantized_.q[at];
    return input_ == Input::kBf16 ? bfloat16_to_float(float_to_bfloat16(x_[at])) : x_[at];
  }
  int num_panels() const { return w_.packed.num_panels(); }
  void use_scratch(bool has) { has_scratch_ = has; }

  std::vector<float> run(int first_row, int num_rows) {
    return run(first_row, num_rows, 0, num_panels());
  }
  // What is not written is NaN.
  std::vector<float> run(int first_row, int num_rows, int panel_begin, int panel_end) {
    OnDevice<float> y(device_, std::vector<float>(to_size(num_rows * outputs_), NAN));
    QuantizedRows xq = xq_;
    xq.q += std::int64_t{first_row} * cols_;
    xq.scale += first_row * (cols_ / 32);
    xq.sum += first_row * (cols_ / 16);
    device_.kernels().matmul({.w = &w_.packed,
                              .x = device_x_.data() + std::int64_t{first_row} * cols_,
                              .xq = is_int8() ? &xq : nullptr,
                              .rounds_to_bf16 = input_ == Input::kBf16,
                              .bias = device_bias_.data(),
                              .y = y.data(),
                              .num_rows = num_rows,
                              .ldx = cols_,
                              .ldy = outputs_,
                              .device_scratch = has_scratch_ ? scratch_.data() : nullptr},
                             panel_begin, panel_end);
    return y.read();
  }

  void expect_right(const std::vector<float>& y, int num_rows) {
    for (int r = 0; r < num_rows; ++r) {
      for (int n = 0; n < outputs_; ++n) {
        double sum = bias_[to_size(n)];
        double magnitude = std::abs(sum);
        for (int c = 0; c < cols_; ++c) {
          const std::size_t at = to_size(r * cols_ + c);
          const double product = input_at(at) * w_.on_host.values[to_size(n * cols_ + c)];
          sum += product;
          magnitude += std::abs(product);
        }
        ASSERT_NEAR(y[to_size(r * outputs_ + n)], sum, 2e-6 * magnitude) << r << " " << n;
      }
    }
  }

 private:
  Device& device_;
  Matrix w_;
  int outputs_;
  int cols_;
  Input input_;
  bool has_scratch_ = true;
  std::vector<float> x_, bias_;
  OnDevice<float> device_x_, device_bias_;
  OnDevice<std::byte> scratch_;
  test::TestActivations quantized_;
  OnDevice<std::int8_t> q_;
  OnDevice<float> scale_;
  OnDevice<std::int32_t> sum_;
  QuantizedRows xq_;
};

// Every way of computing a row gives it the same bits: alone, among few, in tiles.
void expect_products(Device& device, GgmlType type, Input input, int outputs, int cols,
                     int max_rows) {
  SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + ", " + std::to_string(outputs) +
               " outputs, " + std::to_string(cols) + " columns");
  Product product(device, type, outputs, cols, max_rows, input);
  const std::vector<float> all = product.run(0, max_rows);
  product.expect_right(all, max_rows);
  product.use_scratch(false);
  EXPECT_TRUE(same_bits(product.run(0, max_rows), all));
  const int last = max_rows - 1;
  for (const auto& [first, count] : {std::pair{0, 1}, {last, 1}, {5, 3}, {last - 8, 8}, {0, 9},
                                     {1, 16}, {last - 16, 17}}) {
    const std::vector<float> some = product.run(first, count);
    const std::vector<float> same(all.begin() + first * outputs,
                                  all.begin() + (first + count) * outputs);
    EXPECT_TRUE(same_bits(some, same)) << first << " " << count;
  }
}

TEST_F(CudaKernels, ProductsWithEightBitActivations) {
  for (const GgmlType type : device_types())
    if (test::is_quantised(type)) expect_products(device(), type, Input::kInt8, 70, odd_cols(type), 67);
}

TEST_F(CudaKernels, ProductsWithFloatActivations) {
  for (const GgmlType type : device_types())
    expect_products(device(), type, Input::kFloat, 70, odd_cols(type), 67);
}

TEST_F(CudaKernels, ProductsWithActivationsRoundedToBf16) {
  for (const auto& [outputs, cols, max_rows] :
       {std::tuple{70, 301, 67}, {64, 2, 64}, {65, 1, 65}, {33, 4236, 17}, {130, 200, 140}, {257, 129, 33}})
    for (const GgmlType type : {GgmlType::kBF16, GgmlType::kF16})
      expect_products(device(), type, Input::kBf16, outputs, cols, max_rows);
}

// Rows that share a tile's columns out to warpgroups, few enough and too many for each to have a segment, in one
// block and in pairs.
TEST_F(CudaKernels, ProductsOfFewOutputsWithActivationsRoundedToBf16) {
  constexpr int kMostRows = 70;
  for (const int outputs : {64, 35, 130})
    for (const int cols : {2, 190, 333, 1192, 1280, 4236}) {
      const GgmlType type = cols % 4 == 0 ? GgmlType::kBF16 : GgmlType::kF16;
      Product product(device(), type, outputs, cols, kMostRows, Input::kBf16);
      product.use_scratch(false);
      const std::vector<float> all = product.run(0, kMostRows);
      product.use_scratch(true);
      for (const auto& [first, count] :
           {std::pair{0, 9}, {3, 16}, {0, 17}, {5, 32}, {1, 33}, {6, 64}, {0, 64}}) {
        const std::vector<float> same(all.begin() + first * outputs, all.begin() + (first + count) * outputs);
        EXPECT_TRUE(same_bits(product.run(first, count), same)) << outputs << " " << cols << " " << count;
      }
    }
}

// Shapes that end at a tile's edge, one before it and one behind it; the fewest columns that there
// are; more segments than a block has in hand.
TEST_F(CudaKernels, ProductsAtTheEdges) {
  for (const GgmlType type : device_types()) {
    const int block = ggml_type_traits(static_cast<std::uint32_t>(type))->block_size;
    const Input input = usual_input(type);
    expect_products(device(), type, input, 1, block, 17);
    expect_products(device(), type, input, 64, 2 * block, 64);
    expect_products(device(), type, input, 65, block, 65);
    expect_products(device(), type, input, 33, block == 256 ? 2304 : 2080, 17);
    if (block == 1) expect_products(device(), type, input, 16, 4236, 17);
  }
}

// Of one input: some in one launch, others not, because their format or their number of rows is another.
TEST_F(CudaKernels, GroupsOfProducts) {
  const int cols = 416;
  const Matrix w[] = {{device(), GgmlType::kBF16, 70, cols},
                      {device(), GgmlType::kBF16, 16, cols},
                      {device(), GgmlType::kQ4_0, 33, cols}};
  const auto x = random_values(to_size(80 * cols), 3);
  OnDevice<float> device_x = floats(x);
  for (const auto& [rows, third] : {std::pair{1, 0}, {5, 2}, {13, 0}, {40, 1}, {40, 2}}) {
    const int num_rows[] = {rows, 2 * rows, rows};
    const Matrix* matrices[] = {&w[0], &w[1], &w[third]};
    std::vector<OnDevice<float>> alone, together;
    MatmulArgs args[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const int outputs = matrices[i]->packed.num_rows;
      const std::vector<float> nothing(to_size(num_rows[i] * outputs), NAN);
      alone.emplace_back(device(), nothing);
      together.emplace_back(device(), nothing);
      args[i] = {.w = &matrices[i]->packed,
                 .x = device_x.data(),
                 .y = alone.back().data(),
                 .num_rows = num_rows[i],
                 .ldx = cols,
                 .ldy = outputs};
      cuda().matmul(args[i], 0, matrices[i]->packed.num_panels());
      args[i].y = together.back().data();
    }
    cuda().matmul_group(args, 3);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(same_bits(together[i].read(), alone[i].read())) << rows << " " << i;
  }
}

// Of few outputs each, rounded once for all of them.
TEST_F(CudaKernels, GroupsOfProductsWithActivationsRoundedToBf16) {
  const int cols = 1192, most_rows = 64;
  const Matrix w[] = {{device(), GgmlType::kBF16, 64, cols},
                      {device(), GgmlType::kBF16, 16, cols},
                      {device(), GgmlType::kBF16, 33, cols}};
  OnDevice<float> x = floats(random_values(to_size(most_rows * cols), 3));
  OnDevice<std::byte> scratch(device(),
                              std::vector<std::byte>(to_size(static_cast<int>(device_product_bytes(most_rows, cols)))));
  for (const int rows : {9, 20, most_rows}) {
    std::vector<OnDevice<float>> alone, together;
    MatmulArgs args[3];
    for (std::size_t i = 0; i < 3; ++i) {
      const int outputs = w[i].packed.num_rows;
      const std::vector<float> nothing(to_size(rows * outputs), NAN);
      alone.emplace_back(device(), nothing);
      together.emplace_back(device(), nothing);
      args[i] = {.w = &w[i].packed,
                 .x = x.data(),
                 .rounds_to_bf16 = true,
                 .y = alone.back().data(),
                 .num_rows = rows,
                 .ldx = cols,
                 .ldy = outputs};
      cuda().matmul(args[i], 0, w[i].packed.num_panels());
      args[i].y = together.back().data();
      args[i].device_scratch = scratch.data();
    }
    cuda().matmul_group(args, 3);
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(same_bits(together[i].read(), alone[i].read())) << rows << " " << i;
  }
}

// Others' outputs stay as they were, also those of a tile that reaches beyond the panels asked for.
TEST_F(CudaKernels, ProductsOfSomePanels) {
  for (const GgmlType type : {GgmlType::kQ4_0, GgmlType::kBF16}) {
    const int outputs = 120, rows = 20;
    Product product(device(), type, outputs, odd_cols(type), rows, usual_input(type));
    for (const int num_rows : {1, 5, rows}) {
      std::vector<float> expected = product.run(0, num_rows);
      for (std::size_t i = 0; i < expected.size(); ++i)
        if (i % outputs < 16 || i % outputs >= 48) expected[i] = NAN;
      const std::vector<float> some = product.run(0, num_rows, 1, 3);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_TRUE(some[i] == expected[i] || (std::isnan(some[i]) && std::isnan(expected[i])))
            << i;
    }
  }
}

}  // namespace
}  // namespace larder
