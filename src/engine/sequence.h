// A request at work: its choices, and what is known of each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/types.h"
#include "engine/draft.h"
#include "engine/fair_line.h"
#include "engine/prompt_account.h"
#include "engine/request.h"
#include "engine/token_counts.h"
#include "grammar/grammar_state.h"
#include "kv/cache/block_table.h"

namespace larder {

struct ActiveRequest;

// One choice of a request. There is no prefill and no decode: num_computed() catches up with
// tokens.size(), and whenever it has, a token is sampled and appended.
// Waiting or paused: the table is empty. Running: it holds blocks. Gone once finished.
struct Sequence {
  ActiveRequest* request = nullptr;
  int choice = 0;
  std::vector<TokenId> tokens;  // prompt, then output
  // What of them penalties go by, where there are any: from when it first runs.
  std::optional<TokenCounts> seen = std::nullopt;
  int num_output = 0;  // that were reported: a stop token is not among them
  BlockTable table;
  bool is_reported = false;  // its first update has gone out
  bool has_paused = false;   // since its last token
  std::optional<GrammarState> constrained =
      std::nullopt;  // how far the output has come in what it may be, once it has begun
  Draft draft = {};  // empty between steps
  std::int64_t first_token_ns = 0;
  std::int64_t last_token_ns = 0;
  std::int64_t finished_ns = 0;

  // While it waits for another sequence to compute the prefix that they share.
  std::uint64_t leader_id = 0;  // a request, 0 = none
  int num_shared_with_leader = 0;
  // What of it cache and tiers lacked when they were last asked, and the turn when they are again.
  int num_not_cached = 0;
  std::uint64_t next_peek = 0;
  // Blocks that must be free of other claims before another attempt at admission can succeed, as long
  // as no more of prompts is published than had been then.
  std::int64_t num_blocks_wanted = 0;
  std::uint64_t wanted_after = 0;

  // Tokens of the output, for good or for as long as a guess is drawn behind them.
  void push(TokenId token) {
    tokens.push_back(token);
    if (seen) seen->add(token);
  }
  void drop_behind(std::size_t num_tokens) {
    for (std::size_t i = num_tokens; seen && i < tokens.size(); ++i) seen->take_back(tokens[i]);
    tokens.resize(num_tokens);
  }

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_computed() const { return table.num_computed(); }
  int num_missing() const { return num_tokens() - num_computed(); }
  // While it waits: what it will miss, as far as is known.
  int num_expected() const { return next_peek == 0 ? num_tokens() : num_not_cached; }
  int num_tokens_in_line() const;  // that are held while it waits
};

// Owned by the scheduler from add() until its last choice has ended.
struct ActiveRequest {
  Request request;
  std::uint64_t seed = 0;  // of all choices, with choice and position
  FairTurn turn;
  RequestTimes times;
  int num_prompt = 0;
  PromptAccount account;
  int num_preemptions = 0;
  std::size_t num_pins_reached = 0;  // of request.pins, places that have been computed
  std::vector<PromptPin> pinned;     // those of them that the cache took
  // Tokens of the prompt whose logprobs are known: the first needs none. null = none are wanted, or all choices have been
  // told.
  std::shared_ptr<std::vector<OutputToken>> prompt_logprobs;
  int num_scored = 0;  // of those tokens, told or not
  int num_told = 0;    // choices that have had their first update
  std::vector<std::unique_ptr<Sequence>> choices;  // those that have not ended; only 0 until forked
  bool is_forked = false;
  bool wants_pause = false;
  bool is_paused = false;  // its choices neither run nor wait
  std::int64_t paused_at_ns = 0;
  std::int64_t paused_ns = 0;  // in all, before that

  // Of RequestTimes.
  std::int64_t time_at(std::int64_t now_ns) const { return (is_paused ? paused_at_ns : now_ns) - paused_ns; }
  // Choices that each of its sequences stands for.
  int num_per_sequence() const { return is_forked ? 1 : request.n; }
  AttentionSpan span() const { return {request.attention_window, request.attention_sinks}; }
  bool wants_prompt_logprobs() const { return request.sampling.num_prompt_logprobs >= 0; }
  // Rows whose logits are still wanted for the prompt begin at this position.
  int first_prompt_row() const { return num_scored; }
};

inline int Sequence::num_tokens_in_line() const {
  const auto& prediction = request->request.prediction;
  return num_tokens() + (prediction == nullptr ? 0 : static_cast<int>(prediction->size()));
}

// Who goes first: by priority, then by turn (FairLine), then by arrival, then by choice. The last one is preempted.
struct GoesBefore {
  bool operator()(const Sequence* left, const Sequence* right) const {
    const Request& a = left->request->request;
    const Request& b = right->request->request;
    if (a.priority != b.priority) return a.priority < b.priority;
    const std::int64_t a_turn = left->request->turn.begin, b_turn = right->request->turn.begin;
    if (a_turn != b_turn) return a_turn < b_turn;
    if (a.id != b.id) return a.id < b.id;
    return left->choice < right->choice;
  }
};

}  // namespace larder
