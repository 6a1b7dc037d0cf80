#include "grammar/regex_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "grammar/character_paths.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

constexpr std::uint32_t kMostTimes = 1'000'000'000;  // more than any automaton has nodes
constexpr char32_t kFirstLowSurrogate = 0xDC00;

CodePointSet digits() { return {{'0', '9'}}; }
CodePointSet word_characters() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CodePointSet line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }
CodePointSet spaces() {
  return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

// The set that \d and the like stand for.
std::optional<CodePointSet> named_set(char32_t letter) {
  if (letter == 'd') return digits();
  if (letter == 'D') return complement(digits());
  if (letter == 'w') return word_characters();
  if (letter == 'W') return complement(word_characters());
  if (letter == 's') return spaces();
  if (letter == 'S') return complement(spaces());
  return std::nullopt;
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::optional<std::uint32_t> hex_value(char32_t c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

}  // namespace

RegexReader::RegexReader(std::string_view expression, RegexDialect dialect, RegexFlags flags)
    : expression_(expression), dialect_(dialect), flags_(flags) {
  for (std::size_t i = 0; i < expression.size();) {
    const Utf8Char c = read_utf8(expression, i);
    if (!c.valid) fail(characters_.size(), "what is not UTF-8");
    characters_.push_back(c.code_point);
    i += c.length;
  }
  if (flags.is_verbose) leave_out_blanks();
}

void RegexReader::fail(std::size_t place, std::string_view what) const {
  throw_invalid("the pattern \"{}\" is not supported: {}, at character {}", printable(expression_), what, place + 1);
}

void RegexReader::leave_out_blanks() {
  std::u32string kept;
  for (std::size_t i = 0; i < characters_.size(); ++i) {
    const char32_t c = characters_[i];
    if (c == '#') {
      while (i + 1 < characters_.size() && characters_[i + 1] != '\n') ++i;
    } else if (c == '\\' || c == '[') {
      const std::size_t end = c == '[' ? end_of_class(i) : std::min(i + 2, characters_.size());
      kept.append(characters_, i, end - i);
      i = end - 1;
    } else if (c != ' ' && (c < '\t' || c > '\r')) {
      kept += c;
    }
  }
  characters_ = std::move(kept);
}

bool RegexReader::take(char32_t c) {
  if (peek() != c) return false;
  ++place_;
  return true;
}

std::size_t RegexReader::end_of_class(std::size_t begin) const {
  std::size_t i = begin + 1;
  if (at(i) == '^') ++i;
  if (is_python() && at(i) == ']') ++i;  // the first of them is one of the class
  for (; i < characters_.size(); ++i) {
    if (at(i) == '\\') {
      ++i;
    } else if (at(i) == ']') {
      return i + 1;
    }
  }
  fail(begin, "a [ without its ]");
}

CodePointSet RegexReader::read_set() {
  const std::size_t begin = place_;
  const char32_t c = peek();
  const auto is_one_of = [c](std::u32string_view some) { return some.find(c) != some.npos; };
  if (is_one_of(U"*+?") || (c == '{' && is_quantifier_brace())) fail(begin, "a quantifier on nothing");
  if (is_one_of(U"]}") && !is_python()) fail(begin, "a bracket that was not opened");
  if (c == '^') fail(begin, "a ^ that is not at the beginning of an outermost alternative");
  CodePointSet set;
  if (c == '[') {
    set = read_class();
  } else if (c == '\\') {
    set = read_escape(false);
  } else {
    next();
    set = {{c, c}};
    if (c == '.') set = flags_.dot_is_any ? complement({}) : complement(is_python() ? CodePointSet{{'\n', '\n'}} : line_ends());
  }
  if (flags_.ignores_case && c != '[') set = in_both_cases(std::move(set));
  set = normal_form(std::move(set));
  if (set.empty()) fail(begin, "what no character matches");
  return set;
}

CodePointSet RegexReader::read_class() {
  const std::size_t begin_of_class = place_;
  next();
  const bool is_negated = take('^');
  CodePointSet set;
  const auto read_item = [&]() -> CodePointSet {
    if (peek() == '\\') return read_escape(true);
    const char32_t c = next();
    return {{c, c}};
  };
  const std::size_t closing = end_of_class(begin_of_class) - 1;
  while (place_ < closing) {
    const std::size_t begin = place_;
    const CodePointSet item = read_item();
    const bool is_range = peek() == '-' && place_ + 1 < closing;
    if (!is_range) {
      set.insert(set.end(), item.begin(), item.end());
      continue;
    }
    next();
    const CodePointSet end = read_item();
    if (!is_single(item) || !is_single(end)) fail(begin, "a range that begins or ends with many characters");
    if (item.front().first > end.front().first) fail(begin, "a range that ends before it begins");
    set.push_back({item.front().first, end.front().first});
  }
  next();
  if (flags_.ignores_case) set = in_both_cases(std::move(set));
  return is_negated ? complement(std::move(set)) : set;
}

CodePointSet RegexReader::read_escape(bool is_in_class) {
  const std::size_t begin = place_;
  next();
  if (is_over()) fail(begin, "a backslash with nothing behind it");
  if (auto set = named_set(peek())) {
    next();
    return *std::move(set);
  }
  const char32_t c = read_escaped_character(begin, is_in_class);
  return {{c, c}};
}

// Punctuation may be escaped whether it needs to or not: many patterns do so, and it means the same everywhere.
char32_t RegexReader::read_escaped_character(std::size_t begin, bool is_in_class) {
  const char32_t c = next();
  if (!is_letter(c) && !is_digit(c)) return c;
  for (const auto& [character, letter] : kControlLetters) {
    if (c == letter && (c != 'b' || is_in_class)) return character;
  }
  if (c == 'v') return '\v';
  if (c == 'x') return read_hex(begin, 2);
  if (c == 'u') return read_unicode_escape(begin);
  if (c == 'U' && is_python()) return read_hex(begin, 8);
  if (c == 'a' && is_python()) return '\a';
  if (c == 'c' && is_letter(peek())) return next() & 0x1F;
  if (c == '0' && !is_digit(peek())) return 0;
  if (c == 'b' || c == 'B') fail(begin, "a word boundary");
  if (c == 'p' || c == 'P') fail(begin, "a class by a Unicode property");
  if (c == 'k' || (is_digit(c) && c != '0')) fail(begin, "a back reference");
  fail(begin, fmt::format("the escape \\{}", static_cast<char>(c)));
}

char32_t RegexReader::read_hex(std::size_t begin, int num_digits) {
  char32_t value = 0;
  for (int i = 0; i < num_digits; ++i) {
    const auto digit = hex_value(peek());
    if (!digit) fail(begin, fmt::format("an escape without its {} hexadecimal digits", num_digits));
    value = value << 4 | *digit;
    next();
  }
  return value;
}

// Two halves of a pair, written one after the other, are one character.
char32_t RegexReader::read_unicode_escape(std::size_t begin) {
  if (peek() == '{') return read_braced_hex(begin);
  const char32_t first = read_hex(begin, 4);
  const bool may_be_pair =
      first >= kSurrogates.first && first < kFirstLowSurrogate && peek() == '\\' && peek(1) == 'u' && peek(2) != '{';
  if (!may_be_pair) return first;
  const std::size_t behind_first = place_;
  place_ += 2;
  const char32_t second = read_hex(behind_first, 4);
  if (second >= kFirstLowSurrogate && second <= kSurrogates.last) {
    return 0x10000 + ((first - kSurrogates.first) << 10) + (second - kFirstLowSurrogate);
  }
  place_ = behind_first;
  return first;
}

char32_t RegexReader::read_braced_hex(std::size_t begin) {
  next();
  char32_t value = 0;
  do {
    const auto digit = hex_value(peek());
    if (!digit) fail(begin, "an escape without its hexadecimal digits");
    value = value << 4 | *digit;
    if (value > kMaxCodePoint) fail(begin, "an escape above U+10FFFF");
    next();
  } while (!take('}'));
  return value;
}

std::optional<Repetitions> RegexReader::read_quantifier() {
  const std::size_t begin = place_;
  Repetitions times;
  if (take('+')) {
    times.min = 1;
  } else if (take('?')) {
    times.max = 1;
  } else if (is_quantifier_brace()) {
    next();
    if (!is_digit(peek()) && !is_python()) fail(begin, "a { without a number");
    times.min = read_number();
    if (!take(',')) {
      times.max = times.min;
    } else if (is_digit(peek())) {
      times.max = read_number();
    }
    if (!take('}')) fail(begin, "a { without its }");
    if (times.max && times.min > *times.max) fail(begin, "bounds of which the second is the smaller one");
  } else if (!take('*')) {
    return std::nullopt;
  }
  take('?');  // as few as possible: the same texts match
  return times;
}

// Python takes others for what they are.
bool RegexReader::is_quantifier_brace() const {
  if (peek() != '{' || !is_python()) return peek() == '{';
  std::size_t ahead = 1;
  const auto skip_digits = [&] {
    const std::size_t first = ahead;
    while (is_digit(peek(ahead))) ++ahead;
    return ahead > first;
  };
  bool has_bound = skip_digits();
  if (peek(ahead) == ',') {
    has_bound = true;
    ++ahead;
    skip_digits();
  }
  return has_bound && peek(ahead) == '}';
}

std::uint32_t RegexReader::read_number() {
  std::uint64_t value = 0;
  while (is_digit(peek())) value = std::min<std::uint64_t>(value * 10 + (next() - '0'), kMostTimes);
  return static_cast<std::uint32_t>(value);
}

void RegexReader::read_group_head() {
  const std::size_t begin = place_;
  next();
  if (!take('?') || take(':')) return;
  const bool is_behind = peek() == '<' && (peek(1) == '=' || peek(1) == '!');
  if (is_behind) fail(begin, "lookbehind");
  if (peek() == '=' || peek() == '!') fail(begin, "lookahead");
  if (peek() == '<' || (peek() == 'P' && peek(1) == '<')) return read_name(begin);
  read_flags(begin);
  if (!take(':')) fail(begin, "a group of an unknown kind");
}

bool RegexReader::take_flags() {
  if (peek() != '(' || peek(1) != '?') return false;
  std::size_t ahead = 2;
  while (is_letter(peek(ahead)) || peek(ahead) == '-') ++ahead;
  if (peek(ahead) != ')') return false;
  const std::size_t begin = place_;
  place_ += 2;
  read_flags(begin);
  next();
  return true;
}

void RegexReader::read_name(std::size_t begin) {
  take('P');  // as Python writes it
  next();
  if (peek() == '>' || is_digit(peek())) fail(begin, "a group without a proper name");
  while (!take('>')) {
    const char32_t c = is_over() ? kNoCharacter : next();
    const bool may_be_in_name = is_letter(c) || is_digit(c) || c == '_' || c == '$' || (c >= 0x80 && c != kNoCharacter);
    if (!may_be_in_name) fail(begin, "a group without a proper name");
  }
}

void RegexReader::read_flags(std::size_t begin) {
  const std::size_t first = place_;
  bool is_set = true;
  for (; is_letter(peek()) || peek() == '-'; ++place_) {
    switch (peek()) {
      case '-':
        is_set = false;
        break;
      case 'i':
        flags_.ignores_case = is_set;
        break;
      case 's':
        flags_.dot_is_any = is_set;
        break;
      case 'm':  // of ^ and $ within a text, which are not supported
      case 'u':
        break;
      default:
        fail(begin, "a group of an unknown kind");
    }
  }
  if (place_ == first) fail(begin, "a group of an unknown kind");
}

}  // namespace larder
