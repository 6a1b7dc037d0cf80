// Text to numbers, as int() and float() read it.
#pragma once

#include <optional>
#include <string_view>

#include "tokenizer/jinja/jinja_filters.h"

namespace larder::jinja {

std::optional<double> parse_real(std::string_view bytes);
// base 0: by the prefix; 2 to 36 otherwise. Fails when it has more than 128 bits.
std::optional<Int128> parse_integer(std::string_view bytes, int base);

const FilterTable& number_filters();

}  // namespace larder::jinja
