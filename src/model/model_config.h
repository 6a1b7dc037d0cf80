// What a model is, apart from its weights: shapes and constants, read from a file and checked once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kv/kv_layout.h"
#include "model/gguf.h"

namespace larder {

// kClampedSwiglu: KernelTable::clamped_swiglu, of experts alone.
enum class Activation { kSilu, kGeluTanh, kClampedSwiglu };

// Rotary position embedding (arXiv:2104.09864) of the layers that share a base.
struct RopeConfig {
  // Radians per position of each pair, scaling included: linear (arXiv:2306.15595), YaRN
  // (arXiv:2309.00071), or the file's own divisors (rope_freqs.weight, rope_factors_*). [rope_dim / 2]
  std::vector<double> frequencies;
  double magnitude = 1;  // on cos and sin (YaRN)
};

// Of the router's scores: of all, or of those alone that are chosen.
enum class ExpertGating { kSoftmax, kSigmoid, kSoftmaxOfChosen };

// Experts in place of the MLP (Shazeer et al. 2017): each token goes through those that a router
// chooses for it.
struct ExpertConfig {
  int num_experts = 0;      // of a layer; 0 = no layer has any
  int num_chosen = 0;       // by each token
  int ffn_size = 0;         // of one expert
  int shared_ffn_size = 0;  // of those together that every token goes through; 0 = none
  bool weighs_shared = false;  // what they give is weighed by a sigmoid of a row's product with one more vector
  ExpertGating gating = ExpertGating::kSoftmax;
  bool normalises = true;  // the weights of the chosen ones come to 1, before the scale
  float scale = 1;         // on those weights
  bool has_biases = false;  // the router's scores and what every expert's matrices give
  // They are chosen from the best num_chosen_groups of num_groups groups of equal size.
  int num_groups = 1;
  int num_chosen_groups = 1;
};

// Multi-head latent attention (arXiv:2405.04434): one KV head of rope_dim values that rotate and, behind
// them, the latent, which is the values, too.
struct LatentConfig {
  int rank = 0;      // of the latent; 0 = plain attention
  int q_rank = 0;    // queries are made of so many values; 0 = of the hidden ones
  int nope_dim = 0;  // of a head's query, beside the rope_dim that rotate
  int value_dim = 0;  // of a head's output
};

// Queries at p times 1 + scale * ln(1 + floor(p / length)) (Llama 4's attention temperature): far from the beginning
// they tell keys apart more sharply.
struct TemperatureConfig {
  double scale = 0;  // 0 = none
  int length = 1;    // tokens
};

struct LayerConfig {
  int window = 0;  // tokens that a query sees, itself included; 0 = all before it
  int rope = 0;    // index into ModelConfig::ropes
  bool has_experts = false;
};

struct ModelConfig {
  std::string name;     // general.name, may be empty
  int hidden_size = 0;  // embedding_length
  int ffn_size = 0;     // feed_forward_length, of the layers without experts
  ExpertConfig experts;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // of K, V and Q alike
  LatentConfig latent;
  int vocab_size = 0;
  int context_len = 0;  // tokens that the model was trained for
  float rms_epsilon = 0;
  float attention_scale = 0;  // on q . k
  float score_cap = 0;        // see AttentionArgs::score_cap
  float logit_cap = 0;        // the same of logits
  TemperatureConfig temperature;
  float embedding_scale = 1;    // on the embedding's row (Gemma: sqrt(hidden_size))
  float output_norm_scale = 1;  // on the weights of the norm before the output matrix
  Activation activation = Activation::kSilu;
  int rope_dim = 0;              // of a head's values, the first rope_dim rotate; even
  bool rope_interleaved = true;  // pairs (2i, 2i + 1), else (i, i + rope_dim / 2)
  bool has_qkv_bias = false;
  bool has_output_bias = false;  // of attention
  bool has_sink_scores = false;  // see AttentionArgs::sink_scores
  bool has_qk_norm = false;      // RMS norm of each head of Q and K, before the rotation
  bool norms_heads_together = false;  // that is one norm of all of Q and one of all of K
  bool has_fused_gate = false;   // ffn_up's rows come behind as many of the gate, in one matrix
  bool has_pre_norms = true;     // attention and MLP take the norm of the residual stream, else the stream itself
  bool has_post_norms = false;   // RMS norm of what attention and MLP add to the residual
  const char* ffn_norm_tensor = "ffn_norm.weight";  // of the norm before the MLP; some files name it as another one
  bool tied_embeddings = false;  // the embedding is the output matrix, too
  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layers;
  int num_left_out = 0;  // layers behind those, which would predict what comes after the next token: not computed

  int num_layers() const { return static_cast<int>(layers.size()); }
  int q_size() const { return num_heads * head_dim; }
  int o_size() const { return latent.rank > 0 ? num_heads * latent.value_dim : q_size(); }  // the output matrix' input
  int kv_size() const { return num_kv_heads * head_dim; }
};

// Reads and checks. Throws Error{kInvalidArgument} naming the field; every size in the result is
// positive and small enough that products of two of them fit into 63 bits.
// max_model_len: of the longest sequence that will be computed, by which LongRoPE's divisors are chosen for all;
// 0 = context_len.
ModelConfig read_model_config(const GgufFile& gguf, int max_model_len = 0);

// Whether it is of a layer that is left out.
bool is_left_out(const ModelConfig& config, std::string_view tensor_name);

// What queries at this position are multiplied by.
double query_temperature(const TemperatureConfig& temperature, std::int64_t position);

// The numbers that keys and values depend on to the last bit and that the file does not settle
// alone: powers, logarithms, sines and cosines are as the C library and the processor make them.
// turns_here: the rotations are made by the same library; else a device makes them.
std::vector<double> computed_numbers(const ModelConfig& config, bool turns_here);

// What each layer stores per token, for KvLayout.
std::vector<KvLayerShape> kv_layer_shapes(const ModelConfig& config);

}  // namespace larder
