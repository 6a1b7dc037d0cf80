// Template source to tokens, with Jinja's rules for white space (trim_blocks and lstrip_blocks on).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder::jinja {

// Of a name of a variable: looking it up compares it with others.
inline constexpr std::size_t kMaxNameBytes = 256;

enum class TokenKind : std::uint8_t {
  kData,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // data, name, the string's value, digits, or the operator itself
};

// Ends with a kEnd token. Throws Failure with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace larder::jinja
