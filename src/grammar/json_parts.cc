#include "grammar/json_parts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "grammar/json_numbers.h"
#include "grammar/utf8_ranges.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

constexpr std::pair<std::uint8_t, int> kIndentation[] = {{' ', 16}, {'\t', 8}};  // at a line's beginning, at most
constexpr std::array<ByteRange, 3> kPlainCharacters = {{{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x7F}}};

std::uint16_t num_free(std::uint32_t num_characters) {
  return static_cast<std::uint16_t>(std::min<std::uint32_t>(num_characters, Grammar::kAnyNumber - 1));
}

// Of JSON's escape that begins there.
std::size_t escape_length(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  return std::min<std::size_t>(rest.size(), rest.substr(1).starts_with('u') ? 6 : 2);
}

}  // namespace

Fragment JsonParts::space() {
  if (spacing_ != JsonSpacing::kAny) return builder_.nothing();
  if (!space_) {
    const Fragment part{builder_.add_node(), builder_.add_node()};
    builder_.add_empty(part.begin, part.end);
    builder_.add_bytes(part.begin, {' ', ' '}, part.end);
    const GrammarNode line = builder_.add_node();
    builder_.add_bytes(part.begin, {'\n', '\n'}, line);
    builder_.add_empty(line, part.end);
    for (const auto& [blank, most] : kIndentation) {
      GrammarNode last = line;
      for (int i = 0; i < most; ++i) {
        const GrammarNode next = builder_.add_node();
        builder_.add_bytes(last, {blank, blank}, next);
        builder_.add_empty(next, part.end);
        last = next;
      }
    }
    space_ = builder_.rule(part);
  }
  return builder_.call(*space_);
}

Fragment JsonParts::colon() {
  if (spacing_ != JsonSpacing::kAny) return builder_.text(spacing_ == JsonSpacing::kNone ? ":" : ": ");
  return builder_.sequence({builder_.text(":"), builder_.optional(builder_.text(" "))});
}

Fragment JsonParts::comma() {
  if (spacing_ == JsonSpacing::kOneBlank) return builder_.text(", ");
  return builder_.sequence({builder_.text(","), space()});
}

const GrammarRule& JsonParts::value_rule() {
  if (value_) return *value_;
  value_ = builder_.declare();
  builder_.define(*value_, builder_.choice({any_object(), any_array(), any_string(), add_json_number(builder_, {}),
                                            builder_.text("true"), builder_.text("false"), builder_.text("null")}));
  return *value_;
}

Fragment JsonParts::any_value() { return builder_.call(value_rule()); }

Fragment JsonParts::any_array() { return array_of({.first = {}, .others = value_rule()}); }

Fragment JsonParts::any_object() {
  const GrammarRule& value = value_rule();
  const auto member = [&] { return builder_.sequence({any_string(), colon(), builder_.call(value)}); };
  const auto next = builder_.sequence({comma(), member()});
  const auto members = builder_.sequence({member(), builder_.any_number(next), space()});
  return builder_.sequence({builder_.text("{"), space(), builder_.optional(members), builder_.text("}")});
}

