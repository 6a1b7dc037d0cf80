// The signs of a regular expression.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/code_points.h"
#include "grammar/grammar_builder.h"
#include "grammar/regex.h"

namespace larder {

// An expression's characters, and what is made of a few of them: one character, a set of them, a quantifier.
// Thread: one at a time. The expression must outlive it.
class RegexReader {
 public:
  static constexpr char32_t kNoCharacter = 0xFFFFFFFF;

  // Throws Error{kInvalidArgument} where it is not UTF-8, as all that read do at what they cannot.
  RegexReader(std::string_view expression, RegexDialect dialect, RegexFlags flags);

  [[noreturn]] void fail(std::size_t place, std::string_view what) const;

  bool is_python() const { return dialect_ == RegexDialect::kPython; }
  RegexFlags flags() const { return flags_; }
  void set_flags(RegexFlags flags) { flags_ = flags; }
  const std::u32string& characters() const { return characters_; }
  std::size_t place() const { return place_; }
  char32_t peek(std::size_t ahead = 0) const { return at(place_ + ahead); }
  char32_t at(std::size_t place) const { return place < characters_.size() ? characters_[place] : kNoCharacter; }
  bool is_over() const { return place_ == characters_.size(); }
  char32_t next() { return characters_[place_++]; }
  bool take(char32_t c);

  // A character, an escape, a class, or the dot; at least one character matches.
  CodePointSet read_set();
  std::optional<Repetitions> read_quantifier();
  // Of a group, up to what is in it; its flags hold from there on.
  void read_group_head();
  // A group of nothing but flags, as (?i): they hold from there on to the end of the group around it.
  bool take_flags();
  // Behind the ] of the class that begins there.
  std::size_t end_of_class(std::size_t begin) const;

 private:
  void leave_out_blanks();
  CodePointSet read_class();
  CodePointSet read_escape(bool is_in_class);
  char32_t read_escaped_character(std::size_t begin, bool is_in_class);
  char32_t read_hex(std::size_t begin, int num_digits);
  char32_t read_unicode_escape(std::size_t begin);
  char32_t read_braced_hex(std::size_t begin);
  bool is_quantifier_brace() const;
  std::uint32_t read_number();
  void read_name(std::size_t begin);
  // Up to the : or ) behind them.
  void read_flags(std::size_t begin);

  const std::string_view expression_;
  const RegexDialect dialect_;
  RegexFlags flags_;
  std::u32string characters_;
  std::size_t place_ = 0;
};

}  // namespace larder
