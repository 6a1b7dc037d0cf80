// How a tokenizer.json treats text before it merges, as one of the ways that src/tokenizer knows.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace larder {

// What becomes of a text before tokens are looked for in it.
enum class HfNormalizer {
  kNone,
  kNfc,
  kSpaces,     // U+2581 for each
  kPrefixed,   // one more before the text
};

struct HfTextRules {
  bool is_sentence_piece = false;
  std::string pre_tokenizer = "default";  // GGUF's name, of byte-level BPE
  bool add_space_prefix = false;          // these three as Vocabulary's
  bool prefixes_start_only = false;
  bool prefixes_no_space = false;
  HfNormalizer normalizer = HfNormalizer::kNone;
};

// tokenizer: of the file at path. Recognised by comparing normalizer and pre_tokenizer with published ones, never
// guessed: throws Error{kInvalidArgument} for any other.
HfTextRules read_hf_text_rules(const std::string& path, const nlohmann::json& tokenizer, bool ignores_merges);

}  // namespace larder
