// Cuts text into the words that byte-level BPE merges within.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/char_classes.h"

namespace larder {

// The published patterns as hand-written matchers: each looks at a character a bounded number of
// times, so that no input makes them slow, as it can a backtracking engine. A pre-tokenizer is a
// row of stages; each cuts further what the one before left whole, and sees nothing beyond its
// piece. Immutable after construction. Thread: any.
class PreTokenizer {
 public:
  // smollm, qwen2, llama-bpe, gpt-2, default. Throws Error{kInvalidArgument} for other names.
  explicit PreTokenizer(std::string_view name);

  // Fills ends with the end of every word, in order; the last is text.size(). Words are not empty.
  // Breaks off with more than max_words. Linear time. text.size() < 2^32.
  void split(std::string_view text, std::vector<std::uint32_t>& ends, std::size_t max_words) const;

  // The end of the word at the start of rest; rest is not empty.
  using Stage = std::size_t (*)(const CharClasses&, std::string_view rest);

 private:
  CharClasses classes_;
  std::vector<Stage> stages_;
};

}  // namespace larder
