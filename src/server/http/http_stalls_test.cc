// Clients that go while they are served, and clients that do not read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/http/http_server.h"
#include "server/mailbox.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

using std::chrono::milliseconds;

// Goes on until the client leaves, or somebody stops it.
std::string forever(const std::string& fields) {
  return TestServer::request(
      "/v1/completions",
      fmt::format(R"({{"prompt":"abc","max_tokens":10000000,"attention_window":32,"ignore_eos":true,{}}})",
                  fields));
}

// Drops no client that reads less than it is sent.
ServerConfig patient() {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = std::size_t{1} << 40;
  return config;
}

bool metrics_show(const TestServer& server, const std::string& line) {
  return server.get("/metrics").body.find(line) != std::string::npos;
}

TEST(HttpStalls, DisconnectFreesBlocks) {
  TestServer server(patient());
  for (const bool streaming : {true, false}) {
    RawClient client(server.port());
    client.send(forever(fmt::format(R"("stream":{},"n":8)", streaming)));
    if (streaming) client.receive("data: ");
    ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running > 0; }));
    client.close();
    EXPECT_TRUE(server.becomes_idle());
  }
  EXPECT_TRUE(metrics_show(server, "finished_reason=\"abort\"} 16"));
}

// More than is kept of them, and more than the kernel takes besides.
TEST(HttpStalls, DisconnectBehindPipelinedBytesFreesBlocks) {
  TestServer server(patient());
  for (const std::size_t num_bytes : {std::size_t{70'000}, std::size_t{8'000'000}}) {
    RawClient client(server.port());
    client.send(forever(R"("n":8)") + std::string(num_bytes, 'x'));
    ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running > 0; }));
    client.close();
    ASSERT_TRUE(server.becomes_idle()) << num_bytes;
  }
  EXPECT_TRUE(metrics_show(server, "finished_reason=\"abort\"} 16"));
}

// By which it knows that it has to send the others again.
TEST(HttpStalls, WhoPipelinesTooMuchIsToldThatTheConnectionEnds) {
  const TestServer server;
  const std::string body = R"({"prompt":"abc","max_tokens":200,"ignore_eos":true,"n":8})";
  RawClient client(server.port());
  client.send(TestServer::request("/v1/completions", body, "") + std::string(200'000, 'x'));
  const std::string text = client.receive();
  EXPECT_TRUE(client.closed_by_server());
  const auto answer = TestServer::split(text);
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.head.find("\r\nConnection: close"), std::string::npos) << answer.head;
  EXPECT_EQ(answer.json()["choices"].size(), 8u);
}

TEST(HttpStalls, AnyNumberOfQuickRequestsMayBePipelined) {
  const TestServer server;
  const std::string one = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  std::string bytes;
  for (int i = 0; i < 2000; ++i) bytes += one + "\r\n";
  RawClient client(server.port());
  client.send(bytes + one + "Connection: close\r\n\r\n");
  const std::string text = client.receive();
  int num_answers = 0;
  for (auto at = text.find("HTTP/1.1 200"); at != std::string::npos; ++num_answers)
    at = text.find("HTTP/1.1 200", at + 1);
  EXPECT_EQ(num_answers, 2001);
}

// Each way to be too slow for a stream, alone.
TEST(HttpStalls, AStreamIsDroppedWhenItsReaderStalls) {
  ServerConfig by_time = patient();
  by_time.limits.stall_timeout = milliseconds(300);
  ServerConfig by_size;
  by_size.limits.stall_timeout = std::chrono::hours(1);
  for (const ServerConfig& config : {by_time, by_size}) {
    TestServer server(config);
    RawClient stalled(server.port());
    stalled.send(forever(R"("stream":true,"n":8,"logprobs":20)"));
    ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running > 0; }));
    EXPECT_TRUE(server.becomes_idle());
    EXPECT_TRUE(eventually([&] {
      return metrics_show(
          server, "larder:dropped_streams_total{model_name=\"tiny\",engine=\"0\"} 1");
    }));
  }
}

std::string long_answer(int max_tokens) {
  return TestServer::request(
      "/v1/completions",
      fmt::format(R"({{"prompt":"abc","max_tokens":{},"ignore_eos":true,"stream":true,"n":8,"logprobs":20,"temperature":0}})",
                  max_tokens));
}

double metric(const TestServer& server, const std::string& name) {
  const std::string page = server.get("/metrics").body;
  const std::string line = name + "{model_name=\"tiny\",engine=\"0\"} ";
  const auto at = page.find(line);
  return at == std::string::npos ? -1 : std::stod(page.substr(at + line.size(), 30));
}

