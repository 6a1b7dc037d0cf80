// What requests to the upstream share: its certificates, its connections, its slots, its metrics.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "server/upstream/upstream_config.h"
#include "server/upstream/upstream_connection.h"
#include "server/upstream/upstream_metrics.h"
#include "server/upstream/upstream_slots.h"
#include "server/wait_predictor.h"

namespace boost::asio::ssl {
class context;
}

namespace larder {

// Thread: any.
class Upstream {
 public:
  // Of memory, for all connections at once.
  static std::int64_t most_bytes(const UpstreamConfig& config);

  // The config must outlive it. Throws Error{kUnavailable} when TLS cannot be set up.
  explicit Upstream(const UpstreamConfig& config);
  ~Upstream();

  const UpstreamConfig& config() const { return config_; }
  // Of this server, by which it knows a request that comes back.
  const std::string& id() const { return id_; }
  // nullptr: it is reached in the clear.
  boost::asio::ssl::context* tls() const { return tls_.get(); }
  UpstreamSlots& slots() { return slots_; }
  UpstreamConnections& connections() { return connections_; }
  UpstreamMetrics& metrics() { return metrics_; }
  WaitPredictor& waits() { return waits_; }  // of the engine

  // For the log, though not a thousand times a second.
  void warn(const std::string& message);

 private:
  const UpstreamConfig& config_;
  const std::string id_;
  const std::unique_ptr<boost::asio::ssl::context> tls_;
  UpstreamSlots slots_;
  UpstreamConnections connections_;
  UpstreamMetrics metrics_;
  WaitPredictor waits_;
  std::atomic<std::int64_t> next_line_ns_ = 0;
};

}  // namespace larder
