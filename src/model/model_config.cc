#include "model/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/printable.h"
#include "model/config_reader.h"
#include "model/expert_choice.h"
#include "model/families.h"
#include "model/rope_config.h"

namespace larder {
namespace {

constexpr int kMaxKvSize = 1 << 20;               // of a token's keys: KvLayout's
constexpr int kMaxLatentHeads = 4096;  // each has matrices of its own

// A list of flags by layer; nullopt: the file has none.
std::optional<std::vector<bool>> find_layer_flags(const ConfigReader& reader, std::string_view name, std::size_t num_layers) {
  const std::string key = reader.key(name);
  const GgufValue* value = reader.gguf().find(key);
  if (!value || value->type != GgufType::kArray) return std::nullopt;
  if (value->count != num_layers) throw_invalid("GGUF: {}: {} values for {} layers", key, value->count, num_layers);
  std::vector<bool> flags;
  const auto numbers = reader.gguf().find_ints(key);
  for (std::size_t i = 0; i < num_layers; ++i) flags.push_back((*numbers)[i] != 0);
  return flags;
}

// Whether pairs turn by a picture's rows and columns, too: of a text all of these are the position (Qwen2-VL,
// arXiv:2409.12191).
bool read_rope_sections(const ConfigReader& reader) {
  const std::string key = reader.key("rope.dimension_sections");
  const auto sections = reader.gguf().find_ints(key).value_or(std::vector<std::int64_t>());
  const bool are_there = std::ranges::any_of(sections, [](std::int64_t pairs) { return pairs != 0; });
  if (are_there && !reader.family().may_have_rope_sections)
    throw_invalid("GGUF: {} of this family is not supported", key);
  return are_there;
}

// What sliding layers have apart, where Larder has the same for all layers.
void refuse_other_sliding_layers(const ModelConfig& config, const ConfigReader& reader) {
  const auto refuse_other = [&](std::string_view name, std::optional<double> own, double whole) {
    if (own && *own != whole)
      throw_invalid("GGUF: {} is {}, that of all layers {}: this feature is not supported", reader.key(name), *own, whole);
  };
  if (!reader.family().has_local_rope)
    refuse_other("rope.freq_base_swa", reader.find_positive("rope.freq_base_swa"),
                 reader.find_positive("rope.freq_base").value_or(10000));
  for (const char* name : {"attention.key_length_swa", "attention.value_length_swa"})
    refuse_other(name, reader.find_size(name), config.head_dim);
}

// Which layers slide: for each layer, or every layer but each `pattern`-th.
std::vector<bool> read_sliding_layers(const ConfigReader& reader, std::size_t num_layers) {
  if (auto flags = find_layer_flags(reader, "attention.sliding_window_pattern", num_layers)) return *flags;
  std::vector<bool> sliding(num_layers, true);
  const int pattern =
      reader.find_size("attention.sliding_window_pattern", kMaxLayers).value_or(reader.family().window_pattern);
  if (pattern > 0)
    for (std::size_t i = 0; i < num_layers; ++i)
      sliding[i] = (i + 1) % static_cast<std::size_t>(pattern) != 0;
  return sliding;
}

// nullopt: none.
std::optional<int> find_window(const ConfigReader& reader) {
  const Family& family = reader.family();
  constexpr const char* kWindow = "attention.sliding_window";
  if (family.may_say_window_0 && reader.gguf().find_uint(reader.key(kWindow)) == 0U) return std::nullopt;
  if (family.needs_window) return reader.size(kWindow, kMaxContextLen);
  const auto window = reader.find_size(kWindow, kMaxContextLen);
  return !window && family.default_window > 0 ? family.default_window : window;
}

// Which layers see a window only; empty: none does.
std::vector<bool> read_windows(ModelConfig& config, const ConfigReader& reader, int longest_len) {
  const Family& family = reader.family();
  const auto window = find_window(reader);
  if (!window) return {};
  if (family.has_local_rope) {
    const double base =
        family.local_base > 0 ? family.local_base : reader.find_positive("rope.freq_base").value_or(10000);
    config.ropes.push_back(
        {.frequencies = plain_frequencies(reader.find_positive("rope.freq_base_swa").value_or(base), config.rope_dim)});
  }
  std::vector<bool> sliding = read_sliding_layers(reader, config.layers.size());
  // A window that no sequence leaves is none.
  const int seen = *window < std::max(config.context_len, longest_len) ? *window : 0;
  for (std::size_t i = 0; i < sliding.size(); ++i)
    if (sliding[i]) config.layers[i] = {.window = seen, .rope = family.has_local_rope ? 1 : 0};
  return sliding;
}

// Layers whose queries and keys do not turn (NoPE, arXiv:2305.19466): those that the file says, or else the family's.
// A rotation by nothing leaves every bit.
void add_still_layers(ModelConfig& config, const ConfigReader& reader, const std::vector<bool>& sliding) {
  const auto turns = find_layer_flags(reader, "attention.rope_pattern", config.layers.size());
  const StillLayers usual = reader.family().still_layers;
  bool found = false;
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    bool is_still = usual == StillLayers::kEveryFourth && i % 4 == 3;
    if (usual == StillLayers::kWithoutWindow && !sliding.empty()) is_still = !sliding[i];
    if (turns) is_still = !(*turns)[i];
    if (is_still) config.layers[i].rope = static_cast<int>(config.ropes.size());
    found |= is_still;
  }
  if (found) config.ropes.push_back({.frequencies = std::vector<double>(static_cast<std::size_t>(config.rope_dim) / 2)});
}

void read_layers(ModelConfig& config, const ConfigReader& reader, int longest_len) {
  config.ropes.push_back(read_global_rope(reader, config.rope_dim, longest_len));
  add_still_layers(config, reader, read_windows(config, reader, longest_len));
}

// As files have it since the matrices of a head's keys and values are kept apart.
void read_latent(ModelConfig& config, const ConfigReader& reader) {
  LatentConfig& latent = config.latent;
  if (!reader.has("attention.key_length_mla"))
    throw_invalid("GGUF: {}: the key is missing; files of before mid-2025 have to be converted anew",
                  reader.key("attention.key_length_mla"));
  latent.rank = reader.size("attention.kv_lora_rank");
  latent.q_rank = static_cast<int>(
      reader.gguf().find_uint(reader.key("attention.q_lora_rank")).value_or(0) == 0 ? 0 : reader.size("attention.q_lora_rank"));
  latent.value_dim = reader.size("attention.value_length_mla");
  const int rope_dim = reader.size("rope.dimension_count");
  const int key_dim = reader.size("attention.key_length_mla");
  latent.nope_dim = key_dim - rope_dim;
  if (latent.nope_dim < 1)
    throw_invalid("GGUF: {}: {} is no more than the {} that rotate", reader.key("attention.key_length_mla"), key_dim,
                  rope_dim);
  if (config.num_kv_heads != 1 || config.head_dim != latent.rank + rope_dim ||
      reader.size("attention.value_length") != latent.rank)
    throw_invalid("GGUF: {}: {} KV heads with keys of {} and values of {}; one with {} and {} is expected of a latent",
                  reader.key("attention.key_length"), config.num_kv_heads, config.head_dim,
                  reader.size("attention.value_length"), latent.rank + rope_dim, latent.rank);
  const std::uint64_t widest = static_cast<std::uint64_t>(std::max(key_dim, latent.value_dim));
  if (config.num_heads > kMaxLatentHeads || kMaxConfigSize / widest < static_cast<std::uint64_t>(config.num_heads))
    throw_invalid("GGUF: {}: {} heads of {} are too many", reader.key("attention.head_count"), config.num_heads, widest);
}

void read_heads(ModelConfig& config, const ConfigReader& reader, int num_layers) {
  config.num_heads = reader.uniform_size("attention.head_count", num_layers);
  config.num_kv_heads = reader.has("attention.head_count_kv")
                            ? reader.uniform_size("attention.head_count_kv", num_layers)
                            : config.num_heads;
  if (config.num_heads % config.num_kv_heads != 0)
    throw_invalid("GGUF: {}: {} does not divide the {} heads",
                  reader.key("attention.head_count_kv"), config.num_kv_heads, config.num_heads);
  if (const auto head_dim = reader.find_size("attention.key_length")) {
    config.head_dim = *head_dim;
  } else {
    if (config.hidden_size % config.num_heads != 0)
      throw_invalid("GGUF: {}: {} heads do not divide {}", reader.key("attention.head_count"),
                    config.num_heads, config.hidden_size);
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (reader.family().has_latent) read_latent(config, reader);
  const int value_dim = reader.find_size("attention.value_length").value_or(config.head_dim);
  if (value_dim != config.head_dim && config.latent.rank == 0)
    throw_invalid("GGUF: {}: {}, but keys have {}: different sizes are not supported",
                  reader.key("attention.value_length"), value_dim, config.head_dim);
  if (config.head_dim > 1024)
    throw_invalid("GGUF: {}: {} is more than 1024", reader.key("attention.key_length"),
                  config.head_dim);
  if (std::uint64_t{kMaxConfigSize} / static_cast<std::uint64_t>(config.head_dim) <
      static_cast<std::uint64_t>(config.num_heads))
    throw_invalid("GGUF: {}: {} heads of {} are too many", reader.key("attention.head_count"),
                  config.num_heads, config.head_dim);
  if (config.kv_size() > kMaxKvSize)
    throw_invalid("GGUF: {}: {} heads of {} have more than {} values together", reader.key("attention.head_count_kv"),
                  config.num_kv_heads, config.head_dim, kMaxKvSize);
  config.rope_dim = reader.find_size("rope.dimension_count").value_or(config.head_dim);
  if (config.rope_dim % 2 != 0 || config.rope_dim > config.head_dim)
    throw_invalid("GGUF: {}: {} is not even and at most the head's {}",
                  reader.key("rope.dimension_count"), config.rope_dim, config.head_dim);
}

// Sigmoids' with DeepSeek-V3 and those after it, softmaxes' with ERNIE: which layers have experts is not known yet.
bool has_ranking_bias(const GgufFile& gguf) {
  return std::ranges::any_of(gguf.tensors(), [](const GgufTensor& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
}

// What a file may say of them; where it is silent, they are the family's, chosen from all.
void read_expert_options(ExpertConfig& experts, const ConfigReader& reader) {
  if (const auto num_shared = reader.gguf().find_uint(reader.key("expert_shared_count")).value_or(0); num_shared > 0) {
    if (num_shared > kMaxConfigSize / static_cast<std::uint64_t>(experts.ffn_size))
      throw_invalid("GGUF: {}: {} experts of {} are too many", reader.key("expert_shared_count"), num_shared,
                    experts.ffn_size);
    experts.shared_ffn_size = static_cast<int>(num_shared) * experts.ffn_size;
  }
  // Qwen's and Granite's is one, of a size of its own; of size 0 it is none.
  const char* const kSharedSize = "expert_shared_feed_forward_length";
  const bool is_none = reader.gguf().find_uint(reader.key(kSharedSize)) == 0U;
  if (const auto shared_size = is_none ? std::nullopt : reader.find_size(kSharedSize)) {
    if (experts.shared_ffn_size > 0 && experts.shared_ffn_size != *shared_size)
      throw_invalid("GGUF: {}: {}, but {} experts of {} are shared", reader.key(kSharedSize),
                    *shared_size, experts.shared_ffn_size / experts.ffn_size, experts.ffn_size);
    experts.shared_ffn_size = *shared_size;
  }
  if (experts.weighs_shared && experts.shared_ffn_size == 0)
    throw_invalid("GGUF: {}: {}", reader.key(kSharedSize), is_none ? "0 leaves nothing to weigh" : "the key is missing");
  const auto given = reader.gguf().find_uint(reader.key("expert_gating_func"));
  if (!given && !reader.family().may_leave_out_gating && has_ranking_bias(reader.gguf()))
    throw_invalid("GGUF: {}: the key is missing, and nothing else says how experts are weighed",
                  reader.key("expert_gating_func"));
  constexpr ExpertGating kGatings[] = {ExpertGating::kSoftmax, ExpertGating::kSigmoid, ExpertGating::kSoftmaxOfChosen};
  const auto usual = std::ranges::find(kGatings, experts.gating) - std::begin(kGatings);
  const std::uint64_t gating = given.value_or(static_cast<std::uint64_t>(usual) + 1);
  if (gating < 1 || gating > std::size(kGatings))
    throw_invalid("GGUF: {}: {} is not supported; 1 (softmax), 2 (sigmoid) and 3 (softmax of those chosen) are",
                  reader.key("expert_gating_func"), gating);
  experts.gating = kGatings[gating - 1];
  experts.normalises = reader.gguf().find_bool(reader.key("expert_weights_norm")).value_or(experts.normalises);
  experts.scale = static_cast<float>(reader.find_positive_or_none("expert_weights_scale").value_or(1));
  experts.num_groups = reader.find_size("expert_group_count", static_cast<std::uint64_t>(experts.num_experts)).value_or(1);
  experts.num_chosen_groups =
      reader.find_size("expert_group_used_count", static_cast<std::uint64_t>(experts.num_groups)).value_or(experts.num_groups);
  const int group_size = experts.num_experts / experts.num_groups;
  if (experts.num_experts % experts.num_groups != 0 || experts.num_chosen > experts.num_chosen_groups * group_size)
    throw_invalid("GGUF: {}: {} experts cannot be chosen from {} of {} groups of {} experts",
                  reader.key("expert_group_used_count"), experts.num_chosen, experts.num_chosen_groups,
                  experts.num_groups, experts.num_experts);
}

void read_experts(ModelConfig& config, const ConfigReader& reader) {
  const Family& family = reader.family();
  if (family.experts == Presence::kNever) return reader.refuse_nonzero("expert_count");
  if (family.experts == Presence::kMaybe && reader.gguf().find_uint(reader.key("expert_count")).value_or(0) == 0) return;
  const std::uint64_t num_dense = reader.gguf().find_uint(reader.key("leading_dense_block_count")).value_or(0);
  if (num_dense >= config.layers.size())
    throw_invalid("GGUF: {}: {} of {} layers, and none is left to have experts", reader.key("leading_dense_block_count"),
                  num_dense, config.layers.size());
  for (std::size_t i = num_dense; i < config.layers.size(); ++i) config.layers[i].has_experts = true;
  ExpertConfig& experts = config.experts = family.usual_experts;
  experts.num_experts = reader.size("expert_count", kMaxExperts);
  experts.num_chosen = reader.size("expert_used_count", static_cast<std::uint64_t>(experts.num_experts));
  experts.ffn_size = reader.find_size("expert_feed_forward_length").value_or(config.ffn_size);
  if (reader.find_size("interleave_moe_layer_step").value_or(1) != 1)
    throw_invalid("GGUF: {}: values other than 1 are not supported", reader.key("interleave_moe_layer_step"));
  if (num_dense == 0) config.ffn_size = experts.ffn_size;
  read_expert_options(experts, reader);
}

// tensor: of the first layer, which says whether the model has it.
bool has(Presence presence, const ConfigReader& reader, std::string_view tensor) {
  if (presence != Presence::kMaybe) return presence == Presence::kAlways;
  return reader.gguf().find_tensor(tensor) != nullptr;
}

void set_traits(ModelConfig& config, const ConfigReader& reader) {
  const Family& family = reader.family();
  // Published files of llama have the rows of Q and K in another order than the model's authors, who rotate halves; those
  // of GLM 4 that see pictures, too, have the rows for halves.
  config.rope_interleaved = family.rope_interleaved && !read_rope_sections(reader) &&
                            !reader.gguf().find_bool("larder.rope.halves").value_or(false);
  config.has_qkv_bias = has(family.qkv_bias, reader, "blk.0.attn_q.bias");
  config.has_qk_norm = has(family.qk_norm, reader, "blk.0.attn_q_norm.weight");
  config.has_fused_gate = family.has_fused_gate;
  config.norms_heads_together = family.norms_heads_together;
  config.has_pre_norms = family.has_pre_norms;
  config.has_post_norms = family.has_post_norms;
  config.activation = family.activation;
  config.ffn_norm_tensor = family.ffn_norm_tensor;
  config.has_output_bias = family.has_output_bias;
  config.has_sink_scores = family.has_sink_scores;
  if (family.scales_embedding) config.embedding_scale = static_cast<float>(std::sqrt(config.hidden_size));
  const double scaled_dim = config.num_layers() == family.num_layers_of_other_scale
                                ? static_cast<double>(config.hidden_size) / config.num_heads
                                : static_cast<double>(family.has_latent ? config.latent.nope_dim + config.rope_dim
                                                                        : config.head_dim);
  const double factor = reader.find_positive_or_none("rope.scaling.factor").value_or(1);
  config.attention_scale = static_cast<float>(
      reader.find_positive("attention.scale").value_or(yarn_score_scale(reader, factor) / std::sqrt(scaled_dim)));
  if (!std::isnormal(config.attention_scale))
    throw_invalid("GGUF: {}: scores are multiplied by {}, which is no number to compute with",
                  reader.key("rope.scaling.yarn_log_multiplier"), config.attention_scale);
}

// Granite's. With r the factor on what attention and MLP add to the residual stream x, the stream is kept as x / r, to
// which they add what they are: a norm of x / r with an epsilon of 1 / r^2 times that of x is the norm of x.
void read_multipliers(ModelConfig& config, const ConfigReader& reader) {
  if (!reader.family().has_multipliers) {
    for (const char* name : {"logit_scale", "residual_scale", "embedding_scale"}) reader.refuse_nonzero(name);
    return;
  }
  if (!reader.has("logit_scale")) throw_invalid("GGUF: {}: the key is missing", reader.key("logit_scale"));
  if (!reader.gguf().find_bool(reader.key("rope.scaling.finetuned")).value_or(true))
    throw_invalid("GGUF: {}: false, which says that nothing turns, is not supported", reader.key("rope.scaling.finetuned"));
  const double residual = reader.find_positive("residual_scale").value_or(1);
  config.embedding_scale = static_cast<float>(reader.find_positive("embedding_scale").value_or(1) / residual);
  config.output_norm_scale = static_cast<float>(1 / *reader.find_positive("logit_scale"));
  const double epsilon = static_cast<double>(config.rms_epsilon) / (residual * residual);
  config.rms_epsilon = static_cast<float>(epsilon);
  if (!std::isnormal(config.rms_epsilon) || !std::isnormal(config.embedding_scale))
    throw_invalid("GGUF: {}: {} is no number to compute with", reader.key("residual_scale"), residual);
  if (!std::isnormal(config.output_norm_scale))
    throw_invalid("GGUF: {}: {} is no number to divide by", reader.key("logit_scale"), *reader.find_positive("logit_scale"));
}

void read_caps(ModelConfig& config, const ConfigReader& reader) {
  const auto read_cap = [&](const char* name, float usual) {
    if (usual == 0) {
      reader.refuse_nonzero(name);
      return 0.0F;
    }
    return reader.has(name) ? static_cast<float>(reader.find_positive_or_none(name).value_or(0)) : usual;
  };
  config.score_cap = read_cap("attn_logit_softcapping", reader.family().score_cap);
  config.logit_cap = read_cap("final_logit_softcapping", reader.family().logit_cap);
}

void read_temperature(ModelConfig& config, const ConfigReader& reader) {
  if (!reader.family().has_temperature) return reader.refuse_nonzero("attention.temperature_scale");
  config.temperature.scale = reader.find_positive_or_none("attention.temperature_scale").value_or(0);
  if (config.temperature.scale != 0)
    config.temperature.length = reader.size("rope.scaling.original_context_length", kMaxContextLen);
}

// Behind the layers may be those that would predict what comes after the next token, counted as blocks, too.
int read_num_left_out(const ConfigReader& reader, int num_blocks) {
  if (!reader.family().counts_further_layers) return 0;
  const std::uint64_t count = reader.gguf().find_uint(reader.key("nextn_predict_layers")).value_or(0);
  if (count >= static_cast<std::uint64_t>(num_blocks))
    throw_invalid("GGUF: {}: {} of {} layers, and none is left", reader.key("nextn_predict_layers"), count, num_blocks);
  const int num_left_out = static_cast<int>(count);
  // One of the model's own that is taken for such would be missed by nobody.
  for (int layer = num_blocks - num_left_out; layer < num_blocks; ++layer) {
    const auto has = [&](const char* part) { return reader.gguf().find_tensor(fmt::format("blk.{}.{}", layer, part)) != nullptr; };
    if (has("attn_norm.weight") && !has("nextn.eh_proj.weight"))
      throw_invalid("GGUF: {}: layer {} is counted among {}, and tensor 'blk.{}.nextn.eh_proj.weight' is missing",
                    reader.key("nextn_predict_layers"), layer, num_left_out, layer);
  }
  return num_left_out;
}

// Keys that change nothing. Of all models: the size of the vocabulary is the embedding's, tensors of layers that guess
// tokens ahead are refused by their own names, and nobody asks for rows that are pooled. And those that are asked for only
// where a model has experts or windows, or a rotation that is scaled so. What is told of an encoder of images is of no
// text; tensors that come with it are refused.
constexpr std::string_view kHarmless[] = {
    "attention.layer_norm_epsilon", "nextn_predict_layers", "pooling_type", "tensor_data_layout", "vocab_size", "vision.", "mm.",
    "attention.sliding_window_pattern", "expert_feed_forward_length", "expert_gating_func", "expert_group_count",
    "expert_group_used_count", "expert_shared_count", "expert_shared_feed_forward_length", "expert_used_count",
    "expert_weights_norm", "expert_weights_scale", "leading_dense_block_count", "rope.freq_base_swa", "rope.scale_linear",
    "rope.scaling.attn_factor", "rope.scaling.factor", "rope.scaling.finetuned", "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier"};

}  // namespace

ModelConfig read_model_config(const GgufFile& gguf, int max_model_len) {
  ModelConfig config;
  const ConfigReader reader(gguf, read_family(gguf));
  config.name = printable(gguf.find_string("general.name").value_or(""));
  for (const char* name : {"attention.max_alibi_bias", "attention.clamp_kqv", "attention.temperature_length",
                           "attention.output_scale", "attention.value_scale", "attention.shared_kv_layers",
                           "rope.dimension_count_swa", "swin_norm", "num_loops"})
    reader.refuse_nonzero(name);
  // It is YaRN's: beside another scaling, or none, it would multiply scores that nobody trained so.
  const bool may_have_multiplier = reader.family().yarn_multiplier != YarnMultiplier::kNone;
  if (!may_have_multiplier || gguf.find_string(reader.key("rope.scaling.type")) != "yarn")
    reader.refuse_nonzero("rope.scaling.yarn_log_multiplier");
  if (!gguf.find_bool(reader.key("attention.causal")).value_or(true))
    throw_invalid("GGUF: {}: tokens that see what comes after them are not supported", reader.key("attention.causal"));

  const int num_blocks = reader.size("block_count", kMaxLayers);
  config.num_left_out = read_num_left_out(reader, num_blocks);
  config.hidden_size = reader.size("embedding_length");
  config.ffn_size = reader.uniform_size("feed_forward_length", num_blocks);
  config.context_len = reader.size("context_length", kMaxContextLen);
  if (config.context_len < 2)
    throw_invalid("GGUF: {}: 1 is less than a token of a prompt and one of its answer", reader.key("context_length"));
  const auto epsilon = reader.find_positive("attention.layer_norm_rms_epsilon");
  if (!epsilon)
    throw_invalid("GGUF: {}: the key is missing", reader.key("attention.layer_norm_rms_epsilon"));
  config.rms_epsilon = static_cast<float>(*epsilon);

  read_heads(config, reader, num_blocks);
  refuse_other_sliding_layers(config, reader);
  config.layers.resize(static_cast<std::size_t>(num_blocks - config.num_left_out));
  read_layers(config, reader, max_model_len > 0 ? max_model_len : config.context_len);
  read_experts(config, reader);
  set_traits(config, reader);
  read_multipliers(config, reader);
  read_caps(config, reader);
  read_temperature(config, reader);
  reader.refuse_others(kHarmless);

  const GgufTensor* embedding = gguf.find_tensor("token_embd.weight");
  if (!embedding) throw_invalid("GGUF: tensor 'token_embd.weight' is missing");
  if (embedding->num_rows() > static_cast<std::int64_t>(kMaxConfigSize))
    throw_invalid("GGUF: tensor 'token_embd.weight': {} rows are more than {}",
                  embedding->num_rows(), kMaxConfigSize);
  config.vocab_size = static_cast<int>(embedding->num_rows());
  config.tied_embeddings = gguf.find_tensor("output.weight") == nullptr;
  return config;
}

bool is_left_out(const ModelConfig& config, std::string_view tensor_name) {
  constexpr std::string_view kBegin = "blk.";
  if (!tensor_name.starts_with(kBegin)) return false;
  const char* const end = tensor_name.data() + tensor_name.size();
  int layer = 0;
  const auto [behind, error] = std::from_chars(tensor_name.data() + kBegin.size(), end, layer);
  if (error != std::errc() || behind == end || *behind != '.') return false;
  return layer >= config.num_layers() && layer - config.num_layers() < config.num_left_out;
}

double query_temperature(const TemperatureConfig& temperature, std::int64_t position) {
  return 1 + temperature.scale * std::log(1 + std::floor(static_cast<double>(position) / temperature.length));
}

std::vector<double> computed_numbers(const ModelConfig& config, bool turns_here) {
  // Two versions of glibc's sine differ in the last bit of one double in 1,500.
  constexpr int kLastPosition = 131'071;
  constexpr int kPositionStep = 509;
  std::vector<double> numbers = {config.rms_epsilon, config.attention_scale, config.embedding_scale,
                                 static_cast<double>(config.rope_dim)};
  if (config.temperature.scale != 0)
    for (int i = 1; i <= 64; ++i) numbers.push_back(query_temperature(config.temperature, std::int64_t{i} * config.temperature.length));
  // The routers' exponentials.
  if (config.experts.num_experts > 0)
    for (int i = 0; i <= 64; ++i) numbers.push_back(std::exp(-i / 8.0));
  for (const RopeConfig& rope : config.ropes) {
    numbers.insert(numbers.end(), rope.frequencies.begin(), rope.frequencies.end());
    numbers.push_back(rope.magnitude);
    if (!turns_here) continue;
    for (int position = 1; position <= kLastPosition; position += kPositionStep)
      for (const double frequency : rope.frequencies) {
        numbers.push_back(std::cos(position * frequency));
        numbers.push_back(std::sin(position * frequency));
      }
  }
  return numbers;
}

std::vector<KvLayerShape> kv_layer_shapes(const ModelConfig& config) {
  std::vector<KvLayerShape> shapes;
  for (const LayerConfig& layer : config.layers)
    shapes.push_back(
        {.num_kv_heads = config.num_kv_heads,
         .head_dim = config.head_dim,
         .window = layer.window,
         .is_latent = config.latent.rank > 0});
  return shapes;
}

}  // namespace larder
