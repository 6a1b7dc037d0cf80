// Server-sent events, as OpenAI's streams use them: lines of data, no names, no ids.
#pragma once

#include <string>
#include <string_view>

#include "server/json_reader.h"

namespace larder {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// JSON has no raw newline, so that an event is always one line.
inline void append_event(std::string& out, const Json& event) {
  out += "data: ";
  out += dump_json(event);
  out += "\n\n";
}

}  // namespace larder
