#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/printable.h"
#include "model/expert_choice.h"

namespace larder {
namespace {

constexpr std::uint64_t kMaxLayers = 1024;
constexpr std::uint64_t kMaxSize = 1 << 24;  // of any dimension
constexpr int kMaxKvSize = 1 << 20;               // of a token's keys: KvLayout's
constexpr int kMaxLatentHeads = 4096;  // each has matrices of its own
constexpr std::uint64_t kMaxContextLen = std::uint64_t{1} << 30;

// The file's keys under "<architecture>.", with limits.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& gguf, std::string_view prefix) : gguf_(gguf), prefix_(prefix) {}

  const GgufFile& gguf() const { return gguf_; }
  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  bool has(std::string_view name) const { return gguf_.find(key(name)) != nullptr; }
  // Whether YaRN's ramp is between whole pairs. gpt-oss' authors do not round; no key of GGUF says so.
  bool rounds_ramp() const {
    return gguf_.find_bool("larder.rope.yarn_truncate").value_or(prefix_ != "gpt-oss");
  }

  std::optional<int> find_size(std::string_view name, std::uint64_t max = kMaxSize) const {
    const auto value = gguf_.find_uint(key(name));
    if (!value) return std::nullopt;
    if (*value < 1 || *value > max)
      throw_invalid("GGUF: {}: {} is not in [1, {}]", key(name), *value, max);
    return static_cast<int>(*value);
  }

  int size(std::string_view name, std::uint64_t max = kMaxSize) const {
    const auto value = find_size(name, max);
    if (!value) throw_invalid("GGUF: {}: the key is missing", key(name));
    return *value;
  }

  // A size that some files state once and others per layer.
  int uniform_size(std::string_view name, int num_layers) const {
    const GgufValue* value = gguf_.find(key(name));
    if (!value || value->type != GgufType::kArray) return size(name);
    if (value->count != static_cast<std::uint64_t>(num_layers))
      throw_invalid("GGUF: {}: {} values for {} layers", key(name), value->count, num_layers);
    const auto sizes = *gguf_.find_ints(key(name));
    if (std::ranges::any_of(sizes, [&](std::int64_t other) { return other != sizes[0]; }))
      throw_invalid("GGUF: {}: layers of different sizes are not supported", key(name));
    if (sizes[0] < 1 || sizes[0] > static_cast<std::int64_t>(kMaxSize))
      throw_invalid("GGUF: {}: {} is not in [1, {}]", key(name), sizes[0], kMaxSize);
    return static_cast<int>(sizes[0]);
  }

  // More than 0, and a normal number of FP32.
  std::optional<double> find_positive(std::string_view name) const {
    const auto value = gguf_.find_float(key(name));
    if (value && !(std::isnormal(static_cast<float>(*value)) && *value > 0))
      throw_invalid("GGUF: {}: {} is not a positive number of FP32", key(name), *value);
    return value;
  }

  // 0 says that there is none.
  std::optional<double> find_positive_or_none(std::string_view name) const {
    return gguf_.find_float(key(name)) == 0.0 ? std::nullopt : find_positive(name);
  }

  // Something that changes what the model computes, and that Larder does not compute.
  void refuse_nonzero(std::string_view name) const {
    const GgufValue* value = gguf_.find(key(name));
    if (!value) return;
    const bool is_float = value->type == GgufType::kFloat32 || value->type == GgufType::kFloat64;
    const double number = is_float ? *gguf_.find_float(key(name)) : static_cast<double>(*gguf_.find_uint(key(name)));
    if (number != 0) throw_invalid("GGUF: {} is {}: this feature is not supported", key(name), number);
  }

