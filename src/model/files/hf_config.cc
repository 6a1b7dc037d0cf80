#include "model/files/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/config_reader.h"
#include "model/expert_choice.h"
#include "model/files/hf_json.h"
#include "model/files/hf_rope.h"

namespace larder {
namespace {

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

const HfClass& read_class(const HfObject& config) {
  const nlohmann::json* names = config.find("architectures");
  if (!names || !names->is_array() || names->size() != 1 || !names->front().is_string())
    config.fail("architectures", "is not a list of one name");
  const auto& name = names->front().get_ref<const std::string&>();
  const auto known = std::ranges::find(hf_classes(), std::string_view(name), &HfClass::name);
  if (known != hf_classes().end()) return *known;
  if (name.starts_with("Deepseek"))
    config.fail("architectures", fmt::format("'{}' is read from GGUF files only", printable(name)));
  std::string all;
  for (const HfClass& other : hf_classes()) all += fmt::format("{}{}", all.empty() ? "" : ", ", other.name);
  config.fail("architectures", fmt::format("'{}' is not supported; these are: {}", printable(name), all));
}

// Reads one model's keys and writes GGUF's.
class ConfigConverter {
 public:
  ConfigConverter(const HfObject& config, GgufBuilder& metadata)
      : config_(config), metadata_(metadata), class_(read_class(config)), family_(class_.family()) {}

  HfConfig convert() {
    metadata_.add_string("general.architecture", family_.name);
    HfConfig result;
    result.hf_class = &class_;
    result.num_layers = read_num_layers();
    add_uint("block_count", static_cast<std::uint64_t>(result.num_layers));
    add_uint("embedding_length", config_.size("hidden_size"));
    add_uint("feed_forward_length", config_.size("intermediate_size"));
    add_uint("context_length", config_.size("max_position_embeddings"));
    add_float("attention.layer_norm_rms_epsilon", config_.number("rms_norm_eps"));
    const int head_dim = add_heads();
    require_rotations();
    result.rope = read_hf_rope(config_, class_, head_dim, metadata_);
    if (class_.turns_halves) metadata_.add_bool("larder.rope.halves", true);
    add_windows(result.num_layers);
    add_still_layers(result.num_layers);
    if (family_.has_multipliers) add_multipliers();
    if (has_caps()) add_caps();
    result.has_qkv_bias = read_bias();
    result.has_qk_norm = read_qk_norm();
    result.num_experts = class_.experts == HfExperts::kDeepSeek ? add_deepseek_experts(result) : add_experts();
    result.tied_embeddings = config_.find_bool("tie_word_embeddings").value_or(class_.ties_by_default);
    refuse_the_rest();
    return result;
  }

 private:
  bool has_caps() const { return family_.score_cap > 0; }
  std::string key(std::string_view name) const { return fmt::format("{}.{}", family_.name, name); }
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
    const auto num_kv_heads = config_.find_size("num_key_value_heads");
    if (!num_kv_heads && !class_.may_leave_out_kv_heads) config_.fail("num_key_value_heads", "missing");
    add_uint("attention.head_count_kv", num_kv_heads.value_or(num_heads));
    auto head_dim = config_.find_size("head_dim");
    if (!head_dim && class_.needs_head_dim) config_.fail("head_dim", "missing");
    if (!head_dim) head_dim = config_.size("hidden_size") / num_heads;
    if (*head_dim < 1 || *head_dim > 1024) config_.fail("head_dim", fmt::format("{} is not in [1, 1024]", *head_dim));
    add_uint("attention.key_length", *head_dim);
    add_uint("attention.value_length", *head_dim);
    if (class_.has_query_scalar) {
      const double scalar = config_.number("query_pre_attn_scalar");
      if (!(scalar > 0)) config_.fail("query_pre_attn_scalar", "is not a positive number");
      add_float("attention.scale", 1 / std::sqrt(scalar));
    }
    return static_cast<int>(*head_dim);
  }

  // What a class has where files leave it out is written here only where all classes have the same.
  void require_rotations() const {
    const auto parameters = config_.find_object("rope_parameters"), old = config_.find_object("rope_scaling");
    if (!parameters && !old && class_.needs_scaling) config_.fail("rope_scaling", "missing");
    if (!class_.needs_base || config_.find("rope_theta")) return;
    const auto full = parameters ? parameters->find_object("full_attention") : std::nullopt;
    for (const auto& rope : {full, parameters, old})
      if (rope && rope->find("rope_theta")) return;
    config_.fail("rope_theta", "missing");
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
    if (class_.needs_layer_types) config_.fail("layer_types", "missing");
    const auto pattern = config_.find_size("sliding_window_pattern"), old_pattern = config_.find_size("_sliding_window_pattern");
    const auto usual = static_cast<std::uint64_t>(family_.window_pattern);
    if (!class_.says_pattern) return usual;
    return pattern ? *pattern : old_pattern.value_or(usual);
  }

