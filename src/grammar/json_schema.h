// JSON schemas as parts of a grammar.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "grammar/json_parts.h"

namespace larder {

enum class SchemaUse {
  kStrict,   // what cannot be obeyed is an error
  kLenient,  // and here is passed over, with the least part of the schema that it is in: only the type counts
};

// The texts that a schema (JSON Schema 2020-12, and older drafts' definitions) permits. Members of an object come in
// the order in which the schema names them; those that it does not name come behind them, and only where
// additionalProperties says so or no properties are named. What $ref, allOf and anyOf bring together holds at once: a
// choice that nothing satisfies is none, and a member likewise does not come; in lenient use it is free but for its
// type, as are an item and the whole. oneOf is read as anyOf. Annotations
// (title, description, default, examples and unknown words) are passed over, formats that are no regular expression
// here, too. Throws Error{kInvalidArgument} with the place as param for what would have to be obeyed and cannot be
// (not, if, uniqueItems, multipleOf, ...), where nothing satisfies all of it, for a reference that leads nowhere or
// outside of the document; Error{kTooLarge} likewise for what takes too large an automaton, or too long to read.
// path: how messages name the schema. Thread: as the parts'.
Fragment add_json_schema(JsonParts& parts, const nlohmann::ordered_json& schema, const std::string& path,
                         SchemaUse use = SchemaUse::kStrict);

}  // namespace larder
