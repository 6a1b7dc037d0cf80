#include "server/wake_queue.h"

#include <boost/asio/post.hpp>
#include <utility>

#include "server/http_connection.h"

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
    if (const auto connection = weak.lock()) connection->wake();
  }
}

}  // namespace larder
