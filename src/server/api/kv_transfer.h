// Prefill on one server and decode on another, by blocks that both find in the tier that they share: the words that vLLM's
// clients and llm-d's sidecar have for it.
#pragma once

#include <span>
#include <string>

#include "server/json_reader.h"

namespace larder {

class Fields;
struct Choice;

// "kv_transfer_params": whether the prompt is computed for another server (do_remote_decode), so that the reply waits until
// that one can load it. may_share: there is a tier for it. Throws Error{kInvalidArgument} with the field as param.
// Thread: any.
bool read_kv_transfer(const Fields& fields, bool may_share);

// What the reply of such a request says, and the request of the other server repeats.
Json kv_transfer_json(const std::string& engine_id, std::span<const Choice> choices);

}  // namespace larder
