#include "engine/prompt_account.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

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

void PromptAccount::look_up(int num_tokens, int num_in_pool, std::vector<MissedSpan> missed) {
  CHECK(is_new());
  state_ = State::kLookedUp;
  num_tokens_ = num_tokens;
  num_cached_ = num_in_pool_ = num_in_pool;
  facts_.missed = std::move(missed);
}

// Up to load.sure_end the tiers say better what becomes of the tokens.
void PromptAccount::begin_load(const LoadPlan& load) {
  CHECK(state_ == State::kLookedUp);
  if (load.sure_end <= num_cached_) return;
  if (load) return fill_unknown(num_cached_, load.sure_end, facts_.missed);
  forget_missed_before(load.sure_end, facts_.missed);
  facts_.missed.insert(facts_.missed.begin(),
                       {.begin = num_cached_, .end = load.sure_end, .cause = MissCause::kTooShort});
}

void PromptAccount::add(const LoadedTokens& loaded) {
  CHECK(state_ == State::kLookedUp);
  num_cached_ = std::min(loaded.num_matched, num_tokens_);
  forget_missed_before(num_cached_, facts_.missed);
  blame_tier(loaded.failed_end, facts_.missed);
  std::vector<int>& by_tier = facts_.num_loaded_by_tier;
  by_tier.resize(loaded.num_by_tier.size());
  for (std::size_t tier = 0; tier < by_tier.size(); ++tier) by_tier[tier] += loaded.num_by_tier[tier];
}

void PromptAccount::start_anew() {
  CHECK(state_ == State::kLookedUp);
  *this = {};
}

void PromptAccount::settle() {
  CHECK(state_ == State::kLookedUp);
  state_ = State::kSettled;
  num_known_ = num_cached_;
  int num_left = std::max(0, num_cached_ - num_in_pool_);
  for (int& num : facts_.num_loaded_by_tier) {
    num = std::min(num, num_left);
    num_left -= num;
    num_loaded_ += num;
  }
}

int PromptAccount::compute_to(int end) {
  CHECK(is_settled());
  const int num_before = num_known_;
  num_known_ = std::max(num_known_, std::min(end, num_tokens_));
  return num_known_ - num_before;
}

}  // namespace larder
