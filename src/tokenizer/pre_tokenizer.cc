#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <string>

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

struct TiktokenOptions {
  int max_digits = 3;
  std::string_view behind_symbols = "\r\n";
};

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}|
// ?[^\s\p{L}\p{N}]+[behind_symbols]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
std::size_t tiktoken_word(const CharClasses& classes, std::string_view rest, const TiktokenOptions& options) {
  if (const std::size_t end = match_contraction(rest, true)) return end;
  const ClassifiedChar first = classes.at(rest, 0);
  if (first.classes & kLetter) return end_of_run(classes, rest, 0, kLetter);
  if (first.classes & kNumber) return match_number(classes, rest, options.max_digits);
  if (!is_newline(rest[0])) {
    const std::size_t end = end_of_run(classes, rest, first.length, kLetter);
    if (end > first.length) return end;
  }
  if (const std::size_t end = match_symbols(classes, rest, options.behind_symbols)) return end;
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
  return tiktoken_word(classes, rest, {.max_digits = 1});
}

// Seed's, by ByteDance.
std::size_t seed_word(const CharClasses& classes, std::string_view rest) {
  return tiktoken_word(classes, rest, {.max_digits = 1, .behind_symbols = ""});
}

std::size_t llama3_word(const CharClasses& classes, std::string_view rest) {
  return tiktoken_word(classes, rest, {});
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

// The first part of rest that a step which isolates what match finds cuts off: what is found, or all before the first
// that is. match gives the end of what it finds at the start of a text, 0 where that is nothing, after a bounded number of
// characters.
template <class Match>
std::size_t isolate(const CharClasses& classes, std::string_view rest, const Match& match) {
  if (const std::size_t end = match(rest)) return end;
  std::size_t end = 0;
  do end += classes.at(rest, end).length;
  while (end < rest.size() && match(rest.substr(end)) == 0);
  return end;
}

// X+, X being the characters that is_wanted is true for; 0 = no match.
template <class IsWanted>
std::size_t match_run(std::string_view text, const IsWanted& is_wanted) {
  std::size_t end = 0;
  while (end < text.size()) {
    const Utf8Char c = read_utf8(text, end);
    if (!c.valid || !is_wanted(c.code_point)) break;
    end += c.length;
  }
  return end;
}

// \s?X+; 0 = no match. A space may be an X, too.
template <class IsWanted>
std::size_t match_spaced_run(const CharClasses& classes, std::string_view text, const IsWanted& is_wanted) {
  const ClassifiedChar first = classes.at(text, 0);
  const std::size_t run = first.classes & kSpace ? match_run(text.substr(first.length), is_wanted) : 0;
  return run > 0 ? first.length + run : match_run(text, is_wanted);
}

struct CodeRange {
  char32_t first, last;
};

// Letters that have cases, as DeepSeek's first tokenizers list them: in order.
constexpr CodeRange kCasedLetters[] = {
    {0x41, 0x5a}, {0x61, 0x7a}, {0xb5, 0xb5}, {0xc0, 0xd6}, {0xd8, 0xf6}, {0xf8, 0x1ba}, {0x1bc, 0x1bf},
    {0x1c4, 0x293}, {0x295, 0x2af}, {0x370, 0x373}, {0x376, 0x377}, {0x37b, 0x37d}, {0x37f, 0x37f},
    {0x386, 0x386}, {0x388, 0x38a}, {0x38c, 0x38c}, {0x38e, 0x3a1}, {0x3a3, 0x3f5}, {0x3f7, 0x481},
    {0x48a, 0x52f}, {0x531, 0x556}, {0x10a0, 0x10c5}, {0x13a0, 0x13f5}, {0x13f8, 0x13fd}, {0x1c90, 0x1cba},
    {0x1cbd, 0x1cbf}, {0x1d00, 0x1d2b}, {0x1d6b, 0x1d77}, {0x1d79, 0x1d9a}, {0x1e00, 0x1f15}, {0x1f18, 0x1f1d},
    {0x1f20, 0x1f45}, {0x1f48, 0x1f4d}, {0x1f50, 0x1f57}, {0x1f59, 0x1f59}, {0x1f5b, 0x1f5b}, {0x1f5d, 0x1f5d},
    {0x1f5f, 0x1f7d}, {0x1f80, 0x1fb4}, {0x1fb6, 0x1fbc}, {0x1fbe, 0x1fbe}, {0x1fc2, 0x1fc4}, {0x1fc6, 0x1fcc},
    {0x1fd0, 0x1fd3}, {0x1fd6, 0x1fdb}, {0x1fe0, 0x1fec}, {0x1ff2, 0x1ff4}, {0x1ff6, 0x1ffc}, {0x2102, 0x2102},
    {0x2107, 0x2107}, {0x210a, 0x2113}, {0x2115, 0x2115}, {0x2119, 0x211d}, {0x2124, 0x2124}, {0x2126, 0x2126},
    {0x2128, 0x2128}, {0x212a, 0x212d}, {0x212f, 0x2134}, {0x2139, 0x2139}, {0x213c, 0x213f}, {0x2145, 0x2149},
    {0x214e, 0x214e}, {0x2183, 0x2184}, {0x2c00, 0x2c7b}, {0x2c7e, 0x2ce4}, {0x2ceb, 0x2cee}, {0x2cf2, 0x2cf3},
    {0xa640, 0xa66d}, {0xa680, 0xa69b}, {0xa722, 0xa76f}, {0xa771, 0xa787}, {0xa78b, 0xa78e}, {0xab70, 0xabbf},
    {0xfb00, 0xfb06}, {0xfb13, 0xfb17}, {0xff21, 0xff3a}, {0xff41, 0xff5a}, {0x10400, 0x1044f},
    {0x104b0, 0x104d3}, {0x104d8, 0x104fb}, {0x10c80, 0x10cb2}, {0x10cc0, 0x10cf2}, {0x118a0, 0x118df},
    {0x1e900, 0x1e943}};

bool is_cased_letter(char32_t c) {
  const CodeRange* range = std::ranges::lower_bound(kCasedLetters, c, {}, &CodeRange::last);
  return range != std::end(kCasedLetters) && c >= range->first;
}

// [!-/:-~！-／：-～‘-‟　-。], which has the letters of ASCII and those of full width in it
bool is_listed_punctuation(char32_t c) {
  constexpr CodeRange kListed[] = {{'!', '/'},         {':', '~'},         {0xff01, 0xff0f},
                                   {0xff1a, 0xff5e}, {0x2018, 0x201f}, {0x3000, 0x3002}};
  return std::ranges::any_of(kListed, [&](const CodeRange& range) { return c >= range.first && c <= range.last; });
}

// [\r\n]
std::size_t line_break(const CharClasses&, std::string_view rest) {
  return is_newline(rest[0]) ? 1 : std::min(rest.find_first_of("\r\n"), rest.size());
}

std::size_t spaced_cased_letters(const CharClasses& classes, std::string_view rest) {
  return isolate(classes, rest, [&](std::string_view text) { return match_spaced_run(classes, text, is_cased_letter); });
}

std::size_t spaced_listed_punctuation(const CharClasses& classes, std::string_view rest) {
  return isolate(classes, rest, [&](std::string_view text) { return match_spaced_run(classes, text, is_listed_punctuation); });
}

// \s?\p{L}+
std::size_t spaced_letters(const CharClasses& classes, std::string_view rest) {
  const auto is_letter = [&](char32_t c) { return (classes.of(c) & kLetter) != 0; };
  return isolate(classes, rest, [&](std::string_view text) { return match_spaced_run(classes, text, is_letter); });
}

// \s?\p{P}+
std::size_t spaced_punctuation(const CharClasses& classes, std::string_view rest) {
  const auto is_punctuation = [&](char32_t c) { return (classes.of(c) & kPunctuation) != 0; };
  return isolate(classes, rest, [&](std::string_view text) { return match_spaced_run(classes, text, is_punctuation); });
}

// \s+$
std::size_t spaces_at_end(const CharClasses& classes, std::string_view rest) {
  std::size_t behind_others = 0;
  for (std::size_t end = 0; end < rest.size();) {
    const ClassifiedChar c = classes.at(rest, end);
    end += c.length;
    if (!(c.classes & kSpace)) behind_others = end;
  }
  return behind_others > 0 ? behind_others : rest.size();
}

// [一-龥ࠀ-一가-퟿]+ : most of what lies between the letters with cases and them, too
std::size_t wide_run(const CharClasses& classes, std::string_view rest) {
  const auto is_wide = [](char32_t c) { return (c >= 0x800 && c <= 0x9fa5) || (c >= 0xac00 && c <= 0xd7ff); };
  return isolate(classes, rest, [&](std::string_view text) { return match_run(text, is_wide); });
}

// \p{N}{1,3}
std::size_t numbers_by_three(const CharClasses& classes, std::string_view rest) {
  return isolate(classes, rest, [&](std::string_view text) { return match_number(classes, text, 3); });
}

// [一-龥぀-ゟ゠-ヿ]+
std::size_t han_and_kana(const CharClasses& classes, std::string_view rest) {
  const auto is_wanted = [](char32_t c) { return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff); };
  return isolate(classes, rest, [&](std::string_view text) { return match_run(text, is_wanted); });
}

bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

// [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+ ; 0 = no match
std::size_t match_deepseek3(const CharClasses& classes, std::string_view text) {
  constexpr std::uint8_t kSigns = kPunctuation | kSymbol;
  // A mark is what may be both, and no letter.
  const auto is_letter_or_mark = [&](char32_t c) {
    return (classes.of(c) & kLetter) || (classes.of(c) & (kUpperLike | kLowerLike)) == (kUpperLike | kLowerLike);
  };
  const ClassifiedChar first = classes.at(text, 0);
  if (first.length == 1 && (first.classes & kSigns) && text.size() > 1 && is_ascii_letter(text[1]))
    return 1 + match_run(text.substr(1), [](char32_t c) { return c < 0x80 && is_ascii_letter(static_cast<char>(c)); });
  if (!(first.classes & (kLetter | kSigns)) && !is_newline(text[0]))
    if (const std::size_t end = match_run(text.substr(first.length), is_letter_or_mark)) return first.length + end;
  if (const std::size_t end = match_run(text, is_letter_or_mark)) return end;
  const std::size_t begin = text[0] == ' ' ? 1 : 0;
  if (const std::size_t end = end_of_run(classes, text, begin, kSigns); end > begin)
    return std::min(text.find_first_not_of("\r\n", end), text.size());
  if (const std::size_t end = match_lines(classes, text)) return end;
  return match_spaces(classes, text);
}

