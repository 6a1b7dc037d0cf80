#include "tokenizer/byte_level.h"

#include "tokenizer/utf8.h"

namespace larder {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The inverse: -1 for characters that stand for no byte.
std::array<int, 512> byte_of_character() {
  std::array<int, 512> bytes;
  bytes.fill(-1);
  const auto alphabet = byte_level_alphabet();
  for (int byte = 0; byte < 256; ++byte) bytes[alphabet[byte]] = byte;
  return bytes;
}

}  // namespace

std::array<char32_t, 256> byte_level_alphabet() {
  std::array<char32_t, 256> alphabet;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte)
    alphabet[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  return alphabet;
}

bool append_byte_level(std::string_view text, std::string& bytes) {
  static const std::array<int, 512> kByteOf = byte_of_character();
  const std::size_t old_size = bytes.size();
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = read_utf8(text, i);
    if (c.code_point >= kByteOf.size() || kByteOf[c.code_point] < 0) {
      bytes.resize(old_size);
      return false;
    }
    bytes.push_back(static_cast<char>(kByteOf[c.code_point]));
    i += c.length;
  }
  return true;
}

}  // namespace larder
