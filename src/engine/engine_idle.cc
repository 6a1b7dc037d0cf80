// What the engine computes while nobody waits: prompts that may come.
#include <algorithm>
#include <new>
#include <utility>

#include "engine/engine.h"
#include "engine/request_check.h"

namespace larder {

void Engine::anticipate(Anticipated expected) {
  IdleWork work;
  const auto [known_end, replaced] = std::ranges::mismatch(expected.prompt, expected.answered);
  work.num_known = static_cast<int>(known_end - expected.prompt.begin());
  work.replaced.assign(replaced, expected.answered.end());
  Request& request = work.request;
  request.prompt = std::move(expected.prompt);
  request.salt = std::move(expected.salt);
  request.priority = expected.priority;
  request.sampling.max_tokens = 0;
  request.is_anticipated = true;
  check_request(request, {vocab_size_, config_.max_model_len, scheduler_.max_sequences(), config_.max_batch_tokens});
  request.prompt.shrink_to_fit();
  {
    const std::lock_guard lock(mutex_);
    if (stops_) return;
    request.id = next_id_++;
    inbox_.anticipated.push(std::move(work));
  }
  changed_.notify_one();
}

// Tokens of the prompt that can be computed in free blocks, and in those of what it replaces: nothing else is evicted
// for what only may come. 0 = it is not worth it.
int Engine::make_idle_room(const IdleWork& work) {
  const Request& request = work.request;
  const int most = static_cast<int>(request.prompt.size()) - 1;
  const int num_found = cache_.peek(request.prompt, request.salt, most);
  // A block that is not full is computed anew in any case.
  if (most - num_found < kBlockSize) return 0;
  // Its history has been evicted: others were worth more, and would go for it now.
  if (num_found < work.num_known - kBlockSize) return 0;
  std::vector<TokenId> replaced = work.replaced;
  replaced.insert(replaced.begin(), request.prompt.begin(), request.prompt.begin() + work.num_known);
  cache_.give_up(replaced, request.salt, work.num_known, cache_.num_blocks_to_go_on(num_found, most + 1));
  const int end = std::min(most + 1, cache_.num_tokens_for_free(num_found));
  return end - 1 - num_found < kBlockSize ? 0 : end;
}

// Where the memory is short, nothing is done that nobody waits for.
void Engine::push_idle_work(IdleLine& more) {
  try {
    while (!more.empty()) idle_line_.push(more.take_oldest());
  } catch (const std::bad_alloc&) {
    idle_line_.clear();
  }
}

// A copy is computed, so that what is broken off can go on later. nullopt: none is left.
std::optional<Request> Engine::next_idle_work() {
  try {
    while (!idle_line_.empty()) {
      const IdleWork& latest = idle_line_.latest();
      if (const int num_tokens = make_idle_room(latest); num_tokens > 0) {
        Request request = latest.request;
        request.prompt.resize(static_cast<std::size_t>(num_tokens));
        return request;
      }
      idle_line_.erase(latest.request.id);
    }
  } catch (const std::bad_alloc&) {
    idle_line_.clear();
  }
  return std::nullopt;
}

void Engine::begin_idle_work() {
  if (idle_line_.empty() || scheduler_.has_runnable_work()) return;
  std::optional<Request> request = next_idle_work();
  if (!request) return;
  idle_id_ = request->id;
  request->on_update = [this](RequestUpdate&& update) {
    if (update.finish != FinishReason::kCancelled) idle_line_.erase(idle_id_);
    idle_id_ = 0;
  };
  scheduler_.add(std::move(*request), 0, clock_.now_ns());
}

void Engine::make_way() {
  if (idle_id_ != 0) scheduler_.cancel(idle_id_);
}

}  // namespace larder
