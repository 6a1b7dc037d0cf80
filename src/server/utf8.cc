#include "server/utf8.h"

#include "tokenizer/utf8.h"

namespace larder {

std::string to_valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Char next = read_utf8(bytes, at);
    append_utf8(next.code_point, text);
    at += next.length;
  }
  return text;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

}  // namespace larder
