// What several JSON schemas say together.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace larder {

// Whether it says anything of a value, beside annotations.
bool has_any_constraint(const nlohmann::ordered_json& schema);

// One that permits what both do; what one names comes before what only the other does. References must be at
// neither's top. Throws Error{kInvalidArgument} with path as param where they say what cannot be said by one schema.
nlohmann::ordered_json merge_schemas(const nlohmann::ordered_json& one, const nlohmann::ordered_json& other,
                                     const std::string& path);

// Whether the value is of the type, or one of the types, that the schema says, if it does.
bool has_type_of(const nlohmann::ordered_json& schema, const nlohmann::ordered_json& value);

// The type that a schema without one speaks of; "" = of none.
std::string implied_type(const nlohmann::ordered_json& schema);

}  // namespace larder