 private:
  const GgufFile& gguf_;
  std::string_view prefix_;
};

Architecture read_architecture(const GgufFile& gguf) {
  const auto name = gguf.find_string("general.architecture");
  if (!name) throw_invalid("GGUF: general.architecture: the key is missing");
  if (*name == "llama") return Architecture::kLlama;
  if (*name == "qwen2") return Architecture::kQwen2;
  if (*name == "qwen3") return Architecture::kQwen3;
  if (*name == "qwen3moe") return Architecture::kQwen3Moe;
  if (*name == "gemma3") return Architecture::kGemma3;
  if (*name == "deepseek2") return Architecture::kDeepSeek2;
  if (*name == "gpt-oss") return Architecture::kGptOss;
  throw_invalid("GGUF: general.architecture: '{}' is not supported; llama, qwen2, qwen3, qwen3moe, gemma3, deepseek2 "
                "and gpt-oss are", printable(*name));
}

// Radians per position without any scaling: base^(-2i / rope_dim).
std::vector<double> plain_frequencies(double base, int rope_dim) {
  std::vector<double> frequencies;
  for (int i = 0; i < rope_dim; i += 2)
    frequencies.push_back(std::pow(base, -static_cast<double>(i) / rope_dim));
  return frequencies;
}

// What YaRN as DeepSeek has it multiplies scores by: (1 + 0.1 mscale_all_dim ln factor)^2; the key is that less ln factor.
double yarn_score_scale(const ConfigReader& reader, double factor) {
  const double multiplier = reader.find_positive_or_none("rope.scaling.yarn_log_multiplier").value_or(0);
  const double scale = factor > 1 ? 1 + multiplier * std::log(factor) : 1;
  return scale * scale;
}

// YaRN: pairs that turn often within the original context keep their frequency, those that turn
// less than once are interpolated, and a ramp lies between.
void apply_yarn(RopeConfig& rope, const ConfigReader& reader, double base, double factor) {
  const double original_len = reader.find_size("rope.scaling.original_context_length", kMaxContextLen)
                                  .value_or(reader.size("context_length", kMaxContextLen));
  const double beta_fast = reader.find_positive("rope.scaling.yarn_beta_fast").value_or(32);
  const double beta_slow = reader.find_positive("rope.scaling.yarn_beta_slow").value_or(1);
  const double num_pairs = static_cast<double>(rope.frequencies.size());
  const auto pair_of_rotations = [&](double rotations) {
    return num_pairs * std::log(original_len / (rotations * 2 * M_PI)) / std::log(base);
  };
  const bool rounds = reader.rounds_ramp();
  const double of_fast = pair_of_rotations(beta_fast), of_slow = pair_of_rotations(beta_slow);
  const double low = std::max(rounds ? std::floor(of_fast) : of_fast, 0.0);
  const double high = std::min(rounds ? std::ceil(of_slow) : of_slow, 2 * num_pairs - 1);
  const double width = high == low ? 0.001 : high - low;
  for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    rope.frequencies[i] *= (1 - ramp) + ramp / factor;
  }
  if (reader.find_positive("rope.scaling.yarn_ext_factor").value_or(1) != 1)
    throw_invalid("GGUF: {}: values other than 1 are not supported", reader.key("rope.scaling.yarn_ext_factor"));
  // yarn_attn_factor is in place of what follows from the factor, attn_factor times it. DeepSeek's models have that
  // on the scores instead, see yarn_score_scale().
  const bool is_on_scores = yarn_score_scale(reader, factor) != 1;
  const double of_factor = factor > 1 && !is_on_scores ? 0.1 * std::log(factor) + 1 : 1;
  rope.magnitude = reader.find_positive("rope.scaling.attn_factor").value_or(1) *
                   reader.find_positive("rope.scaling.yarn_attn_factor").value_or(of_factor);
}

// One divisor per pair (Llama 3's way of stretching the low frequencies).
void apply_divisors(RopeConfig& rope, const GgufTensor& tensor) {
  if (tensor.type != GgmlType::kF32 || tensor.num_rows() != 1 ||
      tensor.num_cols() != static_cast<std::int64_t>(rope.frequencies.size()))
    throw_invalid("GGUF: tensor '{}': {} x {} values; F32 and {} x 1 is expected", tensor.name,
                  tensor.num_cols(), tensor.num_rows(), rope.frequencies.size());
  std::vector<float> divisors(rope.frequencies.size());
  dequantize_row(tensor.type, tensor.data.data(), divisors.data(), tensor.num_cols());
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    if (!(std::isfinite(divisors[i]) && divisors[i] > 0))
      throw_invalid("GGUF: tensor '{}': divisor {} is {}", tensor.name, i, divisors[i]);
    rope.frequencies[i] /= divisors[i];
  }
}

