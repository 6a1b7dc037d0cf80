// Large replies whose clients do not read them share a budget.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/peak_test_support.h"
#include "server/api/reply_writer.h"
#include "server/api/responses_writer.h"
#include "server/http/http_server.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

// A message of so many bytes, to be added to a conversation.
std::string large_items(std::size_t num_bytes) {
  Json body;
  body["items"] = Json::array({{{"role", "user"}, {"content", std::string(num_bytes, 'x')}}});
  return body.dump();
}
// Returns the path of a conversation that begins with it.
std::string large_conversation(const TestServer& server, std::size_t num_bytes) {
  const Json made = server.post("/v1/conversations", large_items(num_bytes)).json();
  return "/v1/conversations/" + made["id"].get<std::string>();
}

// What has been generated is told in any case, and leaves less room for what can be asked for again.
TEST(ReplyMemory, StoredItemsWaitBehindLargeAnswers) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 6'000'000;
  const TestServer server(config);
  const std::string conversation = large_conversation(server, 2'000'000);
  const std::string path = conversation + "/items";
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":200,
      "ignore_eos":true,"n":24,"logprobs":true,"top_logprobs":20})";
  EXPECT_EQ(server.get(path).status, 200);
  RawClient stalled(server.port());
  stalled.send(TestServer::request("/v1/chat/completions", chat));
  const std::string begun = stalled.receive("\r\n\r\n");
  const auto length = begun.find("Content-Length: ");
  ASSERT_NE(length, std::string::npos) << begun;
  ASSERT_GT(std::stoi(begun.substr(length + 16)), 4'100'000);
  EXPECT_EQ(server.get(path).status, 503);
  EXPECT_NE(stalled.receive().find("\"usage\""), std::string::npos);
  EXPECT_EQ(server.get(path).status, 200);
}

// Each choice repeats its prompt, and all are there at once.
TEST(ReplyMemory, PromptsAreRepeatedWithinABudget) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 1000;
  const TestServer server(config);
  const auto ask = [&](const char* path, const std::string& fields) {
    const auto answer = server.post(path, "{\"max_tokens\":1," + fields + "}");
    return answer.status == 400 ? answer.param() : std::to_string(answer.status);
  };
  const auto complete = [&](std::size_t num_bytes, const std::string& fields) {
    return ask("/v1/completions", "\"prompt\":\"" + std::string(num_bytes, 'x') + "\"," + fields);
  };
  EXPECT_EQ(complete(200, R"("echo":true,"n":5)"), "200");
  EXPECT_EQ(complete(200, R"("echo":true,"n":5,"best_of":6)"), "200") << "one of them is not shown";
  EXPECT_EQ(complete(200, R"("echo":true,"n":6)"), "echo");
  EXPECT_EQ(complete(200, R"("echo":true,"n":6,"stream":true)"), "echo");
  EXPECT_EQ(complete(200, R"("n":6)"), "200");
  EXPECT_EQ(complete(230, R"("return_token_ids":true)"), "return_token_ids") << "of one choice, too";
  EXPECT_EQ(complete(60, R"("return_token_ids":true)"), "200");
  EXPECT_EQ(complete(60, R"("return_token_ids":true,"n":2)"), "return_token_ids");
  const std::string chat = R"("messages":[{"role":"user","content":")" + std::string(20, 'x') +
                           R"("}],"return_token_ids":true,"n":2)";
  EXPECT_EQ(ask("/v1/chat/completions", chat), "200") << "told once";
  EXPECT_EQ(ask("/v1/chat/completions", chat + ",\"stream\":true"), "return_token_ids");
}

// Before the first of them is complete.
TEST(ReplyMemory, LogprobsOfUnfinishedAnswersShareIt) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 4'000'000;
  EngineConfig engine = TestServer::default_engine();
  const TestServer server(config, engine, "", {.window = 32, .num_sinks = 16});
  // Some 37 MB each, of which one alone may have all there is.
  const std::string ask = R"({"prompt":"a","max_tokens":30000,"ignore_eos":true,"logprobs":20,"temperature":0})";
  std::array<TestServer::Answer, 2> answers;
  std::thread other([&] { answers[0] = server.post("/v1/completions", ask); });
  answers[1] = server.post("/v1/completions", ask);
  other.join();
  if (answers[0].status != 200) std::swap(answers[0], answers[1]);
  EXPECT_EQ(answers[0].status, 200) << answers[0].body.substr(0, 200);
  EXPECT_EQ(answers[0].json()["usage"]["completion_tokens"], 30000);
  EXPECT_EQ(answers[1].status, 503) << answers[1].body.substr(0, 200);
  EXPECT_EQ(answers[1].json()["error"]["code"], "reply_memory");
  EXPECT_EQ(server.post("/v1/completions", ask).status, 200);
}

