// What JSON schemas say of an object's members.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/json_conjunction.h"

namespace larder {

struct JsonMembers {
  struct Named {
    std::string_view name;
    SchemaSet schemas;  // of its value
    bool is_required = false;
  };
  struct ByPattern {
    const nlohmann::ordered_json* place;  // that says it
    std::string expression;               // of the name
    SchemaSet schemas;
  };

  std::vector<Named> named;              // in the order in which they come
  std::vector<std::string_view> barred;  // names that none may have
  std::vector<ByPattern> by_pattern;     // behind those, as often as wanted
  std::optional<SchemaSet> others;       // likewise, of any other name; nullopt = none

  bool has_others() const { return others || !by_pattern.empty(); }
};

// Refers to the schemas. Throws SchemaFault for what is malformed, what nothing satisfies, and what is not supported:
// patterns of names beside named members, propertyNames other than a type, an enum, and a pattern, a format or a length.
JsonMembers read_members(const JsonConjunction& said);

}  // namespace larder
