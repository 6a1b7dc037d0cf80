// What a response repeats of its request: each member that is known, and nothing of any length that neither the prompt nor
// the answer's form has taken.
#pragma once

#include <initializer_list>
#include <string_view>

#include "server/answer/answer_format.h"
#include "server/json_reader.h"

namespace larder {

// Thread: any.

// Of an object, in its order.
Json known_members(const Json& object, std::initializer_list<std::string_view> names);
// Of tools that were read. Throws Error{kInvalidArgument} for a namespace's description that is none.
Json echoed_tools(const Json& tools);
// asked: the field that was read as the choice; nullptr = there was none.
Json echoed_choice(const Json* asked, const ToolChoice& choice);
// Of "text.format", which was read.
Json echoed_format(const Json& format);

// The object with each member as text, see written_json(): it is told several times, by threads that others wait for.
Json written_members(const Json& object);

}  // namespace larder
