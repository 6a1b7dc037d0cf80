#include "model/files/hf_json.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/printable.h"

namespace larder {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 30;

}  // namespace

json parse_hf_json(const std::string& path, std::string_view text, const HfJsonFilter& filter) {
  const auto callback = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) throw_invalid("{}: nested deeper than {} levels", path, kMaxDepth);
    return !filter || filter(depth, event, value);
  };
  try {
    return json::parse(text.begin(), text.end(), callback);
  } catch (const json::parse_error& error) {
    throw_invalid("{}: not valid JSON at byte {}", path, error.byte);
  } catch (const json::out_of_range&) {
    throw_invalid("{}: a number in it is beyond those of FP64", path);
  }
}

std::optional<json> find_hf_json(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  const MappedFile file(path);
  return parse_hf_json(path, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

HfObject::HfObject(std::string where, const json& value) : where_(std::move(where)), value_(&value) {
  if (!value.is_object()) throw_invalid("{}: is not an object", where_);
}

void HfObject::fail(std::string_view key, std::string_view reason) const {
  throw_invalid("{}: {}: {}", where_, printable(key), reason);
}

const json* HfObject::find(std::string_view key) const {
  asked_.emplace(key);
  const auto found = value_->find(std::string(key));
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

bool HfObject::says(std::string_view key) const {
  asked_.emplace(key);
  return value_->contains(std::string(key));
}

std::optional<std::uint64_t> HfObject::find_uint(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number_unsigned()) fail(key, "is not an integer of 0 or more");
  return value->get<std::uint64_t>();
}

std::optional<double> HfObject::find_number(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) fail(key, "is not a number");
  return value->get<double>();
}

std::optional<bool> HfObject::find_bool(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) fail(key, "is not a bool");
  return value->get<bool>();
}

std::optional<std::string> HfObject::find_string(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) fail(key, "is not a text");
  return value->get<std::string>();
}

std::optional<HfObject> HfObject::find_object(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  return HfObject(where_ + ": " + printable(key), *value);
}

std::optional<std::uint64_t> HfObject::find_size(std::string_view key) const {
  const auto value = find_uint(key);
  if (value && (*value < 1 || *value > kMaxSize)) fail(key, fmt::format("{} is not in [1, {}]", *value, kMaxSize));
  return value;
}

std::uint64_t HfObject::size(std::string_view key) const {
  const auto value = find_size(key);
  if (!value) fail(key, "missing");
  return *value;
}

double HfObject::number(std::string_view key) const {
  const auto value = find_number(key);
  if (!value) fail(key, "missing");
  return *value;
}

std::string HfObject::string(std::string_view key) const {
  auto value = find_string(key);
  if (!value) fail(key, "missing");
  return *std::move(value);
}

void HfObject::expect_bool(std::string_view key, bool value) const {
  if (find_bool(key).value_or(value) != value)
    fail(key, fmt::format("{} is not supported", value ? "false" : "true"));
}

void HfObject::expect_string(std::string_view key, std::string_view value) const {
  if (const auto text = find_string(key); text && *text != value)
    fail(key, fmt::format("'{}' is not supported; {} is", printable(*text), value));
}

void HfObject::refuse(std::string_view key) const {
  const json* value = find(key);
  if (!value || *value == false || *value == 0 || (value->is_structured() && value->empty())) return;
  fail(key, "not supported");
}

void HfObject::refuse_others(std::span<const std::string_view> harmless) const {
  for (const auto& [key, value] : value_->items()) {
    if (value.is_null() || asked_.contains(key) || std::ranges::find(harmless, std::string_view(key)) != harmless.end())
      continue;
    fail(key, "unknown, and it might change what is computed; if it does not, take it out of the file");
  }
}

}  // namespace larder
