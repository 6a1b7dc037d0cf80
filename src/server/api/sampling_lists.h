// The lists of a request that its answer is held to while it is generated: each is bounded, as thousands may wait in line
// with theirs.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/openai_request.h"

namespace larder {

class Fields;

// All throw Error{kInvalidArgument} with the field as param. Thread: any.

// OpenAI's "stop": a string, or several.
std::vector<std::string> read_stop(const Fields& fields, const ServerLimits& limits);
// Of what an API calls its stop strings.
void require_few_stop_bytes(const std::vector<std::string>& stop, const Fields& fields, const char* name,
                            const ServerLimits& limits);
void read_logit_bias(const Fields& fields, const RequestRules& rules, SamplingParams& sampling);
// Each once, in order.
void read_stop_token_ids(const Fields& fields, const RequestRules& rules, SamplingParams& sampling);

}  // namespace larder
