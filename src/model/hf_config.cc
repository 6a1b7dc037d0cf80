#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/config_reader.h"
#include "model/expert_choice.h"
#include "model/hf_json.h"
#include "model/hf_rope.h"

namespace larder {
namespace {

// Of Q, K and V, as attention_bias says; kDefault: they are there where files leave that out, kMaybe: they are not.
enum class Bias { kNone, kMaybe, kDefault };

struct KnownClass {
  std::string_view name;
  HfFamily family;
  const char* architecture;  // GGUF's
  bool ties_by_default = false;
  bool turns_halves = false;  // where files of the architecture have rows of Q and K in the order of pairs
  Bias bias = Bias::kNone;
  bool has_own_base = false;  // of its rotations, where a file says none: not the 1e4 of the others
};

constexpr KnownClass kKnownClasses[] = {
    {.name = "LlamaForCausalLM", .family = HfFamily::kLlama, .architecture = "llama", .turns_halves = true},
    {.name = "MistralForCausalLM", .family = HfFamily::kLlama, .architecture = "llama", .turns_halves = true},
    {.name = "MixtralForCausalLM", .family = HfFamily::kMixtral, .architecture = "llama", .turns_halves = true,
     .has_own_base = true},
    {.name = "Qwen2ForCausalLM", .family = HfFamily::kQwen2, .architecture = "qwen2"},
    {.name = "Qwen3ForCausalLM", .family = HfFamily::kQwen3, .architecture = "qwen3"},
    {.name = "Qwen3MoeForCausalLM", .family = HfFamily::kQwen3Moe, .architecture = "qwen3moe"},
    {.name = "Qwen2MoeForCausalLM", .family = HfFamily::kQwen2Moe, .architecture = "qwen2moe"},
    {.name = "Gemma2ForCausalLM", .family = HfFamily::kGemma2, .architecture = "gemma2", .ties_by_default = true},
    {.name = "Gemma3ForCausalLM", .family = HfFamily::kGemma3, .architecture = "gemma3", .ties_by_default = true},
    {.name = "Phi3ForCausalLM", .family = HfFamily::kPhi3, .architecture = "phi3"},
    {.name = "SmolLM3ForCausalLM", .family = HfFamily::kLlama, .architecture = "smollm3", .ties_by_default = true,
     .turns_halves = true, .has_own_base = true},
    {.name = "GraniteForCausalLM", .family = HfFamily::kLlama, .architecture = "granite", .turns_halves = true},
    {.name = "Ministral3ForCausalLM", .family = HfFamily::kLlama, .architecture = "mistral3", .turns_halves = true,
     .has_own_base = true},
    {.name = "Olmo2ForCausalLM", .family = HfFamily::kPostNorms, .architecture = "olmo2"},
    {.name = "Olmo3ForCausalLM", .family = HfFamily::kPostNorms, .architecture = "olmo2", .has_own_base = true},
    {.name = "Exaone4ForCausalLM", .family = HfFamily::kPostNorms, .architecture = "exaone4"},
    {.name = "SeedOssForCausalLM", .family = HfFamily::kLlama, .architecture = "seed_oss", .bias = Bias::kDefault},
    {.name = "Ernie4_5ForCausalLM", .family = HfFamily::kLlama, .architecture = "ernie4_5", .ties_by_default = true,
     .has_own_base = true},
    {.name = "Glm4ForCausalLM", .family = HfFamily::kGlm4, .architecture = "glm4", .bias = Bias::kDefault},
    {.name = "GptOssForCausalLM", .family = HfFamily::kGptOss, .architecture = "gpt-oss", .bias = Bias::kDefault,
     .has_own_base = true},
    {.name = "Glm4MoeForCausalLM", .family = HfFamily::kGlm4Moe, .architecture = "glm4moe", .bias = Bias::kMaybe},
};

// Of training, of how transformers runs a model, of its tokenizer, or of sampling.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled", "_from_model_config",
    "_model_name_or_path", "_name_or_path", "attention_dropout", "attn_implementation", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "do_sample", "dtype", "embd_pdrop", "eos_token_id", "id2label", "initial_context_length",
    "initializer_range",
    "is_decoder", "is_llama_config", "label2id", "max_length", "max_sequence_length",
    "max_window_layers", "model_type", "neftune_noise_alpha", "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp",
    "problem_type", "repetition_penalty", "resid_pdrop", "residual_dropout", "return_dict", "router_aux_loss_coef", "router_jitter_noise",
    "temperature", "tokenizer_class", "top_k", "top_p", "torch_dtype", "transformers.js_config", "transformers_version",
    "unk_token_id", "unsloth_fixed", "unsloth_version", "use_cache", "vocab_size"};

const KnownClass& read_class(const HfObject& config) {
  const nlohmann::json* names = config.find("architectures");
  if (!names || !names->is_array() || names->size() != 1 || !names->front().is_string())
    config.fail("architectures", "is not a list of one name");
  const auto& name = names->front().get_ref<const std::string&>();
  const auto known = std::ranges::find(kKnownClasses, std::string_view(name), &KnownClass::name);
  if (known != std::end(kKnownClasses)) return *known;
  if (name.starts_with("Deepseek"))
    config.fail("architectures", fmt::format("'{}' is read from GGUF files only", printable(name)));
  std::string all;
  for (const KnownClass& other : kKnownClasses) all += fmt::format("{}{}", all.empty() ? "" : ", ", other.name);
  config.fail("architectures", fmt::format("'{}' is not supported; these are: {}", printable(name), all));
}

// Reads one model's keys and writes GGUF's.
class ConfigConverter {
 public:
  ConfigConverter(const HfObject& config, GgufBuilder& metadata)
      : config_(config), metadata_(metadata), class_(read_class(config)), prefix_(class_.architecture) {}

