// Anthropic's Messages API requests, checked: as a chat, in the shape that templates take.
//
// Fields that change what is asked for and that this server cannot do are errors; others that it
// does not know are ignored.
#pragma once

#include "server/api/openai_request.h"
#include "server/json_reader.h"

namespace larder {

// A cache_control's times: the one that counts where it names none, and the other.
inline constexpr int kShortCacheTtl_s = 5 * 60;
inline constexpr int kLongCacheTtl_s = 60 * 60;

// The blocks of system and messages become messages and their parts: text joins by a new line,
// tool_use becomes a call, tool_result a message of its own, and turns of one role in a row become
// one. cache_control becomes marks; without one nothing counts as written to the cache. An answer
// that has begun (the last turn is the assistant's) is gone on with. All throw
// Error{kInvalidArgument} with the field as param. Thread: any.
ChatRequest parse_messages_request(const Json& body, const RequestRules& rules);
// Needs no max_tokens, which it reads for the room that the prompt of a long history leaves.
ChatRequest parse_count_tokens_request(const Json& body, const RequestRules& rules);

}  // namespace larder
