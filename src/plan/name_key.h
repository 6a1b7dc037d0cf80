// Names as people write them.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace larder {

// Letters and digits in lower case: equal for "Llama 3 8B" and "llama-3-8b".
inline std::string key_of(std::string_view name) {
  std::string key;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)))
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

}  // namespace larder
