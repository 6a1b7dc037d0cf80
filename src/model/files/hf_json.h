// JSON files of a model's folder: any text may come in, and messages name the file and the field.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace larder {

// As nlohmann's parser_callback_t: false = the value is not kept.
using HfJsonFilter = std::function<bool(int depth, nlohmann::json::parse_event_t event, nlohmann::json& value)>;

// path: of the file, for messages. Throws Error{kInvalidArgument} for what is no JSON or nested too deeply.
nlohmann::json parse_hf_json(const std::string& path, std::string_view text, const HfJsonFilter& filter = {});

// A file that may be missing: nullopt then.
std::optional<nlohmann::json> find_hf_json(const std::string& path);

// An object's members by key; what is null counts as absent. The value must outlive it.
// They throw Error{kInvalidArgument} naming file and key where the value is of another kind.
class HfObject {
 public:
  // where: the file, or the file and the object's key.
  HfObject(std::string where, const nlohmann::json& value);

  const nlohmann::json& value() const { return *value_; }
  const nlohmann::json* find(std::string_view key) const;  // nullptr: absent
  bool says(std::string_view key) const;                   // it is there, be it as null
  std::optional<std::uint64_t> find_uint(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<HfObject> find_object(std::string_view key) const;
  // At least 1, and no more than fits any dimension; size() where it has to be there.
  std::optional<std::uint64_t> find_size(std::string_view key) const;
  std::uint64_t size(std::string_view key) const;
  double number(std::string_view key) const;
  std::string string(std::string_view key) const;

  [[noreturn]] void fail(std::string_view key, std::string_view reason) const;
  // Something that changes what is computed must be absent, or have the one value that Larder computes.
  void expect_bool(std::string_view key, bool value) const;
  void expect_string(std::string_view key, std::string_view value) const;
  void refuse(std::string_view key) const;  // must be absent, null, false or 0
  // Refuses members that nobody asked for and that are not known to change nothing.
  void refuse_others(std::span<const std::string_view> harmless) const;

 private:
  std::string where_;
  const nlohmann::json* value_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace larder
