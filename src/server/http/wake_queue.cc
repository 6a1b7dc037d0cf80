#include "server/http/wake_queue.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "server/http/http_connection.h"

namespace larder {

void WakeQueue::push(std::weak_ptr<HttpConnection> connection) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(connection));
}

void WakeQueue::flush() {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return;
  }
  asio::post(io_, [this] { drain(); });
}

void WakeQueue::drain() {
  std::vector<std::weak_ptr<HttpConnection>> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& weak : waiting) {
    const auto connection = weak.lock();
    if (!connection) continue;
    try {
      connection->wake();
    } catch (const std::exception& error) {  // it looks again by itself, and the others are woken
      spdlog::error("connection: {}", error.what());
    }
  }
}

}  // namespace larder
