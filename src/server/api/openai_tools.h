// Tools of OpenAI's chat API, and calls of them in a history.
#pragma once

#include <cstddef>
#include <string>

#include "server/answer/answer_format.h"
#include "server/chat/client_request.h"
#include "server/json_fields.h"
#include "server/json_reader.h"

namespace larder {

// All throw Error{kInvalidArgument} with the field as param. Thread: any.

// What templates print of a function beside its name, in any API: a description and parameters of the right types.
void check_definition(const Fields& function);

// request.tools: as templates know them. Which of them are custom ones its choice is told.
void read_tools(const Fields& fields, ChatRequest& request);

// Which of the tools, once they are read.
ToolChoice read_choice_among(const Json& tools, CustomTools custom, const Fields& fields);

// OpenAI sends a call's arguments as a string of JSON; templates print them as an object. A custom tool's call becomes one
// of the function that it is to the model. values_left: of all calls together, as a body has no more.
void parse_tool_arguments(Json& message, const std::string& path, std::size_t& values_left);

}  // namespace larder
