#include "plan/model_shape.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "model/rope_config.h"

namespace larder {
namespace {

std::int64_t num_values(const GgufTensor& tensor) { return tensor.num_cols() * tensor.num_rows(); }

// The kind that most of the file's matrix values are multiplied as.
OpsKind most_common_ops(const GgufFile& gguf) {
  std::array<std::int64_t, kNumOpsKinds> counts{};
  for (const GgufTensor& tensor : gguf.tensors()) {
    OpsKind kind = OpsKind::kInt8;
    if (tensor.num_dims < 2) continue;
    if (tensor.type == GgmlType::kF32) kind = OpsKind::kF32;
    if (tensor.type == GgmlType::kF16) kind = OpsKind::kF16;
    if (tensor.type == GgmlType::kBF16) kind = OpsKind::kBF16;
    if (tensor.type == GgmlType::kQ4_0 || tensor.type == GgmlType::kQ4_1 ||
        tensor.type == GgmlType::kQ4_K || tensor.type == GgmlType::kMXFP4)
      kind = OpsKind::kInt4;
    counts[static_cast<std::size_t>(kind)] += num_values(tensor);
  }
  return static_cast<OpsKind>(std::max_element(counts.begin(), counts.end()) - counts.begin());
}

}  // namespace

std::int64_t ModelShape::num_parameters() const {
  return num_layer_parameters + num_expert_parameters + num_embedding_parameters +
         num_output_parameters;
}

std::int64_t ModelShape::num_active_parameters() const {
  const std::int64_t chosen =
      num_experts > 0 ? num_expert_parameters / num_experts * num_chosen_experts : 0;
  return num_layer_parameters + chosen +
         (num_output_parameters > 0 ? num_output_parameters : num_embedding_parameters);
}

double ModelShape::expert_share(double num_tokens) const {
  if (num_experts == 0) return 0;
  const double missed = 1 - static_cast<double>(num_chosen_experts) / num_experts;
  return 1 - std::pow(missed, num_tokens);
}

std::vector<WeightFormat> weight_formats() {
  // Blocks of 32 codes and an FP16 scale for q8_0 and q4_0, and a byte of scale for mxfp4, which
  // leaves attention and embeddings in BF16. FP8 checkpoints leave the embeddings in BF16.
  return {{"f32", 4, 4, 4, OpsKind::kF32},
          {"bf16", 2, 2, 2, OpsKind::kBF16},
          {"fp8", 1, 1, 2, OpsKind::kInt8},
          {"q8_0", 34.0 / 32, 34.0 / 32, 34.0 / 32, OpsKind::kInt8},
          {"mxfp4", 2, 17.0 / 32, 2, OpsKind::kBF16},
          {"q4_0", 18.0 / 32, 18.0 / 32, 18.0 / 32, OpsKind::kInt4}};
}

WeightFormat parse_weight_format(std::string_view name) {
  if (name == "f16") return {"f16", 2, 2, 2, OpsKind::kF16};
  std::string names;
  for (const WeightFormat& format : weight_formats()) {
    if (format.name == name) return format;
    names += (names.empty() ? "" : ", ") + format.name;
  }
  throw_invalid("--weights '{}': known are f16, {}", name, names);
}

double weights_bytes(const ModelShape& shape, const WeightFormat& format) {
  return static_cast<double>(shape.num_layer_parameters) * format.layer_bytes +
         static_cast<double>(shape.num_expert_parameters) * format.expert_bytes +
         static_cast<double>(shape.num_embedding_parameters + shape.num_output_parameters) *
             format.rest_bytes;
}

double step_weights_bytes(const ModelShape& shape, const WeightFormat& format, double num_tokens) {
  const std::int64_t output = shape.num_output_parameters > 0 ? shape.num_output_parameters
                                                              : shape.num_embedding_parameters;
  return static_cast<double>(shape.num_layer_parameters) * format.layer_bytes +
         static_cast<double>(shape.num_expert_parameters) * format.expert_bytes *
             shape.expert_share(num_tokens) +
         static_cast<double>(output) * format.rest_bytes;
}

std::int64_t kv_bytes_for(const KvLayout& layout, std::int64_t num_tokens, int max_step_tokens) {
  return layout.num_blocks_for(num_tokens, max_step_tokens) * layout.block_size_bytes();
}

ModelShape model_shape(const ModelConfig& config, const GgufFile& gguf) {
  ModelShape shape;
  shape.name = config.name;
  shape.context_len = config.context_len;
  shape.kv_layers = kv_layer_shapes(config);
  for (const GgufTensor& tensor : gguf.tensors()) {
    if (is_left_out(config, tensor.name)) continue;
    if (tensor.name == "token_embd.weight")
      shape.num_embedding_parameters = num_values(tensor);
    else if (tensor.name == "output.weight")
      shape.num_output_parameters = num_values(tensor);
    else if (tensor.name.ends_with("_exps.weight"))
      shape.num_expert_parameters += num_values(tensor);
    else if (!is_rope_tensor(tensor.name))
      shape.num_layer_parameters += num_values(tensor);
  }
  if (config.tied_embeddings) shape.num_output_parameters = 0;
  shape.num_experts = config.experts.num_experts;
  shape.num_chosen_experts = config.experts.num_chosen;
  // With latents prompts, too, multiply with those, not with keys and values made of them.
  const int value_dim = config.latent.rank > 0 ? config.latent.rank : config.head_dim;
  shape.decode_pair_ops = shape.prefill_pair_ops = 2.0 * config.num_heads * (config.head_dim + value_dim);
  return shape;
}

WeightFormat file_weight_format(const ModelShape& shape, const GgufFile& gguf,
                                std::int64_t repacked_bytes) {
  const double bytes = static_cast<double>(repacked_bytes) /
                       static_cast<double>(std::max<std::int64_t>(shape.num_parameters(), 1));
  return {"file", bytes, bytes, bytes, most_common_ops(gguf)};
}

}  // namespace larder
