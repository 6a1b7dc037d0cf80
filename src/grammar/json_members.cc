#include "grammar/json_members.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "grammar/json_merge.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

const Json kAnything = true;

[[noreturn]] void fail(const std::string& path, std::string_view key, const std::string& reason) {
  const std::string where = fmt::format("{}.{}", path, key);
  throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: {}", where, reason), where);
}

class Reader {
 public:
  Reader(const Json& schema, const std::string& path) : schema_(schema), path_(path) {
    const auto found = schema.find("additionalProperties");
    is_said_ = found != schema.end();
    is_closed_ = is_said_ && *found == false;
    others_ = is_said_ ? &*found : &kAnything;
  }

  JsonMembers run() {
    read_properties();
    read_required();
    read_patterns();
    read_names();
    // What is not said of the others is that there are none, where some are named.
    const bool has_some =
        schema_.contains("properties") || !members_.named.empty() || schema_.contains("patternProperties");
    if (!is_closed_ && !are_names_known_ && (is_said_ || !has_some)) members_.others = others_;
    return std::move(members_);
  }

 private:
  const Json* object_at(const char* key) const {
    const auto found = schema_.find(key);
    if (found == schema_.end()) return nullptr;
    if (!found->is_object()) fail(path_, key, "must be an object");
    return &*found;
  }

  bool is_barred(const std::string& name) const {
    return std::ranges::find(members_.barred, name) != members_.barred.end();
  }

  void add(const std::string& name, const Json* schema) {
    places_.emplace(name, members_.named.size());
    members_.named.push_back({name, schema});
  }

  void read_properties() {
    const Json* properties = object_at("properties");
    if (properties == nullptr) return;
    for (const auto& [name, value] : properties->items()) {
      if (value == false) {
        members_.barred.push_back(name);
      } else {
        add(name, &value);
      }
    }
  }

  void read_required() {
    const auto required = schema_.find("required");
    if (required == schema_.end() || required->is_boolean()) return;  // draft 3 has it within the member
    if (!required->is_array()) fail(path_, "required", "must be an array of names");
    for (const Json& name : *required) {
      if (!name.is_string()) fail(path_, "required", "must hold strings");
      const auto& text = name.get_ref<const std::string&>();
      if (!places_.contains(text)) {
        if (is_closed_ || is_barred(text))
          fail(path_, "required", fmt::format("\"{}\" is no member that there may be", text));
        add(text, others_);
      }
      members_.named[places_.at(text)].is_required = true;
    }
  }

  void read_patterns() {
    const Json* patterns = object_at("patternProperties");
    if (patterns == nullptr || patterns->empty()) return;
    if (!members_.named.empty()) fail(path_, "patternProperties", "beside properties is not supported; leave it out");
    if (is_said_ && !is_closed_)
      fail(path_, "patternProperties", "is supported without others; set additionalProperties to false");
    for (const auto& [expression, schema] : patterns->items()) members_.by_pattern.push_back({expression, &schema});
  }

  void read_names() {
    const auto found = schema_.find("propertyNames");
    if (found == schema_.end() || !has_any_constraint(*found)) return;
    for (const auto& [key, value] : found->items()) {
      if (key == "enum" || key == "pattern" || value == "string" || !has_any_constraint(Json::object({{key, value}})))
        continue;
      fail(path_, "propertyNames." + key, "is not supported; leave it out");
    }
    if (const auto names = found->find("enum"); names != found->end()) {
      read_names_of(*names);
    } else if (const auto pattern = found->find("pattern"); pattern != found->end()) {
      if (!pattern->is_string()) fail(path_, "propertyNames.pattern", "must be a string");
      if (!members_.named.empty() || members_.has_others())
        fail(path_, "propertyNames.pattern", "beside properties is not supported; leave it out");
      are_names_known_ = true;
      if (!is_closed_) members_.by_pattern.push_back({pattern->get<std::string>(), others_});
    }
  }

  // Each of them may be there, once.
  void read_names_of(const Json& names) {
    if (!names.is_array()) fail(path_, "propertyNames.enum", "must be an array of names");
    are_names_known_ = true;
    if (is_closed_) return;
    for (const Json& name : names) {
      if (!name.is_string()) fail(path_, "propertyNames.enum", "must hold strings");
      const auto& text = name.get_ref<const std::string&>();
      if (!places_.contains(text) && !is_barred(text)) add(text, others_);
    }
  }

  const Json& schema_;
  const std::string& path_;
  bool is_said_ = false;
  bool is_closed_ = false;
  bool are_names_known_ = false;
  const Json* others_ = nullptr;  // of what is not named
  JsonMembers members_;
  std::map<std::string, std::size_t> places_;
};

}  // namespace

JsonMembers read_members(const Json& schema, const std::string& path) { return Reader(schema, path).run(); }

}  // namespace larder
