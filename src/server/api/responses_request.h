// A request of OpenAI's Responses API, checked.
//
// Unknown fields are ignored; a known field of the wrong type, or asking for what is not there, is an
// error that names it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/openai_request.h"
#include "server/chat/response_items.h"
#include "server/json_reader.h"

namespace larder {

// What a request's body is for: an answer; its prompt's length, of /v1/responses/input_tokens; or a conversation that is
// to be summed up, of /v1/responses/compact.
enum class ResponsesUse { kAnswer, kCount, kCompaction };

struct ResponsesRequest {
  GenerationOptions options;
  std::string instructions;            // "" = none
  std::vector<Json> input;             // normalised items, references among them
  Json tools;                          // null, or an array in the chat API's shape
  ToolNames tool_names;                // of them
  Json template_kwargs;                // chat_template_kwargs: null or an object
  std::string previous_response_id;    // "" = none
  std::string conversation_id;         // "" = none; never beside previous_response_id
  bool stores = true;                  // the response can be retrieved and followed
  bool prewarms = false;               // the prompt goes into the cache, nothing is generated
  bool compacts = false;               // context_management: a summary is an item of the output
  ResponsesUse use = ResponsesUse::kAnswer;
  bool is_background = false;          // it is generated whether or not the client stays
  bool wants_logprobs = false;         // in the text's parts
  // The request's fields that the response repeats, under their names.
  Json echo = Json::object();
};

ResponsesRequest parse_responses_request(const Json& body, const RequestRules& rules,
                                         ResponsesUse use = ResponsesUse::kAnswer);

// {"key": "value"}, at most 16 of them; an absent one is {}.
Json read_metadata(const Json& body);

}  // namespace larder
