// The words of a grammar in GBNF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_points.h"
#include "grammar/grammar_builder.h"

namespace larder {

struct GbnfToken {
  enum class Kind {
    kDefinition,   // name ::=
    kName,         // of a rule that is called
    kLiteral,      // in quotes
    kClass,        // in brackets, or the point
    kOpen,         // (
    kClose,        // )
    kAlternative,  // |
    kRepetitions,  // * + ? {m} {m,} {m,n}
    kEnd,
  };

  Kind kind = Kind::kEnd;
  std::size_t line = 1;  // where it begins
  bool is_first_of_line = true;
  std::string text;     // of a name; of a literal what it stands for; else as written
  CodePointSet ranges;  // of a class: ascending, with gaps between them
  Repetitions times;
};

// Thread: one at a time. The text must outlive it.
class GbnfLexer {
 public:
  explicit GbnfLexer(std::string_view text) : text_(text) {}

  // Throws Error{kInvalidArgument} where no word can be read, and Error{kTooLarge} for a repetition that no
  // grammar has room for.
  GbnfToken next();

 private:
  [[noreturn]] void fail_at_character() const;
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c);
  bool skip_space();  // and comments; whether a line ended
  void read_name(GbnfToken& token);
  void read_literal(GbnfToken& token);
  void read_class(GbnfToken& token);
  void read_bounds(GbnfToken& token);
  std::uint32_t read_count();
  char32_t read_character();
  char32_t read_escape();
  char32_t read_code_point(std::size_t num_digits);

  const std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

}  // namespace larder
