#include "plan/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/mapped_file.h"
#include "kernels/cuda/test_device.h"
#include "model/files/gguf_builder.h"

namespace larder {
namespace {

constexpr int kLayers = 6;
constexpr std::uint64_t kHidden = 64, kFfn = 128, kVocab = 96;

// A file of zeros: how long it takes does not depend on what it says.
std::vector<std::byte> small_file() {
  GgufBuilder builder;
  const auto matrix = [&](const std::string& name, std::uint64_t cols, std::uint64_t rows) {
    builder.add_tensor(name, {cols, rows}, GgmlType::kF16, cols * rows * 2);
  };
  const auto vector = [&](const std::string& name, std::uint64_t size) {
    builder.add_tensor(name, {size}, GgmlType::kF32, size * 4);
  };
  builder.add_string("general.architecture", "llama")
      .add_string("general.name", "small")
      .add_uint("llama.embedding_length", kHidden)
      .add_uint("llama.context_length", 256)
      .add_uint("llama.attention.head_count", 4)
      .add_uint("llama.attention.head_count_kv", 2)
      .add_float("llama.attention.layer_norm_rms_epsilon", 1e-5F)
      .add_uint("llama.block_count", kLayers)
      .add_uint("llama.feed_forward_length", kFfn);
  matrix("token_embd.weight", kHidden, kVocab);
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = "blk." + std::to_string(i) + ".";
    vector(layer + "attn_norm.weight", kHidden);
    matrix(layer + "attn_q.weight", kHidden, kHidden);
    matrix(layer + "attn_k.weight", kHidden, kHidden / 2);
    matrix(layer + "attn_v.weight", kHidden, kHidden / 2);
    matrix(layer + "attn_output.weight", kHidden, kHidden);
    vector(layer + "ffn_norm.weight", kHidden);
    matrix(layer + "ffn_gate.weight", kHidden, kFfn);
    matrix(layer + "ffn_up.weight", kHidden, kFfn);
    matrix(layer + "ffn_down.weight", kFfn, kHidden);
  }
  vector("output_norm.weight", kHidden);
  return builder.build();
}

TEST(ModelShape, CountsWhatAFileHolds) {
  const std::vector<std::byte> bytes = small_file();
  const GgufFile gguf(bytes);
  const ModelShape shape = model_shape(read_model_config(gguf), gguf);
  EXPECT_EQ(shape.num_embedding_parameters, 64 * 96);
  EXPECT_EQ(shape.num_output_parameters, 0);
  EXPECT_EQ(shape.num_layer_parameters,
            kLayers * (2 * 64 + 3 * 64 * 64 + 3 * 64 * 128) + 64);
  EXPECT_EQ(shape.num_active_parameters(), shape.num_parameters());
  EXPECT_EQ(shape.num_layers(), kLayers);
  EXPECT_EQ(shape.kv_layers[0], (KvLayerShape{2, 16, 0}));
  const WeightFormat format = file_weight_format(shape, gguf, 2 * shape.num_parameters());
  EXPECT_DOUBLE_EQ(format.layer_bytes, 2);
  EXPECT_EQ(format.ops, OpsKind::kF16);
}

TEST(ModelShape, CountsNoLayerThatIsLeftOut) {
  const MappedFile file(LARDER_SOURCE_DIR "/tests/golden/model/tiny_glm4moe.gguf");
  const GgufFile gguf(file.bytes());
  const ModelShape shape = model_shape(read_model_config(gguf), gguf);
  EXPECT_EQ(shape.num_layers(), 2);
  std::int64_t num_computed = 0;
  for (const GgufTensor& tensor : gguf.tensors())
    if (!tensor.name.starts_with("blk.2.")) num_computed += tensor.num_cols() * tensor.num_rows();
  EXPECT_EQ(shape.num_parameters(), num_computed);
  EXPECT_EQ(shape.num_expert_parameters, 12 * 3 * 32 * 32);
}

void expect_sound(const StepCurve& curve) {
  ASSERT_FALSE(curve.samples.empty());
  for (std::size_t i = 0; i < curve.samples.size(); ++i) {
    EXPECT_TRUE(std::isfinite(curve.samples[i].seconds));
    if (i > 0) {
      EXPECT_GT(curve.samples[i].num_rows, curve.samples[i - 1].num_rows);
    }
  }
}

void expect_measured(Device* device, double layer_bytes) {
  const std::vector<std::byte> bytes = small_file();
  const GgufFile gguf(bytes);
  ThreadPool pool(1);
  const TransformerLimits limits{.max_batch_tokens = 32, .max_logit_rows = 8};
  const StepSpeed speed =
      calibrate(read_model_config(gguf), gguf,
                {.limits = limits, .layer_bytes = layer_bytes, .device = device}, pool);
  expect_sound(speed.decode);
  expect_sound(speed.prefill);
  EXPECT_EQ(speed.decode.samples.back().num_rows, 8);
  EXPECT_EQ(speed.prefill.samples.back().num_rows, 32);
  EXPECT_GE(speed.decode_key_seconds, 0);
  EXPECT_GE(speed.prefill_pair_seconds, 0);
}

TEST(Calibrate, MeasuresAllLayersOrExtrapolates) {
  for (const double layer_bytes : {1e9, 1.0}) expect_measured(nullptr, layer_bytes);
}

// Its memory is not the host's: whatever of a step lay there would be a fault.
TEST(Calibrate, MeasuresADevice) {
  const auto device = open_test_device();
  expect_measured(device.get(), 1.0);
}

TEST(MeasureDevice, TellsWhatItCopiesAndMultiplies) {
  const auto device = open_test_device();
  ThreadPool pool(1);
  const Machine machine = measure_device(
      *device, pool, ActivationType::kInt8, {.copied_bytes = 1 << 20, .matrix_size = 64, .num_rows = 16});
  EXPECT_TRUE(machine.is_measured);
  EXPECT_EQ(machine.name, device->describe());
  EXPECT_GT(machine.read_bytes_per_s, 0);
  for (const double rate : machine.ops_per_s) EXPECT_GT(rate, 0);
}

TEST(StepCurve, IsLinearBetweenSamplesAndProportionalBeyond) {
  const StepCurve curve{{{1, 2.0}, {3, 4.0}}};
  EXPECT_DOUBLE_EQ(curve.seconds(0.5), 2);
  EXPECT_DOUBLE_EQ(curve.seconds(2), 3);
  EXPECT_DOUBLE_EQ(curve.seconds(6), 8);
}

}  // namespace
}  // namespace larder
