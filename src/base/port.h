// Ports in addresses.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace larder {

// nullopt: the text is no whole number up to 65535.
inline std::optional<std::uint16_t> parse_port(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::uint16_t port = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  return error == std::errc() && stop == end ? std::optional(port) : std::nullopt;
}

}  // namespace larder
