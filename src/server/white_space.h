// White space around what models and templates write.
#pragma once

#include <string_view>

namespace larder {

inline constexpr std::string_view kSpace = " \t\r\n";

// Without what of it stands at both ends.
inline std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace larder