  HfConfig convert() {
    metadata_.add_string("general.architecture", prefix_);
    HfConfig result;
    result.family = class_.family;
    result.architecture = class_.architecture;
    result.num_layers = read_num_layers();
    add_uint("block_count", static_cast<std::uint64_t>(result.num_layers));
    add_uint("embedding_length", config_.size("hidden_size"));
    add_uint("feed_forward_length", config_.size("intermediate_size"));
    add_uint("context_length", config_.size("max_position_embeddings"));
    add_float("attention.layer_norm_rms_epsilon", config_.number("rms_norm_eps"));
    const int head_dim = add_heads();
    require_rotations();
    result.rope = read_hf_rope(config_, prefix_, head_dim, metadata_);
    if (class_.turns_halves) metadata_.add_bool("larder.rope.halves", true);
    add_windows(result.num_layers);
    add_still_layers(result.num_layers);
    if (prefix_ == "granite") add_multipliers();
    if (is_gemma2()) add_caps();
    result.has_qkv_bias = read_bias();
    result.has_qk_norm = read_qk_norm();
    result.num_experts = is_glm_moe() ? add_glm_experts(result) : add_experts();
    result.tied_embeddings = config_.find_bool("tie_word_embeddings").value_or(class_.ties_by_default);
    refuse_the_rest();
    return result;
  }

 private:
  bool is_gemma2() const { return class_.family == HfFamily::kGemma2; }
  bool is_gemma3() const { return class_.family == HfFamily::kGemma3; }
  bool is_gemma() const { return is_gemma2() || is_gemma3(); }
  bool is_gpt_oss() const { return class_.family == HfFamily::kGptOss; }
  bool is_glm_moe() const { return class_.family == HfFamily::kGlm4Moe; }
  bool is_qwen_moe() const { return class_.family == HfFamily::kQwen3Moe || class_.family == HfFamily::kQwen2Moe; }
  bool is_qwen() const {
    return class_.family == HfFamily::kQwen2 || class_.family == HfFamily::kQwen3 || is_qwen_moe();
  }
  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  void add_uint(std::string_view name, std::uint64_t value) {
    metadata_.add_uint(key(name), static_cast<std::uint32_t>(value));
  }
  void add_float(std::string_view name, double value) { metadata_.add(key(name), GgufType::kFloat64, value); }

