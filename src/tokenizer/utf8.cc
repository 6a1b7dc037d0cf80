#include "tokenizer/utf8.h"

namespace larder {
namespace {

// What may follow a lead byte: how many bytes, and the range of the first of them, which is where
// overlong forms, surrogates and values over U+10FFFF are refused (Unicode 15, table 3-7).
struct Lead {
  std::uint8_t num_following = 0;
  std::uint8_t low = 0x80, high = 0xBF;
};

Lead lead_of(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Char read_utf8(std::string_view text, std::size_t position) {
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t first = byte_at(position);
  if (first < 0x80) return {first, 1, true};
  const Lead lead = lead_of(first);
  if (lead.num_following == 0) return {kReplacementCharacter, 1};
  char32_t code_point = first & (0x3F >> lead.num_following);
  for (std::uint32_t k = 1; k <= lead.num_following; ++k) {
    if (position + k >= text.size()) return {kReplacementCharacter, k, false, true};
    const std::uint8_t byte = byte_at(position + k);
    const bool fits = k == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
    if (!fits) return {kReplacementCharacter, k};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {code_point, lead.num_following + 1u, true};
}

bool is_valid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Char c = read_utf8(text, i);
    if (!c.valid) return false;
    i += c.length;
  }
  return true;
}

void append_utf8(char32_t code_point, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace larder
