#include "model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "model/expert_choice.h"
#include "model/hf_json.h"
#include "model/hf_rope.h"

namespace larder {
namespace {

struct KnownClass {
  std::string_view name;
  HfFamily family;
  const char* architecture;  // GGUF's
};

constexpr KnownClass kKnownClasses[] = {
    {"LlamaForCausalLM", HfFamily::kLlama, "llama"},       {"MistralForCausalLM", HfFamily::kLlama, "llama"},
    {"MixtralForCausalLM", HfFamily::kMixtral, "llama"},   {"Qwen2ForCausalLM", HfFamily::kQwen2, "qwen2"},
    {"Qwen3ForCausalLM", HfFamily::kQwen3, "qwen3"},       {"Qwen3MoeForCausalLM", HfFamily::kQwen3Moe, "qwen3moe"},
    {"Gemma3ForCausalLM", HfFamily::kGemma3, "gemma3"},    {"Phi3ForCausalLM", HfFamily::kPhi3, "phi3"},
};

// Of training, of how transformers runs a model, of its tokenizer, or of sampling.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_from_model_config", "_model_name_or_path",
    "_name_or_path", "attention_dropout", "attn_implementation", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "do_sample", "dtype", "embd_pdrop", "eos_token_id", "id2label", "initializer_range",
    "is_decoder", "is_llama_config", "label2id", "max_length", "max_window_layers", "model_type",
    "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp",
    "problem_type", "repetition_penalty", "resid_pdrop", "return_dict", "router_aux_loss_coef", "router_jitter_noise",
    "temperature", "top_k", "top_p", "torch_dtype", "transformers.js_config", "transformers_version",
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
    result.num_layers = static_cast<int>(config_.size("num_hidden_layers"));
    add_uint("block_count", config_.size("num_hidden_layers"));
    add_uint("embedding_length", config_.size("hidden_size"));
    add_uint("feed_forward_length", config_.size("intermediate_size"));
    add_uint("context_length", config_.size("max_position_embeddings"));
    add_float("attention.layer_norm_rms_epsilon", config_.number("rms_norm_eps"));
    const int head_dim = add_heads();
    result.rope = read_hf_rope(config_, prefix_, head_dim, metadata_);
    if (std::string_view(prefix_) == "llama") metadata_.add_bool("larder.rope.halves", true);
    add_windows(result.num_layers);
    result.num_experts = add_experts();
    // The classes' own defaults, which files may leave out.
    result.tied_embeddings = config_.find_bool("tie_word_embeddings").value_or(is_gemma3());
    refuse_the_rest();
    return result;
  }

 private:
  bool is_gemma3() const { return class_.family == HfFamily::kGemma3; }
  bool is_qwen() const {
    return class_.family == HfFamily::kQwen2 || class_.family == HfFamily::kQwen3 || class_.family == HfFamily::kQwen3Moe;
  }
  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  void add_uint(std::string_view name, std::uint64_t value) {
    metadata_.add_uint(key(name), static_cast<std::uint32_t>(value));
  }
  void add_float(std::string_view name, double value) { metadata_.add(key(name), GgufType::kFloat64, value); }