  // Before a list of as many is made.
  int read_num_layers() const {
    const std::uint64_t num_layers = config_.size("num_hidden_layers");
    if (num_layers > kMaxLayers) config_.fail("num_hidden_layers", fmt::format("{} is more than {}", num_layers, kMaxLayers));
    return static_cast<int>(num_layers);
  }

  int add_heads() {
    const std::uint64_t num_heads = config_.size("num_attention_heads");
    add_uint("attention.head_count", num_heads);
    // Llama's first files have as many of both.
    const auto num_kv_heads = config_.find_size("num_key_value_heads");
    if (!num_kv_heads && class_.name != "LlamaForCausalLM") config_.fail("num_key_value_heads", "missing");
    add_uint("attention.head_count_kv", num_kv_heads.value_or(num_heads));
    auto head_dim = config_.find_size("head_dim");
    if (!head_dim && (is_gemma() || class_.family == HfFamily::kQwen3)) config_.fail("head_dim", "missing");
    if (!head_dim) head_dim = config_.size("hidden_size") / num_heads;
    if (*head_dim < 1 || *head_dim > 1024) config_.fail("head_dim", fmt::format("{} is not in [1, 1024]", *head_dim));
    add_uint("attention.key_length", *head_dim);
    add_uint("attention.value_length", *head_dim);
    if (is_gemma()) {
      const double scalar = config_.number("query_pre_attn_scalar");
      if (!(scalar > 0)) config_.fail("query_pre_attn_scalar", "is not a positive number");
      add_float("attention.scale", 1 / std::sqrt(scalar));
    }
    return static_cast<int>(*head_dim);
  }

  // What a class has where files leave it out is written here only where all classes have the same.
  void require_rotations() const {
    const auto parameters = config_.find_object("rope_parameters");
    const bool has_scaling = parameters || config_.find("rope_scaling");
    if (!has_scaling && (is_gpt_oss() || prefix_ == "mistral3")) config_.fail("rope_scaling", "missing");
    if (!class_.has_own_base || config_.find("rope_theta")) return;
    const auto full = parameters ? parameters->find_object("full_attention") : std::nullopt;
    const auto& rope = full ? full : parameters;
    if (!rope || !rope->find("rope_theta")) config_.fail("rope_theta", "missing");
  }

  // Whether each layer sees a window only; nullopt: the file does not tell by layer.
  std::optional<std::vector<std::uint8_t>> find_layer_types(int num_layers) const {
    const nlohmann::json* types = config_.find("layer_types");
    if (!types) return std::nullopt;
    if (!types->is_array() || types->size() != static_cast<std::size_t>(num_layers))
      config_.fail("layer_types", fmt::format("is not a list of {} texts", num_layers));
    std::vector<std::uint8_t> sliding;
    for (const auto& type : *types) {
      if (type != "sliding_attention" && type != "full_attention")
        config_.fail("layer_types", "one is neither sliding_attention nor full_attention");
      sliding.push_back(type == "sliding_attention");
    }
    return sliding;
  }

  // Every so many layers one sees all; 0 = none does.
  std::uint64_t window_pattern() const {
    if (prefix_ == "exaone4") config_.fail("layer_types", "missing");
    const auto pattern = config_.find_size("sliding_window_pattern"), old_pattern = config_.find_size("_sliding_window_pattern");
    if (is_gemma2()) return 2;
    if (!is_gemma3() && class_.name != "Olmo3ForCausalLM") return 0;
    return pattern ? *pattern : old_pattern.value_or(is_gemma3() ? 6 : 4);
  }

