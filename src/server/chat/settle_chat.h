// What becomes of a chat before it is encoded: normalised, shortened, its tools as text where the
// template knows none, its answers with the tokens they were generated as.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/chat/client_request.h"
#include "server/chat/history_tokens.h"
#include "server/chat/long_history.h"
#include "server/chat/served_model.h"

namespace larder {

struct SettledChat {
  std::vector<std::string> normalised;
  Digest last{};  // of the message to answer, as it will come back
  std::optional<HistoryReport> history;

  // What the model has to answer first; nullptr: nothing, the chat is settled.
  SummaryQuestion* question() { return history && history->to_ask ? &*history->to_ask : nullptr; }
};

// Leaves the chat as it will be encoded, unless there is a question.
SettledChat settle(ChatRequest& chat, const ServedModel& model, const Summarizer& summarizer,
                   HistoryTokens& answers);

// Answers among the chat's messages whose tokens are known.
std::vector<KnownTurn> recall_turns(HistoryTokens& answers, const std::string& salt,
                                    const ChatRequest& chat);

// How many tokens a chat's prompt has; nullopt: the template refuses it, or it is hopelessly long.
std::optional<int> measure_chat(ChatRequest chat, const ServedModel& model);

}  // namespace larder