const GrammarRule& JsonParts::escape_rule() {
  if (escape_) return *escape_;
  const GrammarNode begin = builder_.add_node(), escaped = builder_.add_node(), end = builder_.add_node();
  builder_.add_bytes(begin, {'\\', '\\'}, escaped);
  for (const char letter : std::string_view("\"\\/bfnrt")) {
    const auto byte = static_cast<std::uint8_t>(letter);
    builder_.add_bytes(escaped, {byte, byte}, end);
  }
  const auto add_digit = [this](GrammarNode from, std::initializer_list<ByteRange> digits, GrammarNode to) {
    for (const ByteRange& range : digits) builder_.add_bytes(from, range, to);
  };
  const std::initializer_list<ByteRange> any = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
  const GrammarNode unicode = builder_.add_node(), low = builder_.add_node();
  std::array<GrammarNode, 3> digits{builder_.add_node(), builder_.add_node(), builder_.add_node()};
  builder_.add_bytes(escaped, {'u', 'u'}, unicode);
  add_digit(unicode, {{'0', '9'}, {'a', 'c'}, {'A', 'C'}, {'e', 'f'}, {'E', 'F'}}, digits[0]);
  add_digit(digits[0], any, digits[1]);
  add_digit(digits[1], any, digits[2]);
  add_digit(digits[2], any, end);
  // Halves of a pair stand together or not at all.
  const GrammarNode d = builder_.add_node();
  add_digit(unicode, {{'d', 'd'}, {'D', 'D'}}, d);
  add_digit(d, {{'0', '7'}}, digits[1]);
  add_digit(d, {{'8', '9'}, {'a', 'b'}, {'A', 'B'}}, low);
  const auto any_digit = [&] { return builder_.bytes(any); };
  const Fragment pair =
      builder_.sequence({any_digit(), any_digit(), builder_.text("\\u"), builder_.bytes({{'d', 'd'}, {'D', 'D'}}),
                         builder_.bytes({{'c', 'f'}, {'C', 'F'}}), any_digit(), any_digit()});
  builder_.add_empty(low, pair.begin);
  builder_.add_empty(pair.end, end);
  escape_ = builder_.rule({begin, end});
  return *escape_;
}

const GrammarRule& JsonParts::long_character_rule() {
  if (long_character_) return *long_character_;
  const Fragment part{builder_.add_node(), builder_.add_node()};
  add_code_points(builder_, part.begin, 0x80, 0x10FFFF, part.end);
  long_character_ = builder_.rule(part);
  return *long_character_;
}

void JsonParts::add_character(GrammarNode from, GrammarNode to) {
  for (const ByteRange& range : kPlainCharacters) builder_.add_bytes(from, range, to);
  builder_.add_call(from, escape_rule(), to);
  builder_.add_call(from, long_character_rule(), to);
}

GrammarNode JsonParts::add_characters() {
  const GrammarNode node = builder_.add_node();
  add_character(node, node);
  builder_.set_free_characters(node, Grammar::kAnyNumber);
  return node;
}

Fragment JsonParts::quoted(Fragment part) {
  return builder_.sequence({builder_.text("\""), part, builder_.text("\"")});
}

Fragment JsonParts::any_string() {
  const GrammarNode characters = add_characters();
  const Fragment begin = builder_.text("\"");
  builder_.add_empty(begin.end, characters);
  const GrammarNode end = builder_.add_node();
  builder_.add_bytes(characters, {'"', '"'}, end);
  return {begin.begin, end};
}

Fragment JsonParts::string_of_length(Repetitions length) {
  CHECK(!length.max || length.min <= *length.max, length.min);
  const Fragment begin = builder_.text("\"");
  const GrammarNode end = builder_.add_node();
  GrammarNode node = begin.end;
  const std::uint32_t num_nodes = length.max.value_or(length.min);
  for (std::uint32_t i = 0; i < num_nodes; ++i) {
    if (i >= length.min) builder_.add_bytes(node, {'"', '"'}, end);
    builder_.set_free_characters(node, length.max ? num_free(num_nodes - i) : Grammar::kAnyNumber);
    const GrammarNode next = builder_.add_node();
    add_character(node, next);
    node = next;
  }
  if (!length.max) {
    const GrammarNode characters = add_characters();
    builder_.add_empty(node, characters);
    node = characters;
  }
  builder_.add_bytes(node, {'"', '"'}, end);
  return {begin.begin, end};
}

