// Two servers over tiny models, one of which is the other's upstream.
#include "server/upstream/upstream.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/server_test_support.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

constexpr const char* kStreamForever =
    R"({"model":"far","prompt":"abc","max_tokens":10000000,"attention_window":32,"ignore_eos":true,"stream":true})";

// Drops no client that reads less than it is sent.
ServerConfig patient() {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = std::size_t{1} << 30;
  return config;
}

class UpstreamTest : public testing::Test {
 protected:
  static ServerConfig config_for(int port, const char* policies = "named") {
    ServerConfig config = patient();
    config.upstream.emplace();
    config.upstream->url = parse_upstream_url(fmt::format("http://127.0.0.1:{}/v1", port));
    config.upstream->models = parse_upstream_models("far=tiny");
    config.upstream->when = parse_upstream_policies(policies);
    return config;
  }

  TestServer far_{patient()};
};

std::string body_of(std::string body, const char* model) {
  const std::string_view from = "\"far\"";
  return body.replace(body.find(from), from.size(), fmt::format("\"{}\"", model));
}

TEST_F(UpstreamTest, RepliesAreTheUpstreams) {
  TestServer server(config_for(far_.port()));
  const auto answer =
      server.post("/v1/completions", R"({"model":"far","prompt":"abc","max_tokens":3,"temperature":0})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.head.find("x-larder-route: upstream"), std::string::npos);
  EXPECT_EQ(answer.head.find("x-larder-route: local"), std::string::npos);
  const auto local =
      server.post("/v1/completions", R"({"model":"tiny","prompt":"abc","max_tokens":3,"temperature":0})");
  EXPECT_NE(local.head.find("x-larder-route: local"), std::string::npos);
  EXPECT_EQ(answer.json()["choices"], local.json()["choices"]);
}

TEST_F(UpstreamTest, AnOldClientsStreamEndsWithItsConnection) {
  TestServer server(config_for(far_.port()));
  const std::string body = R"({"model":"far","prompt":"abc","max_tokens":3,"stream":true})";
  const auto answer = server.exchange(
      fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
                  body.size(), body));
  EXPECT_EQ(answer.head.find("Transfer-Encoding"), std::string::npos);
  EXPECT_TRUE(answer.body.starts_with("data: {")) << answer.body;
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n")) << answer.body;
}

// One request runs, one waits, and neither ends: who comes finds the line full.
class FullServer {
 public:
  // The wait itself sends nothing upstream.
  explicit FullServer(ServerConfig config) : server_(waiting_long(std::move(config)), with_a_short_line()) {
    const std::string request = TestServer::request("/v1/completions", body_of(kStreamForever, "tiny"));
    running_.send(request);
    running_.receive("data: ");
    waiting_.send(request);
    EXPECT_TRUE(eventually([&] { return server_.engine().stats().num_waiting == 1; }));
  }

  const TestServer* operator->() const { return &server_; }

 private:
  static ServerConfig waiting_long(ServerConfig config) {
    config.upstream->max_wait = std::chrono::hours(1);
    return config;
  }
  static EngineConfig with_a_short_line() {
    EngineConfig engine = TestServer::default_engine();
    engine.max_sequences = 1;
    engine.max_waiting = 1;
    return engine;
  }

  TestServer server_;
  RawClient running_{server_.port()}, waiting_{server_.port()};
};

TEST_F(UpstreamTest, AFullLineMovesOn) {
  const FullServer server(config_for(far_.port(), "busy"));
  const auto moved = server->post("/v1/completions", R"({"prompt":"abc","max_tokens":2})");
  EXPECT_EQ(moved.status, 200);
  EXPECT_NE(moved.head.find("x-larder-route: upstream"), std::string::npos);
  const std::string kept = R"({"prompt":"abc","max_tokens":2,"x_larder_local_only":true})";
  EXPECT_EQ(server->post("/v1/completions", kept).status, 503);
  EXPECT_EQ(server->post("/v1/completions", R"({"prompt":"abc","max_tokens":2})", "x-larder-route: local\r\n").status,
            503);
}

// The question for a summary stands in the same line.
TEST_F(UpstreamTest, AFullLineMovesOnWhoNeedsASummary) {
  const FullServer server(config_for(far_.port(), "busy"));
  Json chat = {{"max_tokens", 2}, {"larder", {{"history", {{"strategy", "summary"}, {"max_tokens", 400}}}}}};
  for (int turn = 0; turn < 30; ++turn) {
    chat["messages"].push_back({{"role", "user"}, {"content", fmt::format("question {}", turn)}});
    chat["messages"].push_back({{"role", "assistant"}, {"content", "an answer"}});
  }
  chat["messages"].push_back({{"role", "user"}, {"content", "the last one"}});
  const auto moved = server->post("/v1/chat/completions", chat.dump());
  EXPECT_EQ(moved.status, 200) << moved.body;
  EXPECT_NE(moved.head.find("x-larder-route: upstream"), std::string::npos) << moved.head;
}

TEST_F(UpstreamTest, TheServersEndIsTold) {
  ServerConfig config = config_for(far_.port());
  config.drain_timeout = milliseconds(0);
  TestServer server(config);
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", kStreamForever));
  const std::string begun = running.receive("data: ");
  server.server().shutdown(true);
  server.join();
  const std::string text = begun + running.receive();
  EXPECT_TRUE(text.find("server_stopped") != std::string::npos || !text.ends_with("0\r\n\r\n")) << text;
  EXPECT_TRUE(far_.becomes_idle());
}

TEST_F(UpstreamTest, ASecondEndIsAtOnce) {
  ServerConfig config = config_for(far_.port());
  config.drain_timeout = std::chrono::hours(1);
  TestServer server(config);
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", kStreamForever));
  running.receive("data: ");
  server.server().shutdown(true);
  server.server().shutdown(false);
  server.join();
  EXPECT_TRUE(far_.becomes_idle());
}

TEST_F(UpstreamTest, WithSeveralThreads) {
  ServerConfig config = config_for(far_.port());
  config.num_io_threads = 3;
  config.upstream->max_connections = 3;
  TestServer server(config);
  std::vector<std::jthread> clients;
  std::atomic<int> num_left = 0, num_answered = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      for (int k = 0; k < 8; ++k) {
        RawClient client(server.port());
        const std::string body =
            fmt::format(R"({{"model":"far","prompt":"abc","max_tokens":3,"stream":{}}})", k % 2 == 0);
        client.send(TestServer::request("/v1/completions", body));
        if ((i + k) % 5 == 0) {  // goes without its reply
          ++num_left;
          continue;
        }
        num_answered += TestServer::split(client.receive()).status == 200 ? 1 : 0;
      }
    });
  }
  clients.clear();
  EXPECT_EQ(num_answered + num_left, 64);
  EXPECT_GT(num_left, 0);
  EXPECT_TRUE(far_.becomes_idle());
}

}  // namespace
}  // namespace larder
