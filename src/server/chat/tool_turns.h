// Calls and their results in the form that a template takes, where it does not take every one.
#pragma once

#include "server/chat/client_request.h"

namespace larder {

// A turn of several calls becomes turns of one, each with its result behind it. Which it is its id tells, or else its
// place. Marks and known turns keep the parts that they mean.
void split_turns(ChatRequest& request);

// Ids of calls, and what results name them by, become nine letters or digits: always the same ones for an id, so that
// a prompt begins as the last turn's. Ids that are so already stay.
void shorten_call_ids(std::vector<ChatMessage>& messages);

}  // namespace larder
