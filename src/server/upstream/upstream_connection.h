// Connections to the upstream that are kept for the next request.
#pragma once

#include <boost/asio/ssl/stream.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/asio_types.h"

namespace larder {

// The strand is that of the request that made it; what another one does with it later runs on that one's own.
struct UpstreamConnection {
  explicit UpstreamConnection(const Strand& strand) : socket(strand) {}

  Socket socket;
  std::optional<asio::ssl::stream<Socket&>> tls;  // nullopt: in the clear
  std::chrono::steady_clock::time_point idle_since{};

  // Nothing has come that nobody has read: no end, and no bytes that the next request would take for its reply.
  bool is_quiet();
};

// Those whose last reply came whole, the latest behind. A new one is made only where none is kept, so there are never
// more, with those at work, than requests were there at once. Thread: any.
class UpstreamConnections {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  UpstreamConnections(std::chrono::milliseconds idle_timeout, std::size_t most) : idle_timeout_(idle_timeout) {
    idle_.reserve(most);
  }

  // The latest that is quiet; nullptr: there is none.
  std::unique_ptr<UpstreamConnection> take(TimePoint now);
  void keep(std::unique_ptr<UpstreamConnection> connection, TimePoint now);
  // Closes those that nobody took for idle_timeout, and those that the upstream has ended.
  void close_old(TimePoint now);
  // Before their io_context goes.
  void close_all();
  std::size_t size() const;

 private:
  const std::chrono::milliseconds idle_timeout_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<UpstreamConnection>> idle_;  // takes no memory after construction
};

}  // namespace larder
