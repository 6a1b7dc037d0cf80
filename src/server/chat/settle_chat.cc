#include "server/chat/settle_chat.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "server/chat/prompt.h"
#include "server/chat/tool_prompt.h"
#include "server/message_role.h"

namespace larder {
namespace {

// What follows adds to the system prompt, or makes it part of the user's message.
std::uint64_t hash_system_prompt(const std::vector<ChatMessage>& messages) {
  Json head = Json::array();
  for (const ChatMessage& message : messages) {
    if (!is_system_role(message.json.value("role", std::string()))) break;
    head.push_back(message.json);
  }
  return head.empty() ? 0 : hash_text(dump_json(head));
}

bool has_empty_system(const ChatRequest& chat) {
  if (chat.messages.empty()) return false;
  const Json& first = chat.messages[0].json;
  return is_system_role(first.value("role", std::string())) && first.contains("content") && first["content"] == "";
}

void leave_system_out(ChatRequest& chat) {
  chat.messages.erase(chat.messages.begin());
  std::erase_if(chat.marks, [](const CacheMark& mark) { return mark.message == 0; });
  for (CacheMark& mark : chat.marks) mark.message -= mark.message > 0;
  std::erase_if(chat.known_turns, [](const KnownTurn& turn) { return turn.message == 0; });
  for (KnownTurn& turn : chat.known_turns) --turn.message;
}

}  // namespace

SettledChat settle(ChatRequest& chat, const ServedModel& model, const Summarizer& summarizer,
                   HistoryTokens& answers) {
  SettledChat settled;
  const bool was_empty = has_empty_system(chat);
  settled.normalised = normalise(chat.options.normalisation, chat.messages, chat.tools);
  chat.has_moved_time = std::ranges::find(settled.normalised, "timestamps") != settled.normalised.end();
  chat.system_hash = hash_system_prompt(chat.messages);
  settled.history = shorten_history(chat, summarizer);
  if (settled.question() != nullptr) return settled;
  // A system prompt of which nothing is left is none: templates have one of their own for that. Only now, since what became
  // of a long history is told by places of its messages.
  if (!was_empty && chat.messages.size() > 1 && has_empty_system(chat)) leave_system_out(chat);
  adapt_chat(chat, model.abilities);
  chat.known_turns = recall_turns(answers, summarizer.salt, chat);
  // All may have been summed up, of a chat that is not to be answered.
  if (!chat.messages.empty()) settled.last = HistoryTokens::digest_of(chat.messages.back().json);
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
  adapt_chat(chat, model.abilities);
  try {
    return static_cast<int>(encode_chat(chat, model).tokens.size());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace larder