  // window: 0 = none. is_typed: layer_types say which layers see one.
  void check_window(std::uint64_t window, bool uses_window, bool is_typed) const {
    const HfWindows windows = class_.windows;
    const bool may_be_null = windows == HfWindows::kSaid || (windows == HfWindows::kSaidUnlessTyped && !is_typed);
    const bool needs_window = windows == HfWindows::kNeeded || (may_be_null && !config_.says("sliding_window")) ||
                              (windows == HfWindows::kUpper && uses_window);
    if (needs_window && window == 0) config_.fail("sliding_window", may_be_null ? "missing; null = none" : "missing");
    if (window > 0 && windows == HfWindows::kNone) config_.fail("sliding_window", "not supported");
    if (uses_window && windows == HfWindows::kNoneUsed) config_.fail("use_sliding_window", "true is not supported");
  }

  void add_windows(int num_layers) {
    auto sliding = find_layer_types(num_layers);
    // Where layer_types say it, these are not needed, and need be no numbers.
    for (const char* name : {"sliding_window_pattern", "_sliding_window_pattern"}) (void)config_.find(name);
    const auto count = static_cast<std::size_t>(num_layers);
    const bool uses_window = config_.find_bool("use_sliding_window").value_or(class_.uses_windows);
    (void)config_.find("sliding_window");  // where none is used it may be 0
    const std::uint64_t window = uses_window ? config_.find_size("sliding_window").value_or(0) : 0;  // 0 = none
    const auto same = class_.may_say_window_twice ? config_.find_size("sliding_window_size") : std::nullopt;
    if (same && window > 0 && *same != window)
      config_.fail("sliding_window_size", "is not sliding_window");
    const auto first = config_.find_uint("max_window_layers");
    check_window(window, uses_window, sliding.has_value());
    if (window == 0) {
      if (sliding && std::ranges::find(*sliding, 1) != sliding->end()) config_.fail("sliding_window", "missing");
      return;
    }
    if (!sliding) {
      sliding.emplace(count, std::uint8_t{1});
      const bool is_upper = class_.windows == HfWindows::kUpper;
      if (is_upper && !first) config_.fail("max_window_layers", "missing");
      const std::uint64_t every = window_pattern();
      for (std::size_t i = 0; i < count; ++i)
        (*sliding)[i] = every > 0 ? (i + 1) % every != 0 : !is_upper || i >= *first;
    }
    add_uint("attention.sliding_window", window);
    metadata_.add_array(key("attention.sliding_window_pattern"), GgufType::kBool, *sliding);
  }

  // Of layers some of which do not turn: the list has a 1 for those that do.
  void add_still_layers(int num_layers) {
    if (family_.still_layers != StillLayers::kEveryFourth) return;
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

  // Left out they are the family's; "null" says that there is none.
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
    if (class_.calls_bias_qkv) {
      config_.expect_bool("qkv_bias", true);
      return true;
    }
    config_.refuse("qkv_bias");  // as Qwen 3's says, too
    if (family_.qkv_bias == Presence::kNever) {
      config_.refuse("attention_bias");
      return false;
    }
    const bool needs_bias = family_.qkv_bias == Presence::kAlways;
    const bool has_bias = config_.find_bool("attention_bias").value_or(needs_bias || class_.has_bias_by_default);
    if (!has_bias && needs_bias) config_.fail("attention_bias", "false is not supported");
    return has_bias;
  }

  // Whether heads of Q and K are normed.
  bool read_qk_norm() const {
    if (class_.says_qk_norm) config_.expect_bool("use_qk_norm", true);
    if (family_.qk_norm != Presence::kMaybe) return family_.qk_norm == Presence::kAlways;
    return config_.find_bool("use_qk_norm").value_or(false);
  }

  // Left out, some have values of the class' own.
  int add_deepseek_experts(HfConfig& result) {
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
    if (class_.experts == HfExperts::kNone) return 0;
    const bool is_plain = class_.experts != HfExperts::kQwen;
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
    if (family_.usual_experts.weighs_shared)
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
    if (class_.experts != HfExperts::kGptOss) return config_.refuse("quantization_config");
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

  void refuse_foreign_code() const {
    if (class_.may_name_code)
      (void)config_.find("auto_map");
    else
      config_.refuse("auto_map");
  }

  void refuse_the_rest() const {
    check_gpt_oss();
    const bool has_gelu = family_.activation == Activation::kGeluTanh;
    config_.expect_string("hidden_act", has_gelu ? "gelu_pytorch_tanh" : "silu");
    config_.expect_string("hidden_activation", "gelu_pytorch_tanh");
    for (const char* name : {"mlp_bias", "attention_out_bias", "use_bias", "is_encoder_decoder", "add_cross_attention",
                             "lm_head_bias", "use_bidirectional_attention", "pruned_heads", "rope_interleaved", "use_mrope"})
      config_.refuse(name);
    if (!has_caps())
      for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) config_.refuse(name);
    for (const char* name : {"full_attn_mod", "interpolate_factor", "compression_ratio"})
      if (config_.find_number(name).value_or(1) != 1) config_.fail(name, "values other than 1 are not supported");
    refuse_foreign_code();
    config_.refuse_others(kHarmless);
  }

  const HfObject& config_;
  GgufBuilder& metadata_;
  const HfClass& class_;
  const Family& family_;
};

}  // namespace

HfConfig read_hf_config(const std::string& path, const nlohmann::json& json, GgufBuilder& metadata) {
  const HfObject config(path, json);
  return ConfigConverter(config, metadata).convert();
}

}  // namespace larder
