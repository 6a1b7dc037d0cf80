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
    ++num_paused_;
  }
  request.is_paused = true;
}

void Scheduler::resume(std::uint64_t request_id) {
  const auto found = requests_.find(request_id);
  if (found == requests_.end()) return;
  ActiveRequest& request = *found->second;
  request.wants_pause = false;
  if (!std::exchange(request.is_paused, false)) return;
  if (!request.turn.has_begun) request.turn = take_turn(*request.choices.front());
  for (const auto& choice : request.choices) {
    waiting_.insert(choice.get());
    num_waiting_tokens_ += choice->num_tokens_in_line();
    --num_paused_;
  }
}

}  // namespace larder
