// Texts of a file, in messages.
#pragma once

#include <string>
#include <string_view>

namespace larder {

// Fit for a terminal and for JSON: one line of printable ASCII, cut where it is long.
inline std::string printable(std::string_view text) {
  constexpr std::size_t kMaxShown = 80;
  std::string shown;
  for (const char c : text.substr(0, kMaxShown)) shown += (c >= 0x20 && c < 0x7f) ? c : '?';
  if (text.size() > kMaxShown) shown += "...";
  return shown;
}

}  // namespace larder
