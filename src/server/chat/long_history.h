// What becomes of conversations that outgrow their context.
//
// What is dropped is decided from the messages alone: every request walks them from the beginning and
// comes to the same decisions as the one before. So nothing has to be stored but summaries, and the
// prompt's prefix stays the same from one dropping to the next, which frees half the room at once for
// that reason. What is found again for one question stands beside it, behind the prefix.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "server/chat/client_request.h"
#include "server/chat/history_options.h"
#include "server/chat/history_summary.h"
#include "server/chat/message_run.h"
#include "server/json_reader.h"

namespace larder {

// Messages [num_head, first_kept) are dropped. The head is what comes before the first message of a
// user: the system prompt.
struct HistoryCut {
  std::size_t num_head = 0;
  std::size_t first_kept = 0;
  // Of the dropped ones the user's message that stays all the same, as nothing has answered it yet; see drop_turns().
  std::optional<std::size_t> unanswered = std::nullopt;

  std::size_t num_dropped() const { return first_kept - num_head; }
};

// A rolling window over whole turns, from a user's message to before the next one's. When the messages
// kept exceed limit tokens (sizes: of each), the oldest turns go until they have limit / 2 at most. The
// last turn stays whatever its size. steps: where first_kept stood after each dropping.
HistoryCut roll_window(const std::vector<ChatMessage>& messages, const std::vector<int>& sizes, int limit,
                       std::vector<std::size_t>* steps = nullptr);

// All turns before the last one; the last one, too, where it is the only one or has more than half of the limit. Then the
// user's message that it begins with stays, unless its answer is there.
HistoryCut drop_turns(const std::vector<ChatMessage>& messages, const std::vector<int>& sizes, int limit);

// Tokens of each message's text, and of what the template puts around them.
struct MessageSizes {
  std::vector<int> messages;  // each with its share of the template
  int head = 0;               // of all that comes before the first user's message and after the last one
};
MessageSizes measure_messages(const ChatRequest& chat, const Summarizer& summarizer);

// What was done, for the reply.
struct HistoryReport {
  HistoryOptions options;  // max_tokens as it was applied
  HistoryCut cut;          // of the messages as they came
  int num_dropped_messages = 0;
  int num_dropped_turns = 0;   // the conversation's first ones
  int num_dropped_tokens = 0;  // about
  int num_kept_messages = 0;
  std::vector<int> retrieved_turns;  // of the dropped ones, counted from 1
  Summary summary;
  Json summary_usage;  // tokens that it took to write them for this request; null = none
  Json kept;           // the system prompt and the messages kept beside a summary; else null
  SummedRun summed;    // that this summary is for
  std::optional<SummaryQuestion> to_ask;  // the model, before the rest is what was done
  // For put_quotes().
  std::string question;
  std::string quotes;

  Json json() const;
};

// Bounds the chat as its options say, unless there is something to ask first. known_turns follow their messages. nullopt:
// there is no strategy.
std::optional<HistoryReport> shorten_history(ChatRequest& chat, const Summarizer& summarizer);

// What was found for the newest question goes before it. Apart, so that the message can be remembered as
// the client will send it again.
void put_quotes(ChatRequest& chat, HistoryReport& report);

}  // namespace larder
