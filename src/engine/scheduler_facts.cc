// What of a prompt came from where, and why the rest did not.
#include <algorithm>

#include "engine/scheduler.h"

namespace larder {

// What the cache can tell of the part of a prompt that it had not.
std::vector<MissedSpan> Scheduler::find_missed(const Sequence& sequence, int num_matched) const {
  const ActiveRequest& request = *sequence.request;
  std::vector<MissedSpan> missed;
  if (request.request.is_anticipated) return missed;  // nobody asks
  const int most = max_match(sequence);
  if (num_matched < most) {
    const std::span<const TokenId> prompt(sequence.tokens);
    cache_.explain_miss(sequence.table, prompt.first(static_cast<std::size_t>(most)), missed);
  }
  const int last = request.num_prompt - 1;
  const int bypassed_from = std::max(most, num_matched);
  if (bypassed_from < last)
    missed.push_back({.begin = bypassed_from, .end = last, .cause = MissCause::kBypassed});
  missed.push_back({.begin = last, .end = last + 1, .cause = MissCause::kTooShort});
  return missed;
}

// What is not cached counts as it is computed, since its client may leave.
void Scheduler::settle(ActiveRequest& request) {
  PromptAccount& account = request.account;
  account.settle();
  if (request.request.is_anticipated) return;
  stats_.num_prompt_tokens += static_cast<std::uint64_t>(account.num_cached());
  stats_.num_prompt_tokens_cached += static_cast<std::uint64_t>(account.num_cached());
  const std::vector<int>& by_tier = account.facts().num_loaded_by_tier;
  if (stats_.num_loaded_by_tier.size() < by_tier.size()) stats_.num_loaded_by_tier.resize(by_tier.size());
  for (std::size_t tier = 0; tier < by_tier.size(); ++tier)
    stats_.num_loaded_by_tier[tier] += static_cast<std::uint64_t>(by_tier[tier]);
}

}  // namespace larder
