// What Router makes of a request of the Responses API before the engine hears of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/responses_request.h"
#include "server/api/responses_writer.h"
#include "server/api/router.h"
#include "server/chat/client_request.h"
#include "server/chat/long_history.h"
#include "server/chat/session_store.h"

namespace larder {

// Tokens of what the model was asked before a request could be prepared.
struct AskedTokens {
  std::int64_t num_input = 0, num_cached = 0, num_written = 0, num_output = 0, num_thought = 0;
};
AskedTokens asked_tokens(const HttpRequest& request);

// A request, with all that it refers to.
struct Router::ResponsePlan {
  ResponsesRequest parsed;
  ChatRequest chat;
  ResponseDraft draft;
  std::string told_summary;  // the last one that is among the items, and with what it is kept
  Json told_first_kept;
  std::string system_items;  // see ItemChat
  // Of one to be compacted: what the messages are made of. Empty where an earlier compaction holds some of them.
  std::vector<ItemPtr> items;

  // An item for what was dropped since the last one that the client has; else null.
  Json compaction(const HistoryReport& report) const;
  // The items that a conversation goes on with in place of all: those that are kept, and a compaction, which holds them as
  // well, for whoever sends it alone. sent: the chat's messages before they were shortened.
  Json compacted(const std::vector<ChatMessage>& sent, const HistoryReport& report) const;

 private:
  // A chat's messages, the system's first, without what each request brings as its instructions.
  void leave_instructions_out(Json& messages) const;
};

}  // namespace larder
