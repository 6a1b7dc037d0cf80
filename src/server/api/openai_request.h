// OpenAI's completions and chat completions requests, with what clients of vLLM add to them,
// checked.
//
// Unknown fields are ignored, as other servers do; a known field of the wrong type, out of its
// range or asking for what is not there is an error that names it.
#pragma once

#include "server/chat/client_request.h"
#include "server/server_limits.h"

namespace larder {

class Fields;

// What a request is checked against.
struct RequestRules {
  const ServerLimits& limits;
  int vocab_size = 0;
  int max_model_len = 0;
  AttentionSpan attention = {};  // where a request does not say
  Normalisation normalisation = {};  // likewise
  HistoryOptions history = {};   // likewise
  bool takes_long_ttl = false;   // prompt_cache_options.ttl may be "12h", too (Responses)
  bool may_share = false;        // there is a tier that other servers read
};

// All throw Error{kInvalidArgument} with the field as param. Thread: any.
ChatRequest parse_chat_request(const Json& body, const RequestRules& rules);
CompletionRequest parse_completion_request(const Json& body, const RequestRules& rules);

// What all of OpenAI's APIs have in common.
GenerationOptions read_generation_options(const Fields& fields, const RequestRules& rules);

// chat_template_kwargs: null or an object.
Json read_template_kwargs(const Fields& fields);
// top_p 0 leaves the likeliest token alone, which the engine has as top_k 1. Once both are read.
void settle_top_p(SamplingParams& sampling);

// "larder": {"cache_report", "normalise", "history"}: Larder's own options, in any API's request.
void read_larder_options(const Fields& fields, const RequestRules& rules,
                         GenerationOptions& options);

// The fields that make a chat prompt, for /tokenize, too.
void read_chat_prompt(const Json& body, ChatRequest& request);

}  // namespace larder
