#include "server/http/prepare_queue.h"

#include <optional>

namespace larder {

void PrepareQueue::post_idle(std::function<void()> job) {
  std::optional<std::function<void()>> dropped;  // not under the lock: what it owns may do anything when it goes
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(job));
    if (idle_.size() > kMostIdle) {
      dropped = std::move(idle_.front());
      idle_.pop_front();
    }
    if (std::exchange(has_look_, true)) return;
  }
  look_later();
}

// Behind all jobs that are there already. Without memory for it the next idle job has somebody look.
void PrepareQueue::look_later() {
  try {
    asio::post(io_, [this] { look(); });
  } catch (...) {
    const std::lock_guard lock(mutex_);
    has_look_ = false;
  }
}

void PrepareQueue::look() {
  if (num_waiting_ > 0) return look_later();
  std::function<void()> job;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      job = std::move(idle_.front());
      idle_.pop_front();
    }
    has_look_ = job != nullptr;
  }
  if (job == nullptr) return;
  job();
  look_later();
}

}  // namespace larder
