#include "server/endpoint.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace larder
