// A port that is taken before there is something to serve.
#include "server/http/endpoint.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "server/http/http_server.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

// 0 = let in.
int error_of_connecting(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int error = ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
  ::close(socket);
  return error;
}

TEST(BoundEndpoint, NobodyIsLetInBeforeTheServerIsThere) {
  TestServer running;
  ServerConfig config;
  config.port = 0;
  BoundEndpoint place(config);
  const int port = place.port();
  EXPECT_EQ(error_of_connecting(port), ECONNREFUSED);
  const HttpServer server(config, running.model(), std::move(place));
  EXPECT_EQ(server.port(), port);
  EXPECT_EQ(error_of_connecting(port), 0);
}

TEST(BoundEndpoint, IsOneProcesssBeforeItListens) {
  ServerConfig config;
  config.port = 0;
  const BoundEndpoint first(config);
  config.port = first.port();
  EXPECT_THROW(BoundEndpoint second(config), Error);
}

TEST(BoundEndpoint, OfAnotherServerIsRefused) {
  const TestServer running;
  ServerConfig config;
  config.port = running.port();
  try {
    const BoundEndpoint place(config);
    FAIL() << "bound twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_EQ(error.param(), "port");
    EXPECT_EQ(std::string(error.what()).rfind("--port: cannot listen on ", 0), 0u) << error.what();
  }
}

}  // namespace
}  // namespace larder
