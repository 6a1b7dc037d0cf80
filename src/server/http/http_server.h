// The server: listens, accepts, counts, drains.
#pragma once

#include <memory>

#include "server/api/server_config.h"
#include "server/chat/served_model.h"

namespace larder {

class BoundEndpoint;

// One per process: it takes SIGINT, SIGTERM and SIGHUP (but under nohup) from its construction on, and run() handles them.
class HttpServer {
 public:
  // Binds and listens. Throws Error: kUnavailable when the address is taken, kInvalidArgument when
  // it is none, or beyond loopback without an API key and without allow_open_network, or when an API
  // key is empty.
  HttpServer(ServerConfig config, const ServedModel& model);
  // Listens at an address that was taken before, by the same config.
  HttpServer(ServerConfig config, const ServedModel& model, BoundEndpoint place);
  ~HttpServer();

  // The port that is bound, also when the config said 0.
  int port() const;

  // Serves until shutdown() or a signal. The first signal drains; the second ends at
  // once. The engine is left running: whoever started it stops it.
  void run();

  // drain: after drain_delay no new connections, and running requests may end within drain_timeout;
  // else ends at once, which cancels them. Thread: any. run() returns soon after.
  void shutdown(bool drain);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
