// What a JSON schema says of an object's members.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace larder {

struct JsonMembers {
  struct Named {
    std::string name;
    const nlohmann::ordered_json* schema;
    bool is_required = false;
  };
  struct ByPattern {
    std::string expression;  // of the name
    const nlohmann::ordered_json* schema;
  };

  std::vector<Named> named;                        // in the order in which they come
  std::vector<std::string> barred;                 // names that none may have
  std::vector<ByPattern> by_pattern;               // behind those, as often as wanted
  const nlohmann::ordered_json* others = nullptr;  // likewise, of any other name; null = none

  bool has_others() const { return others != nullptr || !by_pattern.empty(); }
};

// Refers to the schema. Throws Error{kInvalidArgument} with the place as param for what is malformed, what nothing
// satisfies, and what is not supported: patterns of names beside named members, propertyNames other than a type, an
// enum or a pattern.
JsonMembers read_members(const nlohmann::ordered_json& schema, const std::string& path);

}  // namespace larder
