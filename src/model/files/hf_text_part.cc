#include "model/files/hf_text_part.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "model/files/hf_json.h"

namespace larder {
namespace {

using nlohmann::json;

constexpr std::string_view kGemma3 = "Gemma3ForConditionalGeneration";
constexpr std::string_view kMistral3 = "Mistral3ForConditionalGeneration";

// Of the part that reads images, and of how transformers puts both together.
constexpr std::string_view kHarmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "boi_token_index", "bos_token_id",
    "cache_implementation", "dtype", "eoi_token_index", "image_token_id", "image_token_index", "initializer_range",
    "mm_tokens_per_image", "model_type", "multimodal_projector_bias", "pad_token_id", "projector_hidden_act",
    "spatial_merge_size", "torch_dtype", "transformers_version", "unk_token_id", "use_cache", "vision_config",
    "vision_feature_layer"};

std::string_view class_of(const json& config) {
  const auto names = config.is_object() ? config.find("architectures") : config.end();
  if (names == config.end() || !names->is_array() || names->size() != 1 || !names->front().is_string()) return {};
  return names->front().get_ref<const std::string&>();
}

// Published files of Gemma 3 leave out what is the class's own.
const json& defaults_of_gemma3() {
  static const json defaults = {{"num_attention_heads", 8U},     {"num_key_value_heads", 4U},
                                {"head_dim", 256U},              {"max_position_embeddings", 131072U},
                                {"rms_norm_eps", 1e-6},          {"query_pre_attn_scalar", 256},
                                {"sliding_window", 4096U}};
  return defaults;
}

}  // namespace

bool has_text_part(const json& config) {
  const std::string_view name = class_of(config);
  return name == kGemma3 || name == kMistral3;
}

json read_text_part(const std::string& path, const json& config) {
  const HfObject whole(path, config);
  const bool is_gemma3 = class_of(config) == kGemma3;
  (void)whole.find("architectures");
  const auto part = whole.find_object("text_config");
  if (!part) whole.fail("text_config", "missing");
  json text = *whole.find("text_config");
  const std::string type = part->string("model_type");
  const char* name = is_gemma3 && type == "gemma3_text"     ? "Gemma3ForCausalLM"
                     : !is_gemma3 && type == "mistral"      ? "MistralForCausalLM"
                     : !is_gemma3 && type == "ministral3" ? "Ministral3ForCausalLM"
                                                            : nullptr;
  if (!name) part->fail("model_type", fmt::format("'{}' is not supported", printable(type)));
  text["architectures"] = {name};
  if (is_gemma3)
    for (const auto& [key, value] : defaults_of_gemma3().items())
      if (!part->find(key)) text[key] = value;
  // Stated for both parts; what the text says itself counts first.
  for (const char* key : {"tie_word_embeddings", "quantization_config"})
    if (const json* value = whole.find(key); value && !part->find(key)) text[key] = *value;
  if (const json* ends = whole.find("eos_token_id")) text["eos_token_id"] = *ends;
  whole.refuse_others(kHarmless);
  return text;
}

void take_text_tensors(std::vector<SafetensorsTensor>& tensors) {
  // As files have it, and as transformers writes it since 2025.
  constexpr std::string_view kImages[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                          "model.multi_modal_projector."};
  constexpr std::pair<std::string_view, std::string_view> kText[] = {{"language_model.model.", "model."},
                                                                     {"language_model.lm_head.", "lm_head."},
                                                                     {"model.language_model.", "model."}};
  std::erase_if(tensors, [&](const SafetensorsTensor& tensor) {
    return std::ranges::any_of(kImages, [&](std::string_view prefix) { return tensor.name.starts_with(prefix); });
  });
  for (SafetensorsTensor& tensor : tensors)
    for (const auto& [from, to] : kText)
      if (tensor.name.starts_with(from)) {
        tensor.name = std::string(to) + tensor.name.substr(from.size());
        break;
      }
}

}  // namespace larder
