// Requests whose reader is behind.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace larder {

// What is wanted stays so until it can be: whoever was in a prompt comes back once its choices have their first tokens.
void Scheduler::pause(std::uint64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return;
  ActiveRequest& request = *found->second;
  request.wants_pause = true;
  const auto may_pause = [&](const auto& choice) { return choice->is_reported || waiting_.contains(choice.get()); };
  if (request.is_paused || !std::ranges::all_of(request.choices, may_pause)) return;
  for (const auto& choice : request.choices) {
    detach(*choice);
    note_paused(*choice, 1);
    choice->has_paused = true;
  }
  request.is_paused = true;
  request.paused_at_ns = clock_.now_ns();
}

void Scheduler::resume(std::uint64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return;
  ActiveRequest& request = *found->second;
  request.wants_pause = false;
  if (!std::exchange(request.is_paused, false)) return;
  request.paused_ns += clock_.now_ns() - request.paused_at_ns;
  if (!request.turn.has_begun) request.turn = take_turn(*request.choices.front());
  for (const auto& choice : request.choices) {
    waiting_.insert(choice.get());
    num_waiting_tokens_ += choice->num_tokens_in_line();
    note_paused(*choice, -1);
  }
}

// They hold what those in line do.
void Scheduler::note_paused(const Sequence& sequence, int num) {
  const auto own = paused_by_tenant_.try_emplace(sequence.request->request.tenant).first;
  for (InLine* paused : {&paused_, &own->second}) {
    paused->num_requests += num;
    paused->num_tokens += std::int64_t{num} * sequence.num_tokens_in_line();
  }
  if (own->second.num_requests == 0) paused_by_tenant_.erase(own);
}

void Scheduler::count_paused(InLineByTenant& by_tenant) const {
  for (const auto& [tenant, paused] : paused_by_tenant_) {
    InLine& all = by_tenant[tenant];
    all.num_requests += paused.num_requests;
    all.num_tokens += paused.num_tokens;
  }
}

}  // namespace larder
