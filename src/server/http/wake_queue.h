// Connections, and responses that have none, that the engine has left something for, on their way to the threads that
// serve them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "server/asio_types.h"
#include "server/wakeable.h"

namespace larder {

// A step leaves something for every stream. A thread is woken once for all of them, and behind the last: one that
// runs beside the engine before that would have it wait for locks, or for its core. Outlives the connections.
class WakeQueue {
 public:
  explicit WakeQueue(asio::io_context& io) : io_(io) {}

  // Thread: any, as of flush().
  void push(std::weak_ptr<Wakeable> who);
  // Has those woken that were pushed.
  void flush();

 private:
  void drain();

  asio::io_context& io_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Wakeable>> waiting_;
};

}  // namespace larder
