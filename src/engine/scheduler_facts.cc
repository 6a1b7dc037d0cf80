// What of a prompt came from where, and why the rest did not.
#include <algorithm>

#include "engine/scheduler.h"

namespace larder {
namespace {

void forget_missed_before(int end, std::vector<MissedSpan>& missed) {
  std::erase_if(missed, [end](const MissedSpan& span) { return span.end <= end; });
  if (!missed.empty()) missed.front().begin = std::max(missed.front().begin, end);
}

// Of tokens [begin, end) a tier had those that nothing else is known of. What it brings is forgotten; the rest went
// there, too.
void fill_unknown(int begin, int end, std::vector<MissedSpan>& missed) {
  for (std::size_t i = 0; begin < end; ++i) {
    const int known_from = i < missed.size() ? std::min(missed[i].begin, end) : end;
    if (begin < known_from)
      missed.insert(missed.begin() + static_cast<std::ptrdiff_t>(i),
                    {.begin = begin, .end = known_from, .cause = MissCause::kEvicted});
    begin = std::max(begin, missed[i].end);
  }
}

// What the pool had let go before `end`, a tier had, and did not deliver.
void blame_tier(int end, std::vector<MissedSpan>& missed) {
  for (std::size_t i = 0; i < missed.size() && missed[i].begin < end; ++i) {
    if (missed[i].cause != MissCause::kEvicted && missed[i].cause != MissCause::kExpired) continue;
    if (missed[i].end > end) {
      MissedSpan behind = missed[i];
      behind.begin = missed[i].end = end;
      missed.insert(missed.begin() + static_cast<std::ptrdiff_t>(i) + 1, behind);
    }
    missed[i].cause = MissCause::kTierFailed;
  }
}

}  // namespace

// What the cache can tell of the part of a prompt that it had not.
void Scheduler::note_miss(Sequence& sequence, int num_matched) {
  ActiveRequest& request = *sequence.request;
  const int most = max_match(sequence);
  std::vector<MissedSpan>& missed = request.facts.missed;
  if (num_matched < most) {
    const std::span<const TokenId> prompt(sequence.tokens);
    cache_.explain_miss(sequence.table, prompt.first(static_cast<std::size_t>(most)), missed);
  }
  const int last = request.num_prompt - 1;
  const int bypassed_from = std::max(most, num_matched);
  if (bypassed_from < last)
    missed.push_back({.begin = bypassed_from, .end = last, .cause = MissCause::kBypassed});
  missed.push_back({.begin = last, .end = last + 1, .cause = MissCause::kTooShort});
}

// Up to load.sure_end the tiers say better what becomes of the tokens.
void Scheduler::note_load(ActiveRequest& request, const LoadPlan& load) {
  if (load.sure_end <= request.num_cached) return;
  std::vector<MissedSpan>& missed = request.facts.missed;
  if (load) return fill_unknown(request.num_cached, load.sure_end, missed);
  forget_missed_before(load.sure_end, missed);
  missed.insert(missed.begin(),
                {.begin = request.num_cached, .end = load.sure_end, .cause = MissCause::kTooShort});
}

// A load has brought tokens up to num_matched.
void Scheduler::note_loaded(ActiveRequest& request, const LoadedTokens& loaded) {
  request.num_cached = std::min(loaded.num_matched, request.num_prompt);
  forget_missed_before(request.num_cached, request.facts.missed);
  blame_tier(loaded.failed_end, request.facts.missed);
  std::vector<int>& by_tier = request.facts.num_loaded_by_tier;
  by_tier.resize(loaded.num_by_tier.size());
  for (std::size_t tier = 0; tier < by_tier.size(); ++tier) by_tier[tier] += loaded.num_by_tier[tier];
}

// What a prompt owes to the cache is known only once nothing more is loaded for it: all at once, since
// no counter may fall. The rest counts as it is computed, since its client may leave.
void Scheduler::count_prompt(ActiveRequest& request) {
  if (request.is_counted()) return;
  request.num_counted = request.num_cached;
  if (request.request.is_anticipated) return;
  stats_.num_prompt_tokens += static_cast<std::uint64_t>(request.num_cached);
  stats_.num_prompt_tokens_cached += static_cast<std::uint64_t>(request.num_cached);
  std::vector<int>& by_tier = request.facts.num_loaded_by_tier;
  if (stats_.num_loaded_by_tier.size() < by_tier.size())
    stats_.num_loaded_by_tier.resize(by_tier.size());
  int num_left = std::max(0, request.num_cached - request.num_in_pool);
  for (std::size_t tier = 0; tier < by_tier.size(); ++tier) {
    by_tier[tier] = std::min(by_tier[tier], num_left);
    num_left -= by_tier[tier];
    request.num_loaded += by_tier[tier];
    stats_.num_loaded_by_tier[tier] += static_cast<std::uint64_t>(by_tier[tier]);
  }
}

}  // namespace larder