// An answer without an end may be long without them.
TEST(ReplyMemory, TextOfUnfinishedAnswersSharesIt) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 4'000'000;
  EngineConfig engine = TestServer::default_engine();
  engine.num_blocks = 2000;
  const TestServer server(config, engine, "", {.window = 32, .num_sinks = 16});
  RawClient stalled(server.port());
  stalled.send("GET " + large_conversation(server, 3'500'000) + "/items HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stalled.receive("200 OK");
  // Of four bytes a token, "x127".
  const auto refused = server.post(
      "/v1/completions", R"({"prompt":"a","max_tokens":2200,"ignore_eos":true,"n":127,"logit_bias":{"127":100}})");
  EXPECT_EQ(refused.status, 503) << refused.body.substr(0, 200);
  EXPECT_EQ(refused.json()["error"]["code"], "reply_memory");
}

// As JSON they would take ten times as much.
TEST(ReplyMemory, LogprobsAreWrittenAsText) {
  const Tokenizer tokenizer(tiny_vocabulary());  // a server's threads would take memory meanwhile
  GenerationOptions options;
  options.sampling.num_logprobs = 20;
  ResponseDraft draft;
  draft.wants_logprobs = true;
  std::vector<std::unique_ptr<ReplyWriter>> writers;
  writers.push_back(make_chat_writer("tiny", tokenizer));
  writers.push_back(make_completion_writer("tiny", tokenizer, {}));
  writers.push_back(make_responses_writer("tiny", tokenizer, std::move(draft)));
  for (const auto& writer : writers) {
    writer->set_options(options);
    std::vector<Choice> choices;
    choices.emplace_back(TextStream(tokenizer, {}, false, false, false, 0));
    choices.front().decoder.emplace(tokenizer, true, false);
    choices.front().finish = FinishReason::kLength;
    OutputToken token{.token = 65, .logprob = -1.5F, .best = {}};
    for (TokenId other = 0; other < 20; ++other) token.best.push_back({other + 65, -2});
    choices.front().tokens.assign(4'000, token);
    choices.front().text = std::string(4'000, 'A');
    std::vector<Choice*> shown = {&choices.front()};
    const std::optional<std::int64_t> before = begin_peak_of_memory();
    const std::string text = writer->whole(shown, choices);
    if (!before) GTEST_SKIP() << "peaks cannot be told here";
    EXPECT_LT(peak_of_memory() - *before, static_cast<std::int64_t>(5 * text.size())) << text.size();
    EXPECT_EQ(choices.front().tokens.capacity(), 0u);
    const Json reply = parse_json(text, {});
    const Json logprobs = reply.contains("output") ? reply["output"][0]["content"][0]["logprobs"] : reply["choices"][0]["logprobs"];
    EXPECT_EQ((logprobs.is_array()                ? logprobs
               : logprobs.contains("token_logprobs") ? logprobs["token_logprobs"]
                                                     : logprobs["content"]).size(), 4'000u);
  }
}

// What a response repeats of its request stands in several events; as values it would be copied for each.
TEST(ReplyMemory, EchoesAreWrittenOnce) {
  const Tokenizer tokenizer(tiny_vocabulary());
  ResponseDraft draft;
  Json tool = {{"type", "function"}, {"name", "f"}};
  tool["parameters"] = {{"enum", std::vector<Json>(500'000, Json::array())}};
  draft.echo["tools"] = Json::array({tool});
  const auto writer = make_responses_writer("tiny", tokenizer, std::move(draft));
  const std::optional<std::int64_t> before = begin_peak_of_memory();
  std::string events;
  writer->begin(events);
  if (!before) GTEST_SKIP() << "peaks cannot be told here";
  EXPECT_LT(peak_of_memory() - *before, static_cast<std::int64_t>(6 * events.size())) << events.size();
  const std::string data = events.substr(events.rfind("data: ") + 6);
  EXPECT_EQ(parse_json(data, {})["response"]["tools"][0], tool);
}

// It has been stored when its last token turns out to be too much; what is not done is refused, and not asked for again.
TEST(ReplyMemory, WhatIsDoneIsTold) {
  constexpr std::size_t kSmallBytes = std::size_t{64} << 10;  // that a socket takes at once
  constexpr std::size_t kNumLogprobs = 21;
  constexpr std::size_t kBytesOfToken = sizeof(OutputToken) + kNumLogprobs * (sizeof(TokenLogprob) + 2 * 80);
  ServerConfig config;
  config.limits.max_total_reply_bytes = 4'000'000;
  const TestServer server(config, TestServer::default_engine(), "", {.window = 32, .num_sinks = 16});
  RawClient stalled(server.port());
  stalled.send("GET " + large_conversation(server, 3'980'000) + "/items HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stalled.receive("200 OK");
  const auto ask = [&](std::size_t num_tokens) {
    return server.post("/v1/responses", fmt::format(R"({{"input":"a","max_output_tokens":{},"ignore_eos":true,"temperature":0,
        "include":["message.output_text.logprobs"],"top_logprobs":20}})", num_tokens));
  };
  const auto told = ask(kSmallBytes / kBytesOfToken + 1);
  ASSERT_EQ(told.status, 200) << told.body.substr(0, 200);
  EXPECT_EQ(told.json()["usage"]["output_tokens"], kSmallBytes / kBytesOfToken + 1);
  const auto refused = ask(3 * kSmallBytes / kBytesOfToken);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json()["error"]["code"], "reply_memory");
  EXPECT_EQ(refused.head.find("Retry-After"), std::string::npos) << refused.head;
  EXPECT_NE(refused.head.find("x-should-retry: false"), std::string::npos) << refused.head;
  stalled.close();
  const std::string stored = "/v1/responses/" + told.json()["id"].get<std::string>();
  EXPECT_TRUE(eventually([&] { return server.get(stored).status == 200; }));
}

// Whatever a request has done is told without room for all of it, and can be had later.
TEST(ReplyMemory, WhatIsDoneIsToldInFewBytes) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 4'000'000;
  const TestServer server(config);
  const std::string conversation = large_conversation(server, 10);
  RawClient stalled(server.port());
  stalled.send("GET " + large_conversation(server, 3'980'000) + "/items HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stalled.receive("200 OK");

  const auto added = server.post(conversation + "/items", large_items(100'000));
  ASSERT_EQ(added.status, 200);
  EXPECT_LT(added.body.size(), 1000u);
  const Json page = added.json();
  ASSERT_EQ(page["data"].size(), 1u);
  EXPECT_EQ(page["data"][0]["type"], "message");
  EXPECT_EQ(page["last_id"], page["data"][0]["id"]);
  const std::string item = conversation + "/items/" + page["last_id"].get<std::string>();
  EXPECT_EQ(server.get(item).status, 503);

  Json ask = {{"input", "a"}, {"max_output_tokens", 2}};
  ask["text"]["format"] = {{"type", "json_schema"}, {"name", "a"},
                           {"schema", {{"const", 1}, {"description", std::string(100'000, 'x')}}}};
  const auto answered = server.post("/v1/responses", ask.dump());
  EXPECT_EQ(answered.status, 503) << answered.body.substr(0, 300);
  EXPECT_NE(answered.head.find("x-should-retry: false"), std::string::npos) << answered.head;
  const auto id = answered.head.find("resp_");
  ASSERT_NE(id, std::string::npos) << answered.head;
  stalled.close();
  const std::string response = "/v1/responses/" + answered.head.substr(id, answered.head.find('\r', id) - id);
  EXPECT_TRUE(eventually([&] { return server.get(item).status == 200 && server.get(response).status == 200; }));
  EXPECT_EQ(server.get(item).json()["content"][0]["text"].get<std::string>().size(), 100'000u);
  EXPECT_EQ(server.get(response).json()["id"], response.substr(response.rfind('/') + 1));
}

// On one connection; the first replies lie in the system's buffers.
std::string many_requests(const std::string& path, int num_requests) {
  const std::string one = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n";
  std::string bytes;
  for (int i = 1; i < num_requests; ++i) bytes += one + "\r\n";
  return bytes + one + "Connection: close\r\n\r\n";
}
// Returns the path of an item of so many bytes.
std::string large_item(const TestServer& server, std::size_t num_bytes) {
  const std::string conversation = large_conversation(server, num_bytes);
  const Json page = server.get(conversation + "/items").json();
  return conversation + "/items/" + page["first_id"].get<std::string>();
}
int num_of_status(const std::string& text, const std::string& status) {
  int num_found = 0;
  for (auto at = text.find("HTTP/1.1 " + status); at != text.npos; at = text.find("HTTP/1.1 " + status, at + 1)) ++num_found;
  return num_found;
}
bool refuses_replies(const TestServer& server) {
  return server.get("/metrics").body.find("reason=\"reply_memory\"} 0") == std::string::npos;
}

// By many clients that do not read them.
TEST(ReplyMemory, RepliesBelowAMegabyteShareIt) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 2'000'000;
  const TestServer server(config);
  const std::string bytes = many_requests(large_item(server, 900'000), 12);
  std::vector<std::unique_ptr<RawClient>> stalled;
  for (int i = 0; i < 4; ++i) {
    stalled.push_back(std::make_unique<RawClient>(server.port(), 20, 4096));
    stalled.back()->send(bytes);
  }
  EXPECT_TRUE(eventually([&] { return refuses_replies(server); }));
}

// Those that their readers take at once need no room.
TEST(ReplyMemory, SmallRepliesThatWaitShareIt) {
  constexpr int kNumRequests = 300;
  for (const std::size_t most : {std::size_t{1}, ServerLimits{}.max_total_reply_bytes}) {
    ServerConfig config;
    config.limits.max_total_reply_bytes = most;
    const TestServer server(config);
    const std::string path = large_item(server, 60'000);
    RawClient stalled(server.port());
    stalled.send(many_requests(path, kNumRequests));
    const bool is_little = most == 1;
    if (is_little) {
      EXPECT_TRUE(eventually([&] { return refuses_replies(server); }));
    }
    for (int i = 0; i < 20; ++i) EXPECT_EQ(server.get(path).status, 200);
    const std::string text = stalled.receive();
    const int num_whole = num_of_status(text, "200");
    EXPECT_GT(num_whole, 0);
    if (is_little) {
      EXPECT_LT(num_whole, kNumRequests);
    } else {
      EXPECT_EQ(num_whole, kNumRequests);
      EXPECT_FALSE(refuses_replies(server));
    }
  }
}

// The last events of a stream repeat all logprobs of its message, which are kept until then.
TEST(ReplyMemory, LogprobsOfStreamedResponsesShareIt) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 4'000'000;
  const TestServer server(config, TestServer::default_engine(), "", {.window = 32, .num_sinks = 16});
  const std::string ask = R"({"input":"a","max_output_tokens":300,"ignore_eos":true,"temperature":0,"stream":true,
      "include":["message.output_text.logprobs"],"top_logprobs":20})";
  const auto last_event = [&] {
    const std::string body = server.post("/v1/responses", ask).body;
    return body.substr(body.rfind("event: "));
  };
  RawClient stalled(server.port());
  stalled.send("GET " + large_conversation(server, 3'500'000) + "/items HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stalled.receive("200 OK");
  const std::string refused = last_event();
  EXPECT_NE(refused.find("response.failed"), std::string::npos) << refused.substr(0, 200);
  EXPECT_NE(refused.find("their clients have not read yet"), std::string::npos) << refused.substr(0, 2000);
  stalled.close();
  EXPECT_TRUE(eventually([&] { return last_event().find("response.incomplete") != std::string::npos; }));
}

// They are there as soon as their prompts are computed, however little of them has been read.
TEST(ReplyMemory, LogprobsOfStreamedPromptsShareIt) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 6'000'000;
  const TestServer server(config);
  // Some 4.4 MB each.
  Json ask = {{"max_tokens", 1}, {"echo", true}, {"logprobs", 20}, {"stream", true}, {"temperature", 0}};
  for (std::uint32_t i = 0; i < 100; ++i) ask["prompt"].push_back(random_tokens(200, i));
  const auto is_told = [&] {
    const std::string body = server.post("/v1/completions", ask.dump()).body;
    return body.find("reply_memory") == std::string::npos && body.find("data: [DONE]\n\n") != std::string::npos;
  };
  RawClient stalled(server.port(), 20, 32 << 10);
  stalled.send(TestServer::request("/v1/completions", ask.dump()));
  stalled.receive("data: ");
  const std::string refused = server.post("/v1/completions", ask.dump()).body;
  EXPECT_NE(refused.find("\"reply_memory\""), std::string::npos) << refused.substr(0, 200);
  EXPECT_EQ(refused.find("\"logprobs\""), std::string::npos) << "none of it has been told";
  EXPECT_NE(server.get("/metrics").body.find("reason=\"reply_memory\"} 1"), std::string::npos);
  stalled.close();
  EXPECT_TRUE(eventually(is_told));
}

// Told, they count no more, though the stream goes on, and its reader does not.
TEST(ReplyMemory, LogprobsOfPromptsThatHaveBeenToldAreNotHeld) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 8'000'000;
  config.limits.stall_timeout = std::chrono::hours(1);
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 10'000;
  engine.num_blocks = 2000;
  const TestServer server(config, engine);
  // Some 7.5 MB.
  Json ask = {{"max_tokens", 5000}, {"echo", true}, {"logprobs", 20}, {"stream", true}, {"ignore_eos", true}};
  ask["prompt"] = random_tokens(4000, 1);
  RawClient reader(server.port(), 20, 32 << 10);
  reader.send(TestServer::request("/v1/completions", ask.dump()));
  reader.receive("\"finish_reason\":null");
  EXPECT_TRUE(reader.receive("\n\n").find("reply_memory") == std::string::npos);
  ask["max_tokens"] = 1;
  EXPECT_TRUE(eventually([&] {
    return server.post("/v1/completions", ask.dump()).body.find("reply_memory") == std::string::npos;
  }));
}

// A few bytes ask for them, and nobody has to read them.
TEST(ReplyMemory, LargeRepliesWaitWithinABudget) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 5'000'000;
  const TestServer server(config);
  const std::string conversation = large_conversation(server, 3'000'000);
  const std::string path = conversation + "/items";
  RawClient stalled(server.port());
  stalled.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stalled.receive("200 OK");
  const auto refused = server.get(path);
  EXPECT_EQ(refused.status, 503) << refused.body.substr(0, 200);
  EXPECT_EQ(refused.json()["error"]["code"], "reply_memory");
  EXPECT_EQ(server.get(conversation).status, 200);
  EXPECT_EQ(server.post(path, large_items(3'000'000)).status, 200) << "it has been done";
  EXPECT_NE(server.get("/metrics").body.find("reason=\"reply_memory\"} 1"), std::string::npos);
  stalled.close();
  EXPECT_TRUE(eventually([&] { return server.get(path).status == 200; }));
}

// What only reads may be asked again, by whichever method; and what repeats its prompts need not begin.
TEST(ReplyMemory, PostsThatChangeNothingWaitWithinIt) {
  ServerConfig config;
  config.limits.max_total_reply_bytes = 4'000'000;
  const TestServer server(config);
  const std::string path = large_conversation(server, 3'000'000) + "/items";
  constexpr TokenId kLongToken = 100;  // "x100"
  Json detokenize;
  detokenize["tokens"] = std::vector<TokenId>(700'000, kLongToken);
  const Json tokenize = {{"prompt", std::string(200'000, 'x')}, {"return_token_strs", true}};
  Json echo = {{"max_tokens", 1}, {"echo", true}, {"return_token_ids", true}};
  echo["prompt"] = std::vector(256, std::vector<TokenId>(TestServer::kMaxModelLen - 1, kLongToken));
  const std::pair<const char*, std::string> asked[] = {{"/detokenize", detokenize.dump()},
                                                       {"/tokenize", tokenize.dump()},
                                                       {"/v1/completions", echo.dump()}};
  RawClient stalled(server.port());
  stalled.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  stalled.receive("200 OK");
  for (const auto& [route, body] : asked) {
    const auto refused = server.post(route, body);
    ASSERT_EQ(refused.status, 503) << route << refused.body.substr(0, 200);
    EXPECT_EQ(refused.json()["error"]["code"], "reply_memory") << route;
  }
  stalled.close();
  for (const auto& [route, body] : asked)
    EXPECT_TRUE(eventually([&] { return server.post(route, body).status == 200; })) << route;
}

}  // namespace
}  // namespace larder
