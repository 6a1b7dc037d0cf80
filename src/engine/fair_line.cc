#include "engine/fair_line.h"

#include <algorithm>

#include "base/check.h"

namespace larder {
namespace {

constexpr double kAnswerWeight = 0.05;  // of the last one

}  // namespace

FairTurn FairLine::join(std::uint64_t tenant, int priority, const FairDemand& demand) {
  Line& line = lines_[priority];
  Account& account = line.accounts[tenant];
  FairTurn turn{.tenant = tenant, .priority = priority};
  turn.begin = std::max(line.turns.empty() ? latest_ : *line.turns.begin(), account.end);
  // Its earlier ones that left may have lowered the end.
  if (account.waiting.num_requests > 0) turn.begin = std::max(turn.begin, account.last);
  turn.num_held = demand.num_prompt + demand.num_beside;
  turn.cost = demand.num_prompt + static_cast<std::int64_t>(answer_tokens_ * demand.num_choices);
  account.last = turn.begin;
  account.end = turn.begin + turn.cost;
  ++account.waiting.num_requests;
  account.waiting.num_tokens += turn.num_held;
  line.turns.insert(turn.begin);
  return turn;
}

FairLine::Account& FairLine::depart(const FairTurn& turn) {
  CHECK(!turn.has_begun && lines_.contains(turn.priority), turn.priority);
  Line& line = lines_.at(turn.priority);
  const auto place = line.turns.find(turn.begin);
  CHECK(place != line.turns.end(), turn.begin);
  line.turns.erase(place);
  Account& account = line.accounts.at(turn.tenant);
  --account.waiting.num_requests;
  account.waiting.num_tokens -= turn.num_held;
  return account;
}

void FairLine::close_if_empty(int priority) {
  if (lines_.at(priority).turns.empty()) lines_.erase(priority);
}

void FairLine::begin(FairTurn& turn) {
  if (turn.has_begun) return;
  depart(turn);
  close_if_empty(turn.priority);
  latest_ = std::max(latest_, turn.begin);
  turn.has_begun = true;
}

void FairLine::leave(const FairTurn& turn) {
  if (turn.has_begun) return;
  depart(turn).end -= turn.cost;
  close_if_empty(turn.priority);
}

void FairLine::observe_answer(int num_tokens) {
  answer_tokens_ += (num_tokens - answer_tokens_) * kAnswerWeight;
}

void FairLine::count(InLineByTenant& by_tenant) const {
  for (const auto& [priority, line] : lines_) {
    for (const auto& [tenant, account] : line.accounts) {
      if (account.waiting.num_requests == 0) continue;
      InLine& all = by_tenant[tenant];
      all.num_requests += account.waiting.num_requests;
      all.num_tokens += account.waiting.num_tokens;
    }
  }
}

}  // namespace larder