std::size_t deepseek3_word(const CharClasses& classes, std::string_view rest) {
  return isolate(classes, rest, [&](std::string_view text) { return match_deepseek3(classes, text); });
}

// Names are those of tokenizer.ggml.pre.
constexpr PreTokenizerKind kKinds[] = {
    {.names = {"gpt-2", "exaone4"}, .stages = {gpt2_word}},
    {.names = {"smollm", "refact"}, .stages = {single_digit, gpt2_word}},
    {.names = {"qwen2", "deepseek-r1-qwen"}, .stages = {qwen2_word}, .normalizes = true},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"}, .stages = {llama3_word}, .takes_whole_words = true,
     .adds_bos = true},
    // Both GLM's own: its merges do not reach every token, and it looks a word up before it merges. Its template writes
    // what stands before a text.
    {.names = {"glm4", "chatglm-bpe"}, .stages = {llama3_word}, .takes_whole_words = true},
    {.names = {"dbrx", "smaug-bpe"}, .stages = {llama3_word}},
    // Its merges reach every token.
    {.names = {"gpt-4o"}, .stages = {gpt4o_word}},
    {.names = {"tekken"}, .stages = {tekken_word}, .takes_whole_words = true, .adds_bos = true},
    {.names = {"seed-coder"}, .stages = {seed_word}},
    {.names = {"deepseek-llm"},
     .stages = {line_break, spaced_cased_letters, spaced_listed_punctuation, spaces_at_end, wide_run, single_digit}},
    {.names = {"deepseek-coder"}, .stages = {line_break, spaced_letters, spaced_punctuation, wide_run, single_digit}},
    {.names = {"deepseek-v3"}, .stages = {numbers_by_three, han_and_kana, deepseek3_word}},
    // Files converted before they named their pre-tokenizer; the pattern is llama.cpp's.
    {.names = {"default"}, .stages = {punctuation_run, gpt2_word, number_run, digit_triple}},
};

}  // namespace

const PreTokenizerKind* find_pre_tokenizer(std::string_view name) {
  const auto* const kind = std::ranges::find_if(
      kKinds, [&](const PreTokenizerKind& known) { return !name.empty() && std::ranges::count(known.names, name) > 0; });
  return kind == std::end(kKinds) ? nullptr : kind;
}

const PreTokenizerKind& pre_tokenizer(std::string_view name) {
  if (const PreTokenizerKind* kind = find_pre_tokenizer(name)) return *kind;
  std::string all;
  for (const PreTokenizerKind& kind : kKinds) all += fmt::format("{}{}", all.empty() ? "" : ", ", kind.names[0]);
  throw_invalid("tokenizer.ggml.pre: '{}' is not supported; these are: {}", printable(name), all);
}

PreTokenizer::PreTokenizer(std::string_view name) {
  for (const PreTokenizerStage stage : pre_tokenizer(name).stages)
    if (stage) stages_.push_back(stage);
}

}  // namespace larder
