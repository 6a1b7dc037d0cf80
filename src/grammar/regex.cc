#include "grammar/regex.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/printable.h"
#include "grammar/code_points.h"
#include "grammar/utf8_ranges.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

// Below GrammarState::kMaxDepth, as each group may be called by what repeats it.
constexpr std::size_t kMaxNesting = 100;
constexpr std::uint32_t kMostTimes = 1'000'000'000;  // more than any automaton has nodes
constexpr char32_t kNoCharacter = 0xFFFFFFFF;
constexpr std::string_view kMisplacedEnd = "a $ that is not at the end of an outermost alternative";

// Both an expression and JSON write these as a backslash and a letter.
struct ControlLetter {
  char32_t character, letter;
};
constexpr ControlLetter kControlLetters[] = {{'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}};

constexpr char32_t kFirstLowSurrogate = 0xDC00;

CodePointSet digits() { return {{'0', '9'}}; }
CodePointSet word_characters() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CodePointSet line_ends() { return {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}; }
CodePointSet spaces() {
  return {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}

bool is_single(const CodePointSet& set) { return set.size() == 1 && set.front().first == set.front().last; }

// Every character that a JSON string has as it is.
bool has_all_unescaped(CodePointSet set) {
  set.insert(set.end(), {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return complement(std::move(set)).empty();
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

// An expression's characters, and what is made of a few of them: one character, a set of them, a quantifier.
class RegexReader {
 public:
  explicit RegexReader(std::string_view expression) : expression_(expression) {
    for (std::size_t i = 0; i < expression.size();) {
      const Utf8Char c = read_utf8(expression, i);
      if (!c.valid) fail(characters_.size(), "what is not UTF-8");
      characters_.push_back(c.code_point);
      i += c.length;
    }
  }

  [[noreturn]] void fail(std::size_t place, std::string_view what) const {
    throw_invalid("the pattern \"{}\" is not supported: {}, at character {}", printable(expression_), what, place + 1);
  }

  const std::u32string& characters() const { return characters_; }
  std::size_t place() const { return place_; }
  char32_t peek(std::size_t ahead = 0) const { return at(place_ + ahead); }
  char32_t at(std::size_t place) const { return place < characters_.size() ? characters_[place] : kNoCharacter; }
  bool is_over() const { return place_ == characters_.size(); }
  char32_t next() { return characters_[place_++]; }
  bool take(char32_t c) {
    if (peek() != c) return false;
    ++place_;
    return true;
  }

  // A character, an escape, a class, or the dot; at least one character matches.
  CodePointSet read_set();
  std::optional<Repetitions> read_quantifier();
  // Of a group, up to what is in it.
  void read_group_head();

 private:
  CodePointSet read_class();
  CodePointSet read_escape(bool is_in_class);
  char32_t read_escaped_character(std::size_t begin, bool is_in_class);
  char32_t read_hex(std::size_t begin, int num_digits);
  char32_t read_unicode_escape(std::size_t begin);
  char32_t read_braced_hex(std::size_t begin);
  std::uint32_t read_number();

  const std::string_view expression_;
  std::u32string characters_;
  std::size_t place_ = 0;
};

CodePointSet RegexReader::read_set() {
  const std::size_t begin = place_;
  const char32_t c = peek();
  const auto is_one_of = [c](std::u32string_view some) { return some.find(c) != some.npos; };
  if (is_one_of(U"*+?{")) fail(begin, "a quantifier on nothing");
  if (is_one_of(U"]}")) fail(begin, "a bracket that was not opened");
  if (c == '^') fail(begin, "a ^ that is not at the beginning of an outermost alternative");
  CodePointSet set;
  if (c == '[') {
    set = read_class();
  } else if (c == '\\') {
    set = read_escape(false);
  } else {
    next();
    set = c == '.' ? complement(line_ends()) : CodePointSet{{c, c}};
  }
  set = normal_form(std::move(set));
  if (set.empty()) fail(begin, "what no character matches");
  return set;
}

CodePointSet RegexReader::read_class() {
  next();
  const bool is_negated = take('^');
  CodePointSet set;
  const auto read_item = [&]() -> CodePointSet {
    if (peek() == '\\') return read_escape(true);
    const char32_t c = next();
    return {{c, c}};
  };
  while (!take(']')) {
    const std::size_t begin = place_;
    const CodePointSet item = read_item();
    const bool is_range = peek() == '-' && peek(1) != ']';
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
  } else if (take('{')) {
    if (!is_digit(peek())) fail(begin, "a { without a number");
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
  if (peek(1) == '<') take('P');  // as Python writes it
  if (!take('<')) fail(begin, "a group of an unknown kind");
  if (peek() == '>' || is_digit(peek())) fail(begin, "a group without a proper name");
  while (!take('>')) {
    const char32_t c = is_over() ? kNoCharacter : next();
    const bool may_be_in_name = is_letter(c) || is_digit(c) || c == '_' || c == '$' || (c >= 0x80 && c != kNoCharacter);
    if (!may_be_in_name) fail(begin, "a group without a proper name");
  }
}

// Characters as bytes. Ways from the same node by the same bytes are one way, so that alternatives in their
// thousands are not as many places at once.
class CharacterPaths {
 public:
  CharacterPaths(GrammarBuilder& builder, RegexText text) : builder_(builder), text_(text) {}

  bool is_json() const { return text_ == RegexText::kJsonString; }

  // By any one character of the set; returns where that leads.
  GrammarNode add(GrammarNode from, const CodePointSet& set) {
    const std::string written = is_single(set) ? written_in_one_way(set.front().first) : std::string();
    if (written.empty()) {
      const GrammarNode to = builder_.add_node();
      add_between(from, set, to);
      return to;
    }
    for (const char byte : written) from = step(from, byte);
    return from;
  }

  void add_between(GrammarNode from, const CodePointSet& set, GrammarNode to) {
    CodePointPaths paths(builder_, from, to);
    for (const CodePointRange& range : set) {
      if (is_json()) {
        add_json(from, range, to, paths);
      } else {
        paths.add(range.first, range.last);
      }
    }
  }

 private:
  // The letter of an escape of two bytes; '\0' = it has none.
  static char short_escape(char32_t c) {
    for (const auto& [character, letter] : kControlLetters) {
      if (character == c) return static_cast<char>(letter);
    }
    return c == '"' || c == '\\' ? static_cast<char>(c) : '\0';
  }

  // Empty: there are several ways.
  std::string written_in_one_way(char32_t c) const {
    const char letter = is_json() ? short_escape(c) : '\0';
    if (letter != '\0') return {'\\', letter};
    std::string written;
    if (!is_json() || c >= ' ') append_utf8(c, written);
    return written;
  }

  void add_json(GrammarNode from, const CodePointRange& range, GrammarNode to, CodePointPaths& paths) {
    constexpr CodePointRange kUnescaped[] = {{' ', '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kMaxCodePoint}};
    for (const CodePointRange& part : kUnescaped) {
      const char32_t first = std::max(range.first, part.first), last = std::min(range.last, part.last);
      if (first <= last) paths.add(first, last);
    }
    for (char32_t c = range.first; c <= std::min<char32_t>(range.last, '\\'); ++c) {
      const bool is_escaped = c < ' ' || c == '"' || c == '\\';
      if (is_escaped) add_escape(from, c, to);
    }
  }

  void add_escape(GrammarNode from, char32_t c, GrammarNode to) {
    const auto add_byte = [&](GrammarNode last, char byte) {
      const auto value = static_cast<std::uint8_t>(byte);
      builder_.add_bytes(last, {value, value}, to);
    };
    const GrammarNode backslash = step(from, '\\');
    if (const char letter = short_escape(c); letter != '\0') return add_byte(backslash, letter);
    GrammarNode last = step(step(step(backslash, 'u'), '0'), '0');
    last = step(last, c < 0x10 ? '0' : '1');
    add_byte(last, "0123456789abcdef"[c & 0xF]);
    if ((c & 0xF) > 9) add_byte(last, "ABCDEF"[(c & 0xF) - 10]);
  }

  GrammarNode step(GrammarNode from, char byte) {
    const auto value = static_cast<std::uint8_t>(byte);
    const auto known = behind_.find({from, value});
    if (known != behind_.end()) return known->second;
    const GrammarNode to = builder_.add_node();
    builder_.add_bytes(from, {value, value}, to);
    behind_.emplace(std::pair(from, value), to);
    return to;
  }

  GrammarBuilder& builder_;
  const RegexText text_;
  std::map<std::pair<GrammarNode, std::uint8_t>, GrammarNode> behind_;
};

// Adds what it reads behind the node where that begins. What may be repeated begins with a node of its own, so that
// nothing leads back to one that others begin with, too.
class RegexParser {
 public:
  RegexParser(GrammarBuilder& builder, std::string_view expression, RegexText text)
      : builder_(builder), reader_(expression), paths_(builder, text), closing_(reader_.characters().size()) {
    pair_brackets();
  }

  Fragment add(bool is_whole) {
    whole_ = {builder_.add_node(), builder_.add_node()};
    add_outermost({is_whole, is_whole});
    CHECK(reader_.is_over(), reader_.place());
    return whole_;
  }

 private:
  struct Anchors {
    bool begin, end;  // nothing comes before, or after
  };

  void pair_brackets();
  std::size_t end_of_class(std::size_t begin) const;
  bool is_end_of_alternative(std::size_t place) const;
  bool is_group_alone() const;
  void add_outermost(Anchors anchors);
  void add_outermost_sequence(Anchors anchors);
  GrammarNode add_sequence(GrammarNode from);
  GrammarNode add_item(GrammarNode from);
  Fragment add_group();
  Fragment add_times(Fragment part, Repetitions times);
  GrammarNode add_any_characters();

  GrammarBuilder& builder_;
  RegexReader reader_;
  CharacterPaths paths_;
  std::vector<std::size_t> closing_;  // by the place of a ( that of its )
  Fragment whole_{};
  std::optional<GrammarNode> before_, after_;  // any characters there, made when needed
};

// Also bounds how deep the functions below call themselves.
void RegexParser::pair_brackets() {
  const std::u32string& characters = reader_.characters();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const char32_t c = characters[i];
    if (c == '\\') {
      ++i;
    } else if (c == '[') {
      i = end_of_class(i);
    } else if (c == '(') {
      if (open.size() == kMaxNesting) {
        reader_.fail(i, fmt::format("more than {} groups within each other", kMaxNesting));
      }
      open.push_back(i);
    } else if (c == ')') {
      if (open.empty()) reader_.fail(i, "a ) without its (");
      closing_[open.back()] = i;
      open.pop_back();
    }
  }
  if (!open.empty()) reader_.fail(open.back(), "a ( without its )");
}

std::size_t RegexParser::end_of_class(std::size_t begin) const {
  for (std::size_t i = begin + 1; i < reader_.characters().size(); ++i) {
    if (reader_.at(i) == '\\') {
      ++i;
    } else if (reader_.at(i) == ']') {
      return i;
    }
  }
  reader_.fail(begin, "a [ without its ]");
}

bool RegexParser::is_end_of_alternative(std::size_t place) const {
  const char32_t c = reader_.at(place);
  return c == kNoCharacter || c == '|' || c == ')';
}

// A group that is all there is of an alternative, but for a $.
bool RegexParser::is_group_alone() const {
  if (reader_.peek() != '(') return false;
  std::size_t behind = closing_[reader_.place()] + 1;
  while (reader_.at(behind) == '$') ++behind;
  return is_end_of_alternative(behind);
}

// Alternatives of the whole expression, which may stand in a group.
void RegexParser::add_outermost(Anchors anchors) {
  do {
    Anchors here = anchors;
    while (reader_.take('^')) here.begin = true;
    if (!is_group_alone()) {
      add_outermost_sequence(here);
      continue;
    }
    here.end |= reader_.at(closing_[reader_.place()] + 1) == '$';
    reader_.read_group_head();
    add_outermost(here);
    reader_.next();
    while (reader_.take('$')) continue;
  } while (reader_.take('|'));
}

void RegexParser::add_outermost_sequence(Anchors anchors) {
  if (!anchors.begin && !before_) {
    before_ = add_any_characters();
    builder_.add_empty(whole_.begin, *before_);
  }
  const GrammarNode last = add_sequence(anchors.begin ? whole_.begin : *before_);
  const std::size_t behind = reader_.place();
  while (reader_.take('$')) anchors.end = true;
  if (!is_end_of_alternative(reader_.place())) {
    reader_.fail(behind, kMisplacedEnd);
  }
  if (!anchors.end && !after_) {
    after_ = add_any_characters();
    builder_.add_empty(*after_, whole_.end);
  }
  builder_.add_empty(last, anchors.end ? whole_.end : *after_);
}

GrammarNode RegexParser::add_any_characters() {
  const GrammarNode node = builder_.add_node();
  paths_.add_between(node, complement({}), node);
  if (paths_.is_json()) builder_.set_free_characters(node, Grammar::kAnyNumber);
  return node;
}

GrammarNode RegexParser::add_sequence(GrammarNode from) {
  while (!is_end_of_alternative(reader_.place()) && reader_.peek() != '$') from = add_item(from);
  return from;
}

GrammarNode RegexParser::add_item(GrammarNode from) {
  Fragment part{};
  std::optional<Repetitions> times;
  if (reader_.peek() == '(') {
    part = add_group();
    times = reader_.read_quantifier();
  } else {
    const CodePointSet set = reader_.read_set();
    times = reader_.read_quantifier();
    if (!times) return paths_.add(from, set);
    part.begin = builder_.add_node();
    part.end = paths_.add(part.begin, set);
    const bool is_loop = times->min <= 1 && !times->max;
    if (is_loop && paths_.is_json() && has_all_unescaped(set)) {
      builder_.set_free_characters(part.begin, Grammar::kAnyNumber);
    }
  }
  if (times) part = add_times(part, *times);
  builder_.add_empty(from, part.begin);
  return part.end;
}

Fragment RegexParser::add_group() {
  reader_.read_group_head();
  const Fragment group{builder_.add_node(), builder_.add_node()};
  do {
    builder_.add_empty(add_sequence(group.begin), group.end);
    if (reader_.peek() == '$') reader_.fail(reader_.place(), kMisplacedEnd);
  } while (reader_.take('|'));
  reader_.next();
  return group;
}

Fragment RegexParser::add_times(Fragment part, Repetitions times) {
  if (times.max == 0) return builder_.nothing();
  if (times.min == 1 && times.max == 1) return part;
  if (times.min == 0 && times.max == 1) return builder_.optional(part);
  if (times.min == 0 && !times.max) return builder_.any_number(part);
  if (times.min == 1 && !times.max) {
    builder_.add_empty(part.end, part.begin);
    return part;
  }
  return builder_.repeat(builder_.rule(part), times);
}

}  // namespace

Fragment add_regex(GrammarBuilder& builder, std::string_view expression, RegexText text, bool is_whole) {
  return RegexParser(builder, expression, text).add(is_whole);
}

}  // namespace larder
