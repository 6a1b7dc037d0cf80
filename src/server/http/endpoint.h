// Where a server listens.
#pragma once

#include "server/api/server_config.h"
#include "server/asio_types.h"

namespace larder {

// Throws Error{kInvalidArgument} when the host is no address, or beyond loopback without an API key
// and without allow_open_network, or when an API key is empty. The message's fix follows "; ".
asio::ip::tcp::endpoint endpoint_of(const ServerConfig& config);

// The address is this process's, though nobody is let in yet: until an HttpServer listens there, who connects is refused.
class BoundEndpoint {
 public:
  // Throws as endpoint_of(), and Error{kUnavailable} where others have the address.
  explicit BoundEndpoint(const ServerConfig& config);
  BoundEndpoint(BoundEndpoint&& other) noexcept;
  ~BoundEndpoint();

  asio::ip::tcp protocol() const { return endpoint_.protocol(); }
  int port() const { return endpoint_.port(); }
  int socket() const { return socket_; }
  // Of the socket: whoever listens closes it.
  void release() { socket_ = -1; }

 private:
  asio::ip::tcp::endpoint endpoint_;
  int socket_ = -1;
};

// Throws Error{kUnavailable} with the option that chooses another address.
[[noreturn]] void fail_to_listen(const ServerConfig& config, const boost::system::error_code& reason);

}  // namespace larder
