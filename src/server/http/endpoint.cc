#include "server/http/endpoint.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"

namespace larder {

asio::ip::tcp::endpoint endpoint_of(const ServerConfig& config) {
  if (config.port < 0 || config.port > 65535) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("--port: must be between 0 and 65535, it is {}", config.port), "port");
  }
  // An empty key is a variable that nobody has set: without this it would open the server.
  if (std::ranges::find(config.api_keys, "") != config.api_keys.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "--api-key: a key is empty; give one of at least a character, or leave it out",
                "api_keys");
  }
  boost::system::error_code error;
  const std::string host = config.host == "localhost" ? "127.0.0.1" : config.host;
  const auto address = asio::ip::make_address(host, error);
  if (error) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("--host: \"{}\" is not an IP address; use 127.0.0.1 or 0.0.0.0", config.host),
        "host");
  }
  if (!address.is_loopback() && config.api_keys.empty() && !config.allow_open_network) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("--host: {} can be reached by others and there is no API key; give --api-key, "
                    "or --open to let everyone in",
                    config.host),
        "host");
  }
  return {address, static_cast<unsigned short>(config.port)};
}

BoundEndpoint::BoundEndpoint(const ServerConfig& config)
    : endpoint_(endpoint_of(config)), socket_(::socket(protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  const auto reuse = [&] { return ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0; };
  const auto bind = [&] { return ::bind(socket_, endpoint_.data(), static_cast<socklen_t>(endpoint_.size())) == 0; };
  // Two that may reuse the address may both have it until one of them listens, so it is tried without first; what then is
  // in the way may be connections of a server before this one, which are ending.
  const bool is_bound = socket_ >= 0 && (bind() || (errno == EADDRINUSE && reuse() && bind()));
  socklen_t size = static_cast<socklen_t>(endpoint_.capacity());
  // Port 0 is any that is free.
  if (is_bound && ::getsockname(socket_, endpoint_.data(), &size) == 0) return;
  const boost::system::error_code reason(errno, boost::system::system_category());
  if (socket_ >= 0) ::close(socket_);
  fail_to_listen(config, reason);
}

BoundEndpoint::BoundEndpoint(BoundEndpoint&& other) noexcept
    : endpoint_(other.endpoint_), socket_(std::exchange(other.socket_, -1)) {}

BoundEndpoint::~BoundEndpoint() {
  if (socket_ >= 0) ::close(socket_);
}

void fail_to_listen(const ServerConfig& config, const boost::system::error_code& reason) {
  const bool is_host = reason == boost::system::errc::address_not_available;
  throw Error(ErrorKind::kUnavailable,
              fmt::format("--{}: cannot listen on {}:{}: {}; choose another", is_host ? "host" : "port", config.host,
                          config.port, reason.message()),
              is_host ? "host" : "port");
}

}  // namespace larder
