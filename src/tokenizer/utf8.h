// UTF-8 that may be broken, read a character at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace larder {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr std::string_view kEscapedSpace = "\u2581";  // what SentencePiece writes for a space

struct Utf8Char {
  char32_t code_point = 0;  // kReplacementCharacter when invalid
  std::uint32_t length =
      0;  // bytes; of an invalid one, its maximal subpart (Unicode 15, 3.9), >= 1
  bool valid = false;
  bool truncated = false;  // invalid, but only because the text ends before the character does
};

// The character at text[position]; position < text.size().
Utf8Char read_utf8(std::string_view text, std::size_t position);

bool is_valid_utf8(std::string_view text);

void append_utf8(char32_t code_point, std::string& text);

}  // namespace larder
