// What a JSON schema's formats mean, as regular expressions.
#pragma once

#include <string_view>

namespace larder {

// Whole texts of date-time, date, time, duration, email, uuid, ipv4, ipv6 and uri: each permits nothing that the
// format's readers refuse, but not every spelling there is (no 29th of February, no shortened IPv6). "" for other
// formats.
std::string_view expression_of_format(std::string_view format);

}  // namespace larder
