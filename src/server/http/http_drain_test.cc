// How a server behind a proxy ends: by being asked less, until nobody asks.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "server/server_test_support.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

const std::string kSmall = R"({"prompt":"abc","max_tokens":2})";

ServerConfig with_delay(milliseconds delay) {
  ServerConfig config;
  config.drain_delay = delay;
  return config;
}

TEST(HttpDrain, WhoStillComesIsServedUntilTheDelayIsOver) {
  TestServer server(with_delay(std::chrono::hours(1)));
  RawClient idle(server.port());
  idle.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(idle.receive("\"}").find("Connection: keep-alive"), std::string::npos);
  EXPECT_EQ(server.get("/health").status, 200);
  server.server().shutdown(true);
  ASSERT_TRUE(eventually([&] { return server.get("/health").status == 503; }));
  EXPECT_EQ(server.get("/health").json()["error"]["code"], "draining");
  // One whose connection was kept, and one that comes only now.
  idle.send(TestServer::request("/v1/completions", kSmall, ""));
  RawClient late(server.port());
  late.send(TestServer::request("/v1/completions", kSmall, ""));
  for (RawClient* const client : {&idle, &late}) {
    const std::string answer = client->receive();
    EXPECT_NE(answer.find("HTTP/1.1 200"), std::string::npos) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    EXPECT_TRUE(client->closed_by_server());
  }
}

TEST(HttpDrain, ARequestUnderWayIsItsConnectionsLast) {
  TestServer server(with_delay(std::chrono::hours(1)));
  RawClient busy(server.port());
  busy.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
            "Content-Length: " + std::to_string(kSmall.size()) + "\r\n\r\n");
  EXPECT_NE(busy.receive("\r\n\r\n").find("100"), std::string::npos);
  server.server().shutdown(true);
  ASSERT_TRUE(eventually([&] { return server.get("/health").status == 503; }));
  busy.send(kSmall);
  const std::string answer = busy.receive();
  EXPECT_NE(answer.find("HTTP/1.1 200"), std::string::npos) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
  EXPECT_TRUE(busy.closed_by_server());
}

TEST(HttpDrain, BehindTheDelayIdleConnectionsClose) {
  TestServer server(with_delay(milliseconds(1)));
  RawClient idle(server.port());
  EXPECT_EQ(server.get("/version").status, 200);  // the one before it has been accepted
  server.server().shutdown(true);
  EXPECT_EQ(idle.receive(), "");
  EXPECT_TRUE(idle.closed_by_server());
  server.join();
}

TEST(HttpDrain, ASecondSignalEndsTheDelay) {
  TestServer server(with_delay(std::chrono::hours(1)));
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  server.join();
}

}  // namespace
}  // namespace larder
