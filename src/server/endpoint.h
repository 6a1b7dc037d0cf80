// Where a server listens.
#pragma once

#include "server/asio_types.h"
#include "server/server_config.h"

namespace larder {

// Throws Error{kInvalidArgument} when the host is no address, or beyond loopback without an API key
// and without allow_open_network, or when an API key is empty. The message's fix follows "; ".
asio::ip::tcp::endpoint endpoint_of(const ServerConfig& config);

}  // namespace larder