JsonParts::Letters JsonParts::add_letters(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  Letters letters{builder_.add_node(), {}, {}};
  letters.next[letters.begin];
  std::vector<GrammarNode> path{letters.begin};
  std::string_view last;
  for (const std::string& text : texts) {
    const auto shared = static_cast<std::size_t>(std::ranges::mismatch(last, text).in1 - last.begin());
    path.resize(shared + 1);
    for (std::size_t i = shared; i < text.size(); ++i) {
      const GrammarNode next = builder_.add_node();
      const auto byte = static_cast<std::uint8_t>(text[i]);
      builder_.add_bytes(path.back(), {byte, byte}, next);
      path.push_back(next);
    }
    std::size_t length = 0;
    for (std::size_t first = 0; first < text.size(); first += length) {
      const bool is_escape = text[first] == '\\';
      const Utf8Char c = read_utf8(text, first);
      length = is_escape ? escape_length(text, first) : c.length;
      if (first + length <= shared) continue;
      CodePointSet& next = letters.next[path[first]];
      if (!is_escape) next.push_back({c.code_point, c.code_point});
    }
    letters.next[path.back()];
    if (letters.ends.empty() || letters.ends.back() != path.back()) letters.ends.push_back(path.back());
    last = text;
  }
  return letters;
}

Fragment JsonParts::one_of(std::vector<std::string> texts) {
  CHECK(!texts.empty());
  const Letters letters = add_letters(std::move(texts));
  const GrammarNode end = builder_.add_node();
  for (const GrammarNode node : letters.ends) builder_.add_empty(node, end);
  return {letters.begin, end};
}

Fragment JsonParts::other_string(const std::vector<std::string>& texts) {
  const Letters letters = add_letters(texts);
  const Fragment begin = builder_.text("\"");
  const GrammarNode characters = add_characters(), end = builder_.add_node();
  builder_.add_empty(begin.end, letters.begin);
  builder_.add_bytes(characters, {'"', '"'}, end);
  for (const auto& [node, next] : letters.next) {
    // Another character than the texts go on with. No escape, which may stand for one: of what is left out, nothing is
    // missed.
    CodePointSet taken{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    taken.insert(taken.end(), next.begin(), next.end());
    const bool has_long = std::ranges::any_of(next, [](const CodePointRange& range) { return range.last >= 0x80; });
    if (!has_long) taken.push_back({0x80, kMaxCodePoint});
    CodePointPaths others(builder_, node, characters);
    for (const CodePointRange& range : complement(std::move(taken))) others.add(range.first, range.last);
    if (!has_long) builder_.add_call(node, long_character_rule(), characters);
    if (!std::ranges::binary_search(letters.ends, node)) builder_.add_bytes(node, {'"', '"'}, end);
  }
  return {begin.begin, end};
}

Fragment JsonParts::array_of(const Items& items) {
  const auto num_first = static_cast<std::uint32_t>(items.first.size());
  std::optional<std::uint32_t> most = items.count.max;
  if (!items.others) most = std::min(most.value_or(num_first), num_first);
  CHECK(!most || items.count.min <= *most, items.count.min);
  const Fragment begin = builder_.sequence({builder_.text("["), space()});
  const GrammarNode end = builder_.add_node();
  if (items.count.min == 0) builder_.add_bytes(begin.end, {']', ']'}, end);
  // Without a bound the last one comes as often as wanted.
  const std::uint32_t num_places = most ? *most : std::max({items.count.min, num_first + 1, 1u});
  GrammarNode place = begin.end;
  for (std::uint32_t i = 0; i < num_places; ++i) {
    const GrammarNode behind = builder_.add_node();
    builder_.add_call(place, i < num_first ? items.first[i] : *items.others, behind);
    if (i + 1 >= items.count.min) {
      const Fragment blank = space();
      builder_.add_empty(behind, blank.begin);
      builder_.add_bytes(blank.end, {']', ']'}, end);
    }
    const bool is_last = i + 1 == num_places;
    if (is_last && most) break;
    const Fragment next = comma();
    builder_.add_empty(behind, next.begin);
    if (is_last) {
      builder_.add_call(next.end, *items.others, behind);
    } else {
      place = next.end;
    }
  }
  return {begin.begin, end};
}

}  // namespace larder
