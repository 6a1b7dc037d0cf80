#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/printable.h"

namespace larder {
namespace {

constexpr std::uint8_t kWordlike = kLetter | kNumber | kSpace;

bool is_newline(char c) { return c == '\r' || c == '\n'; }

// The end of the run of characters that have one of `wanted`'s bits, from `begin`.
std::size_t end_of_run(const CharClasses& classes, std::string_view text, std::size_t begin,
                       std::uint8_t wanted) {
  while (begin < text.size()) {
    const ClassifiedChar c = classes.at(text, begin);
    if (!(c.classes & wanted)) break;
    begin += c.length;
  }
  return begin;
}

// The end of the run of characters that have none of `unwanted`'s bits.
std::size_t end_of_run_without(const CharClasses& classes, std::string_view text, std::size_t begin,
                               std::uint8_t unwanted) {
  while (begin < text.size()) {
    const ClassifiedChar c = classes.at(text, begin);
    if (c.classes & unwanted) break;
    begin += c.length;
  }
  return begin;
}

// 's|'t|'re|'ve|'m|'ll|'d; 0 = no match. The patterns that ignore case fold as Unicode does: the
// long s (U+017F) counts as an s.
std::size_t match_contraction(std::string_view text, bool ignore_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  if (ignore_case && text.substr(1, 2) == "\u017F") return 3;
  const auto letter = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// \s+(?!\S)|\s+ : of a run of spaces before something else, all but the last.
std::size_t match_spaces(const CharClasses& classes, std::string_view text) {
  std::size_t end = 0, last = 0;
  while (end < text.size()) {
    const ClassifiedChar c = classes.at(text, end);
    if (!(c.classes & kSpace)) return last > 0 ? last : end;
    last = end;
    end += c.length;
  }
  return end;
}

// GPT-2 (Radford et al. 2019):
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::size_t gpt2_word(const CharClasses& classes, std::string_view rest) {
  if (const std::size_t end = match_contraction(rest, false)) return end;
  const std::size_t begin = rest[0] == ' ' && rest.size() > 1 ? 1 : 0;
  const std::uint8_t first = classes.at(rest, begin).classes;
  if (first & kLetter) return end_of_run(classes, rest, begin, kLetter);
  if (first & kNumber) return end_of_run(classes, rest, begin, kNumber);
  if (!(first & kWordlike)) return end_of_run_without(classes, rest, begin, kWordlike);
  return match_spaces(classes, rest);
}

// \s*[\r\n]+ : a run of spaces up to its last line break; 0 = it has none.
std::size_t match_lines(const CharClasses& classes, std::string_view text) {
  std::size_t end = 0, after_newline = 0;
  while (end < text.size()) {
    const ClassifiedChar c = classes.at(text, end);
    if (!(c.classes & kSpace)) break;
    end += c.length;
    if (is_newline(text[end - 1])) after_newline = end;
  }
  return after_newline;
}

std::size_t match_number(const CharClasses& classes, std::string_view text, int max_digits) {
  std::size_t end = 0;
  for (int k = 0; k < max_digits && end < text.size(); ++k) {
    const ClassifiedChar c = classes.at(text, end);
    if (!(c.classes & kNumber)) break;
    end += c.length;
  }
  return end;
}

//  ?[^\s\p{L}\p{N}]+, and what of `behind` follows it; 0 = no match.
std::size_t match_symbols(const CharClasses& classes, std::string_view rest, std::string_view behind) {
  const std::size_t begin = rest[0] == ' ' && rest.size() > 1 ? 1 : 0;
  if (classes.at(rest, begin).classes & kWordlike) return 0;
  const std::size_t end = end_of_run_without(classes, rest, begin, kWordlike);
  return std::min(rest.find_first_not_of(behind, end), rest.size());
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}|
// ?[^\s\p{L}\p{N}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
std::size_t tiktoken_word(const CharClasses& classes, std::string_view rest, int max_digits) {
  if (const std::size_t end = match_contraction(rest, true)) return end;
  const ClassifiedChar first = classes.at(rest, 0);
  if (first.classes & kLetter) return end_of_run(classes, rest, 0, kLetter);
  if (first.classes & kNumber) return match_number(classes, rest, max_digits);
  if (!is_newline(rest[0])) {
    const std::size_t end = end_of_run(classes, rest, first.length, kLetter);
    if (end > first.length) return end;
  }
  if (const std::size_t end = match_symbols(classes, rest, "\r\n")) return end;
  if (const std::size_t end = match_lines(classes, rest)) return end;
  return match_spaces(classes, rest);
}

// U*l+ from begin on, U and l being kUpperLike and kLowerLike, which have letters without case in common: where no l
// follows all of U*, it gives back as far as its last one. 0 = no match.
std::size_t match_lower_ending(const CharClasses& classes, std::string_view text, std::size_t begin) {
  std::size_t end = begin, behind_last_lower = 0;
  while (end < text.size()) {
    const ClassifiedChar c = classes.at(text, end);
    if (!(c.classes & kUpperLike)) break;
    end += c.length;
    if (c.classes & kLowerLike) behind_last_lower = end;
  }
  const std::size_t behind_lower = end_of_run(classes, text, end, kLowerLike);
  return behind_lower > end ? behind_lower : behind_last_lower;
}

// U+l*; 0 = no match.
std::size_t match_upper_beginning(const CharClasses& classes, std::string_view text, std::size_t begin) {
  const std::size_t end = end_of_run(classes, text, begin, kUpperLike);
  return end > begin ? end_of_run(classes, text, end, kLowerLike) : 0;
}

// c standing for (?i:'s|'t|'re|'ve|'m|'ll|'d)? where words take contractions along, else for nothing,
// [^\r\n\p{L}\p{N}]?U*l+c|[^\r\n\p{L}\p{N}]?U+l*c|\p{N}{1,max_digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
std::size_t cased_word(const CharClasses& classes, std::string_view rest, bool takes_contraction, int max_digits) {
  const ClassifiedChar first = classes.at(rest, 0);
  const bool may_lead = !(first.classes & (kLetter | kNumber)) && !is_newline(rest[0]);
  for (const auto match : {match_lower_ending, match_upper_beginning}) {
    std::size_t end = may_lead ? match(classes, rest, first.length) : 0;
    if (end == 0) end = match(classes, rest, 0);
    if (end > 0) return end + (takes_contraction ? match_contraction(rest.substr(end), true) : 0);
  }
  if (first.classes & kNumber) return match_number(classes, rest, max_digits);
  if (const std::size_t end = match_symbols(classes, rest, "\r\n/")) return end;
  if (const std::size_t end = match_lines(classes, rest)) return end;
  return match_spaces(classes, rest);
}

// o200k's pattern.
std::size_t gpt4o_word(const CharClasses& classes, std::string_view rest) {
  return cased_word(classes, rest, true, 3);
}

// Mistral's since NeMo.
std::size_t tekken_word(const CharClasses& classes, std::string_view rest) {
  return cased_word(classes, rest, false, 1);
}

std::size_t qwen2_word(const CharClasses& classes, std::string_view rest) {
  return tiktoken_word(classes, rest, 1);
}

std::size_t llama3_word(const CharClasses& classes, std::string_view rest) {
  return tiktoken_word(classes, rest, 3);
}

// Every digit by itself; what lies between stays whole.
std::size_t single_digit(const CharClasses& classes, std::string_view rest) {
  const ClassifiedChar first = classes.at(rest, 0);
  if (first.classes & kDigit) return first.length;
  return end_of_run_without(classes, rest, 0, kDigit);
}

// \p{N}+
std::size_t number_run(const CharClasses& classes, std::string_view rest) {
  if (classes.at(rest, 0).classes & kNumber) return end_of_run(classes, rest, 0, kNumber);
  return end_of_run_without(classes, rest, 0, kNumber);
}

// [\p{P}\$\+<=>\^~\|]+
std::size_t punctuation_run(const CharClasses& classes, std::string_view rest) {
  constexpr std::string_view kSymbols = "$+<=>^~|";
  const auto is_wanted = [&](std::size_t i, const ClassifiedChar& c) {
    return (c.classes & kPunctuation) || kSymbols.find(rest[i]) != std::string_view::npos;
  };
  std::size_t end = 0;
  const bool wanted = is_wanted(0, classes.at(rest, 0));
  while (end < rest.size()) {
    const ClassifiedChar c = classes.at(rest, end);
    if (is_wanted(end, c) != wanted) break;
    end += c.length;
  }
  return end;
}

// [0-9][0-9][0-9]
std::size_t digit_triple(const CharClasses&, std::string_view rest) {
  const auto is_triple = [&](std::size_t i) {
    for (std::size_t k = i; k < i + 3; ++k)
      if (k >= rest.size() || rest[k] < '0' || rest[k] > '9') return false;
    return true;
  };
  if (is_triple(0)) return 3;
  std::size_t end = 1;
  while (end < rest.size() && !is_triple(end)) ++end;
  return end;
}

std::vector<PreTokenizer::Stage> stages_of(std::string_view name) {
  if (name == "gpt-2") return {gpt2_word};
  if (name == "smollm") return {single_digit, gpt2_word};
  if (name == "qwen2") return {qwen2_word};
  // dbrx: words that are tokens are merged like others.
  if (name == "llama-bpe" || name == "dbrx") return {llama3_word};
  if (name == "gpt-4o") return {gpt4o_word};
  if (name == "tekken") return {tekken_word};
  // Files converted before they named their pre-tokenizer; the pattern is llama.cpp's.
  if (name == "default") return {punctuation_run, gpt2_word, number_run, digit_triple};
  throw_invalid(
      "tokenizer.ggml.pre: '{}' is not supported; smollm, qwen2, llama-bpe, dbrx, gpt-4o, tekken, gpt-2 and default are",
      printable(name));
}

}  // namespace

PreTokenizer::PreTokenizer(std::string_view name) : stages_(stages_of(name)) {}

}  // namespace larder
