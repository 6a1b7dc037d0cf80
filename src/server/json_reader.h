// Strict JSON from strangers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// The order of keys is kept: chat templates print tools and arguments in it. An integer beyond 64 bits
// is held as its digits, in a binary value, as no double has all of them.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  int max_depth = 64;
  std::size_t max_values = 1'000'000;
  bool takes_same_keys = false;  // the last one's value counts, at the place of the first
};

// What a model has written: whoever asked for it is to get all that a form permits. Calls of a grammar's rules within
// rules have an end (GrammarState::kMaxDepth), and each may bring some levels of JSON.
inline constexpr JsonLimits kLimitsOfAnswers{.max_depth = 1024, .takes_same_keys = true};

// Time and memory are linear in the text, without recursion. Throws Error{kInvalidArgument} for
// anything that is not RFC 8259 JSON in UTF-8, for lone surrogates, for numbers beyond a double
// (NaN, 1e400), for an object with the same key twice (readers differ in which one they take, so
// neither is) unless the limits say that it is taken, and for more levels or values than they allow.
// num_values: receives how many there are, where it throws as far as it came.
Json parse_json(std::string_view text, const JsonLimits& limits, std::size_t* num_values = nullptr);

// A member's text; "" where it has none, or the value is no object. A view of the value.
std::string_view find_text(const Json& value, const char* name);

inline bool is_long_integer(const Json& value) { return value.is_binary() && !value.get_binary().has_subtype(); }

// A value that is text already, as dump_json() would write it, and takes no more memory than that: as values of their
// own many small ones take ten times as much. There is nothing in it for who reads it.
Json written_json(std::vector<std::uint8_t> text);

// Compact JSON in valid UTF-8: bytes that are not become U+FFFD.
std::string dump_json(const Json& value);

// Likewise, with these between items, and between a key and its value.
void append_json(const Json& value, std::string_view comma, std::string_view colon,
                 std::string& out);

// At most max_bytes of the text, cut between characters, for showing it in a message.
std::string shorten(std::string_view text, std::size_t max_bytes = 80);

}  // namespace larder
