// tokenizer.json of a model's folder: its tokens and merges.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "model/files/hf_text_rules.h"

namespace larder {

struct HfVocabulary {
  HfTextRules rules;
  std::vector<std::string> tokens;  // by id
  std::vector<std::int32_t> kinds;  // GGUF's token_type
  std::vector<std::string> merges;  // "left right"
  std::vector<std::int32_t> strips_left, strips_right;  // ids of added tokens that take the spaces beside them along
  std::string unknown;              // "" = none
  // What stands around a text: "" = nothing.
  std::string before, after;

  // -1 = none has that text.
  TokenId find(std::string_view text) const;
};

// num_rows: of the embedding; tokens beyond those of the file, which mean nothing, are named [PAD123], and added ones
// beyond the rows, which the model cannot take, left out. path: for messages. Throws Error{kInvalidArgument}.
HfVocabulary read_hf_vocabulary(const std::string& path, std::string_view text, std::size_t num_rows);

}  // namespace larder
