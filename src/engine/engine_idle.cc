// What the engine computes while nobody waits: prompts that may come.
#include <utility>

#include "engine/engine.h"
#include "engine/request_check.h"

namespace larder {

void Engine::anticipate(std::vector<TokenId> prompt, std::string salt) {
  Request request;
  request.prompt = std::move(prompt);
  request.salt = std::move(salt);
  request.sampling.max_tokens = 0;
  request.is_anticipated = true;
  check_request(request, {vocab_size_, config_.max_model_len, scheduler_.max_sequences(), config_.max_batch_tokens});
  request.prompt.shrink_to_fit();
  {
    const std::lock_guard lock(mutex_);
    if (stops_) return;
    request.id = next_id_++;
    inbox_.anticipated.push(std::move(request));
  }
  changed_.notify_one();
}

// A copy is computed, so that what is broken off can go on later.
void Engine::begin_idle_work() {
  while (!idle_line_.empty() && !scheduler_.has_work()) {
    const Request& latest = idle_line_.latest();
    const int most = static_cast<int>(latest.prompt.size()) - 1;
    // A block that is not full is computed anew in any case.
    if (most - cache_.peek(latest.prompt, latest.salt, most) < kBlockSize) {
      idle_line_.erase(latest.id);
      continue;
    }
    Request request = latest;
    idle_id_ = request.id;
    request.on_update = [this](RequestUpdate&& update) {
      if (update.finish != FinishReason::kCancelled) idle_line_.erase(idle_id_);
      idle_id_ = 0;
    };
    scheduler_.add(std::move(request), 0, clock_.now_ns());
  }
}

void Engine::make_way() {
  if (idle_id_ != 0) scheduler_.cancel(idle_id_);
}

}  // namespace larder
