// What a JSON schema's formats mean, as regular expressions.
#pragma once

#include <cstdint>
#include <string_view>

namespace larder {

struct JsonFormat {
  std::string_view name;
  std::string_view expression;      // of the whole text
  std::uint32_t shortest, longest;  // of those, in characters
};

// date-time, date, time, duration, email, uuid, uuid1, uuid3 to uuid5, hostname, ipv4, ipv6 and uri: each permits nothing that
// the format's readers refuse, but not every spelling there is (no 29th of February, no shortened IPv6). nullptr: another one.
const JsonFormat* find_format(std::string_view name);

}  // namespace larder
