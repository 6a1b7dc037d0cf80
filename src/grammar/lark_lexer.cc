#include "grammar/lark_lexer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "grammar/code_points.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

using Kind = LarkToken::Kind;

constexpr char32_t kFirstLowSurrogate = 0xDC00;
constexpr std::size_t kMaxJsonDepth = 64;  // as of a request

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class LarkLexer {
 public:
  explicit LarkLexer(std::string_view text) : text_(text) {}

  LarkToken next();

 private:
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts_with(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool skip_space();  // and comments; whether a line ended
  void read_sign(LarkToken& token);
  void read_name(LarkToken& token);
  void read_number(LarkToken& token);
  void read_directive(LarkToken& token);
  std::string read_braces(const LarkToken& token);
  void read_string(LarkToken& token);
  char32_t read_escape();
  char32_t read_utf16();
  char32_t read_hex(std::size_t num_digits);
  char32_t checked(char32_t c) const;
  void read_regex(LarkToken& token);
  // Those that there are; what else touches a string is the next word.
  void read_flags(LarkToken& token);

  const std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
};

LarkToken LarkLexer::next() {
  LarkToken token;
  const bool is_first_of_all = at_ == 0;
  token.is_first_of_line = skip_space() || is_first_of_all;
  token.line = line_;
  if (at_ == text_.size()) return token;
  const char c = peek();
  if (is_letter(c) || c == '_') {
    read_name(token);
  } else if (is_digit(c) || ((c == '+' || c == '-') && is_digit(peek(1)))) {
    read_number(token);
  } else if (c == '"') {
    read_string(token);
  } else if (c == '/') {
    read_regex(token);
  } else if (c == '%') {
    read_directive(token);
  } else {
    read_sign(token);
  }
  return token;
}

bool LarkLexer::skip_space() {
  bool begins_line = false;
  for (; at_ < text_.size(); ++at_) {
    if (peek() == '#' || starts_with("//")) at_ = std::min(text_.find('\n', at_), text_.size());
    if (at_ == text_.size()) break;
    const bool goes_on = starts_with("\\\n");
    if (goes_on) ++at_;
    const char c = peek();
    if (c != ' ' && c != '\t' && c != '\r' && c != '\n' && c != '\f') break;
    line_ += c == '\n' ? 1 : 0;
    begins_line |= c == '\n' && !goes_on;
  }
  return begins_line;
}

void LarkLexer::read_sign(LarkToken& token) {
  token.kind = Kind::kSign;
  for (const std::string_view sign : {"->", "..", "::="}) {
    if (!starts_with(sign)) continue;
    if (sign == "::=") throw_invalid("line {}: in Lark's notation a rule is written as name: ..., and not with ::=", line_);
    token.text = sign;
    at_ += sign.size();
    return;
  }
  const char c = peek();
  if (c == '\'') throw_invalid("line {}: a string is written in double quotes, not in single ones", line_);
  if (std::string_view("()[]{}|?*+~:.,=!@&<>").find(c) == std::string_view::npos || c == '\0')
    throw_invalid("line {}: unexpected character '{}'", line_, printable(text_.substr(at_, 1)));
  token.text = c;
  ++at_;
}

void LarkLexer::read_name(LarkToken& token) {
  const std::size_t begin = at_;
  while (is_letter(peek()) || is_digit(peek()) || peek() == '_') ++at_;
  token.kind = Kind::kName;
  token.text = text_.substr(begin, at_ - begin);
}

void LarkLexer::read_number(LarkToken& token) {
  const std::size_t begin = at_++;
  while (is_digit(peek())) ++at_;
  token.kind = Kind::kNumber;
  token.text = text_.substr(begin, at_ - begin);
}

void LarkLexer::read_directive(LarkToken& token) {
  const std::size_t begin = at_++;
  while (is_letter(peek()) || peek() == '_') ++at_;
  token.kind = Kind::kDirective;
  token.text = text_.substr(begin, at_ - begin);
  if (token.text == "%json" || token.text == "%llguidance") token.json = read_braces(token);
}

std::string LarkLexer::read_braces(const LarkToken& token) {
  skip_space();
  const std::size_t begin = at_;
  std::size_t num_open = 0;
  bool is_in_string = false;
  do {
    const char c = peek();
    if (at_ >= text_.size() || (at_ == begin && c != '{')) {
      throw_invalid("line {}: behind {} an object of JSON is expected, with its }}", token.line, token.text);
    }
    line_ += c == '\n' ? 1 : 0;
    if (is_in_string) {
      if (c == '\\') ++at_;
      is_in_string = c != '"';
    } else {
      is_in_string = c == '"';
      num_open += c == '{' || c == '[' ? 1 : 0;
      num_open -= c == '}' || c == ']' ? 1 : 0;
    }
    if (num_open > kMaxJsonDepth)
      throw_invalid("line {}: behind {} arrays and objects are nested deeper than {} levels; make it flatter", token.line, token.text, kMaxJsonDepth);
    ++at_;
  } while (num_open > 0);
  return std::string(text_.substr(begin, at_ - begin));
}

void LarkLexer::read_string(LarkToken& token) {
  token.kind = Kind::kString;
  ++at_;
  while (peek() != '"') {
    if (at_ >= text_.size() || peek() == '\n') throw_invalid("line {}: the string that begins here has no end in its line", line_);
    if (peek() == '\\') {
      append_utf8(read_escape(), token.text);
      continue;
    }
    const Utf8Char c = read_utf8(text_, at_);
    if (!c.valid) throw_invalid("line {}: the text is not UTF-8", line_);
    token.text += text_.substr(at_, c.length);
    at_ += c.length;
  }
  ++at_;
  read_flags(token);
}

char32_t LarkLexer::read_escape() {
  const char c = peek(1);
  constexpr std::string_view kLetters = "ntrf\\\"/";
  constexpr std::string_view kMeaning = "\n\t\r\f\\\"/";
  at_ += 2;
  if (const std::size_t place = kLetters.find(c); place != std::string_view::npos && c != '\0')
    return static_cast<unsigned char>(kMeaning[place]);
  if (c == 'x') return read_hex(2);
  if (c == 'u') return checked(read_utf16());
  if (c == 'U') return checked(read_hex(8));
  const std::size_t begin = at_ - 2;
  throw_invalid("line {}: unknown escape '{}' in a string; a backslash is written \\\\", line_, printable(text_.substr(begin, 2)));
}

// Two halves of a pair, written one after the other as JSON does, are one character.
char32_t LarkLexer::read_utf16() {
  const char32_t first = read_hex(4);
  const bool may_be_pair = first >= kSurrogates.first && first < kFirstLowSurrogate && starts_with("\\u");
  if (!may_be_pair) return first;
  at_ += 2;
  const char32_t second = read_hex(4);
  if (second < kFirstLowSurrogate || second > kSurrogates.last) return first;
  return 0x10000 + ((first - kSurrogates.first) << 10) + (second - kFirstLowSurrogate);
}

char32_t LarkLexer::read_hex(std::size_t num_digits) {
  char32_t value = 0;
  for (std::size_t i = 0; i < num_digits; ++i, ++at_) {
    const int digit = hex_value(peek());
    if (digit < 0) throw_invalid("line {}: the escape takes {} hexadecimal digits", line_, num_digits);
    value = value << 4 | static_cast<char32_t>(digit);
  }
  return value;
}

char32_t LarkLexer::checked(char32_t c) const {
  if (c > kMaxCodePoint || (c >= kSurrogates.first && c <= kSurrogates.last))
    throw_invalid("line {}: U+{:04X} is no character", line_, static_cast<std::uint32_t>(c));
  return c;
}

// As it is written: the expression has escapes of its own.
void LarkLexer::read_regex(LarkToken& token) {
  const std::size_t begin = ++at_;
  std::size_t num_lines = 0;
  for (; peek() != '/'; ++at_) {
    if (at_ >= text_.size()) throw_invalid("line {}: the expression that begins here has no / at its end", line_);
    if (peek() == '\\') ++at_;
    num_lines += peek() == '\n' ? 1 : 0;
  }
  token.kind = Kind::kRegex;
  token.text = text_.substr(begin, at_ - begin);
  ++at_;
  read_flags(token);
  if (num_lines > 0 && token.flags.find('x') == std::string::npos) {
    throw_invalid("line {}: the expression that begins here has no / in its line; only with the flag x it may go on", line_);
  }
  line_ += num_lines;
}

void LarkLexer::read_flags(LarkToken& token) {
  const std::string_view known = token.kind == Kind::kString ? "i" : "imsux";
  const std::size_t begin = at_;
  while (at_ < text_.size() && known.find(peek()) != std::string_view::npos) ++at_;
  token.flags = text_.substr(begin, at_ - begin);
}

}  // namespace

std::vector<LarkToken> lark_tokens(std::string_view text) {
  LarkLexer lexer(text);
  std::vector<LarkToken> tokens;
  do {
    tokens.push_back(lexer.next());
  } while (tokens.back().kind != Kind::kEnd);
  return tokens;
}

}  // namespace larder
