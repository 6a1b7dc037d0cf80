// What a request keeps while it waits in line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/heap_test_support.h"
#include "server/report/cache_log.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

constexpr int kIdleBytes = 4'000'000;

// A request that goes on for ever, after so many bytes that say nothing.
std::string endless(std::size_t num_prompt_bytes, std::size_t num_idle_bytes = 0) {
  constexpr const char* kOptions =
      R"("max_tokens":10000000,"attention_window":32,"ignore_eos":true)";
  return fmt::format(R"({{"prompt":"{}",{}{}}})", std::string(num_prompt_bytes, 'x'), kOptions,
                     std::string(num_idle_bytes, ' '));
}

// One runs, the others wait.
EngineConfig one_by_one() {
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 1;
  return engine;
}

// Of four that wait, each with kIdleBytes that are no tokens of its prompt.
void expect_little_kept(const std::string& path, const std::string& body) {
  if (!is_heap_known()) GTEST_SKIP() << "another allocator";
  TestServer server({}, one_by_one());
  RawClient running(server.port());
  running.send(TestServer::request("/v1/completions", endless(3)));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running == 1; }));
  const std::int64_t before = heap_in_use();
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::make_unique<RawClient>(server.port()));
    waiting.back()->send(TestServer::request(path, body));
  }
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_waiting == 4; }));
  const auto kept = [&] { return heap_in_use() - before; };
  EXPECT_TRUE(eventually([&] { return kept() < kIdleBytes; }, 5)) << kept();
}

TEST(RequestMemory, ABodyIsLetGoOfWhenItIsUnderstood) {
  expect_little_kept("/v1/completions", endless(3, kIdleBytes));
}

TEST(RequestMemory, AMessageIsLetGoOfWhenItIsEncoded) {
  expect_little_kept("/v1/chat/completions",
                     R"({"messages":[{"role":"user","content":"hi","note":")" +
                         std::string(kIdleBytes, 'x') + R"("}],"max_tokens":5})");
}

// The prompt was made by them, and the engine has what it goes by.
TEST(RequestMemory, FieldsAreLetGoOfWhenTheyAreUnderstood) {
  const std::string text(kIdleBytes / 2, 'x');
  const std::string chat = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":5,)";
  expect_little_kept("/v1/chat/completions", chat + R"("prediction":{"type":"content","content":")" + text + R"("}})");
  expect_little_kept("/v1/chat/completions",
                     chat + R"("response_format":{"type":"json_schema","json_schema":{"name":"n","schema":
                               {"type":"object","description":")" + text + R"("}}}})");
}

TEST(RequestMemory, TokensInLineAreBounded) {
  EngineConfig engine = one_by_one();
  engine.max_waiting_tokens = 100;
  TestServer server({}, engine);
  RawClient running(server.port()), waiting(server.port());
  running.send(TestServer::request("/v1/completions", endless(150)));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_running == 1; }));
  waiting.send(TestServer::request("/v1/completions", endless(60)));
  ASSERT_TRUE(eventually([&] { return server.engine().stats().num_waiting == 1; }));
  const TestServer::Answer refused = server.post("/v1/completions", endless(41));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("the 100 that may wait"), std::string::npos) << refused.body;
  const std::string page = server.get("/metrics").body;
  EXPECT_NE(page.find("reason=\"queue_full\"} 1\n"), std::string::npos);
  EXPECT_NE(page.find("of=\"waiting\"} 240\n"), std::string::npos);
  RawClient small(server.port());
  small.send(TestServer::request("/v1/completions", endless(40)));
  EXPECT_TRUE(eventually([&] { return server.engine().stats().num_waiting == 2; }));
}

TEST(RequestMemory, NoRoomForAFormIsNoFullLine) {
  ServerConfig config;
  config.limits.max_constraint_bytes = 1000;
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 2000;  // tools are long
  const TestServer server(config, engine);
  const auto expect_refused = [&](const char* path, const char* body, const char* param) {
    const TestServer::Answer refused = server.post(path, body);
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(refused.param(), param);
  };
  expect_refused("/v1/completions", R"({"prompt":"abc","guided_regex":"[a-z]{100}"})", "guided_regex");
  expect_refused("/v1/chat/completions",
                 R"({"messages":[{"role":"user","content":"hi"}],"tool_choice":"required","tools":[
                     {"type":"function","function":{"name":"f"}}]})",
                 "tools");
  const std::string page = server.get("/metrics").body;
  EXPECT_NE(page.find("reason=\"format_memory\"} 2\n"), std::string::npos);
  EXPECT_NE(page.find("reason=\"queue_full\"} 0\n"), std::string::npos);
}

// The relative's text has told what differs; thousands that wait are not to hold it.
TEST(RequestMemory, AnOpenPromptHoldsNoOthersText) {
  const Tokenizer tokenizer(tiny_vocabulary());
  ServerMetrics metrics("tiny", 240);
  CacheLog log(tokenizer, metrics, {});
  std::vector<TokenId> prompt = random_tokens(200, 1);
  PromptOrigin origin;
  origin.id = "first";
  log.complete(log.open(origin, prompt, std::nullopt), random_tokens(20, 2));
  prompt[100] ^= 1;
  origin.id = "second";
  const OpenPrompt second = log.open(origin, prompt, std::nullopt);
  ASSERT_TRUE(second.comparison.relative);
  EXPECT_TRUE(second.divergence);
  EXPECT_EQ(second.comparison.relative->tokens.capacity(), 0u);
}

}  // namespace
}  // namespace larder
