// Typed reading of a request's fields, with errors that name them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "server/json_reader.h"

namespace larder {

inline constexpr std::size_t kMaxNameBytes = 4096;  // of a field that is a name, or one of a few words
inline constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

template <class Number>
struct Range {
  Number min;
  Number max;
};

// A view of one JSON object of a request. A field that is null counts as absent. Every getter
// throws Error{kInvalidArgument} with the field's path as param when the type or the range is
// wrong.
class Fields {
 public:
  // path: how messages name the object, "" for the request itself.
  Fields(const Json& object, std::string path);

  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  bool boolean(std::string_view name, bool otherwise) const;
  std::optional<std::int64_t> integer(std::string_view name, Range<std::int64_t> range) const;
  std::optional<double> number(std::string_view name, Range<double> range) const;
  std::optional<std::string> string(std::string_view name, std::size_t max_bytes) const;
  const Json* array(std::string_view name) const;  // nullptr: absent

  // "messages[2].content"
  std::string path_of(std::string_view name) const;
  [[noreturn]] void fail(std::string_view name, std::string reason) const;

 private:
  const Json& object_;
  std::string path_;
};

// Throws Error{kInvalidArgument} with param, message "param: reason".
[[noreturn]] void fail_field(const std::string& param, const std::string& reason);

// "an array", "a string": for messages.
std::string_view describe_type(const Json& value);

inline bool is_one_of(std::string_view value, std::initializer_list<std::string_view> all) {
  return std::ranges::find(all, value) != all.end();
}

// One of two words; "" = absent.
std::string read_either(const Fields& fields, const char* name, const char* first, const char* second);

// An array of ids in [0, vocab_size).
std::vector<TokenId> read_token_ids(const Json& array, const std::string& param, int vocab_size);

}  // namespace larder
