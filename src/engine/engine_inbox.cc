// What others ask of the engine: left by any thread, taken by its own before a step.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "engine/draft_model.h"
#include "engine/engine.h"
#include "engine/request_check.h"

namespace larder {
namespace {

// Whether a tenant with so much in line, of all there is, would enter the last quarter with more than a quarter.
bool takes_others_room(std::int64_t own, std::int64_t all, std::int64_t most) {
  return all > most - most / 4 && own > most / 4;
}

}  // namespace

std::uint64_t Engine::submit(Request request) {
  check_request(request, {vocab_size_, config_.max_model_len, scheduler_.max_sequences(),
                          config_.max_batch_tokens});
  request.prompt.shrink_to_fit();  // what waits takes what is counted
  const std::size_t num_predicted = request.prediction == nullptr ? 0 : request.prediction->size();
  const auto num_tokens = static_cast<std::int64_t>(request.prompt.size() + num_predicted);
  const std::int64_t arrived_ns = clock_.now_ns();
  const std::uint64_t tenant = request.tenant;
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stops_) throw Error(ErrorKind::kStopped, "the engine is stopping");
    require_room_in_line(request, num_tokens);
    for (InLineByTenant* by_tenant : {&inbox_.by_tenant, &in_line_by_tenant_}) {
      InLine& own = (*by_tenant)[tenant];
      ++own.num_requests;
      own.num_tokens += num_tokens;
    }
    id = request.id = next_id_++;
    const std::uint64_t seed = request.sampling.seed.value_or(seeds_());
    inbox_.arrivals.push_back({std::move(request), seed, arrived_ns});
    inbox_.num_tokens += num_tokens;
    ++num_in_line_;
    num_tokens_in_line_ += num_tokens;
  }
  changed_.notify_one();
  return id;
}

// By the mutex. One alone is always taken: else the longest could never be.
void Engine::require_room_in_line(const Request& request, std::int64_t num_tokens) const {
  if (num_in_line_ >= config_.max_waiting) {
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{} requests are waiting already; try again later", num_in_line_));
  }
  if (num_in_line_ > 0 && num_tokens_in_line_ + num_tokens > config_.max_waiting_tokens) {
    throw Error(ErrorKind::kUnavailable,
                fmt::format("requests of {} tokens are waiting already, and {} more are over the "
                            "{} that may wait; try again later",
                            num_tokens_in_line_, num_tokens, config_.max_waiting_tokens));
  }
  const auto own = in_line_by_tenant_.find(request.tenant);
  if (request.tenant == 0 || own == in_line_by_tenant_.end()) return;
  const auto& [num_own, num_own_tokens] = own->second;
  if (takes_others_room(num_own + 1, num_in_line_ + 1, config_.max_waiting) ||
      takes_others_room(num_own_tokens + num_tokens, num_tokens_in_line_ + num_tokens, config_.max_waiting_tokens)) {
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{} requests of {} tokens are waiting under this key already, and the last quarter of the line "
                            "is kept for others; try again later",
                            num_own, num_own_tokens));
  }
}

void Engine::cancel(std::uint64_t request_id) { cancel_choice(request_id, -1); }

void Engine::cancel_choice(std::uint64_t request_id, int choice) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.cancellations.push_back({request_id, choice});
  }
  changed_.notify_one();
}

void Engine::pause(std::uint64_t request_id, bool is_paused) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.pauses.emplace_back(request_id, is_paused);
  }
  changed_.notify_one();
}

void Engine::reset_prefix_cache() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.resets_cache = true;
  }
  changed_.notify_one();
}

// Whether a request has come or is to go, or what one waits for is there.
bool Engine::has_news() const {
  const std::lock_guard lock(mutex_);
  return has_tier_news_ || !inbox_.empty();
}

void Engine::take(Inbox inbox) {
  if (inbox.cancels_anticipated || inbox.cancels_all || inbox.resets_cache) {
    idle_line_.clear();
    make_way();
  }
  push_idle_work(inbox.anticipated);
  const bool resumes = !std::ranges::all_of(inbox.pauses, [](const auto& pause) { return pause.second; });
  if (!inbox.arrivals.empty() || resumes) make_way();
  for (Arrival& arrival : inbox.arrivals) {
    UpdateCallback& on_update = arrival.request.on_update;
    if (on_update) {
      on_update = [this, owner = std::make_shared<UpdateCallback>(std::move(on_update))](RequestUpdate&& update) {
        if (update.share) return hold_until_shared({owner, std::move(update)});
        outbox_.push_back({owner, std::move(update)});
      };
    }
    scheduler_.add(std::move(arrival.request), arrival.seed, arrival.arrived_ns);
  }
  for (const auto& [id, is_paused] : inbox.pauses) is_paused ? scheduler_.pause(id) : scheduler_.resume(id);
  for (const auto& [id, choice] : inbox.cancellations) {
    if (choice < 0) {
      scheduler_.cancel(id);
    } else {
      scheduler_.cancel_choice(id, choice);
    }
  }
  if (inbox.cancels_all) {
    scheduler_.cancel_all();
    release_shared(true);
  }
  if (!inbox.resets_cache) return;
  cache_.clear();
  if (draft_model_ != nullptr) draft_model_->clear_cache();
}

}  // namespace larder
