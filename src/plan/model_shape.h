// What a plan has to know of a model: how many parameters are read when, and what a layer stores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kv/kv_layout.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace larder {

struct ModelShape {
  std::string name;
  int context_len = 0;                  // tokens that the model was trained for, or that are asked of it
  std::vector<KvLayerShape> kv_layers;  // what each layer stores for a token
  // Counts of parameters; a step reads those of the layers and of the output, and as many experts
  // as its tokens choose.
  std::int64_t num_layer_parameters = 0;   // of all layers and norms, without routed experts
  std::int64_t num_expert_parameters = 0;  // of all routed experts
  std::int64_t num_embedding_parameters = 0;
  std::int64_t num_output_parameters = 0;  // 0: the embedding is the output, too
  int num_experts = 0;                     // per layer; 0 = every token takes the same way
  int num_chosen_experts = 0;              // per token
  // Operations of one layer for one query token and one key token, all heads: two a multiplication.
  double decode_pair_ops = 0;
  double prefill_pair_ops = 0;

  int num_layers() const { return static_cast<int>(kv_layers.size()); }
  std::int64_t num_parameters() const;
  // That a token is multiplied with: with the experts it chooses, without the look-up.
  std::int64_t num_active_parameters() const;
  // Part of the routed experts that at least one of so many tokens chooses, were all alike.
  double expert_share(double num_tokens) const;
};

// What a kind of operation is counted under in a machine's peaks.
enum class OpsKind { kF32, kBF16, kInt8, kInt4, kF16 };
inline constexpr int kNumOpsKinds = 5;

// How weights are stored: bytes per parameter.
struct WeightFormat {
  std::string name;
  double layer_bytes = 2;
  double expert_bytes = 2;
  double rest_bytes = 2;  // embedding and output
  OpsKind ops = OpsKind::kBF16;
};

// f32, bf16 (f16 is as large), fp8, q8_0, q4_0, and mxfp4 for models with experts.
std::vector<WeightFormat> weight_formats();
// Throws Error{kInvalidArgument} that names them all.
WeightFormat parse_weight_format(std::string_view name);

double weights_bytes(const ModelShape& shape, const WeightFormat& format);
// That a step with so many tokens reads.
double step_weights_bytes(const ModelShape& shape, const WeightFormat& format, double num_tokens);

// Bytes of keys and values of one sequence of num_tokens: of the whole blocks that a server takes for it.
// max_step_tokens: what layers with a window keep beyond it while a step is computed.
std::int64_t kv_bytes_for(const KvLayout& layout, std::int64_t num_tokens, int max_step_tokens);

// The shape and the weights' format of a file. weights_bytes: as they are kept, repacked.
ModelShape model_shape(const ModelConfig& config, const GgufFile& gguf);
WeightFormat file_weight_format(const ModelShape& shape, const GgufFile& gguf,
                                std::int64_t repacked_bytes);

}  // namespace larder