  // Llama has no windows, Mistral's and Mixtral's are of all layers, Qwen's of the upper ones if at all.
  void add_windows(int num_layers) {
    auto sliding = find_layer_types(num_layers);
    // Where layer_types say it, these are not needed; EXAONE's is a text, such as LLLG.
    for (const char* name : {"sliding_window_pattern", "_sliding_window_pattern"}) (void)config_.find(name);
    const auto count = static_cast<std::size_t>(num_layers);
    const bool uses_window = config_.find_bool("use_sliding_window").value_or(!is_qwen() && prefix_ != "smollm3");
    (void)config_.find("sliding_window");  // where none is used it may be 0
    const std::uint64_t window = uses_window ? config_.find_size("sliding_window").value_or(0) : 0;  // 0 = none
    // Some of Gemma 2's files say it twice.
    const auto same = is_gemma2() ? config_.find_size("sliding_window_size") : std::nullopt;
    if (same && window > 0 && *same != window)
      config_.fail("sliding_window_size", "is not sliding_window");
    const auto first = config_.find_uint("max_window_layers");
    // Left out it is 4096; "null" says that there is none.
    const bool is_mistral = class_.name == "MistralForCausalLM";
    const bool slides_by_default = is_mistral || (!sliding && (prefix_ == "exaone4" || class_.name == "Olmo3ForCausalLM"));
    const bool needs_window = is_gemma() || (slides_by_default && !config_.says("sliding_window")) ||
                              (is_qwen() && uses_window && !is_qwen_moe());
    if (needs_window && window == 0) config_.fail("sliding_window", slides_by_default ? "missing; null = none" : "missing");
    constexpr std::string_view kWithout[] = {"LlamaForCausalLM", "GraniteForCausalLM", "Olmo2ForCausalLM", "SmolLM3ForCausalLM",
                                             "SeedOssForCausalLM", "Ernie4_5ForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM"};
    if (window > 0 && std::ranges::find(kWithout, class_.name) != std::end(kWithout))
      config_.fail("sliding_window", "not supported");
    if (is_qwen_moe() && uses_window) config_.fail("use_sliding_window", "true is not supported");
    if (window == 0) {
      if (sliding && std::ranges::find(*sliding, 1) != sliding->end()) config_.fail("sliding_window", "missing");
      return;
    }
    if (!sliding) {
      sliding.emplace(count, std::uint8_t{1});
      if (is_qwen() && !first) config_.fail("max_window_layers", "missing");
      const std::uint64_t every = window_pattern();
      for (std::size_t i = 0; i < count; ++i)
        (*sliding)[i] = is_gpt_oss() ? i % 2 == 0 : every > 0 ? (i + 1) % every != 0 : !is_qwen() || i >= *first;
    }
    add_uint("attention.sliding_window", window);
    metadata_.add_array(key("attention.sliding_window_pattern"), GgufType::kBool, *sliding);
  }

  // SmolLM3's that do not turn: the list has a 1 for those that do.
  void add_still_layers(int num_layers) {
    if (prefix_ != "smollm3") return;
    const std::uint64_t every = config_.find_size("no_rope_layer_interval").value_or(4);
    std::vector<std::uint8_t> turns;
    for (int i = 0; i < num_layers; ++i) turns.push_back((static_cast<std::uint64_t>(i) + 1) % every != 0);
    if (const nlohmann::json* list = config_.find("no_rope_layers")) {
      const bool is_list = list->is_array() && list->size() == turns.size() &&
                           std::ranges::all_of(*list, [](const auto& flag) { return flag == 0 || flag == 1; });
      if (!is_list) config_.fail("no_rope_layers", fmt::format("is not a list of {} numbers, 0 or 1", num_layers));
      for (std::size_t i = 0; i < turns.size(); ++i) turns[i] = (*list)[i] == 1;
    }
    metadata_.add_array(key("attention.rope_pattern"), GgufType::kBool, turns);
  }

