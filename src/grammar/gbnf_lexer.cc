#include "grammar/gbnf_lexer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

using Kind = GbnfToken::Kind;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
// Digits and - at its beginning, too: llama.cpp names rules by members, as in -id and 2fa.
bool is_of_name(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

GbnfToken GbnfLexer::next() {
  GbnfToken token;
  const bool is_first_of_all = at_ == 0;
  token.is_first_of_line = skip_space() || is_first_of_all;
  token.line = line_;
  if (at_ == text_.size()) return token;
  const char c = text_[at_];
  if (is_of_name(c) && c != '_') {
    read_name(token);
  } else if (c == '"') {
    read_literal(token);
  } else if (c == '[') {
    read_class(token);
  } else if (c == '{') {
    read_bounds(token);
  } else {
    token.text = c;
    constexpr std::string_view kSigns = "().|*+?";
    constexpr Kind kKinds[] = {Kind::kOpen,        Kind::kClose,       Kind::kClass,      Kind::kAlternative,
                               Kind::kRepetitions, Kind::kRepetitions, Kind::kRepetitions};
    const std::size_t sign = kSigns.find(c);
    if (sign == std::string_view::npos) fail_at_character();
    token.kind = kKinds[sign];
    if (c == '.') token.ranges = {{0, kMaxCodePoint}};
    if (c == '+') token.times.min = 1;
    if (c == '?') token.times.max = 1;
    ++at_;
  }
  return token;
}

void GbnfLexer::fail_at_character() const {
  const char c = text_[at_];
  if (c == '<' || c == '!') {
    throw_invalid("line {}: tokens in a grammar (as in <think>) are not supported; write their text in quotes", line_);
  }
  if (c == '\'') throw_invalid("line {}: a literal is written in double quotes, not in single ones", line_);
  // Lark's notation has % as well.
  if (c == ':' || c == '=' || c == '%') {
    throw_invalid("line {}: a rule is written as name ::= ..., and nothing else has a :, = or %; this is GBNF, in Lark's "
                  "notation all rules are name: ...",
                  line_);
  }
  throw_invalid("line {}: unexpected character '{}'", line_, printable(text_.substr(at_, 1)));
}

bool GbnfLexer::take(char c) {
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool GbnfLexer::skip_space() {
  const std::size_t first_line = line_;
  for (; at_ < text_.size(); ++at_) {
    if (text_[at_] == '#') at_ = std::min(text_.find('\n', at_), text_.size());
    if (at_ == text_.size()) break;
    const char c = text_[at_];
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n') break;
    line_ += c == '\n' ? 1 : 0;
  }
  return line_ != first_line;
}

void GbnfLexer::read_name(GbnfToken& token) {
  const std::size_t begin = at_;
  while (is_of_name(peek())) ++at_;
  token.kind = Kind::kName;
  token.text = text_.substr(begin, at_ - begin);
  constexpr std::string_view kDefines = "::=";
  const std::size_t sign = std::min(text_.find_first_not_of(" \t", at_), text_.size());
  if (!text_.substr(sign).starts_with(kDefines)) return;
  token.kind = Kind::kDefinition;
  at_ = sign + kDefines.size();
}

void GbnfLexer::read_literal(GbnfToken& token) {
  token.kind = Kind::kLiteral;
  ++at_;
  while (!take('"')) {
    if (at_ == text_.size()) throw_invalid("line {}: the literal that begins here has no end", token.line);
    append_utf8(read_character(), token.text);
  }
}

void GbnfLexer::read_class(GbnfToken& token) {
  const std::size_t begin = at_++;
  const bool is_opposite = take('^');
  while (!take(']')) {
    if (at_ == text_.size()) throw_invalid("line {}: the class that begins here has no end", token.line);
    const char32_t first = read_character();
    const bool is_range = peek() == '-' && !text_.substr(at_).starts_with("-]");
    if (is_range) ++at_;
    if (is_range && at_ == text_.size()) continue;
    const char32_t last = is_range ? read_character() : first;
    if (last < first) throw_invalid("line {}: the class has a range whose end lies before its beginning", line_);
    token.ranges.push_back({first, last});
  }
  token.kind = Kind::kClass;
  token.text = text_.substr(begin, at_ - begin);
  if (token.ranges.empty()) throw_invalid("line {}: the class is empty; write . for any character", token.line);
  token.ranges = is_opposite ? complement(std::move(token.ranges)) : normal_form(std::move(token.ranges));
  if (token.ranges.empty()) {
    throw_invalid("line {}: the class leaves no character that it would match", token.line);
  }
}

void GbnfLexer::read_bounds(GbnfToken& token) {
  const std::size_t begin = at_++;
  const auto skip_blanks = [this] {
    while (peek() == ' ' || peek() == '\t') ++at_;
  };
  skip_blanks();
  token.times.min = read_count();
  token.times.max = token.times.min;
  skip_blanks();
  if (take(',')) {
    skip_blanks();
    token.times.max.reset();
    if (peek() != '}') token.times.max = read_count();
    skip_blanks();
  }
  if (!take('}')) throw_invalid("line {}: repetitions are written {{m}}, {{m,}} or {{m,n}}", line_);
  token.kind = Kind::kRepetitions;
  token.text = text_.substr(begin, at_ - begin);
  if (token.times.max && token.times.min > *token.times.max) {
    throw_invalid("line {}: the repetitions {} have a least number above the greatest", line_, printable(token.text));
  }
}

std::uint32_t GbnfLexer::read_count() {
  if (!is_digit(peek())) throw_invalid("line {}: repetitions are written {{m}}, {{m,}} or {{m,n}}", line_);
  std::uint32_t count = 0;
  for (; is_digit(peek()); ++at_) {
    count = count * 10 + static_cast<std::uint32_t>(peek() - '0');
    if (count > GrammarBuilder::kMaxNodes) {
      throw Error(ErrorKind::kTooLarge,
                  fmt::format("line {}: more than {} repetitions cannot be counted; send a smaller "
                              "bound, or none",
                              line_, GrammarBuilder::kMaxNodes));
    }
  }
  return count;
}

// Of a literal or a class, at an end of neither.
char32_t GbnfLexer::read_character() {
  if (take('\\')) return read_escape();
  const Utf8Char c = read_utf8(text_, at_);
  if (!c.valid) throw_invalid("line {}: the text is not UTF-8 here", line_);
  line_ += c.code_point == '\n' ? 1 : 0;
  at_ += c.length;
  return c.code_point;
}

char32_t GbnfLexer::read_escape() {
  const char c = peek();
  if (at_ < text_.size()) ++at_;
  switch (c) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
      return static_cast<unsigned char>(c);
    case 'x':
      return read_code_point(2);
    case 'u':
      return read_code_point(4);
    case 'U':
      return read_code_point(8);
    default:
      throw_invalid(
          "line {}: unknown escape '\\{}'; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\xhh \\uhhhh \\Uhhhhhhhh",
          line_, printable(std::string_view(&c, c == '\0' ? 0 : 1)));
  }
}

char32_t GbnfLexer::read_code_point(std::size_t num_digits) {
  char32_t code_point = 0;
  for (std::size_t i = 0; i < num_digits; ++i, ++at_) {
    const int digit = hex_value(peek());
    if (digit < 0) throw_invalid("line {}: the escape takes {} hexadecimal digits", line_, num_digits);
    code_point = code_point << 4 | static_cast<char32_t>(digit);
  }
  const bool is_surrogate = code_point >= kSurrogates.first && code_point <= kSurrogates.last;
  if (is_surrogate || code_point > kMaxCodePoint) {
    throw_invalid("line {}: U+{:04X} is no character; write the code point of a whole one", line_,
                  static_cast<std::uint32_t>(code_point));
  }
  return code_point;
}

}  // namespace larder
