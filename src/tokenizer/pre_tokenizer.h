// Cuts text into the words that byte-level BPE merges within.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "tokenizer/char_classes.h"

namespace larder {

// The end of the word at the start of rest; rest is not empty.
using PreTokenizerStage = std::size_t (*)(const CharClasses&, std::string_view rest);

// What a name of tokenizer.ggml.pre stands for.
struct PreTokenizerKind {
  std::array<std::string_view, 5> names;    // several may stand for it; "" = no more
  std::array<PreTokenizerStage, 6> stages;  // null = no more
  bool takes_whole_words = false;  // a word that is a token is that one, whatever merges would make of it
  bool normalizes = false;         // to NFC first
  bool adds_bos = false;           // where the file does not say
};

// null = not known
const PreTokenizerKind* find_pre_tokenizer(std::string_view name);
// Throws Error{kInvalidArgument} where find_pre_tokenizer() is null.
const PreTokenizerKind& pre_tokenizer(std::string_view name);

// The published patterns as hand-written matchers: each looks at a character a bounded number of
// times, so that no input makes them slow, as it can a backtracking engine. A pre-tokenizer is a
// row of stages; each cuts further what the one before left whole, and sees nothing beyond its
// piece. Immutable after construction. Thread: any.
class PreTokenizer {
 public:
  // As pre_tokenizer().
  explicit PreTokenizer(std::string_view name);

  // Calls function(begin, end) for every word, in order; together they are the text. Words are not
  // empty. Linear time.
  template <class Function>
  void for_each_word(std::string_view text, const Function& function) const {
    cut(text, 0, text.size(), 0, function);
  }

 private:
  // [begin, end): a piece that the stages before this one left whole.
  template <class Function>
  void cut(std::string_view text, std::size_t begin, std::size_t end, std::size_t stage,
           const Function& function) const {
    if (stage == stages_.size()) return function(begin, end);
    while (begin < end) {
      const std::size_t next = begin + stages_[stage](classes_, text.substr(begin, end - begin));
      cut(text, begin, next, stage + 1, function);
      begin = next;
    }
  }

  CharClasses classes_;
  std::vector<PreTokenizerStage> stages_;
};

}  // namespace larder