// The rotation of the layers that see the whole context.
RopeConfig read_global_rope(const ConfigReader& reader, int rope_dim) {
  const double base = reader.find_positive("rope.freq_base").value_or(10000);
  RopeConfig rope{.frequencies = plain_frequencies(base, rope_dim)};
  const auto type = reader.gguf().find_string(reader.key("rope.scaling.type"));
  double factor = reader.find_positive_or_none("rope.scaling.factor").value_or(1);
  if (!type && !reader.has("rope.scaling.factor"))
    factor = reader.find_positive_or_none("rope.scale_linear").value_or(1);
  if (!type || *type == "linear") {
    for (double& frequency : rope.frequencies) frequency /= factor;
  } else if (*type == "yarn") {
    if (base == 1) throw_invalid("GGUF: {}: 1 cannot be scaled", reader.key("rope.freq_base"));
    apply_yarn(rope, reader, base, factor);
  } else if (*type != "none") {
    throw_invalid("GGUF: {}: '{}' is not supported; none, linear and yarn are",
                  reader.key("rope.scaling.type"), printable(*type));
  }
  if ((!type || *type != "yarn") && reader.find_positive("rope.scaling.attn_factor").value_or(1) != 1)
    throw_invalid("GGUF: {}: values other than 1 are supported with yarn only", reader.key("rope.scaling.attn_factor"));
  if (const GgufTensor* divisors = reader.gguf().find_tensor("rope_freqs.weight"))
    apply_divisors(rope, *divisors);
  return rope;
}

// Which layers slide: for each layer, or every layer but each `pattern`-th.
std::vector<bool> read_sliding_layers(const ConfigReader& reader, int num_layers,
                                      int default_pattern) {
  const auto count = static_cast<std::size_t>(num_layers);
  std::vector<bool> sliding(count, true);
  const std::string key = reader.key("attention.sliding_window_pattern");
  const GgufValue* value = reader.gguf().find(key);
  if (value && value->type == GgufType::kArray) {
    if (value->count != count)
      throw_invalid("GGUF: {}: {} values for {} layers", key, value->count, num_layers);
    const auto flags = reader.gguf().find_ints(key);
    for (std::size_t i = 0; i < count; ++i) sliding[i] = (*flags)[i] != 0;
    return sliding;
  }
  const int pattern =
      reader.find_size("attention.sliding_window_pattern", kMaxLayers).value_or(default_pattern);
  if (pattern > 0)
    for (std::size_t i = 0; i < count; ++i)
      sliding[i] = (i + 1) % static_cast<std::size_t>(pattern) != 0;
  return sliding;
}

