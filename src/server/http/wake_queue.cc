#include "server/http/wake_queue.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

namespace larder {

void WakeQueue::push(std::weak_ptr<Wakeable> who) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(who));
}

void WakeQueue::flush() {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return;
  }
  asio::post(io_, [this] { drain(); });
}

void WakeQueue::drain() {
  std::vector<std::weak_ptr<Wakeable>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& weak : waiting) {
    const auto who = weak.lock();
    if (!who) continue;
    try {
      who->wake();
    } catch (const std::exception& error) {  // it looks again by itself, and the others are woken
      spdlog::error("connection: {}", error.what());
    }
  }
}

}  // namespace larder
