#include "server/chat/next_turn.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "server/answer/answer_grammar.h"
#include "server/answer/answer_scanner.h"
#include "server/chat/prompt.h"
#include "server/chat/render_chat.h"
#include "server/chat/session_store.h"
#include "server/chat/settle_chat.h"

namespace larder {
namespace {

std::size_t memory_of_chat(const ChatRequest& chat) {
  std::size_t bytes = chat.messages.capacity() * sizeof(ChatMessage) + chat.known_turns.capacity() * sizeof(KnownTurn);
  for (const Json* part : {&chat.tools, &chat.adapted_tools, &chat.template_kwargs}) bytes += memory_of(*part);
  for (const ChatMessage& message : chat.messages)
    bytes += memory_of(message.json) - sizeof(Json) + message.parts.capacity() * sizeof(ContentPart);
  // HistoryTokens may have forgotten them meanwhile.
  for (const KnownTurn& turn : chat.known_turns) bytes += turn.tokens->size() * sizeof(TokenId);
  return bytes;
}

// As its client will send it back, and what it will add. nullopt: that is not known here.
std::optional<std::array<ChatMessage, 2>> messages_after(const NextTurn& turn, const TemplateAbilities& abilities) {
  std::string content;
  Json calls = Json::array();
  for (AnswerPiece& piece : split_answer(turn.answer, turn.rules)) {
    if (piece.call) {
      if (!calls.empty() && !abilities.takes_several_calls) continue;  // the first one's result comes before it
      calls.push_back({{"id", fmt::format("call{:05}", calls.size())},
                       {"type", "function"},
                       {"function", {{"name", piece.call->name}, {"arguments", piece.call->arguments}}}});
    } else if (!piece.is_thought) {
      content += piece.text;
    }
  }
  ChatMessage answer = message_of("assistant", std::move(content));
  // Some templates print a last answer with its thoughts, others refuse to end with one.
  if (calls.empty()) return {{std::move(answer), message_of("user", "u")}};
  if (!turn.chat.adapted_tools.is_null()) return std::nullopt;  // they would be part of the text
  if (answer.json["content"] == "") answer.json["content"] = nullptr;
  ChatMessage result = message_of("tool", "u");
  result.json["tool_call_id"] = calls[0]["id"];
  answer.json["tool_calls"] = std::move(calls);
  return {{std::move(answer), std::move(result)}};
}

}  // namespace

bool may_reprint_answers(const TemplateAbilities& abilities, const Tokenizer& tokenizer) {
  return abilities.may_reprint_answers || has_harmony_tokens(tokenizer);
}

std::unique_ptr<NextTurn> keep_for_next_turn(ChatRequest chat, const AskedTurn& asked, MemoryBudget& budget) {
  const GenerationOptions& options = asked.options;
  const bool goes_elsewhere = options.best_of > 1 || options.attention.window > 0 || chat.continue_final_message;
  const bool is_shortened = chat.num_dropped > 0 || !chat.summary.empty() || chat.quoted_message >= 0;
  if (goes_elsewhere || is_shortened || chat.has_moved_time || options.truncate_prompt_tokens) return nullptr;
  chat.options = {};
  chat.marks = std::vector<CacheMark>();
  auto share = std::make_unique<BudgetShare>(budget);
  const std::size_t num_type_bytes = options.tool_calls.tagged ? options.tool_calls.tagged->size_bytes() : 0;
  const auto fits = [&] { return share->grow(memory_of_chat(chat) + num_type_bytes + asked.prompt.size_bytes()); };
  if (!fits()) {
    // Answers' tokens are recalled again, those that are still known then; the others' text is encoded anew.
    if (chat.known_turns.empty()) return nullptr;
    chat.known_turns = std::vector<KnownTurn>();
    if (!fits()) return nullptr;
  }
  ToolCallRules rules = options.tool_calls;
  rules.custom = nullptr;  // it is sent back as clients are shown it, and is a function's call again then
  return std::make_unique<NextTurn>(NextTurn{
      .chat = std::move(chat),
      .salt = asked.salt,
      .priority = options.priority,
      .rules = std::move(rules),
      .tokens = {asked.prompt.begin(), asked.prompt.end()},
      .share = std::move(share)});
}

std::optional<Anticipated> begin_next_turn(NextTurn turn, HistoryTokens& answers, const ServedModel& model) {
  auto messages = messages_after(turn, model.abilities);
  if (!messages) return std::nullopt;
  ChatRequest& chat = turn.chat;
  for (ChatMessage& message : *messages) chat.messages.push_back(std::move(message));
  chat.add_generation_prompt = false;
  try {
    chat.known_turns = recall_turns(answers, turn.salt, chat);
    PreparedPrompt prompt = encode_chat(chat, model);
    const auto last = static_cast<std::int32_t>(chat.messages.size()) - 1;
    const auto added = std::ranges::find(prompt.origin.parts, last, &PromptPart::message);
    if (added == prompt.origin.parts.end()) return std::nullopt;
    prompt.tokens.resize(static_cast<std::size_t>(added->begin));
    return Anticipated{.prompt = std::move(prompt.tokens),
                       .salt = std::move(turn.salt),
                       .priority = turn.priority,
                       .answered = std::move(turn.tokens)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace larder
