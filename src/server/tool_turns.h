// Calls and their results in the form that a template takes, where it does not take every one.
#pragma once

#include "server/json_reader.h"

namespace larder {

// Ids of calls, and what results name them by, become nine letters or digits: always the same ones for an id, so that
// a prompt begins as the last turn's. Ids that are so already stay.
void shorten_call_ids(Json& messages);

}  // namespace larder
