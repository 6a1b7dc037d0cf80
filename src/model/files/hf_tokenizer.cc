#include "model/files/hf_tokenizer.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "model/files/hf_json.h"
#include "model/files/hf_vocabulary.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {
namespace {

using nlohmann::json;

// A token's text, which some files have in an object with its flags.
std::string text_of_token(const HfObject& object, std::string_view key) {
  const json* value = object.find(key);
  if (!value) return "";
  if (value->is_object()) return object.find_object(key)->find_string("content").value_or("");
  return object.string(key);
}

// The model's end tokens; files have one or a list.
std::vector<std::int32_t> end_ids(const HfObject& object, std::size_t num_rows) {
  const json* value = object.find("eos_token_id");
  if (!value) return {};
  std::vector<std::int32_t> ids;
  for (const json& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_unsigned()) object.fail("eos_token_id", "is not an id, or a list of ids");
    if (id.get<std::uint64_t>() >= num_rows)
      object.fail("eos_token_id", fmt::format("{} is not one of the {} tokens", id.get<std::uint64_t>(), num_rows));
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

// "" = there is no such file.
std::string read_text(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return "";
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string template_of_list(const HfObject& object, const json& list) {
  std::string plain, with_tools;
  for (const json& value : list) {
    const HfObject entry("tokenizer_config.json: chat_template", value);
    const std::string name = entry.string("name");
    if (name == "default") plain = entry.string("template");
    if (name == "tool_use") with_tools = entry.string("template");
  }
  if (plain.empty()) object.fail("chat_template", "no template is called default");
  return join_templates(plain, with_tools);
}

class TokenizerConverter {
 public:
  TokenizerConverter(const std::string& folder, const json& config, std::size_t num_rows, GgufBuilder& metadata)
      : folder_(folder),
        config_(folder + "/config.json", config),
        tokenizer_config_json_(find_hf_json(folder + "/tokenizer_config.json").value_or(json::object())),
        special_map_json_(find_hf_json(folder + "/special_tokens_map.json").value_or(json::object())),
        generation_json_(find_hf_json(folder + "/generation_config.json").value_or(json::object())),
        tokenizer_config_(folder + "/tokenizer_config.json", tokenizer_config_json_),
        special_map_(folder + "/special_tokens_map.json", special_map_json_),
        generation_(folder + "/generation_config.json", generation_json_),
        num_rows_(num_rows),
        metadata_(metadata) {}

  void convert() {
    const std::string path = folder_ + "/tokenizer.json";
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored))
      throw Error(ErrorKind::kNotFound, fmt::format("{}: no such file; a tokenizer is read from it alone", path));
    {
      const MappedFile file(path);
      vocabulary_ = read_hf_vocabulary(path, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, num_rows_);
    }
    const HfTextRules& rules = vocabulary_.rules;
    metadata_.add_string("tokenizer.ggml.model", rules.is_sentence_piece ? "llama" : "gpt2");
    metadata_.add_string("tokenizer.ggml.pre", rules.pre_tokenizer);
    metadata_.add_array("tokenizer.ggml.tokens", GgufType::kString, vocabulary_.tokens);
    metadata_.add_array("tokenizer.ggml.token_type", GgufType::kInt32, vocabulary_.kinds);
    metadata_.add_array("tokenizer.ggml.merges", GgufType::kString, vocabulary_.merges);
    metadata_.add_bool("tokenizer.ggml.add_space_prefix", rules.add_space_prefix);
    metadata_.add_bool("larder.tokenizer.prefixes_start_only", rules.prefixes_start_only);
    metadata_.add_bool("larder.tokenizer.prefixes_no_space", rules.prefixes_no_space);
    metadata_.add_array("larder.tokenizer.strips_left", GgufType::kInt32, vocabulary_.strips_left);
    metadata_.add_array("larder.tokenizer.strips_right", GgufType::kInt32, vocabulary_.strips_right);
    if (const TokenId unknown = vocabulary_.find(vocabulary_.unknown); unknown >= 0)
      metadata_.add_uint("tokenizer.ggml.unknown_token_id", static_cast<std::uint32_t>(unknown));
    add_bounds();
    if (const std::string source = chat_template(); !source.empty())
      metadata_.add_string("tokenizer.chat_template", source);
  }

 private:
  // What begins and ends texts and turns.
  void add_bounds() {
    std::vector<std::int32_t> ends = end_ids(config_, num_rows_);
    const std::vector<std::int32_t> more = end_ids(generation_, num_rows_);
    ends.insert(ends.end(), more.begin(), more.end());
    TokenId bos = find_named("bos_token");
    TokenId eos = find_named("eos_token");
    // tokenizer.json's template alone says so, as to transformers 5; the flags add_bos_token and add_eos_token of
    // tokenizer_config.json are for what makes a tokenizer.json.
    const bool adds_bos = !vocabulary_.before.empty(), adds_eos = !vocabulary_.after.empty();
    if (adds_bos && bos < 0) bos = find_in_template(vocabulary_.before);
    if (adds_eos && eos < 0) eos = find_in_template(vocabulary_.after);
    if (adds_bos && bos != find_in_template(vocabulary_.before))
      tokenizer_config_.fail("bos_token", "is not the token that tokenizer.json puts before a text");
    if (adds_eos && eos != find_in_template(vocabulary_.after))
      tokenizer_config_.fail("eos_token", "is not the token that tokenizer.json puts behind a text");
    if (eos < 0 && !ends.empty()) eos = ends.front();
    if (bos >= 0) metadata_.add_uint("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(bos));
    if (eos >= 0) metadata_.add_uint("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(eos));
    metadata_.add_bool("tokenizer.ggml.add_bos_token", adds_bos);
    metadata_.add_bool("tokenizer.ggml.add_eos_token", adds_eos);
    metadata_.add_array("larder.tokenizer.end_ids", GgufType::kInt32, ends);
  }

  // -1 = the folder names none.
  TokenId find_named(std::string_view key) const {
    std::string text = text_of_token(tokenizer_config_, key);
    if (text.empty()) text = text_of_token(special_map_, key);
    const TokenId id = vocabulary_.find(text);
    if (id < 0 && !text.empty()) tokenizer_config_.fail(key, fmt::format("'{}' is not a token", printable(text)));
    return id;
  }

  TokenId find_in_template(const std::string& text) const {
    const TokenId id = vocabulary_.find(text);
    if (id < 0) throw_invalid("{}/tokenizer.json: post_processor: '{}' is not a token", folder_, printable(text));
    return id;
  }

  // "" = the folder has none.
  std::string chat_template() const {
    if (const std::string plain = read_text(folder_ + "/chat_template.jinja"); !plain.empty())
      return join_templates(plain, read_text(folder_ + "/additional_chat_templates/tool_use.jinja"));
    const json* value = tokenizer_config_.find("chat_template");
    if (!value) return "";
    return value->is_array() ? template_of_list(tokenizer_config_, *value) : tokenizer_config_.string("chat_template");
  }

  const std::string& folder_;
  const HfObject config_;
  const json tokenizer_config_json_, special_map_json_, generation_json_;
  const HfObject tokenizer_config_, special_map_, generation_;
  const std::size_t num_rows_;
  GgufBuilder& metadata_;
  HfVocabulary vocabulary_;
};

}  // namespace

void add_hf_tokenizer(const std::string& folder, const json& config, std::size_t num_rows, GgufBuilder& metadata) {
  TokenizerConverter(folder, config, num_rows, metadata).convert();
}

}  // namespace larder
