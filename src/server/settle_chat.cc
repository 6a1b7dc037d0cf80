#include "server/settle_chat.h"

#include "base/error.h"
#include "server/prompt.h"
#include "server/tool_prompt.h"

namespace larder {

SettledChat settle(ChatRequest& chat, const ServedModel& model, const Summarizer& summarizer,
                   HistoryTokens& answers) {
  SettledChat settled;
  settled.normalised = normalise(chat.options.normalisation, chat.messages, chat.parts, chat.tools);
  settled.history = shorten_history(chat, summarizer);
  adapt_chat(chat, model.chat_template);
  chat.known_turns = recall_turns(answers, summarizer.salt, chat);
  settled.last = chat.messages.back();
  if (settled.history) put_quotes(chat, *settled.history);
  return settled;
}

std::vector<KnownTurn> recall_turns(HistoryTokens& answers, const std::string& salt,
                                    const ChatRequest& chat) {
  std::vector<KnownTurn> turns = answers.recall(salt, chat.messages);
  // What the request itself knows counts last, and so more.
  turns.insert(turns.end(), chat.known_turns.begin(), chat.known_turns.end());
  return turns;
}

std::optional<int> measure_chat(ChatRequest chat, const ServedModel& model) {
  adapt_chat(chat, model.chat_template);
  try {
    return static_cast<int>(encode_chat(chat, model).tokens.size());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace larder
