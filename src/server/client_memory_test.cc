#include "server/client_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/heap_test_support.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

constexpr int kNumClients = 200;

// Of each of so many clients, whose own part is small.
std::int64_t heap_of_each(std::int64_t before) { return (heap_in_use() - before) / kNumClients; }

std::vector<std::unique_ptr<RawClient>> clients_of(const TestServer& server) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kNumClients; ++i) clients.push_back(std::make_unique<RawClient>(server.port()));
  return clients;
}

TEST(ClientMemory, IdleConnectionsTakeWhatIsPlanned) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap is another's";
  const TestServer server;
  const auto ask = [](RawClient& client) {
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client.receive("\r\n\r\n");
  };
  RawClient first(server.port());
  ask(first);
  const std::int64_t before = heap_in_use();
  const auto clients = clients_of(server);
  for (const auto& client : clients) ask(*client);
  const std::int64_t taken = heap_of_each(before);
  EXPECT_LT(taken, kConnectionBytes);
  EXPECT_GT(taken, kConnectionBytes / 8) << "the allowance is for something else";
}

// Those that run and those that wait; their connections are counted apart.
TEST(ClientMemory, AnswersTakeWhatIsPlanned) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap is another's";
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 100;
  TestServer server({}, engine, "", {.window = 32});
  const std::string body = R"({"stream":true,"max_tokens":1000000,"messages":[{"role":"user","content":")" +
                           std::string(150, 'a') + R"("}]})";
  const auto ask = [&](RawClient& client) { client.send(TestServer::request("/v1/chat/completions", body)); };
  RawClient first(server.port());
  ask(first);
  first.receive("data: ");
  const std::int64_t before = heap_in_use();
  const auto clients = clients_of(server);
  for (const auto& client : clients) ask(*client);
  const auto all_are_there = [&] {
    const EngineStats stats = server.engine().stats();
    return stats.num_running == engine.max_sequences && stats.num_running + stats.num_waiting == kNumClients + 1;
  };
  ASSERT_TRUE(eventually(all_are_there));
  const std::int64_t taken = heap_of_each(before);
  EXPECT_LT(taken, kConnectionBytes + kAnswerBytes);
  EXPECT_GT(taken, kAnswerBytes / 8) << "the allowance is for something else";
}

}  // namespace
}  // namespace larder