  int add_heads() {
    const std::uint64_t num_heads = config_.size("num_attention_heads");
    add_uint("attention.head_count", num_heads);
    // Llama's first files have as many of both.
    const auto num_kv_heads = config_.find_size("num_key_value_heads");
    if (!num_kv_heads && class_.name != "LlamaForCausalLM") config_.fail("num_key_value_heads", "missing");
    add_uint("attention.head_count_kv", num_kv_heads.value_or(num_heads));
    auto head_dim = config_.find_size("head_dim");
    if (!head_dim && (is_gemma3() || class_.family == HfFamily::kQwen3)) config_.fail("head_dim", "missing");
    if (!head_dim) head_dim = config_.size("hidden_size") / num_heads;
    if (*head_dim < 1 || *head_dim > 1024) config_.fail("head_dim", fmt::format("{} is not in [1, 1024]", *head_dim));
    add_uint("attention.key_length", *head_dim);
    add_uint("attention.value_length", *head_dim);
    if (is_gemma3()) {
      const double scalar = config_.number("query_pre_attn_scalar");
      if (!(scalar > 0)) config_.fail("query_pre_attn_scalar", "is not a positive number");
      add_float("attention.scale", 1 / std::sqrt(scalar));
    }
    return static_cast<int>(*head_dim);
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

  // Llama has no windows, Mistral's and Mixtral's are of all layers, Qwen's of the upper ones if at all.
  void add_windows(int num_layers) {
    auto sliding = find_layer_types(num_layers);
    const auto window = config_.find_size("sliding_window");
    const auto count = static_cast<std::size_t>(num_layers);
    const bool uses_window = config_.find_bool("use_sliding_window").value_or(!is_qwen());
    const auto first = config_.find_uint("max_window_layers");
    const auto pattern = config_.find_size("sliding_window_pattern"), old_pattern = config_.find_size("_sliding_window_pattern");
    if (class_.name == "LlamaForCausalLM" && window) config_.fail("sliding_window", "not supported");
    if (class_.family == HfFamily::kQwen3Moe && uses_window) config_.fail("use_sliding_window", "true is not supported");
    if (!window || !uses_window) {
      if (sliding && std::ranges::find(*sliding, 1) != sliding->end()) config_.fail("sliding_window", "missing");
      return;
    }
    if (!sliding) {
      sliding.emplace(count, std::uint8_t{1});
      if (is_qwen() && !first) config_.fail("max_window_layers", "missing");
      const std::uint64_t every = pattern ? *pattern : old_pattern.value_or(6);
      for (std::size_t i = 0; i < count; ++i)
        (*sliding)[i] = is_gemma3() ? (i + 1) % every != 0 : !is_qwen() || i >= *first;
    }
    add_uint("attention.sliding_window", *window);
    metadata_.add_array(key("attention.sliding_window_pattern"), GgufType::kBool, *sliding);
  }

  int add_experts() {
    const bool is_mixtral = class_.family == HfFamily::kMixtral;
    if (!is_mixtral && class_.family != HfFamily::kQwen3Moe) return 0;
    // Files of today say num_experts, those that transformers 5 writes num_local_experts.
    const auto local = config_.find_size("num_local_experts"), of_qwen = config_.find_size("num_experts");
    if (local && of_qwen && *local != *of_qwen) config_.fail("num_experts", "is not num_local_experts");
    if (!local && !of_qwen) config_.fail(is_mixtral ? "num_local_experts" : "num_experts", "missing");
    const std::uint64_t num_experts = local.value_or(of_qwen.value_or(0));
    if (num_experts > kMaxExperts) config_.fail("num_experts", fmt::format("more than {}", kMaxExperts));
    add_uint("expert_count", num_experts);
    add_uint("expert_used_count", config_.size("num_experts_per_tok"));
    if (is_mixtral) return static_cast<int>(num_experts);
    add_uint("expert_feed_forward_length", config_.size("moe_intermediate_size"));
    metadata_.add_bool(key("expert_weights_norm"), config_.find_bool("norm_topk_prob").value_or(false));
    if (config_.find_uint("decoder_sparse_step").value_or(1) != 1)
      config_.fail("decoder_sparse_step", "values other than 1 are not supported");
    config_.refuse("mlp_only_layers");
    return static_cast<int>(num_experts);
  }

  // Phi 3's folders name the authors' code for the class that transformers has, too.
  void refuse_foreign_code() const {
    if (class_.family == HfFamily::kPhi3)
      (void)config_.find("auto_map");
    else
      config_.refuse("auto_map");
  }

  void refuse_the_rest() const {
    config_.expect_string("hidden_act", is_gemma3() ? "gelu_pytorch_tanh" : "silu");
    config_.expect_string("hidden_activation", "gelu_pytorch_tanh");
    for (const char* name : {"attention_bias", "mlp_bias", "attn_logit_softcapping", "final_logit_softcapping",
                             "quantization_config", "is_encoder_decoder", "add_cross_attention", "lm_head_bias",
                             "use_bidirectional_attention", "pruned_heads", "rope_interleaved"})
      config_.refuse(name);
    for (const char* name : {"full_attn_mod", "interpolate_factor"})
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
