// What a prompt owes to the cache.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "kv/cache/kv_cache.h"

namespace larder {

// Of a request that is new, nothing is known. When it is first admitted it is looked up: the pool's part is known, and
// tiers may bring more, load by load. Once nothing more is loaded for it the account is settled: what counts in
// statistics is read then, all at once, since no counter may fall. What is looked up or loaded later, after a
// preemption, is no part of it: it had been computed for this request. Thread: engine only.
class PromptAccount {
 public:
  bool is_new() const { return state_ == State::kNew; }
  bool is_settled() const { return state_ == State::kSettled; }

  // New: the pool has num_in_pool of num_tokens; missed: what is known of the others, in order.
  void look_up(int num_tokens, int num_in_pool, std::vector<MissedSpan> missed);
  // Looked up: what tiers are asked for, and what they have brought.
  void begin_load(const LoadPlan& load);
  void add(const LoadedTokens& loaded);
  // Looked up, and preempted before its first load came: the next look tells all of it anew.
  void start_anew();
  // Looked up.
  void settle();

  // Settled: its tokens up to `end` are computed. Returns how many of them were not known to be: each counts once,
  // however often a preempted prompt is computed, and for all of its choices.
  int compute_to(int end);

  int num_cached() const { return num_cached_; }  // as far as is known
  int num_loaded() const { return num_loaded_; }  // of those, from tiers, once it is settled
  const CacheFacts& facts() const { return facts_; }

 private:
  enum class State : std::uint8_t { kNew, kLookedUp, kSettled };

  State state_ = State::kNew;
  int num_tokens_ = 0;
  int num_in_pool_ = 0;
  int num_cached_ = 0;
  int num_loaded_ = 0;
  int num_known_ = 0;  // cached, or computed since
  CacheFacts facts_;
};

}  // namespace larder
