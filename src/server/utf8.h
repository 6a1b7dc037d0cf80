// What replies need to know about UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace larder {

// What is not a well-formed character becomes U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

// Characters of a well-formed text, as Python counts them.
std::size_t count_characters(std::string_view text);

}  // namespace larder
