#include "tokenizer/jinja/jinja_lexer.h"

#include <algorithm>

#include "tokenizer/jinja/jinja_budget.h"
#include "tokenizer/jinja/jinja_unicode.h"

namespace larder::jinja {
namespace {

// Every line break becomes \n, and one at the very end goes.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(std::string message) const {
    throw Failure{std::move(message), line_};
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool looks_at(std::string_view text) const { return rest().starts_with(text); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  // Moves past count bytes, counting lines.
  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count),
                                         '\n'));
    at_ += count;
    if (count > 0) is_line_start_ = source_[at_ - 1] == '\n';
  }

  std::size_t space_at(std::size_t position) const {
    std::size_t end = position;
    while (end < source_.size()) {
      const Character c = character_at(source_, end);
      if (!is_space(c.code_point)) break;
      end += c.num_bytes;
    }
    return end - position;
  }

  // The text up to the next tag, stripped as the tag asks, then the tag.
  void root() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(TokenKind::kData, source_.substr(at_));
        return advance(source_.size() - at_);
      }
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    add_data(tag, has_sign ? sign : '\0', type != '{');
    advance(tag - at_);
    if (type == '%' && raw_block()) return;
    if (type != '#') add(type == '%' ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    advance(has_sign ? 3 : 2);
    type == '#' ? comment() : code(type == '%');
  }

  void add_data(std::size_t end, char sign, bool strips_blanks) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      while (!text.empty()) {
        const Character c = character_before(text, text.size());
        if (!is_space(c.code_point)) break;
        text.remove_suffix(c.num_bytes);
      }
    } else if (sign != '+' && strips_blanks) {
      const std::size_t line = text.rfind('\n') + 1;  // npos + 1 = 0
      std::size_t blank_end = line;
      while (blank_end < text.size()) {
        const Character c = character_at(text, blank_end);
        if (!is_space(c.code_point)) break;
        blank_end += c.num_bytes;
      }
      if ((line > 0 || is_line_start_) && blank_end == text.size()) text = text.substr(0, line);
    }
    if (!text.empty()) add(TokenKind::kData, std::string(text));
  }

  // What a closing tag takes with it: "-" all space, "+" nothing, otherwise one line break.
  void close(std::size_t tag_size, char sign) {
    advance(tag_size);
    if (sign == '-') {
      advance(space_at(at_));
    } else if (sign != '+' && peek() == '\n') {
      advance(1);
    }
  }

  void comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_here("Missing end of comment tag");
    const char before = end > at_ ? source_[end - 1] : '\0';
    advance(end - at_);
    close(2, before);
  }

  // At "{%": a raw block as a whole, if it is one.
  bool raw_block() {
    std::size_t at = at_ + 2;
    if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) ++at;
    at += space_at(at);
    if (source_.compare(at, 3, "raw") != 0) return false;
    at += 3;
    at += space_at(at);
    const bool strips = source_.compare(at, 3, "-%}") == 0;
    if (!strips && source_.compare(at, 2, "%}") != 0) return false;
    advance(at + (strips ? 3 : 2) - at_);
    if (strips) advance(space_at(at_));
    for (std::size_t tag = at_;; tag += 2) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) fail_here("Missing end of raw directive");
      std::size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : '\0';
      const bool has_sign = sign == '-' || sign == '+';
      end += has_sign ? 1 : 0;
      end += space_at(end);
      if (source_.compare(end, 6, "endraw") != 0) continue;
      end += 6;
      end += space_at(end);
      const char closing = end < source_.size() ? source_[end] : '\0';
      const bool has_closing = closing == '-' || closing == '+';
      if (source_.compare(end + (has_closing ? 1 : 0), 2, "%}") != 0) continue;
      add_data(tag, has_sign ? sign : '\0', true);
      advance(end - at_);
      close(has_closing ? 3 : 2, has_closing ? closing : '\0');
      return true;
    }
  }

  bool end_of_code(bool is_block) {
    if (!brackets_.empty()) return false;
    const std::string_view end = is_block ? "%}" : "}}";
    const char sign = peek();
    const bool has_sign = sign == '-' || (sign == '+' && is_block);
    if (!rest().substr(has_sign ? 1 : 0).starts_with(end)) return false;
    add(is_block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "");
    if (is_block) {
      close(has_sign ? 3 : 2, has_sign ? sign : '\0');
    } else {
      advance(has_sign ? 3 : 2);
      if (has_sign) advance(space_at(at_));
    }
    return true;
  }

  void code(bool is_block) {
    while (at_ < source_.size()) {
      if (end_of_code(is_block)) return;
      const Character c = character_at(source_, at_);
      if (is_space(c.code_point)) {
        advance(c.num_bytes);
      } else if (c.code_point >= '0' && c.code_point <= '9') {
        number();
      } else if (is_identifier_part(c.code_point)) {
        name();
      } else if (c.code_point == '"' || c.code_point == '\'') {
        string(static_cast<char>(c.code_point));
      } else {
        op();
      }
    }
  }

  void name() {
    std::size_t size = 0;
    const bool is_valid = is_identifier_start(character_at(source_, at_).code_point);
    while (at_ + size < source_.size()) {
      const Character c = character_at(source_, at_ + size);
      if (!is_identifier_part(c.code_point)) break;
      size += c.num_bytes;
    }
    if (!is_valid) fail_here("Invalid character in identifier");
    if (size > kMaxNameBytes) fail_here("a name is longer than 256 bytes");
    add(TokenKind::kName, source_.substr(at_, size));
    advance(size);
  }

  // Digits with single underscores between them; returns how many bytes.
  std::size_t digits_at(std::size_t position, int base) const {
    std::size_t size = 0;
    for (;;) {
      const std::size_t at = position + size;
      const std::size_t skip = size > 0 && at < source_.size() && source_[at] == '_' ? 1 : 0;
      if (at + skip >= source_.size() || digit_value(source_[at + skip]) >= base) return size;
      size += skip + 1;
    }
  }

  void number() {
    const char mark = static_cast<char>(peek(1) | 0x20);
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    const bool follows_dot = at_ > 0 && source_[at_ - 1] == '.';
    std::size_t size = digits_at(at_, 10);
    if (peek() == '0' && base != 10) {
      const std::size_t digits = digits_at(at_ + 2 + (peek(2) == '_' ? 1 : 0), base);
      if (digits > 0) return add_number(TokenKind::kInteger, 2 + (peek(2) == '_' ? 1 : 0) + digits);
    }
    if (!follows_dot) {
      std::size_t end = at_ + size;
      const std::size_t fraction =
          end < source_.size() && source_[end] == '.' ? digits_at(end + 1, 10) : 0;
      if (fraction > 0) end += 1 + fraction;
      std::size_t exponent = 0;
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        exponent = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-')
                       ? 2
                       : 1;
        const std::size_t digits = digits_at(end + exponent, 10);
        exponent = digits > 0 ? exponent + digits : 0;
      }
      if (fraction > 0 || exponent > 0) return add_number(TokenKind::kFloat, end + exponent - at_);
    }
    // A number that begins with 0 is only zeros.
    if (peek() == '0') {
      size = 0;
      while (peek(size) == '0' || (peek(size) == '_' && peek(size + 1) == '0')) ++size;
    }
    add_number(TokenKind::kInteger, size);
  }

  void add_number(TokenKind kind, std::size_t size) {
    std::string digits = source_.substr(at_, size);
    std::erase(digits, '_');
    add(kind, std::move(digits));
    advance(size);
  }

  void string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      fail_here(fmt::format("unexpected char '{}': a string has no end", quote));
    add(TokenKind::kString, unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    advance(end + 1 - at_);
  }

  std::string unescape(std::string_view raw) const {
    std::string text;
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        text += raw[i];
        continue;
      }
      ++i;
      constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
      const std::size_t plain = kNames.find(raw[i]);
      if (plain != std::string_view::npos) {
        text += kValues[plain];
      } else if (raw[i] == '\n') {
        continue;  // a line break behind a backslash joins two lines
      } else if (raw[i] >= '0' && raw[i] <= '7') {
        i += append_code(text, raw.substr(i), 8, 3, false) - 1;
      } else if (raw[i] == 'x') {
        i += append_code(text, raw.substr(i + 1), 16, 2, true);
      } else if (raw[i] == 'u') {
        i += append_code(text, raw.substr(i + 1), 16, 4, true);
      } else if (raw[i] == 'U') {
        i += append_code(text, raw.substr(i + 1), 16, 8, true);
      } else if (raw[i] == 'N') {
        fail_here("\\N{...} is not supported");
      } else {
        text += '\\';
        text += raw[i];
      }
    }
    return text;
  }

  // Returns the digits used.
  std::size_t append_code(std::string& text, std::string_view digits, int base, std::size_t most,
                          bool is_exact) const {
    std::int64_t code = 0;
    std::size_t count = 0;
    while (count < most && count < digits.size() && digit_value(digits[count]) < base) {
      code = code * base + digit_value(digits[count++]);
    }
    if ((is_exact && count < most) || code > 0x10FFFF) fail_here("a string has a bad escape");
    append_utf8(static_cast<std::int32_t>(code), text);
    return count;
  }

  void op() {
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view text : kLong) {
      if (!looks_at(text)) continue;
      add(TokenKind::kOperator, std::string(text));
      return advance(2);
    }
    const char c = peek();
    if (kShort.find(c) == std::string_view::npos || c == '\0') {
      fail_here(fmt::format("unexpected character at byte {}", at_));
    }
    if (c == '(' || c == '[' || c == '{') {
      brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets_.empty()) fail_here(fmt::format("unexpected '{}'", c));
      if (brackets_.back() != c)
        fail_here(fmt::format("unexpected '{}', expected '{}'", c, brackets_.back()));
      brackets_.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    advance(1);
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;
  std::string brackets_;  // the closing ones that are awaited
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace larder::jinja