// What one has read who reads little at a time is what others read; meanwhile nobody waits for him.
TEST(HttpStalls, AnAnswerWaitsForItsReader) {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = 64 << 10;
  TestServer server(config);
  RawClient quick(server.port());
  quick.send(long_answer(200));
  const std::string expected = quick.receive("[DONE]");
  RawClient slow(server.port(), 20, 32 << 10);
  slow.send(long_answer(200));
  const auto paused = [&](int count) {
    return metrics_show(server, fmt::format("larder:num_requests_paused{{model_name=\"tiny\",engine=\"0\"}} {}\n", count));
  };
  // It goes on for as long as the system takes more for him.
  ASSERT_TRUE(eventually([&] {
    const EngineStats stats = server.engine().stats();
    return stats.num_paused == 8 && stats.num_running == 0 && stats.kv.num_held == 0;
  }));
  EXPECT_EQ(server.get("/version").status, 200);
  std::string text = slow.receive("[DONE]");
  const auto texts_of = [](const std::string& stream) {
    std::map<int, std::string> texts;
    for (std::size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at) {
      const Json event = parse_json(stream.substr(at + 6, stream.find('\n', at) - at - 6), {});
      for (const Json& choice : event["choices"]) texts[choice["index"]] += choice["text"];
    }
    return texts;
  };
  EXPECT_EQ(texts_of(text), texts_of(expected));
  EXPECT_EQ(texts_of(text).size(), 8u);
  EXPECT_TRUE(eventually([&] { return paused(0); }));
  // Of each choice the first token behind a pause is late for him alone.
  EXPECT_LE(metric(server, "vllm:inter_token_latency_seconds_count"), 2 * 8 * 199 - 8);
  EXPECT_TRUE(metrics_show(server, "larder:dropped_streams_total{model_name=\"tiny\",engine=\"0\"} 0"));
}

// Proxies and clients give a connection up on which nothing comes.
TEST(HttpStalls, AStreamThatWaitsSendsComments) {
  ServerConfig config = patient();
  config.limits.ping_interval = milliseconds(20);
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 1;
  TestServer server(config, engine);
  const std::string messages = R"("messages":[{"role":"user","content":"abc"}])";
  const std::vector<std::pair<const char*, std::string>> asked = {
      {"/v1/chat/completions", messages}, {"/v1/completions", R"("prompt":"abc")"}, {"/v1/responses", R"("input":"abc")"}};
  for (const auto& [path, fields] : asked) {
    RawClient running(server.port()), waiting(server.port());
    running.send(forever(R"("stream":true)"));
    running.receive("data: ");
    const std::string limit = path == std::string("/v1/responses") ? "" : R"("max_tokens":3,)";
    waiting.send(TestServer::request(path, fmt::format(R"({{{}"stream":true,{}}})", limit, fields), "Connection: close\r\n"));
    std::string text;
    for (int i = 0; i < 2; ++i) text += waiting.receive("\r\n:\n\n\r\n");
    running.close();
    text += waiting.receive();
    EXPECT_NE(text.find("data: {"), std::string::npos) << path << text;
    EXPECT_EQ(text.substr(text.size() - 5), "0\r\n\r\n") << path;
    EXPECT_TRUE(server.becomes_idle());
  }
}

// Of a long conversation in which a summary has to be written first, before there is anything to tell.
TEST(HttpStalls, AStreamThatIsPreparedSendsCommentsToo) {
  ServerConfig config = patient();
  config.limits.ping_interval = milliseconds(20);
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 1;
  engine.max_model_len = 1200;
  Json body = {{"stream", true}, {"larder", {{"history", {{"strategy", "summary"}, {"max_tokens", 500}}}}}};
  Json turns = Json::array();
  for (int i = 0; i < 31; ++i)
    turns.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", fmt::format("This is turn {}, and no other.", i)}});
  const auto num_of = [](const std::string& text, const std::string& word) {
    int num_found = 0;
    for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++num_found;
    return num_found;
  };
  for (const std::string path : {"/v1/chat/completions", "/v1/responses", "/v1/messages"}) {
    const bool is_anthropic = path == "/v1/messages";
    const std::string ping = is_anthropic ? "event: ping\n" : "\r\n:\n\n\r\n";
    Json request = body;
    request[path == "/v1/responses" ? "input" : "messages"] = turns;
    request[path == "/v1/responses" ? "max_output_tokens" : "max_tokens"] = 3;
    for (const bool ends_well : {true, false}) {
      TestServer server(config, engine);
      RawClient running(server.port()), waiting(server.port());
      running.send(forever(R"("stream":true)"));
      running.receive("data: ");
      waiting.send(TestServer::request(path, request.dump()));
      std::string text;
      for (int i = 0; i < 2; ++i) text += waiting.receive(ping);
      EXPECT_TRUE(text.starts_with("HTTP/1.1 200")) << path << text;
      EXPECT_NE(text.find("text/event-stream"), text.npos) << path << text;
      EXPECT_EQ(num_of(text, "data: "), is_anthropic ? num_of(text, ping) : 0) << path << text;
      ends_well ? running.close() : server.engine().stop(false);
      text += waiting.receive();
      EXPECT_EQ(num_of(text, "HTTP/1.1 "), 1) << path << text;
      EXPECT_TRUE(text.ends_with("\r\n0\r\n\r\n")) << path << text;
      EXPECT_EQ(num_of(text, "\"error\":{") > 0, !ends_well) << path << text;
      EXPECT_EQ(num_of(text, "summary_usage") > 0, ends_well) << path << text;
    }
  }
}

