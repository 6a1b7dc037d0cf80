#include "grammar/grammar_text.h"

#include <algorithm>

#include "grammar/character_paths.h"
#include "grammar/gbnf.h"
#include "grammar/lark.h"

namespace larder {
namespace {

constexpr std::string_view kDefines = "::=";
constexpr std::string_view kOfNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

std::string_view from_first(std::string_view text, std::size_t place) { return text.substr(std::min(place, text.size())); }

bool is_gbnf(std::string_view text) {
  while (true) {
    text = from_first(text, text.find_first_not_of(" \t\r\n"));
    const bool is_comment = text.starts_with('#') || text.starts_with("//");
    if (!is_comment) break;
    text = from_first(text, text.find('\n'));
  }
  const bool is_modified = text.starts_with('%') || text.starts_with('?') || text.starts_with('!');
  const std::string_view behind = from_first(text, text.find_first_not_of(kOfNames));
  const std::string_view sign = from_first(behind, behind.find_first_not_of(" \t"));
  if (sign.starts_with(kDefines)) return true;
  const bool has_name = behind.size() < text.size() && !sign.empty() && !sign.starts_with(":=");
  const bool is_lark = is_modified || (has_name && std::string_view(":.[{").find(sign.front()) != std::string_view::npos);
  // One that is broken is of the notation whose sign it has.
  return !is_lark && text.find(kDefines) != std::string_view::npos;
}

}  // namespace

Fragment add_grammar(GrammarBuilder& builder, std::string_view text) {
  return is_gbnf(text) ? add_gbnf(builder, text) : add_lark(builder, text, TextForm::kPlain);
}

}  // namespace larder
