// Unicode normalization form C, where a model was trained on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

struct NormalizedText {
  std::string text;
  std::vector<std::uint32_t> origin;  // per byte of text: offset in the source of what it came from
};

// nullopt = the text is in the form already. Bytes that are not UTF-8 stay as they are. text.size() < 2^31.
// Time: n log n.
std::optional<NormalizedText> to_nfc(std::string_view text);

}  // namespace larder
