#include "server/chat/text_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "server/utf8.h"

namespace larder {
namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kNoDigit = 64;

constexpr std::array<std::uint8_t, 256> digits_of_base64() {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (std::size_t i = 0; i < kBase64.size(); ++i) digits[static_cast<std::uint8_t>(kBase64[i])] = static_cast<std::uint8_t>(i);
  return digits;
}

// RFC 4648, section 4, with or without padding. nullopt: it is none.
std::optional<std::string> decode_base64(std::string_view text) {
  static constexpr auto kDigits = digits_of_base64();
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : text) {
    const std::uint8_t digit = kDigits[static_cast<std::uint8_t>(c)];
    if (digit == kNoDigit) return std::nullopt;
    bits = bits << 6 | digit;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xFF);
  }
  return bytes;
}

// Of kinds of media: what follows the subtype, such as a charset, is not looked at; what is not UTF-8 is refused anyway.
bool is_text(std::string_view media_type) {
  const std::string_view kind = media_type.substr(0, media_type.find(';'));
  return kind.starts_with("text/") || is_one_of(kind, {"application/json", "application/xml", "application/yaml"});
}

}  // namespace

std::string text_of_file(const Fields& file) {
  constexpr const char* kInstead = "this model reads text only; send text, or file_data with \"data:text/plain;base64,...\"";
  for (const char* elsewhere : {"file_id", "file_url"})
    if (file.has(elsewhere)) file.fail(elsewhere, "is not supported; send the file in file_data");
  const auto data = file.string("file_data", std::string::npos);
  if (!data) file.fail("file_data", fmt::format("is missing; {}", kInstead));
  constexpr std::string_view kScheme = "data:", kEncoding = ";base64";
  const std::string_view url = *data;
  const std::size_t comma = url.find(',');
  if (!url.starts_with(kScheme) || comma == url.npos) file.fail("file_data", fmt::format("is no data URL; {}", kInstead));
  std::string media_type(url.substr(kScheme.size(), comma - kScheme.size()));
  std::ranges::transform(media_type, media_type.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (!is_text(media_type))
    file.fail("file_data", fmt::format("\"{}\" is not supported, {}", shorten(media_type), kInstead));
  const auto bytes = media_type.ends_with(kEncoding) ? decode_base64(url.substr(comma + 1)) : std::nullopt;
  if (!bytes) file.fail("file_data", "is not in base64");
  if (to_valid_utf8(*bytes) != *bytes) file.fail("file_data", "is not a text in UTF-8");
  const std::string name = file.string("filename", kMaxNameBytes).value_or("");
  return name.empty() ? *bytes : name + "\n" + *bytes;
}

}  // namespace larder
