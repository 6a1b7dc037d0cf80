// The classes of characters that pre-tokenizers' patterns name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/utf8.h"

namespace larder {

enum CharClass : std::uint8_t {
  kLetter = 1,       // \p{L}
  kNumber = 2,       // \p{N}
  kSpace = 4,        // \s
  kPunctuation = 8,  // \p{P}
  kUpperLike = 32,   // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLowerLike = 64,   // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  kDigit = 16,       // numeric to the digit splitter: \p{N}, and what later Unicode versions add
  kSymbol = 128,     // \p{S}
};

struct ClassifiedChar {
  std::uint8_t classes = 0;  // CharClass bits; none for invalid UTF-8
  std::uint32_t length = 0;  // bytes
};

// Immutable after construction.
class CharClasses {
 public:
  CharClasses();
  std::uint8_t of(char32_t code_point) const {
    return code_point < table_.size() ? table_[code_point] : 0;
  }
  // position < text.size()
  ClassifiedChar at(std::string_view text, std::size_t position) const {
    const auto byte = static_cast<unsigned char>(text[position]);
    if (byte < 0x80) return {table_[byte], 1};
    const Utf8Char c = read_utf8(text, position);
    return {c.valid ? of(c.code_point) : std::uint8_t{0}, c.length};
  }

 private:
  std::vector<std::uint8_t> table_;  // by code point, up to the last that has a class
};

}  // namespace larder
