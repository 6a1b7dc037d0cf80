// Bytes that no honest client sends: each gets a clear error or a closed connection, and the server
// goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "server/server_test_support.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

const std::string kHead =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
const std::string kGood = R"({"prompt":"abc","max_tokens":3,"ignore_eos":true})";

ServerConfig impatient() {
  ServerConfig config;
  config.limits.header_timeout = config.limits.body_timeout = milliseconds(300);
  config.limits.idle_timeout = milliseconds(600);
  config.limits.max_body_bytes = 100'000;
  return config;
}

TEST(HttpFaults, MalformedRequests) {
  TestServer server(impatient());
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {std::string("\x00\xff\x01 garbage\r\n\r\n", 14), 400},
      {"GET /\r\n\r\n", 400},
      {"GET / HTTP/1.1\n\n", 400},
      {"GET /version HTTP/1.1\r\nConnection: close\r\n\r\n", 400},
      {kHead + "Host: other\r\n\r\n", 400},
      {"GET /version HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nX: " + std::string(100'000, 'a'), 431},
      {kHead + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {kHead + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
      {kHead + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {kHead + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
      {kHead + "Transfer-Encoding: identity\r\n\r\n", 400},
      {"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {kHead + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345", 400},
      {kHead + "Content-Length: -5\r\n\r\n12345", 400},
      {kHead + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {kHead + "Content-Length: 100001\r\n\r\n", 413},
      {kHead + "Transfer-Encoding: chunked\r\n\r\n-5\r\nabc", 400},
      {kHead + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nabc", 400},
      {kHead + "Transfer-Encoding: chunked\r\n\r\n7FFFFFFFFFFFFFFF\r\nabc", 413},
      {kHead + "Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n0\r\n\r\n", 400},
      {kHead + "Transfer-Encoding: chunked\r\n\r\n5;" + std::string(300'000, 'a'), 400},
      {kHead + "Content-Length: 3\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\nabc", 415},
      {"GET /%0d%0aX:1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404},
  };
  for (const auto& [bytes, status] : cases) {
    const auto answer = server.exchange(bytes);
    EXPECT_EQ(answer.status, status) << bytes.substr(0, 150);
    if (answer.status != 0) {
      EXPECT_FALSE(answer.json()["error"]["message"].get<std::string>().empty());
    }
  }
  EXPECT_EQ(server.post("/v1/completions", kGood).status, 200);
}

// The id is read with its end of line, and shown as JSON.
TEST(HttpFaults, EncodedEndsOfLinesAddNoHeader) {
  const TestServer server;
  const auto answer = server.get("/v1/responses/a%0d%0aX:1");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.head.find("\r\nX:1"), std::string::npos) << answer.head;
  EXPECT_EQ(answer.body.find('\n'), std::string::npos) << answer.body;
  const auto message = answer.json()["error"]["message"].get<std::string>();
  EXPECT_NE(message.find("a\r\nX:1"), std::string::npos) << message;
}

TEST(HttpFaults, AMessageGoesOnBehindANul) {
  const TestServer server;
  const auto message = [&](const std::string& path, const std::string& body) {
    return server.post(path, body).json()["error"]["message"].get<std::string>();
  };
  const std::string of_model = message("/v1/completions", R"({"prompt":"a","model":"b\u0000c"})");
  EXPECT_TRUE(of_model.ends_with("c\"; this server has \"tiny\"")) << of_model;
  const std::string of_key = message("/v1/responses", R"({"input":"a","metadata":{"b\u0000c":5}})");
  EXPECT_TRUE(of_key.ends_with("must be a string of at most 512 characters")) << of_key;
}

// RFC 9110, 10.1.1: the older protocol has no interim replies.
TEST(HttpFaults, OnlyHttp11IsToldToContinue) {
  const TestServer server;
  for (const char* version : {"1.0", "1.1"}) {
    const std::string text = [&] {
      RawClient client(server.port());
      client.send(fmt::format("POST /v1/completions HTTP/{}\r\nHost: localhost\r\n"
                              "Content-Type: application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
                              version, kGood.size()));
      if (version == std::string("1.1")) {
        EXPECT_EQ(client.receive("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
      }
      client.send(kGood);
      return client.receive();
    }();
    EXPECT_EQ(text.find("HTTP/1.1 200"), 0u) << text;
  }
}

TEST(HttpFaults, NamesOfCodingsHaveNoCase) {
  const TestServer server;
  const auto status = [&](const std::string& coding) {
    return server.post("/v1/completions", kGood, "Content-Encoding: " + coding + "\r\n").status;
  };
  for (const char* none : {"identity", "Identity", "IDENTITY"}) EXPECT_EQ(status(none), 200) << none;
  EXPECT_EQ(status("GZIP"), 415);
}

TEST(HttpFaults, LongHeadersAreTaken) {
  TestServer server;
  const auto status = [&](int num_bytes) {
    const std::string value(static_cast<std::size_t>(num_bytes), 'a');
    return server.post("/v1/completions", kGood, "X-Trace: " + value + "\r\n").status;
  };
  EXPECT_EQ(status(40 << 10), 200);
  EXPECT_EQ(status(65 << 10), 431);
}

// However its bytes fall together with the end of its time.
TEST(HttpFaults, BytesThatKeepComingDoNotOutlastTheDeadline) {
  TestServer server(impatient());
  for (const std::string& begin : {std::string("GET / HTTP/1.1\r\nHost: localhost\r\nX: "),
                                   kHead + "Content-Length: 100000\r\n\r\n"}) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (int i = 0; i < 24; ++i) {
      clients.push_back(std::make_unique<RawClient>(server.port(), 10));
      clients.back()->send(begin);
    }
    const auto end = std::chrono::steady_clock::now() + milliseconds(450);
    while (std::chrono::steady_clock::now() < end)
      for (const auto& client : clients) client->send("a");
    for (const auto& client : clients) {
      client->receive();
      EXPECT_TRUE(client->closed_by_server());
    }
  }
}

TEST(HttpFaults, HeaderWithoutEndIsCutOff) {
  TestServer server;
  RawClient client(server.port());
  client.send("GET / HTTP/1.1\r\n");
  const std::string line = "X: " + std::string(1000, 'a') + "\r\n";
  int num_lines = 0;  // 100 MB, were they taken
  while (num_lines < 100'000 && client.send(line)) ++num_lines;
  EXPECT_LT(num_lines, 100'000);
}

TEST(HttpFaults, SlowClientsAreTimedOut) {
  TestServer server(impatient());
  RawClient silent(server.port());
  RawClient slow_header(server.port()), slow_body(server.port());
  slow_header.send("GET /health HT");
  slow_body.send(kHead + "Content-Length: 100\r\n\r\n{");
  EXPECT_EQ(TestServer::split(slow_header.receive()).status, 408);
  EXPECT_EQ(TestServer::split(slow_body.receive()).status, 408);
  // A trickle does not help: the whole header has one deadline.
  RawClient trickle(server.port());
  const auto begin = std::chrono::steady_clock::now();
  trickle.send("GET /health HTTP/1.1\r\n");
  while (trickle.send("X: y\r\n") &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(silent.receive(), "");
  EXPECT_TRUE(silent.closed_by_server());
}

TEST(HttpFaults, TruncatedBodyIsDropped) {
  TestServer server;
  RawClient client(server.port());
  // What is there of it would do for an answer.
  client.send(kHead + fmt::format("Content-Length: {}\r\n\r\n", kGood.size() + 10) + kGood);
  client.end_sending();
  EXPECT_EQ(client.receive(), "");
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_EQ(server.engine().stats().num_prompt_tokens, 0u);
  EXPECT_EQ(server.post("/v1/completions", kGood).status, 200);
}

TEST(HttpFaults, PipelinedGarbageEndsAfterTheGoodReply) {
  TestServer server;
  const std::string text = [&] {
    RawClient client(server.port());
    client.send(TestServer::request("/v1/completions", kGood, "") + "\x01\x02 garbage\r\n\r\n");
    return client.receive();
  }();
  EXPECT_EQ(text.find("HTTP/1.1 200"), 0u);
  EXPECT_NE(text.find("HTTP/1.1 400"), std::string::npos);
}

TEST(HttpFaults, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server;
  RawClient client(server.port());
  std::string bytes;
  for (int i = 0; i < 20; ++i)
    bytes += "GET /nothing" + std::to_string(i) + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  bytes += "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  client.send(bytes);
  const std::string text = client.receive();
  std::size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    at = text.find("/nothing" + std::to_string(i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_NE(text.find("\"version\"", at), std::string::npos);
}

// Proxies add one of their own.
TEST(HttpFaults, EveryConnectionHeaderCounts) {
  const TestServer server;
  RawClient client(server.port());
  client.send("GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n"
              "Connection: x, Close\r\n\r\n");
  const std::string text = client.receive();
  EXPECT_EQ(text.find("HTTP/1.1 200"), 0u);
  EXPECT_NE(text.find("Connection: close\r\n"), std::string::npos) << text;
  EXPECT_TRUE(client.closed_by_server());
}

// As RFC 9112 asks in 2.2; some clients send one behind a body.
TEST(HttpFaults, EmptyLinesBeforeARequestArePassedOver) {
  const TestServer server;
  const std::string request = TestServer::request("/v1/completions", kGood, "");
  const std::string last = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  RawClient client(server.port());
  client.send("\r\n" + request + "\r\n" + last);
  const std::string text = client.receive();
  EXPECT_EQ(text.find("HTTP/1.1 200"), 0u);
  EXPECT_EQ(text.rfind("HTTP/1.1 200"), text.rfind("HTTP/1.1 "));
  EXPECT_GT(text.rfind("HTTP/1.1 200"), 0u);
  // Alone, and in halves.
  RawClient slow(server.port());
  for (const std::string& bytes : {std::string("\r"), std::string("\n"), last}) {
    slow.send(bytes);
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(slow.receive().find("HTTP/1.1 200"), 0u);
  EXPECT_EQ(server.exchange(std::string(100, '\n') + request).status, 400);
}

// The refusal of a body of 30,000 bytes beside what a client has begun to send. Of two that come at once either is
// refused, so both try until it is the second.
TestServer::Answer refused_beside(const std::string& begun, const TestServer& server) {
  TestServer::Answer answer;
  EXPECT_TRUE(eventually([&] {
    RawClient first(server.port());
    first.send(begun);
    answer = server.post("/v1/completions", std::string(30'000, ' '));
    return answer.status == 503;
  }));
  return answer;
}

TEST(HttpFaults, BodiesShareABudget) {
  ServerConfig config = impatient();
  config.limits.max_body_bytes = 40'000;
  config.limits.max_total_body_bytes = 50'000;
  config.limits.body_timeout = std::chrono::minutes(2);
  TestServer server(config);
  const std::string part(30'000, ' ');
  const auto refusal = refused_beside(kHead + "Content-Length: 40000\r\n\r\n" + part, server);
  // Not the limit is held, but what the other has sent.
  EXPECT_NE(refusal.body.find(" bytes, 50000 at most"), std::string::npos) << refusal.body;
  EXPECT_EQ(refusal.body.find("50000 bytes"), std::string::npos) << refusal.body;
  // Read, and not JSON.
  EXPECT_TRUE(eventually([&] { return server.post("/v1/completions", part).status == 400; }));
}

// Large ones that come slowly leave room for those that are usual.
TEST(HttpFaults, SmallBodiesHaveRoomBesideLargeOnes) {
  ServerConfig config;
  config.limits.max_body_bytes = 200'000;
  config.limits.max_total_body_bytes = 400'000;
  config.limits.body_pace_interval = std::chrono::minutes(1);
  const TestServer server(config);
  const auto send = [&](std::size_t size, std::size_t num_sent) {
    auto client = std::make_unique<RawClient>(server.port());
    const std::string bytes = TestServer::request("/v1/completions", std::string(size, ' '));
    client->send(std::string_view(bytes).substr(0, bytes.size() - size + num_sent));
    return client;
  };
  const auto status_of = [&](std::size_t size) { return TestServer::split(send(size, size)->receive()).status; };
  std::unique_ptr<RawClient> first, second;
  EXPECT_TRUE(eventually([&] {  // of all that come at once any is refused
    first = send(190'000, 170'000);
    second = send(190'000, 170'000);
    return status_of(100'000) == 503;
  }));
  EXPECT_EQ(status_of(30'000), 400) << "read, and no JSON";
}

TEST(HttpFaults, LargeBodiesThatComeSlowlyMakeRoom) {
  ServerConfig config;
  config.limits.max_body_bytes = 200'000;
  config.limits.max_total_body_bytes = 400'000;
  config.limits.body_pace_interval = milliseconds(100);
  const TestServer server(config);
  const std::string bytes = TestServer::request("/v1/completions", std::string(190'000, ' '));
  const auto half = std::string_view(bytes).substr(0, bytes.size() - 50'000);
  {
    RawClient alone(server.port());  // nobody waits for its room
    alone.send(half);
    std::this_thread::sleep_for(milliseconds(400));
    alone.send(std::string_view(bytes).substr(half.size()));
    EXPECT_EQ(TestServer::split(alone.receive()).status, 400);
  }
  RawClient first(server.port());
  RawClient second(server.port());
  first.send(half);
  second.send(half);
  EXPECT_TRUE(eventually(
      [&] { return server.post("/v1/completions", std::string(190'000, ' ')).status == 400; }, 10))
      << "read, and no JSON";
}

TEST(HttpFaults, BodiesThatNobodyWantsAreNotRead) {
  ServerConfig config;
  config.limits.max_body_bytes = config.limits.max_total_body_bytes = 50'000;
  const TestServer server(config);
  RawClient client(server.port());
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 45000\r\n\r\n" + std::string(44'000, 'x'));
  const std::string head = client.receive("\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200 ")) << head;
  EXPECT_NE(head.find("Connection: close"), std::string::npos);
  const std::string body = R"({"prompt":"abc","max_tokens":1})";
  EXPECT_EQ(server.post("/v1/completions", body + std::string(40'000, ' ')).status, 200);
}

// Beast throws for a field of 64 KiB, where nobody would hear of it.
TEST(HttpFaults, ALongTrailerEndsItsConnection) {
  TestServer server;
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n";
  for (const std::size_t size : {10'000u, 60'000u, 66'000u, 120'000u, 140'000u}) {
    for (const std::string& trailer : {"X: " + std::string(size, 'a'), std::string(size, 'a') + ": X"}) {
      const auto answer = server.exchange(head + trailer + "\r\n\r\n");
      EXPECT_EQ(answer.status, 400) << size;  // an empty body is no JSON
      EXPECT_EQ(answer.body.find("bad chunk") != std::string::npos, size > 16'384) << size;
    }
  }
  EXPECT_TRUE(eventually([&] {
    const std::string page = server.get("/metrics").body;
    return page.find("larder:open_connections{model_name=\"tiny\",engine=\"0\"} 1\n") != std::string::npos;
  }));
  server.server().shutdown(true);
  server.join();
}

TEST(HttpFaults, ABodyMayComeInChunksOfAByte) {
  const TestServer server;
  std::string body = R"({"prompt":"abc","max_tokens":1})" + std::string(80'000, ' ');
  std::string bytes = kHead + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char byte : body) bytes += std::string("1;x\r\n") + byte + "\r\n";
  EXPECT_EQ(server.exchange(bytes + "0\r\nX: y\r\n\r\n").status, 200);
  EXPECT_EQ(server.exchange(bytes + "1\r\n!\r\n0\r\n\r\n").status, 400);
}

TEST(HttpFaults, ChunksThatAreTooLargeTogether) {
  const TestServer server(impatient());  // 100,000 bytes
  std::string bytes = kHead + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 11; ++i) bytes += "2710\r\n" + std::string(10'000, ' ') + "\r\n";
  EXPECT_EQ(server.exchange(bytes + "0\r\n\r\n").status, 413);
}

// Who is connected goes on, and who comes waits for a file to be free.
TEST(HttpFaults, WithoutAFileForItAConnectionWaits) {
  const TestServer server;
  const std::string get = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const auto is_answered = [&](RawClient& client) {
    client.send(get);
    return client.receive("\r\n\r\n").starts_with("HTTP/1.1 200 ");
  };
  RawClient kept(server.port());
  EXPECT_TRUE(is_answered(kept));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int mine = ::dup(STDIN_FILENO);  // the least number that is free
  ASSERT_GE(mine, 0);
  ::close(mine);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(mine) + 1;  // for a client's end, and none for the server's
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  RawClient late(server.port());
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_TRUE(is_answered(kept));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(is_answered(late));
}

TEST(HttpFaults, LargeHeadersShareTheirRoom) {
  ServerConfig config;
  config.limits.max_total_header_bytes = 70'000;
  TestServer server(config);
  const std::string large = "X: " + std::string(45'000, 'a') + "\r\n";
  RawClient first(server.port());
  first.send(kHead + large);
  EXPECT_TRUE(eventually([&] {
    const auto refusal = server.exchange(kHead + large + "Connection: close\r\nContent-Length: 0\r\n\r\n");
    return refusal.status == 503 && refusal.json()["error"]["code"] == "header_memory";
  }));
  EXPECT_EQ(server.post("/v1/completions", kGood).status, 200);  // small ones need none of it
  EXPECT_NE(server.get("/metrics").body.find("reason=\"header_memory\"} "), std::string::npos);
  first.close();
  EXPECT_TRUE(eventually([&] {
    return server.exchange(kHead + large + "Connection: close\r\nContent-Length: 0\r\n\r\n").status == 400;
  }));
}

TEST(HttpFaults, ARefusedHeadHasNoBody) {
  const TestServer server;
  const auto answer = server.exchange("HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n");  // no Host
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.body, "");
}

TEST(HttpFaults, TheBudgetHoldsTheLargestBody) {
  ServerConfig config = impatient();
  config.limits.max_total_body_bytes = 50'000;  // below max_body_bytes
  config.limits.body_timeout = std::chrono::minutes(2);
  TestServer server(config);
  EXPECT_EQ(server.post("/v1/completions", std::string(100'000, ' ')).status, 400);  // not JSON
  const auto refusal = refused_beside(
      kHead + "Content-Length: 100000\r\n\r\n" + std::string(90'000, ' '), server);
  EXPECT_NE(refusal.body.find(" bytes, 100000 at most"), std::string::npos) << refusal.body;
}

TEST(HttpFaults, ConnectionsBeyondTheLimitAreTold) {
  ServerConfig config;
  config.limits.max_connections = 3;
  TestServer server(config);
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 3; ++i) idle.push_back(std::make_unique<RawClient>(server.port()));
  EXPECT_EQ(server.get("/health").status, 503);
  idle.clear();
  EXPECT_TRUE(eventually([&] { return server.get("/health").status == 200; }));
}

TEST(HttpFaults, ManyIdleSocketsDoNotHinder) {
  TestServer server;
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(std::make_unique<RawClient>(server.port()));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(server.post("/v1/completions", kGood).status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(HttpFaults, JsonFaultsOverTheWire) {
  TestServer server;
  for (const std::string& body :
       {std::string(100'000, '['), std::string("{\"prompt\":\"\xff\"}"),
        std::string(R"({"prompt":"\ud800"})"), std::string(R"({"prompt":"a","prompt":"b"})"),
        std::string(R"({"prompt":"a","temperature":1e400})"), std::string(), std::string("[]"),
        std::string("null")}) {
    const auto answer = server.post("/v1/completions", body);
    EXPECT_EQ(answer.status, 400) << body.substr(0, 60);
    EXPECT_TRUE(answer.json()["error"]["param"].is_null());
  }
}

}  // namespace
}  // namespace larder
