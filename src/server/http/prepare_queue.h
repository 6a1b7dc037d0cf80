// What is done for requests beside the threads that serve connections, and what may wait until nobody needs that.
#pragma once

#include <atomic>
#include <boost/asio/post.hpp>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

#include "server/asio_types.h"

namespace larder {

// Jobs go in order, to all threads of the io_context. An idle one is begun only where no job is left that no thread has
// begun, and one at a time, so that of several threads the others stay free. Outlives the threads. Thread: any.
class PrepareQueue {
 public:
  static constexpr std::size_t kMostIdle = 16;

  explicit PrepareQueue(asio::io_context& io) : io_(io) {}

  template <class Job>
  void post(Job job) {
    ++num_waiting_;
    try {
      asio::post(io_, [this, owned = std::move(job)]() mutable {
        --num_waiting_;
        owned();
      });
    } catch (...) {
      --num_waiting_;
      throw;
    }
  }
  // The latest are kept, in order. It must not throw.
  void post_idle(std::function<void()> job);

 private:
  void look_later();
  void look();

  asio::io_context& io_;
  std::atomic<int> num_waiting_ = 0;  // jobs that are not idle, and not begun
  std::mutex mutex_;
  std::deque<std::function<void()>> idle_;
  bool has_look_ = false;  // one is under way, by mutex_ as idle_ is
};

}  // namespace larder