  // Left out they are 50 and 30; "null" says that there is none.
  void add_caps() {
    for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      if (!config_.says(name)) config_.fail(name, "missing; null = none");
      const auto cap = config_.find_number(name);
      if (cap && !(*cap > 0)) config_.fail(name, "is not a positive number");
      add_float(name, cap.value_or(0));
    }
  }

  void add_multipliers() {
    add_float("attention.scale", config_.number("attention_multiplier"));
    add_float("embedding_scale", config_.number("embedding_multiplier"));
    add_float("residual_scale", config_.number("residual_multiplier"));
    add_float("logit_scale", config_.number("logits_scaling"));
  }

  // Whether Q, K and V have biases.
  bool read_bias() const {
    if (class_.family == HfFamily::kQwen2 || class_.family == HfFamily::kQwen2Moe) {
      config_.expect_bool("qkv_bias", true);
      return true;
    }
    config_.refuse("qkv_bias");  // as Qwen 3's says, too
    if (class_.bias == Bias::kNone) {
      config_.refuse("attention_bias");
      return false;
    }
    const bool has_bias = config_.find_bool("attention_bias").value_or(class_.bias == Bias::kDefault);
    if (!has_bias && prefix_ == "seed_oss") config_.fail("attention_bias", "false is not supported");
    return has_bias;
  }

  // Whether heads of Q and K are normed where a class may have it either way.
  bool read_qk_norm() const { return is_glm_moe() && config_.find_bool("use_qk_norm").value_or(false); }

  // As DeepSeek-V3's. Left out, some have values of the class' own.
  int add_glm_experts(HfConfig& result) {
    const std::uint64_t num_experts = config_.size("n_routed_experts");
    if (num_experts > kMaxExperts) config_.fail("n_routed_experts", fmt::format("more than {}", kMaxExperts));
    const std::uint64_t num_dense = config_.find_uint("first_k_dense_replace").value_or(1);
    if (num_dense >= static_cast<std::uint64_t>(result.num_layers))
      config_.fail("first_k_dense_replace", fmt::format("{} of {} layers leaves none with experts", num_dense, result.num_layers));
    result.num_dense = static_cast<int>(num_dense);
    const std::uint64_t num_left_out = config_.find_uint("num_nextn_predict_layers").value_or(1);
    if (num_left_out > kMaxLayers) config_.fail("num_nextn_predict_layers", fmt::format("more than {}", kMaxLayers));
    result.num_left_out = static_cast<int>(num_left_out);
    add_uint("leading_dense_block_count", num_dense);
    add_uint("expert_count", num_experts);
    add_uint("expert_used_count", config_.size("num_experts_per_tok"));
    add_uint("expert_feed_forward_length", config_.size("moe_intermediate_size"));
    add_uint("expert_shared_count", config_.size("n_shared_experts"));
    add_uint("expert_group_count", config_.find_size("n_group").value_or(1));
    add_uint("expert_group_used_count", config_.find_size("topk_group").value_or(1));
    add_float("expert_weights_scale", config_.find_number("routed_scaling_factor").value_or(1));
    metadata_.add_bool(key("expert_weights_norm"), config_.find_bool("norm_topk_prob").value_or(true));
    return static_cast<int>(num_experts);
  }

