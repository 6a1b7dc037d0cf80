#include "model/files/hf_text_rules.h"

#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "model/files/hf_json.h"

namespace larder {
namespace {

using nlohmann::json;

constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedRegex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200kRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A value at most so long, for a message.
std::string shown(const json& value) { return printable(value.dump(-1, ' ', true)); }

// An expression may have its line breaks as they are or as \r and \n, which mean the same.
std::string with_escapes(std::string_view expression) {
  std::string result;
  for (const char c : expression) result += c == '\r' ? "\\r" : c == '\n' ? "\\n" : std::string(1, c);
  return result;
}

// The steps of a normalizer or a pre_tokenizer, of which a Sequence has several.
std::vector<const json*> steps_of(const HfObject& tokenizer, std::string_view key, const char* list) {
  const json* value = tokenizer.find(key);
  if (!value) return {};
  const HfObject step(std::string(key), *value);
  if (step.string("type") != "Sequence") return {value};
  const json* steps = step.find(list);
  if (!steps || !steps->is_array()) step.fail(list, "is not a list");
  std::vector<const json*> result;
  for (const json& one : *steps) result.push_back(&one);
  return result;
}

// One step as a short text that says all that it does; "" = not known.
std::string name_of(const json& value) {
  const HfObject step("tokenizer.json", value);
  const std::string type = step.string("type");
  const auto pattern_is = [&](const char* kind, std::string_view text) {
    const auto pattern = step.find_object("pattern");
    return pattern && with_escapes(pattern->find_string(kind).value_or("")) == text;
  };
  if (type == "NFC") return "nfc";
  if (type == "Prepend" && step.find_string("prepend") == "\u2581") return "prepend";
  if (type == "Replace" && pattern_is("String", " ") && step.find_string("content") == "\u2581") return "spaces";
  if (type == "Digits" && step.find_bool("individual_digits") == true) return "digits";
  if (type == "ByteLevel" && !step.find_bool("add_prefix_space").value_or(true))
    return step.find_bool("use_regex").value_or(true) ? "gpt2+bytes" : "bytes";
  if (type == "Split") {
    const auto behavior = step.find_string("behavior");
    const bool inverts = step.find_bool("invert").value_or(false);
    // These find something everywhere: to remove what lies between leaves the same words.
    const bool keeps_words = behavior == (inverts ? "Removed" : "Isolated");
    if (keeps_words && pattern_is("Regex", kLlama3Regex)) return "llama3";
    if (keeps_words && pattern_is("Regex", kQwen2Regex)) return "qwen2";
    if (keeps_words && pattern_is("Regex", kSeedRegex)) return "seed";
    if (keeps_words && pattern_is("Regex", kO200kRegex)) return "o200k";
    if (keeps_words && pattern_is("Regex", kTekkenRegex)) return "tekken";
    // It finds nothing behind "spaces".
    if (!inverts && behavior == "MergedWithPrevious" && pattern_is("String", " ")) return "split-spaces";
  }
  if (type == "Metaspace" && step.find_string("replacement") == "\u2581" && !step.find_bool("split").value_or(true)) {
    const bool adds = step.find_bool("add_prefix_space").value_or(true);
    return "metaspace-" + (adds ? step.find_string("prepend_scheme").value_or("always") : "never");
  }
  return "";
}

struct KnownRules {
  std::string_view steps;
  bool ignores_merges;
  HfTextRules rules;
};

std::vector<KnownRules> known_rules() {
  const HfTextRules bytes{.is_sentence_piece = false}, pieces{.is_sentence_piece = true};
  const auto named = [&](const char* name) {
    HfTextRules rules = bytes;
    rules.pre_tokenizer = name;
    return rules;
  };
  const auto prefixed = [&](bool start_only, bool no_space) {
    HfTextRules rules = pieces;
    rules.add_space_prefix = true;
    rules.prefixes_start_only = start_only;
    rules.prefixes_no_space = no_space;
    return rules;
  };
  return {{"| gpt2+bytes", false, named("gpt-2")},
          {"| digits gpt2+bytes", false, named("smollm")},
          {"nfc | qwen2 bytes", false, named("qwen2")},
          {"| llama3 bytes", true, named("llama-bpe")},
          // Its merges reach every token, so that taking whole ones first changes nothing.
          {"| o200k bytes", true, named("gpt-4o")},
          {"| o200k bytes", false, named("gpt-4o")},
          {"| tekken bytes", true, named("tekken")},
          {"| llama3 bytes", false, named("dbrx")},
          {"| seed bytes", false, named("seed-coder")},
          {"spaces |", false, pieces},
          {"spaces | split-spaces", false, pieces},
          {"prepend spaces |", false, prefixed(false, false)},
          {"| metaspace-first", false, prefixed(true, true)},
          {"| metaspace-always", false, prefixed(false, true)},
          {"| metaspace-never", false, pieces}};
}

}  // namespace

HfTextRules read_hf_text_rules(const std::string& path, const json& tokenizer, bool ignores_merges) {
  const HfObject object(path, tokenizer);
  std::string steps;
  const auto add = [&](std::string_view key, const char* list) {
    for (const json* step : steps_of(object, key, list)) {
      const std::string name = name_of(*step);
      if (name.empty()) object.fail(key, fmt::format("{} is not one that Larder knows", shown(*step)));
      steps += (steps.empty() ? "" : " ") + name;
    }
  };
  add("normalizer", "normalizers");
  steps += steps.empty() ? "|" : " |";
  add("pre_tokenizer", "pretokenizers");
  for (const KnownRules& known : known_rules()) {
    if (known.steps != steps || known.ignores_merges != ignores_merges) continue;
    HfTextRules rules = known.rules;
    rules.normalizer = steps.starts_with("nfc")       ? HfNormalizer::kNfc
                       : steps.starts_with("spaces")  ? HfNormalizer::kSpaces
                       : steps.starts_with("prepend") ? HfNormalizer::kPrefixed
                                                      : HfNormalizer::kNone;
    return rules;
  }
  object.fail("pre_tokenizer", fmt::format("these steps together, '{}'{}, are not ones that Larder knows", steps,
                                           ignores_merges ? " with ignore_merges" : ""));
}

}  // namespace larder
