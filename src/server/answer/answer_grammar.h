// From what a request says of its answer to the texts that the engine lets it be.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "base/hash.h"
#include "grammar/constraint.h"
#include "server/answer/answer_format.h"
#include "server/answer/tool_calls.h"
#include "server/memory_budget.h"
#include "tokenizer/tokenizer.h"

namespace larder {

// Whether its vocabulary lets an answer be of messages.
bool has_harmony_tokens(const Tokenizer& tokenizer);

// What an answer's text depends on.
struct AnswerRules {
  const AnswerFormat& format;
  const ToolChoice& tool_choice;
  bool takes_many_calls = true;
  bool is_harmony = false;  // it begins with the header of a message, see HarmonyScanner
  std::optional<CallSpelling> spelling = {};  // of calls; nullopt = any
  const Json& tools;  // as templates know them, or null
};

// Whether there is anything that the answer may not be.
bool are_constrained(const AnswerRules& rules);

// Calls are written as ToolCallScanner or HarmonyScanner reads them; arguments follow the tool's schema where the answer has to call, or
// the tool is strict. Throws Error{kInvalidArgument} with the field as param.
Grammar make_answer_grammar(const AnswerRules& rules);

// Makes each constraint once while it is used, and a little longer. Thread: any.
class ConstraintTable {
 public:
  // max_bytes: of all constraints at work. The tokenizer must outlive what is made.
  ConstraintTable(const Tokenizer& tokenizer, std::size_t max_bytes)
      : tokenizer_(tokenizer), budget_(std::make_shared<MemoryBudget>(max_bytes)) {}

  // Null: the answer may be anything. Throws as make_answer_grammar(); Error{kUnavailable}, likewise with the field,
  // where those at work leave no room.
  std::shared_ptr<const Constraint> find(const AnswerRules& rules);

  // Of what is at work or was lately, and of the tree of tokens.
  std::size_t size_bytes() const { return budget_->used() + num_trie_bytes_.load(); }

 private:
  struct Entry {
    Digest key;
    std::shared_ptr<const Constraint> constraint;
  };

  std::shared_ptr<const TokenTrie> trie();
  std::shared_ptr<const Constraint> make(const AnswerRules& rules);

  const Tokenizer& tokenizer_;
  const std::shared_ptr<MemoryBudget> budget_;  // constraints may outlive the table
  std::once_flag made_trie_;
  std::shared_ptr<const TokenTrie> trie_;
  std::atomic<std::size_t> num_trie_bytes_ = 0;
  std::mutex mutex_;
  std::list<Entry> recent_;  // by mutex_, the latest first
};

}  // namespace larder
