// What all of JSON is made of, as parts of a grammar.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/grammar_builder.h"

namespace larder {

// Where white space stands between JSON's signs: as in any text of it (see JsonParts), nowhere, or one blank behind each
// colon and comma, as Python's json.dumps() and most chat templates write it.
enum class JsonSpacing { kAny, kNone, kOneBlank };

// JSON as models write it, compact or indented: white space stands where an indented text has it, and has an end, and
// so have numbers. Else a small model in doubt writes blanks for ever: only strings and lists have no end.
// What is used often is laid out once. Thread: one at a time.
class JsonParts {
 public:
  explicit JsonParts(GrammarBuilder& builder, JsonSpacing spacing = JsonSpacing::kAny)
      : builder_(builder), spacing_(spacing) {}

  GrammarBuilder& builder() { return builder_; }

  // None, a blank, or a line's end and the next one's indentation: behind what opens and before what closes. Nothing,
  // unless the spacing is any.
  Fragment space();
  Fragment colon();  // and a blank, perhaps or always
  Fragment comma();  // and space(), or a blank
  Fragment any_value();
  Fragment any_object();
  Fragment any_array();
  Fragment any_string();
  // In Unicode's code points; an escape is one.
  Fragment string_of_length(Repetitions length);
  // Any of these texts, which share what they begin with; at least one.
  Fragment one_of(std::vector<std::string> texts);
  Fragment quoted(Fragment part);
  // A string that is none of those, which stand there as between JSON's quotes.
  Fragment other_string(const std::vector<std::string>& texts);

  struct Items {
    std::vector<GrammarRule> first;     // of the first places, one each
    std::optional<GrammarRule> others;  // of all behind those; nullopt = none may follow
    Repetitions count = {};
  };
  // count.min must not be above what there may be.
  Fragment array_of(const Items& items);

 private:
  // The bytes of some texts, each node leading on to the next byte.
  struct Letters {
    GrammarNode begin;
    std::map<GrammarNode, CodePointSet> next;  // characters of those nodes that are not within one, nor an escape
    std::vector<GrammarNode> ends;             // where one of the texts ends
  };

  Letters add_letters(std::vector<std::string> texts);
  const GrammarRule& value_rule();
  // A character of a string, apart from those of one byte that need no escape.
  const GrammarRule& escape_rule();
  const GrammarRule& long_character_rule();
  void add_character(GrammarNode from, GrammarNode to);
  // A node at which any characters of a string may come.
  GrammarNode add_characters();

  GrammarBuilder& builder_;
  const JsonSpacing spacing_;
  std::optional<GrammarRule> space_, value_, escape_, long_character_;
};

}  // namespace larder