void read_layers(ModelConfig& config, const ConfigReader& reader, int num_layers) {
  const bool is_gemma3 = config.architecture == Architecture::kGemma3;
  const bool is_gpt_oss = config.architecture == Architecture::kGptOss;
  config.layers.assign(static_cast<std::size_t>(num_layers), LayerConfig{});
  config.ropes.push_back(read_global_rope(reader, config.rope_dim));
  const auto window = reader.find_size("attention.sliding_window", kMaxContextLen);
  if (!window) {
    if (is_gemma3 || is_gpt_oss) reader.size("attention.sliding_window");  // required: throws
    return;
  }
  if (is_gemma3) {
    const double base = reader.find_positive("rope.freq_base_swa").value_or(10000);
    config.ropes.push_back({.frequencies = plain_frequencies(base, config.rope_dim)});
  }
  const auto sliding = read_sliding_layers(reader, num_layers, is_gemma3 ? 6 : is_gpt_oss ? 2 : 0);
  for (std::size_t i = 0; i < sliding.size(); ++i)
    if (sliding[i]) config.layers[i] = {.window = *window, .rope = is_gemma3 ? 1 : 0};
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
  if (config.num_heads > kMaxLatentHeads || kMaxSize / widest < static_cast<std::uint64_t>(config.num_heads))
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
  if (config.architecture == Architecture::kDeepSeek2) read_latent(config, reader);
  const int value_dim = reader.find_size("attention.value_length").value_or(config.head_dim);
  if (value_dim != config.head_dim && config.latent.rank == 0)
    throw_invalid("GGUF: {}: {}, but keys have {}: different sizes are not supported",
                  reader.key("attention.value_length"), value_dim, config.head_dim);
  if (config.head_dim > 1024)
    throw_invalid("GGUF: {}: {} is more than 1024", reader.key("attention.key_length"),
                  config.head_dim);
  if (std::uint64_t{kMaxSize} / static_cast<std::uint64_t>(config.head_dim) <
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

// Sigmoids' with DeepSeek-V3 and those after it: which layers have experts is not known yet.
bool has_ranking_bias(const GgufFile& gguf) {
  return std::ranges::any_of(gguf.tensors(), [](const GgufTensor& tensor) { return tensor.name.ends_with(".exp_probs_b.bias"); });
}

// What a file may say of them; where it is silent, they are chosen by softmax from all.
void read_expert_options(ExpertConfig& experts, const ConfigReader& reader) {
  if (const auto num_shared = reader.gguf().find_uint(reader.key("expert_shared_count")).value_or(0); num_shared > 0) {
    if (num_shared > kMaxSize / static_cast<std::uint64_t>(experts.ffn_size))
      throw_invalid("GGUF: {}: {} experts of {} are too many", reader.key("expert_shared_count"), num_shared,
                    experts.ffn_size);
    experts.shared_ffn_size = static_cast<int>(num_shared) * experts.ffn_size;
  }
  const auto given = reader.gguf().find_uint(reader.key("expert_gating_func"));
  if (!given && has_ranking_bias(reader.gguf()))
    throw_invalid("GGUF: {}: the key is missing, and nothing else says how experts are weighed",
                  reader.key("expert_gating_func"));
  constexpr ExpertGating kGatings[] = {ExpertGating::kSoftmax, ExpertGating::kSigmoid, ExpertGating::kSoftmaxOfChosen};
  const std::uint64_t gating = given.value_or(experts.gating == ExpertGating::kSoftmaxOfChosen ? 3 : 1);
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
  const bool is_deepseek = config.architecture == Architecture::kDeepSeek2;
  const bool is_gpt_oss = config.architecture == Architecture::kGptOss;
  const bool has_them = is_gpt_oss || config.architecture == Architecture::kQwen3Moe;
  if (!is_deepseek && !has_them && config.architecture != Architecture::kLlama) return reader.refuse_nonzero("expert_count");
  if (!has_them && reader.gguf().find_uint(reader.key("expert_count")).value_or(0) == 0) return;
  const std::uint64_t num_dense = reader.gguf().find_uint(reader.key("leading_dense_block_count")).value_or(0);
  if (num_dense >= config.layers.size())
    throw_invalid("GGUF: {}: {} of {} layers, and none is left to have experts", reader.key("leading_dense_block_count"),
                  num_dense, config.layers.size());
  for (std::size_t i = num_dense; i < config.layers.size(); ++i) config.layers[i].has_experts = true;
  ExpertConfig& experts = config.experts;
  experts.num_experts = reader.size("expert_count", kMaxExperts);
  experts.num_chosen = reader.size("expert_used_count", static_cast<std::uint64_t>(experts.num_experts));
  experts.ffn_size = reader.find_size("expert_feed_forward_length").value_or(config.ffn_size);
  experts.normalises = !is_deepseek;
  experts.has_biases = is_gpt_oss;
  if (is_gpt_oss) experts.gating = ExpertGating::kSoftmaxOfChosen;
  if (num_dense == 0) config.ffn_size = experts.ffn_size;
  read_expert_options(experts, reader);
}

void set_architecture_traits(ModelConfig& config, const ConfigReader& reader) {
  const bool is_gemma3 = config.architecture == Architecture::kGemma3;
  const bool is_deepseek = config.architecture == Architecture::kDeepSeek2;
  // Published files of llama have the rows of Q and K in another order than the model's authors, who rotate halves.
  config.rope_interleaved = is_deepseek || (config.architecture == Architecture::kLlama &&
                                            !reader.gguf().find_bool("larder.rope.halves").value_or(false));
  const bool is_gpt_oss = config.architecture == Architecture::kGptOss;
  config.has_qkv_bias = is_gpt_oss || config.architecture == Architecture::kQwen2;
  config.has_output_bias = config.has_sink_scores = is_gpt_oss;
  config.has_qk_norm = is_gemma3 || config.architecture == Architecture::kQwen3 ||
                       config.architecture == Architecture::kQwen3Moe;
  config.has_post_norms = is_gemma3;
  config.activation = is_gemma3    ? Activation::kGeluTanh
                      : is_gpt_oss ? Activation::kClampedSwiglu
                                   : Activation::kSilu;
  if (is_gemma3) config.embedding_scale = static_cast<float>(std::sqrt(config.hidden_size));
  // Gemma 3 27B, told by its 62 layers, scales by hidden_size / num_heads instead of head_dim.
  const bool is_gemma3_27b = is_gemma3 && config.num_layers() == 62;
  const double scaled_dim = is_gemma3_27b
                                ? static_cast<double>(config.hidden_size) / config.num_heads
                                : static_cast<double>(is_deepseek ? config.latent.nope_dim + config.rope_dim
                                                                  : config.head_dim);
  const double factor = reader.find_positive_or_none("rope.scaling.factor").value_or(1);
  config.attention_scale = static_cast<float>(
      reader.find_positive("attention.scale").value_or(yarn_score_scale(reader, factor) / std::sqrt(scaled_dim)));
  if (!std::isnormal(config.attention_scale))
    throw_invalid("GGUF: {}: scores are multiplied by {}, which is no number to compute with",
                  reader.key("rope.scaling.yarn_log_multiplier"), config.attention_scale);
}

}  // namespace

ModelConfig read_model_config(const GgufFile& gguf) {
  ModelConfig config;
  config.architecture = read_architecture(gguf);
  const ConfigReader reader(gguf, *gguf.find_string("general.architecture"));
  config.name = printable(gguf.find_string("general.name").value_or(""));
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping",
                           "attention.max_alibi_bias", "attention.clamp_kqv", "attention.temperature_scale",
                           "attention.temperature_length"})
    reader.refuse_nonzero(name);
  // It is YaRN's: beside another scaling, or none, it would multiply scores that nobody trained so.
  const bool has_yarn = gguf.find_string(reader.key("rope.scaling.type")) == "yarn";
  if (config.architecture != Architecture::kDeepSeek2 || !has_yarn) reader.refuse_nonzero("rope.scaling.yarn_log_multiplier");
  if (!gguf.find_bool(reader.key("attention.causal")).value_or(true))
    throw_invalid("GGUF: {}: tokens that see what comes after them are not supported", reader.key("attention.causal"));

  const int num_layers = reader.size("block_count", kMaxLayers);
  config.hidden_size = reader.size("embedding_length");
  config.ffn_size = reader.uniform_size("feed_forward_length", num_layers);
  config.context_len = reader.size("context_length", kMaxContextLen);
  if (config.context_len < 2)
    throw_invalid("GGUF: {}: 1 is less than a token of a prompt and one of its answer", reader.key("context_length"));
  const auto epsilon = reader.find_positive("attention.layer_norm_rms_epsilon");
  if (!epsilon)
    throw_invalid("GGUF: {}: the key is missing", reader.key("attention.layer_norm_rms_epsilon"));
  config.rms_epsilon = static_cast<float>(*epsilon);

  read_heads(config, reader, num_layers);
  read_layers(config, reader, num_layers);
  read_experts(config, reader);
  set_architecture_traits(config, reader);

  const GgufTensor* embedding = gguf.find_tensor("token_embd.weight");
  if (!embedding) throw_invalid("GGUF: tensor 'token_embd.weight' is missing");
  if (embedding->num_rows() > static_cast<std::int64_t>(kMaxSize))
    throw_invalid("GGUF: tensor 'token_embd.weight': {} rows are more than {}",
                  embedding->num_rows(), kMaxSize);
  config.vocab_size = static_cast<int>(embedding->num_rows());
  config.tied_embeddings = gguf.find_tensor("output.weight") == nullptr;
  return config;
}

std::vector<double> computed_numbers(const ModelConfig& config, bool turns_here) {
  // Two versions of glibc's sine differ in the last bit of one double in 1,500.
  constexpr int kLastPosition = 131'071;
  constexpr int kPositionStep = 509;
  std::vector<double> numbers = {config.rms_epsilon, config.attention_scale, config.embedding_scale,
                                 static_cast<double>(config.rope_dim)};
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
