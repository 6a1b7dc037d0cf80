// Connections that the engine has left something for, on their way to the threads that serve them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "server/asio_types.h"

namespace larder {

class HttpConnection;

// A thread that sleeps is woken once for all that come before it gets going: a step leaves
// something for every stream, and waking costs the engine more than the rest of the way. Outlives the connections.
class WakeQueue {
 public:
  explicit WakeQueue(asio::io_context& io) : io_(io) {}

  // Has on_wake() called on the connection's strand. Thread: any.
  void push(std::weak_ptr<HttpConnection> connection);

 private:
  void drain();

  asio::io_context& io_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<HttpConnection>> waiting_;  // not empty: drain() is on its way
};

}  // namespace larder
