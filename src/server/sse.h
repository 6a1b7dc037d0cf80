// Server-sent events: a line of data, named where an API types its events.
#pragma once

#include <string>
#include <string_view>

#include "server/json_reader.h"

namespace larder {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ":\n\n";  // which readers of events pass over

// JSON has no raw newline, so that an event is always one line.
inline void append_event(std::string& out, const Json& event) {
  out += "data: ";
  out += dump_json(event);
  out += "\n\n";
}

// What APIs with typed events send; the type also stands in the event.
inline void append_named_event(std::string& out, std::string_view name, const Json& event) {
  out += "event: ";
  out += name;
  out += '\n';
  append_event(out, event);
}

// What Anthropic's streams send where nothing happens, and others' a comment.
inline void append_ping_event(std::string& out) { append_named_event(out, "ping", {{"type", "ping"}}); }

}  // namespace larder
