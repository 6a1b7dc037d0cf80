// What a chat's next turn will begin with, for the engine to compute while nobody waits.
//
// Many templates print an answer otherwise than it was generated: without its thoughts, or without an empty thought that
// they began it with. The cache has it behind tokens that the next prompt does not have, and its tokens, though they were
// computed once, would be computed again while the client waits for the first token of the next turn.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/idle_line.h"
#include "server/answer/tool_calls.h"
#include "server/chat/client_request.h"
#include "server/chat/history_tokens.h"
#include "server/chat/served_model.h"
#include "server/memory_budget.h"

namespace larder {

// Kept of a chat until its answer is there.
struct NextTurn {
  ChatRequest chat;  // as it was encoded; without its options
  std::string salt;
  int priority = 0;
  ToolCallRules rules;           // of the answer
  std::vector<TokenId> tokens;   // the prompt's; then those of the answer, too
  std::unique_ptr<BudgetShare> share;
  std::string answer = {};  // as it was generated
};

// Of a chat that is about to be answered.
struct AskedTurn {
  const GenerationOptions& options;
  const std::string& salt;
  std::span<const TokenId> prompt;
};

// Whether the template may print answers otherwise than they are generated.
bool may_reprint_answers(const TemplateAbilities& abilities, const Tokenizer& tokenizer);

// nullptr: what the next turn begins with is not known now, since the chat is shortened, goes on in a message, has
// several answers or leaves its tokens behind; or the budget has no room for it.
std::unique_ptr<NextTurn> keep_for_next_turn(ChatRequest chat, const AskedTurn& asked, MemoryBudget& budget);

// The next prompt, up to where the message begins that its client will add. nullopt: the answer calls functions that the
// template knows nothing of, or it refuses them. Thread: any; takes as long as the chat is long.
std::optional<Anticipated> begin_next_turn(NextTurn turn, HistoryTokens& answers, const ServedModel& model);

}  // namespace larder
