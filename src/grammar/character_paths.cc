#include "grammar/character_paths.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace larder {
namespace {

// The letter of an escape of two bytes; '\0' = it has none.
char short_escape(char32_t c) {
  for (const auto& [character, letter] : kControlLetters) {
    if (character == c) return static_cast<char>(letter);
  }
  return c == '"' || c == '\\' ? static_cast<char>(c) : '\0';
}

}  // namespace

bool is_single(const CodePointSet& set) { return set.size() == 1 && set.front().first == set.front().last; }

bool has_all_unescaped(CodePointSet set) {
  set.insert(set.end(), {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return complement(std::move(set)).empty();
}

CodePointSet in_both_cases(CodePointSet set) {
  constexpr char32_t kBetweenCases = 'a' - 'A';
  CodePointSet others;
  for (const auto& [first, last] : set) {
    const auto add = [&](char32_t a, char32_t z, auto other_case) {
      if (std::max(first, a) <= std::min(last, z)) others.push_back({other_case(std::max(first, a)), other_case(std::min(last, z))});
    };
    add('a', 'z', [](char32_t c) { return c - kBetweenCases; });
    add('A', 'Z', [](char32_t c) { return c + kBetweenCases; });
  }
  set.insert(set.end(), others.begin(), others.end());
  return normal_form(std::move(set));
}

GrammarNode CharacterPaths::add(GrammarNode from, const CodePointSet& set) {
  const std::string written = is_single(set) ? written_in_one_way(set.front().first) : std::string();
  if (written.empty()) {
    const GrammarNode to = builder_.add_node();
    add_between(from, set, to);
    return to;
  }
  for (const char byte : written) from = step(from, byte);
  return from;
}

void CharacterPaths::add_between(GrammarNode from, const CodePointSet& set, GrammarNode to) {
  CodePointPaths paths(builder_, from, to);
  for (const CodePointRange& range : set) {
    if (is_json()) {
      add_json(from, range, to, paths);
    } else {
      paths.add(range.first, range.last);
    }
  }
}

// Empty: there are several ways.
std::string CharacterPaths::written_in_one_way(char32_t c) const {
  const char letter = is_json() ? short_escape(c) : '\0';
  if (letter != '\0') return {'\\', letter};
  std::string written;
  if (!is_json() || c >= ' ') append_utf8(c, written);
  return written;
}

void CharacterPaths::add_json(GrammarNode from, const CodePointRange& range, GrammarNode to, CodePointPaths& paths) {
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

void CharacterPaths::add_escape(GrammarNode from, char32_t c, GrammarNode to) {
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

GrammarNode CharacterPaths::step(GrammarNode from, char byte) {
  const auto value = static_cast<std::uint8_t>(byte);
  const auto known = behind_.find({from, value});
  if (known != behind_.end()) return known->second;
  const GrammarNode to = builder_.add_node();
  builder_.add_bytes(from, {value, value}, to);
  behind_.emplace(std::pair(from, value), to);
  return to;
}

}  // namespace larder
