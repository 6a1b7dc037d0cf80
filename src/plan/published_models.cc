#include "plan/published_models.h"

#include <algorithm>
#include <array>

#include "plan/name_key.h"

namespace larder {
namespace {

// One line of the table, in the words of the model's config.json.
struct PublishedModel {
  const char* name;
  int num_layers;
  int hidden_size;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int ffn_size;  // of a dense layer's MLP, or of one expert where all layers have experts
  int vocab_size;
  int context_len;
  bool tied = false;
  int window = 0;         // tokens; 0 = none
  int window_period = 1;  // 1: all layers have the window; else each of so many, the last, has none
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  bool has_post_norms = false;
  int num_experts = 0;
  int num_chosen_experts = 0;
};

// From the models' own config.json; the counts of parameters that follow from these are the
// published ones to the digit (published_models_test.cc). Gemma 3 from 4B on: the text model.
const std::vector<PublishedModel>& models() {
  static const std::vector<PublishedModel> kModels = {
      {"Llama 3 8B", 32, 4096, 32, 8, 128, 14336, 128256, 8192},
      {"Llama 3 70B", 80, 8192, 64, 8, 128, 28672, 128256, 8192},
      {"Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256, 131072},
      {"Llama 3.1 70B", 80, 8192, 64, 8, 128, 28672, 128256, 131072},
      {"Llama 3.1 405B", 126, 16384, 128, 8, 128, 53248, 128256, 131072},
      {"Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256, 131072, true},
      {"Llama 3.2 3B", 28, 3072, 24, 8, 128, 8192, 128256, 131072, true},
      {"Llama 3.3 70B", 80, 8192, 64, 8, 128, 28672, 128256, 131072},
      {"Mistral 7B", 32, 4096, 32, 8, 128, 14336, 32768, 32768},
      {"Mistral 7B v0.1", 32, 4096, 32, 8, 128, 14336, 32000, 32768, false, 4096},
      {.name = "Mixtral 8x7B", .num_layers = 32, .hidden_size = 4096, .num_heads = 32,
       .num_kv_heads = 8, .head_dim = 128, .ffn_size = 14336, .vocab_size = 32000,
       .context_len = 32768, .num_experts = 8, .num_chosen_experts = 2},
      {"Qwen 2.5 0.5B", 24, 896, 14, 2, 64, 4864, 151936, 32768, true, 0, 1, true},
      {"Qwen 2.5 1.5B", 28, 1536, 12, 2, 128, 8960, 151936, 131072, true, 0, 1, true},
      {"Qwen 2.5 3B", 36, 2048, 16, 2, 128, 11008, 151936, 32768, true, 0, 1, true},
      {"Qwen 2.5 7B", 28, 3584, 28, 4, 128, 18944, 152064, 131072, false, 0, 1, true},
      {"Qwen 2.5 14B", 48, 5120, 40, 8, 128, 13824, 152064, 131072, false, 0, 1, true},
      {"Qwen 2.5 32B", 64, 5120, 40, 8, 128, 27648, 152064, 131072, false, 0, 1, true},
      {"Qwen 2.5 72B", 80, 8192, 64, 8, 128, 29568, 152064, 131072, false, 0, 1, true},
      {"Qwen 3 0.6B", 28, 1024, 16, 8, 128, 3072, 151936, 40960, true, 0, 1, false, true},
      {"Qwen 3 1.7B", 28, 2048, 16, 8, 128, 6144, 151936, 40960, true, 0, 1, false, true},
      {"Qwen 3 4B", 36, 2560, 32, 8, 128, 9728, 151936, 40960, true, 0, 1, false, true},
      {"Qwen 3 8B", 36, 4096, 32, 8, 128, 12288, 151936, 40960, false, 0, 1, false, true},
      {"Qwen 3 14B", 40, 5120, 40, 8, 128, 17408, 151936, 40960, false, 0, 1, false, true},
      {"Qwen 3 32B", 64, 5120, 64, 8, 128, 25600, 151936, 40960, false, 0, 1, false, true},
      {"Qwen 3 30B-A3B", 48, 2048, 32, 4, 128, 768, 151936, 40960, false, 0, 1, false, true, false,
       128, 8},
      {"Qwen 3 235B-A22B", 94, 4096, 64, 4, 128, 1536, 151936, 40960, false, 0, 1, false, true,
       false, 128, 8},
      {"Gemma 2 2B", 26, 2304, 8, 4, 256, 9216, 256000, 8192, true, 4096, 2, false, false, true},
      {"Gemma 2 9B", 42, 3584, 16, 8, 256, 14336, 256000, 8192, true, 4096, 2, false, false, true},
      {"Gemma 2 27B", 46, 4608, 32, 16, 128, 36864, 256000, 8192, true, 4096, 2, false, false,
       true},
      {"Gemma 3 270M", 18, 640, 4, 1, 256, 2048, 262144, 32768, true, 512, 6, false, true, true},
      {"Gemma 3 1B", 26, 1152, 4, 1, 256, 6912, 262144, 32768, true, 512, 6, false, true, true},
      {"Gemma 3 4B", 34, 2560, 8, 4, 256, 10240, 262208, 131072, true, 1024, 6, false, true, true},
      {"Gemma 3 12B", 48, 3840, 16, 8, 256, 15360, 262208, 131072, true, 1024, 6, false, true,
       true},
      {"Gemma 3 27B", 62, 5376, 32, 16, 128, 21504, 262208, 131072, true, 1024, 6, false, true,
       true},
      {"Phi-4", 40, 5120, 40, 10, 128, 17920, 100352, 16384},
      {"SmolLM2 135M", 30, 576, 9, 3, 64, 1536, 49152, 8192, true},
      {"SmolLM2 360M", 32, 960, 15, 5, 64, 2560, 49152, 8192, true},
      {"SmolLM2 1.7B", 24, 2048, 32, 32, 64, 8192, 49152, 8192, true},
  };
  return kModels;
}

// Layer i of Gemma 2 slides when i is even, of Gemma 3 unless i + 1 is a multiple of 6.
int window_of_layer(const PublishedModel& model, int layer) {
  if (model.window_period == 1) return model.window;
  return (layer + 1) % model.window_period == 0 ? 0 : model.window;
}

ModelShape shape_of(const PublishedModel& model) {
  ModelShape shape;
  shape.name = model.name;
  shape.context_len = model.context_len;
  for (int layer = 0; layer < model.num_layers; ++layer)
    shape.kv_layers.push_back(
        {model.num_kv_heads, model.head_dim, window_of_layer(model, layer)});
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t q_size = std::int64_t{model.num_heads} * model.head_dim;
  const std::int64_t kv_size = std::int64_t{model.num_kv_heads} * model.head_dim;
  const std::int64_t mlp = 3 * hidden * model.ffn_size;
  std::int64_t layer = 2 * hidden * q_size + 2 * hidden * kv_size;
  layer += hidden * (model.has_post_norms ? 4 : 2);
  if (model.has_qkv_bias) layer += q_size + 2 * kv_size;
  if (model.has_qk_norm) layer += 2 * model.head_dim;
  layer += model.num_experts > 0 ? hidden * model.num_experts : mlp;  // the router
  shape.num_layer_parameters = model.num_layers * layer + hidden;
  shape.num_expert_parameters = model.num_layers * model.num_experts * mlp;
  shape.num_embedding_parameters = hidden * model.vocab_size;
  shape.num_output_parameters = model.tied ? 0 : shape.num_embedding_parameters;
  shape.num_experts = model.num_experts;
  shape.num_chosen_experts = model.num_chosen_experts;
  shape.decode_pair_ops = shape.prefill_pair_ops = 4.0 * static_cast<double>(q_size);
  return shape;
}

// DeepSeek-V3 and R1 (arXiv:2412.19437): 61 layers, the first 3 dense; latent attention.
ModelShape deepseek_v3(const char* name) {
  constexpr std::int64_t kHidden = 7168, kHeads = 128, kLatent = 512, kRope = 64, kNope = 128;
  constexpr std::int64_t kValue = 128, kQueryRank = 1536, kLayers = 61, kDense = 3;
  constexpr std::int64_t kExpert = 3 * kHidden * 2048, kExperts = 256;
  ModelShape shape;
  shape.name = name;
  shape.context_len = 163840;
  shape.kv_layers.assign(kLayers, {1, kLatent + kRope, 0, true});
  const std::int64_t attention = kHidden * kQueryRank + kQueryRank +
                                 kQueryRank * kHeads * (kNope + kRope) +
                                 kHidden * (kLatent + kRope) + kLatent +
                                 kLatent * kHeads * (kNope + kValue) + kHeads * kValue * kHidden;
  const std::int64_t router = kHidden * kExperts + kExperts;
  shape.num_layer_parameters = kLayers * (attention + 2 * kHidden) +
                               kDense * 3 * kHidden * 18432 +
                               (kLayers - kDense) * (router + kExpert) + kHidden;
  shape.num_expert_parameters = (kLayers - kDense) * kExperts * kExpert;
  shape.num_embedding_parameters = shape.num_output_parameters = 129280 * kHidden;
  shape.num_experts = kExperts;
  shape.num_chosen_experts = 8;
  // Decoding multiplies with the latent itself, a prompt with the keys and values made of it.
  shape.decode_pair_ops = 2.0 * kHeads * (2 * kLatent + kRope);
  shape.prefill_pair_ops = 2.0 * kHeads * (kNope + kRope + kValue);
  return shape;
}

// gpt-oss: biases everywhere, a sink per head, a window of 128 on every other layer.
ModelShape gpt_oss(const char* name, int num_layers, int num_experts) {
  constexpr std::int64_t kHidden = 2880, kHeads = 64, kKvHeads = 8, kDim = 64;
  constexpr std::int64_t kQ = kHeads * kDim, kKv = kKvHeads * kDim;
  ModelShape shape;
  shape.name = name;
  shape.context_len = 131072;
  for (int layer = 0; layer < num_layers; ++layer)
    shape.kv_layers.push_back({kKvHeads, kDim, layer % 2 == 0 ? 128 : 0});
  const std::int64_t attention = 2 * kHidden * kQ + 2 * kHidden * kKv + kQ + 2 * kKv + kHidden;
  const std::int64_t expert_biases = 2 * kHidden + kHidden;
  shape.num_layer_parameters =
      num_layers * (attention + kHeads + 2 * kHidden +
                    num_experts * (kHidden + 1 + expert_biases)) + kHidden;
  shape.num_expert_parameters = std::int64_t{num_layers} * num_experts * 3 * kHidden * kHidden;
  shape.num_embedding_parameters = shape.num_output_parameters = 201088 * kHidden;
  shape.num_experts = num_experts;
  shape.num_chosen_experts = 4;
  shape.decode_pair_ops = shape.prefill_pair_ops = 4.0 * kQ;
  return shape;
}

// GLM 4.5 and 4.6: the first layers are dense, one expert is shared. Without the layer that predicts further tokens.
struct Glm45 {
  const char* name;
  std::int64_t num_layers, num_dense, hidden, ffn_size, expert_size, num_experts;
  bool has_qk_norm;
  int context_len;
};

ModelShape glm45(const Glm45& model) {
  constexpr std::int64_t kHeads = 96, kKvHeads = 8, kDim = 128;
  constexpr std::int64_t kQ = kHeads * kDim, kKv = kKvHeads * kDim;
  const std::int64_t hidden = model.hidden, expert = 3 * hidden * model.expert_size;
  const std::int64_t num_with_experts = model.num_layers - model.num_dense;
  ModelShape shape;
  shape.name = model.name;
  shape.context_len = model.context_len;
  shape.kv_layers.assign(static_cast<std::size_t>(model.num_layers), {kKvHeads, kDim, 0});
  const std::int64_t attention = 2 * hidden * kQ + 2 * hidden * kKv + kQ + 2 * kKv + (model.has_qk_norm ? 2 * kDim : 0);
  const std::int64_t router = (hidden + 1) * model.num_experts;
  shape.num_layer_parameters = model.num_layers * (attention + 2 * hidden) + model.num_dense * 3 * hidden * model.ffn_size +
                               num_with_experts * (router + expert) + hidden;
  shape.num_expert_parameters = num_with_experts * model.num_experts * expert;
  shape.num_embedding_parameters = shape.num_output_parameters = 151552 * hidden;
  shape.num_experts = static_cast<int>(model.num_experts);
  shape.num_chosen_experts = 8;
  shape.decode_pair_ops = shape.prefill_pair_ops = 4.0 * kQ;
  return shape;
}

std::vector<ModelShape> all_shapes() {
  std::vector<ModelShape> shapes;
  for (const PublishedModel& model : models()) shapes.push_back(shape_of(model));
  shapes.push_back(deepseek_v3("DeepSeek V3"));
  shapes.push_back(deepseek_v3("DeepSeek R1"));
  shapes.push_back(gpt_oss("gpt-oss 20B", 24, 32));
  shapes.push_back(gpt_oss("gpt-oss 120B", 36, 128));
  shapes.push_back(glm45({"GLM 4.5", 92, 3, 5120, 12288, 1536, 160, true, 131072}));
  shapes.push_back(glm45({"GLM 4.5 Air", 46, 1, 4096, 10944, 1408, 128, false, 131072}));
  shapes.push_back(glm45({"GLM 4.6", 92, 3, 5120, 12288, 1536, 160, true, 202752}));
  return shapes;
}

}  // namespace

std::vector<std::string> published_model_names() {
  std::vector<std::string> names;
  for (const ModelShape& shape : all_shapes()) names.push_back(shape.name);
  return names;
}

std::optional<ModelShape> find_published_model(std::string_view name) {
  const std::string key = key_of(name);
  for (ModelShape& shape : all_shapes())
    if (key_of(shape.name) == key) return std::move(shape);
  return std::nullopt;
}

WeightFormat published_weight_format(std::string_view name) {
  const std::string key = key_of(name);
  if (key.starts_with("deepseek")) return parse_weight_format("fp8");
  if (key.starts_with("gptoss")) return parse_weight_format("mxfp4");
  return parse_weight_format("bf16");
}

std::vector<std::string> similar_model_names(std::string_view name) {
  // Up to the family's first letters: "llama-4-8b" shows all of Llama.
  const std::string key = key_of(name);
  std::vector<std::string> similar;
  std::size_t longest = 2;
  for (const std::string& known : published_model_names()) {
    const std::string other = key_of(known);
    const auto [end, unused] =
        std::mismatch(key.begin(), key.end(), other.begin(), other.end());
    const auto common = static_cast<std::size_t>(end - key.begin());
    if (common > longest) {
      longest = common;
      similar.clear();
    }
    if (common == longest) similar.push_back(known);
  }
  return similar;
}

}  // namespace larder