// What waited may all be part of a call that is not whole: there is nothing to write, behind which it would be looked
// whether the answer may go on.
TEST(HttpStalls, AnAnswerThatTellsNothingGoesOnToo) {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = 8 << 10;
  config.limits.ping_interval = std::chrono::hours(1);
  TestServer server(config, {.num_blocks = 1300, .max_model_len = 20'000, .max_batch_tokens = 128});
  RawClient client(server.port(), 60, 32 << 10);
  // Its first events repeat the tools, which are more than the system takes; then comes a call whose argument has no end
  // ("y" is token 88).
  std::string idle_tools;
  for (int i = 0; i < 40'000; ++i) idle_tools += R"({"type":"web_search","external_web_access":false},)";
  client.send(TestServer::request(
      "/v1/responses",
      fmt::format(R"({{"input":"abc","stream":true,"temperature":0,"logit_bias":{{"88":100}},"tool_choice":"required",)"
                  R"("tools":[{}{{"type":"function","name":"f","parameters":{{"type":"object","properties":{{"a":{{"type":"string"}}}},)"
                  R"("required":["a"]}}}}]}})",
                  idle_tools)));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_paused == 1; }));
  std::thread reader([&] { client.receive(); });
  EXPECT_TRUE(eventually([&] {
    const EngineStats stats = server.engine().stats();
    return stats.num_paused == 0 && stats.num_running == 1;
  }));
  client.end_sending();
  reader.join();
}

// Those that have not begun when he falls behind, too.
TEST(HttpStalls, AllPromptsOfARequestWaitForItsReader) {
  constexpr int kNumPrompts = 40;
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = 64 << 10;
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 4;
  TestServer server(config, engine);
  std::vector<std::string> prompts;
  for (int i = 0; i < kNumPrompts; ++i) prompts.push_back(fmt::format("abc {}", i));
  const Json body = {{"prompt", prompts}, {"max_tokens", 200}, {"ignore_eos", true}, {"stream", true}, {"logprobs", 20}};
  RawClient slow(server.port(), 20, 32 << 10);
  slow.send(TestServer::request("/v1/completions", body.dump()));
  EngineStats stats;
  ASSERT_TRUE(eventually([&] {
    stats = server.engine().stats();
    return stats.num_paused > engine.max_sequences && stats.num_running + stats.num_waiting == 0;
  }));
  EXPECT_LT(stats.num_generated_tokens, std::uint64_t{kNumPrompts} * 200 / 2);
  slow.receive("[DONE]");
  EXPECT_TRUE(eventually([&] {
    stats = server.engine().stats();
    return stats.num_paused == 0 && stats.num_generated_tokens == std::uint64_t{kNumPrompts} * 200;
  }));
}

TEST(HttpStalls, AReaderThatNeverComesBackIsDropped) {
  ServerConfig config;
  config.limits.max_stream_buffer_bytes = 64 << 10;
  config.limits.stall_timeout = milliseconds(500);
  TestServer server(config);
  RawClient stalled(server.port(), 20, 32 << 10);
  stalled.send(long_answer(200));
  EXPECT_TRUE(eventually([&] {
    return metrics_show(server, "larder:dropped_streams_total{model_name=\"tiny\",engine=\"0\"} 1");
  }));
  // It held nothing already; its request goes, too.
  EXPECT_TRUE(eventually([&] { return server.engine().stats().num_paused == 0; }));
  EXPECT_TRUE(server.becomes_idle());
}

// The thread may have been elsewhere, and find more than the bound at once.
TEST(HttpStalls, WhoReadsIsNotDroppedForWhatWaits) {
  ServerConfig config;
  // Less than a step's eight updates; all eighty are fewer than the bounds after which a reader is
  // dropped as well, should the whole answer wait before its first byte is written.
  config.limits.max_stream_buffer_bytes = 7 * sizeof(Mailbox::Item);
  TestServer server(config);
  RawClient client(server.port());
  client.send(TestServer::request(
      "/v1/completions", R"({"prompt":"abc","max_tokens":10,"ignore_eos":true,"n":8,"stream":true})"));
  EXPECT_NE(client.receive("[DONE]").find("[DONE]"), std::string::npos);
  EXPECT_TRUE(metrics_show(server, "larder:dropped_streams_total{model_name=\"tiny\",engine=\"0\"} 0"));
}

TEST(HttpStalls, AReplyThatNobodyReadsIsDropped) {
  ServerConfig config;
  config.limits.stall_timeout = milliseconds(300);
  TestServer server(config);
  const auto others = [&](int count) {
    return metrics_show(server, fmt::format("larder:open_connections{{model_name=\"tiny\","
                                            "engine=\"0\"}} {}\n", count + 1));
  };
  RawClient stalled(server.port());
  const std::string large =
      R"({"prompt":"abc","max_tokens":200,"ignore_eos":true,"n":24,"logprobs":20})";
  stalled.send(TestServer::request("/v1/completions", large, ""));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running > 0; }));
  EXPECT_TRUE(others(1));
  EXPECT_TRUE(eventually([&] { return others(0); }));
}

}  // namespace
}  // namespace larder
