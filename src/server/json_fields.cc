#include "server/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/error.h"

namespace larder {

void fail_field(const std::string& param, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument, param + ": " + reason, param);
}

std::string_view describe_type(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (object.is_object()) return;
  if (path_.empty())
    throw_invalid("the body must be a JSON object, it is {}", describe_type(object));
  fail_field(path_, fmt::format("must be an object, it is {}", describe_type(object)));
}

const Json* Fields::find(std::string_view name) const {
  for (const auto& [key, value] : object_.get_ref<const Json::object_t&>()) {
    if (key == name) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void Fields::fail(std::string_view name, std::string reason) const {
  fail_field(path_of(name), reason);
}

bool Fields::boolean(std::string_view name, bool otherwise) const {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    fail(name, fmt::format("must be true or false, it is {}", describe_type(*value)));
  }
  return value->get<bool>();
}

std::optional<std::int64_t> Fields::integer(std::string_view name,
                                            Range<std::int64_t> range) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  std::int64_t result = 0;
  bool fits = true;
  if (value->is_number_unsigned()) {
    const auto unsigned_value = value->get<std::uint64_t>();
    fits = unsigned_value <= static_cast<std::uint64_t>(INT64_MAX);
    if (fits) result = static_cast<std::int64_t>(unsigned_value);
  } else if (value->is_number_integer()) {
    result = value->get<std::int64_t>();
  } else if (value->is_number_float()) {
    // Some clients print whole numbers as 16.0; what a double holds exactly is taken.
    const double real = value->get<double>();
    fits = std::abs(real) <= 9007199254740992.0;
    if (fits && real != std::trunc(real))
      fail(name, fmt::format("must be a whole number, it is {}", real));
    if (fits) result = static_cast<std::int64_t>(real);
  } else if (is_long_integer(*value)) {
    fits = false;
  } else {
    fail(name, fmt::format("must be a whole number, it is {}", describe_type(*value)));
  }
  if (!fits || result < range.min || result > range.max) {
    fail(name,
         fmt::format("must be between {} and {}, it is {}", range.min, range.max, dump_json(*value)));
  }
  return result;
}

std::optional<double> Fields::number(std::string_view name, Range<double> range) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() && !is_long_integer(*value)) {
    fail(name, fmt::format("must be a number, it is {}", describe_type(*value)));
  }
  const double result =
      is_long_integer(*value) ? std::strtod(dump_json(*value).c_str(), nullptr) : value->get<double>();
  if (!(result >= range.min && result <= range.max)) {
    fail(name, fmt::format("must be between {} and {}, it is {}", range.min, range.max, result));
  }
  return result;
}

std::optional<std::string> Fields::string(std::string_view name, std::size_t max_bytes) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    fail(name, fmt::format("must be a string, it is {}", describe_type(*value)));
  }
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    fail(name, fmt::format("must be at most {} bytes long, it has {}", max_bytes, text.size()));
  }
  return text;
}

const Json* Fields::array(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) {
    fail(name, fmt::format("must be an array, it is {}", describe_type(*value)));
  }
  return value;
}

std::string read_either(const Fields& fields, const char* name, const char* first, const char* second) {
  const auto value = fields.string(name, kMaxNameBytes);
  if (value && *value != first && *value != second) {
    fields.fail(name, fmt::format("must be \"{}\" or \"{}\", it is \"{}\"", first, second,
                                  shorten(*value)));
  }
  return value.value_or("");
}

std::vector<TokenId> read_token_ids(const Json& array, const std::string& param, int vocab_size) {
  if (!array.is_array()) {
    fail_field(param, fmt::format("must be an array of token ids, it is {}", describe_type(array)));
  }
  std::vector<TokenId> tokens;
  tokens.reserve(array.size());
  for (const Json& item : array) {
    if (!item.is_number_integer()) {
      fail_field(param, fmt::format("entry {} must be a token id, it is {}", tokens.size(),
                                    describe_type(item)));
    }
    // A huge unsigned id would turn negative as a signed one: compare it as what it is.
    const bool fits = item.is_number_unsigned()
                          ? item.get<std::uint64_t>() < static_cast<std::uint64_t>(vocab_size)
                          : item.get<std::int64_t>() >= 0 && item.get<std::int64_t>() < vocab_size;
    if (!fits) {
      fail_field(param, fmt::format("entry {} is token {}, the model has tokens 0 to {}",
                                    tokens.size(), item.dump(), vocab_size - 1));
    }
    tokens.push_back(item.get<TokenId>());
  }
  return tokens;
}

}  // namespace larder
