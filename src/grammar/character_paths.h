// Characters as the bytes that a text has for them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/code_points.h"
#include "grammar/grammar_builder.h"
#include "grammar/utf8_ranges.h"

namespace larder {

// How the characters that an expression or a grammar matches are written.
enum class TextForm {
  kPlain,       // as UTF-8
  kJsonString,  // as within a JSON string's quotes: " and \ and control characters escaped, the shortest way
};

// Both expressions and JSON write these as a backslash and a letter.
struct ControlLetter {
  char32_t character, letter;
};
inline constexpr ControlLetter kControlLetters[] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};

bool is_single(const CodePointSet& set);

// Every character that a JSON string has as it is.
bool has_all_unescaped(CodePointSet set);

// The set, and each of its letters in the other case; ASCII's only.
CodePointSet in_both_cases(CodePointSet set);

// Ways from the same node by the same bytes are one way, so that alternatives in their thousands are not as many
// places at once. Sets are in normal form.
class CharacterPaths {
 public:
  CharacterPaths(GrammarBuilder& builder, TextForm form) : builder_(builder), form_(form) {}

  bool is_json() const { return form_ == TextForm::kJsonString; }

  // By any one character of the set; returns where that leads.
  GrammarNode add(GrammarNode from, const CodePointSet& set);
  void add_between(GrammarNode from, const CodePointSet& set, GrammarNode to);

 private:
  std::string written_in_one_way(char32_t c) const;
  void add_json(GrammarNode from, const CodePointRange& range, GrammarNode to, CodePointPaths& paths);
  void add_escape(GrammarNode from, char32_t c, GrammarNode to);
  GrammarNode step(GrammarNode from, char byte);

  GrammarBuilder& builder_;
  const TextForm form_;
  std::map<std::pair<GrammarNode, std::uint8_t>, GrammarNode> behind_;
};

}  // namespace larder
