// The shape of the Responses API's replies: one object, or a stream of typed events.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/reply_writer.h"
#include "server/api/responses_request.h"
#include "server/chat/session_store.h"
#include "server/memory_budget.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// What a response is made of before it is generated, and where it goes when it is complete.
struct ResponseDraft {
  Json echo = Json::object();     // ResponsesRequest::echo
  std::string conversation_id;    // its items are appended there; "" = none
  bool prewarms = false;          // there is no output
  bool wants_logprobs = false;    // in the text's part
  ToolNames tool_names;           // ResponsesRequest::tool_names
  Json compaction;                // goes first among the output; null = none
  SessionStore* store = nullptr;  // null: nothing is kept
  std::string owner;
  bool keeps_response = true;  // it can be retrieved; else only the conversation grows
  bool is_background = false;  // and is, however it ends
  bool has_events = true;      // of a stream: somebody may read them
  // Empty where nothing of it is kept.
  std::shared_ptr<const StoredResponse> previous;
  std::vector<ItemPtr> context;  // before the input, without a previous
  std::vector<ItemPtr> input;
  std::unique_ptr<BudgetShare> share;  // of what the request itself brought
};

std::unique_ptr<ReplyWriter> make_responses_writer(std::string model_name,
                                                   const Tokenizer& tokenizer, ResponseDraft draft);

// usage{input_tokens, input_tokens_details, output_tokens, output_tokens_details, total_tokens}
Json responses_usage_json(const Choice& choice);

}  // namespace larder
