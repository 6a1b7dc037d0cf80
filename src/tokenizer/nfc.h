// Unicode normalization form C, where a model was trained on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

struct NormalizedText {
  std::string text;
  std::vector<std::uint32_t> origin;  // per byte of text: offset in the source of what it came from
};

bool is_nfc(std::string_view text);

// Bytes that are not UTF-8 stay as they are. text.size() < 2^31.
NormalizedText to_nfc(std::string_view text);

}  // namespace larder
