// The summary of what a long conversation has dropped, written by the same model.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "server/chat/client_request.h"
#include "server/lru_table.h"
#include "tokenizer/tokenizer.h"

namespace larder {

struct Summary {
  std::string text;            // "" = there is none
  std::size_t num_untold = 0;  // messages that it does not cover: they fitted into no question
};

// Where summaries come from.
struct Summarizer {
  using Table = LruTable<std::shared_ptr<const Summary>>;

  Table& table;  // of those that were written, by what they sum up
  const Tokenizer& tokenizer;
  std::string salt;
  // Tokens of the prompt that a chat becomes; nullopt: there is none, the template refuses it.
  std::function<std::optional<int>(const ChatRequest&)> measure;
  // The model's answer to the question of a key; nullopt: it has not been asked.
  std::function<std::optional<std::string>(const Digest&)> answer;
  bool may_ask = false;  // else what would take another answer is left untold
  int max_model_len = 0;
};

// For the model. Once there is an answer, what is summed up begins anew, and comes past the same question.
struct SummaryQuestion {
  Digest key{};
  ChatRequest chat;
};

// What is to be summed up: messages [num_head, steps.back()), those up to each step by themselves, as
// they were dropped together. The chat's own earlier summary comes first.
struct SummaryTask {
  const ChatRequest& chat;
  std::size_t num_head = 0;
  std::vector<std::size_t> steps;  // ascending, not empty
  int max_tokens = 0;              // of a summary
};

// Step by step, each with the summary before it, from the last one that is known. A question is asked
// behind the very prompt that is cached. Where that does not fit into the model, what is dropped is
// quoted in pieces; what fits in no way is left untold. Returns the question that has to be answered first; nullopt: there
// is the summary.
std::optional<SummaryQuestion> sum_up(const SummaryTask& task, const Summarizer& summarizer, Summary& summary);

// Puts a summary where the model is to read it: at the end of the system prompt.
void put_summary(ChatRequest& chat, const std::string& text);

// Messages as text, one a paragraph: "user: ...".
std::string quote_messages(const std::vector<ChatMessage>& messages, std::size_t begin, std::size_t end);
std::string text_of_message(const Json& message);

}  // namespace larder
