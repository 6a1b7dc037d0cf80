// JSON in and out of a template's values.
#pragma once

#include <nlohmann/json.hpp>

#include "tokenizer/jinja/jinja_runtime.h"

namespace larder::jinja {

// The caller's JSON, all of one origin. Not charged as the template's: its size is bounded before.
// Fails when nested deeper than the budget's depth. A binary value is the digits of an integer beyond 64
// bits; one beyond 128 becomes a float.
Value from_json(Runtime& runtime, const nlohmann::ordered_json& json, Origin origin);

// json.dumps, with its separators and order; always untrusted, whatever went in. An element with an
// origin of its own keeps it.
Value to_json(Runtime& runtime, const Value& value, const Args& args);

}  // namespace larder::jinja