  int add_experts() {
    const bool is_plain = class_.family == HfFamily::kMixtral || is_gpt_oss();
    if (!is_plain && !is_qwen_moe()) return 0;
    // Files of today say num_experts, those that transformers 5 writes num_local_experts.
    const auto local = config_.find_size("num_local_experts"), of_qwen = config_.find_size("num_experts");
    if (local && of_qwen && *local != *of_qwen) config_.fail("num_experts", "is not num_local_experts");
    if (!local && !of_qwen) config_.fail(is_plain ? "num_local_experts" : "num_experts", "missing");
    const std::uint64_t num_experts = local.value_or(of_qwen.value_or(0));
    if (num_experts > kMaxExperts) config_.fail("num_experts", fmt::format("more than {}", kMaxExperts));
    add_uint("expert_count", num_experts);
    add_uint("expert_used_count", config_.size("num_experts_per_tok"));
    if (is_plain) return static_cast<int>(num_experts);
    add_uint("expert_feed_forward_length", config_.size("moe_intermediate_size"));
    if (class_.family == HfFamily::kQwen2Moe)
      add_uint("expert_shared_feed_forward_length", config_.size("shared_expert_intermediate_size"));
    else
      config_.refuse("shared_expert_intermediate_size");
    metadata_.add_bool(key("expert_weights_norm"), config_.find_bool("norm_topk_prob").value_or(false));
    if (config_.find_uint("decoder_sparse_step").value_or(1) != 1)
      config_.fail("decoder_sparse_step", "values other than 1 are not supported");
    config_.refuse("mlp_only_layers");
    return static_cast<int>(num_experts);
  }

  // Files say some of what the architecture is.
  void check_gpt_oss() const {
    if (!is_gpt_oss()) return config_.refuse("quantization_config");
    config_.expect_bool("attention_bias", true);
    if (const auto per_token = config_.find_size("experts_per_token"); per_token.value_or(config_.size("num_experts_per_tok")) !=
                                                                       config_.size("num_experts_per_tok"))
      config_.fail("experts_per_token", "is not num_experts_per_tok");
    constexpr std::pair<const char*, double> kConstants[] = {{"swiglu_limit", 7}, {"swiglu_alpha", 1.702}};
    for (const auto& [name, value] : kConstants)
      if (config_.find_number(name).value_or(value) != value)
        config_.fail(name, fmt::format("values other than {} are not supported", value));
    const auto quantization = config_.find_object("quantization_config");
    if (!quantization) return;
    if (const std::string method = quantization->string("quant_method"); method != "mxfp4")
      quantization->fail("quant_method", fmt::format("'{}' is not supported; mxfp4 is", printable(method)));
    constexpr std::string_view kKnown[] = {"dequantize", "modules_to_not_convert"};  // tensors tell
    quantization->refuse_others(kKnown);
  }

  // Phi 3's folders name the authors' code for the class that transformers has, too.
  void refuse_foreign_code() const {
    if (class_.family == HfFamily::kPhi3)
      (void)config_.find("auto_map");
    else
      config_.refuse("auto_map");
  }

  void refuse_the_rest() const {
    check_gpt_oss();
    config_.expect_string("hidden_act", is_gemma() ? "gelu_pytorch_tanh" : "silu");
    config_.expect_string("hidden_activation", "gelu_pytorch_tanh");
    for (const char* name : {"mlp_bias", "attention_out_bias", "use_bias", "is_encoder_decoder", "add_cross_attention",
                             "lm_head_bias", "use_bidirectional_attention", "pruned_heads", "rope_interleaved", "use_mrope"})
      config_.refuse(name);
    if (!is_gemma2())
      for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) config_.refuse(name);
    if (class_.family == HfFamily::kQwen3 || class_.family == HfFamily::kQwen3Moe) config_.expect_bool("use_qk_norm", true);
    for (const char* name : {"full_attn_mod", "interpolate_factor", "compression_ratio"})
      if (config_.find_number(name).value_or(1) != 1) config_.fail(name, "values other than 1 are not supported");
    refuse_foreign_code();
    config_.refuse_others(kHarmless);
  }

  const HfObject& config_;
  GgufBuilder& metadata_;
  const KnownClass& class_;
  const std::string prefix_;
};

}  // namespace

HfConfig read_hf_config(const std::string& path, const nlohmann::json& json, GgufBuilder& metadata) {
  const HfObject config(path, json);
  return ConfigConverter(config, metadata).convert();
}

}  // namespace larder
