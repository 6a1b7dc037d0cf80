// HOST:PORT of a worker.
#pragma once

#include <string>
#include <string_view>

namespace larder {

struct WorkerAddress {
  std::string host;  // a name, an IPv4 or, without its brackets, an IPv6 address
  int port = 0;

  // As it was given.
  std::string display() const;
};

// "10.0.0.2:7070", "node2:7070", "[::1]:7070"; port 0 only where any_port. Throws Error{kInvalidArgument} that says what
// is wrong.
WorkerAddress parse_worker_address(std::string_view text, bool any_port = false);

}  // namespace larder
