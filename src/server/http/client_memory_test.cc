#include "server/http/client_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
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

// A reply has come by then.
void ask_for_health(RawClient& client) {
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  client.receive("\r\n\r\n");
}

TEST(ClientMemory, IdleConnectionsTakeWhatIsPlanned) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap is another's";
  const TestServer server;
  RawClient first(server.port());
  ask_for_health(first);
  const std::int64_t before = heap_in_use();
  const auto clients = clients_of(server);
  for (const auto& client : clients) ask_for_health(*client);
  const std::int64_t taken = heap_of_each(before);
  EXPECT_LT(taken, kConnectionBytes);
  EXPECT_GT(taken, kConnectionBytes / 8) << "the allowance is for something else";
}

// However far a request has come that its client does not end. What a body has counts among those being read.
TEST(ClientMemory, SlowConnectionsTakeWhatIsPlanned) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap is another's";
  constexpr std::size_t kBodyBytes = 4000;
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  const std::string with_length = head + "Content-Length: 1000000\r\n\r\n";
  struct State {
    std::vector<std::string> pieces;
    std::size_t num_body_bytes = 0;
  };
  const State states[] = {
      {{"P"}},
      {{head}},
      {{head, "X: " + std::string(3800 - head.size(), 'a')}},
      {{with_length + "{"}, 1},
      {{with_length, "{", "\"", "a"}, 3},
      {{with_length + std::string(kBodyBytes, ' ')}, kBodyBytes},
      {{with_length, std::string(kBodyBytes / 2, ' '), std::string(kBodyBytes / 2, ' ')}, kBodyBytes},
      {{head + "Transfer-Encoding: chunked\r\n\r\n", "1;" + std::string(3000, 'a')}},
  };
  for (const State& state : states) {
    const TestServer server;
    RawClient first(server.port());
    ask_for_health(first);
    const std::int64_t before = heap_in_use();
    const auto clients = clients_of(server);
    for (const auto& client : clients) ask_for_health(*client);
    for (const std::string& piece : state.pieces) {
      for (const auto& client : clients) client->send(piece);
      ask_for_health(first);  // by the thread that has read theirs before
    }
    const std::int64_t taken = heap_of_each(before) - static_cast<std::int64_t>(state.num_body_bytes);
    EXPECT_LT(taken, kConnectionBytes) << state.pieces.front().size() << " and " << state.pieces.back().size();
  }
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

// However many choices they ask for, and whatever may end them: these make theirs, and share it, once they run.
TEST(ClientMemory, AnswersWithManyStopsTakeWhatIsPlanned) {
  if (!is_heap_known()) GTEST_SKIP() << "the heap is another's";
  constexpr int kNumChoices = 100;
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = kNumChoices;
  engine.num_blocks = 1200;
  TestServer server({}, engine, "", {.window = 32});
  Json body = {{"max_tokens", 1'000'000}, {"prompt", "abc"}};
  const auto send_to = [&](RawClient& client) { client.send(TestServer::request("/v1/completions", body.dump())); };
  const auto become = [&](int num_running, int num_waiting) {
    return eventually([&] {
      const EngineStats stats = server.engine().stats();
      return stats.num_running == num_running && stats.num_waiting == num_waiting;
    });
  };
  RawClient running(server.port());
  send_to(running);
  ASSERT_TRUE(become(1, 0));
  running.close();
  ASSERT_TRUE(server.becomes_idle());

  Json many = body;
  many["n"] = kNumChoices;
  for (char letter = 'a'; letter < 'a' + ServerLimits{}.max_stop_strings; ++letter)
    many["stop"].push_back(std::string(ServerLimits{}.max_total_stop_bytes / ServerLimits{}.max_stop_strings, letter));
  std::int64_t before = heap_in_use();
  body = many;
  body["stream"] = true;
  RawClient with_many(server.port());
  send_to(with_many);
  with_many.receive("data: ");
  EXPECT_LT((heap_in_use() - before) / kNumChoices, kAnswerBytes);
  with_many.close();
  ASSERT_TRUE(server.becomes_idle());

  body = {{"max_tokens", 1'000'000}, {"prompt", "abc"}};
  RawClient again(server.port()), first_in_line(server.port());
  send_to(again);
  ASSERT_TRUE(become(1, 0));
  body = many;
  send_to(first_in_line);
  ASSERT_TRUE(become(1, 1));
  before = heap_in_use();
  const auto clients = clients_of(server);
  for (const auto& client : clients) send_to(*client);
  ASSERT_TRUE(become(1, kNumClients + 1));
  EXPECT_LT(heap_of_each(before), kConnectionBytes + kAnswerBytes);
}

}  // namespace
}  // namespace larder
