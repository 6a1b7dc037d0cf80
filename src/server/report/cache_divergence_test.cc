// What is no edit of a history, over real sockets.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/report/cache_report_test_support.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

std::vector<int> random_ids(int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(static_cast<int>(random() % 94));
  return ids;
}

Json complete(const TestServer& server, const std::vector<int>& ids, const Json& more) {
  Json request = {{"prompt", ids}, {"ignore_eos", true}, {"larder", {{"cache_report", true}}}};
  request.update(more);
  const auto answer = server.post("/v1/completions", request.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  return answer.json();
}

TEST(CacheDivergence, WhatComesInPlaceOfAnAnswerIsNew) {
  const TestServer server({}, engine_of(1200));
  std::vector<int> ids = random_ids(80, 1);
  complete(server, ids, {{"max_tokens", 1}, {"temperature", 0}});
  for (const int id : random_ids(100, 2)) ids.push_back(id);
  const Json report = complete(server, ids, {{"max_tokens", 1}})["larder"]["cache"];
  EXPECT_GE(report["cached_tokens"], 79);
  EXPECT_EQ(reasons(report)["diverged"], 0) << report;
  EXPECT_GE(reasons(report)["never_seen"], 99);
  EXPECT_TRUE(report["divergence"].is_null()) << report;
}

// Whoever goes on with another than the first has edited nothing.
TEST(CacheDivergence, KnowsEveryChoiceThatWasShown) {
  for (const int best_of : {3, 4}) {
    const TestServer server({}, engine_of(1200));
    const std::vector<int> asked = random_ids(80, 1);
    const Json reply = complete(server, asked, {{"max_tokens", 60}, {"temperature", 1}, {"seed", 7}, {"n", 3},
                                                {"best_of", best_of}, {"return_token_ids", true}});
    ASSERT_EQ(reply["choices"].size(), 3u);
    for (const Json& choice : reply["choices"]) {
      std::vector<int> ids = asked;
      for (const Json& id : choice["token_ids"]) ids.push_back(id.get<int>());
      ASSERT_EQ(ids.size(), 140u);
      for (const int id : random_ids(30, 2)) ids.push_back(id);
      const Json report = complete(server, ids, {{"max_tokens", 1}})["larder"]["cache"];
      EXPECT_EQ(report["nearest"]["shared_tokens"], 140) << report;
      EXPECT_TRUE(report["divergence"].is_null()) << report;
      EXPECT_EQ(reasons(report)["diverged"], 0);
    }
  }
}

TEST(CacheDivergence, KnowsEveryChoiceThatBrokeOff) {
  const TestServer server({}, engine_of(8000));
  const std::vector<int> asked = random_ids(80, 1);
  const Json request = {{"prompt", asked}, {"ignore_eos", true}, {"max_tokens", 7000}, {"temperature", 1}, {"seed", 7},
                        {"n", 2}, {"stream", true}, {"return_token_ids", true}};
  const std::string body = request.dump();
  std::vector<std::vector<int>> shown(2);
  {
    RawClient client(server.port());
    client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            "Content-Length: {}\r\n\r\n{}", body.size(), body));
    std::string text;
    while (std::min(shown[0].size(), shown[1].size()) < 40) {
      const std::string piece = client.receive("\n\n");
      ASSERT_FALSE(piece.empty());
      text += piece;
      for (std::size_t end = 0; (end = text.find("\n\n")) != std::string::npos; text.erase(0, end + 2)) {
        const std::size_t begin = text.find("data: {");
        if (begin >= end) continue;
        const Json event = parse_json(text.substr(begin + 6, end - begin - 6), {});
        for (const Json& choice : event["choices"]) {
          std::vector<int>& tokens = shown.at(choice["index"].get<std::size_t>());
          for (const Json& id : choice["token_ids"]) tokens.push_back(id.get<int>());
        }
      }
    }
  }
  ASSERT_TRUE(eventually([&] { return server.get("/metrics").body.find("finished_reason=\"abort\"} 2") != std::string::npos; }));
  for (const std::vector<int>& tokens : shown) {
    std::vector<int> ids = asked;
    ids.insert(ids.end(), tokens.begin(), tokens.begin() + 40);
    for (const int id : random_ids(30, 2)) ids.push_back(id);
    const Json report = complete(server, ids, {{"max_tokens", 1}})["larder"]["cache"];
    EXPECT_GE(report["nearest"]["shared_tokens"], 120) << report;
    EXPECT_EQ(reasons(report)["diverged"], 0) << report;
  }
}

TEST(CacheDivergence, ASystemPromptLeftOutIsNoShorterHistory) {
  const TestServer server({}, engine_of(1200));
  MessagesChat messages{server};
  messages.request["system"] = "You are a baker who is kind to all who come.";
  messages.say("What is bread made of, and who has made it?");
  messages.request.erase("system");
  EXPECT_EQ(messages.say("And what is cake made of?"), "system_changed");
  EXPECT_EQ(messages.report["divergence"]["class"], "changed_system_prompt") << messages.report;
  EXPECT_EQ(messages.report["divergence"]["segment"], "system");

  const TestServer other({}, engine_of(1200));
  Chain chain{other};
  chain.request["instructions"] = "You are a carpenter who is kind to all who come.";
  chain.say("What is a table made of, and who has made it?");
  chain.request.erase("instructions");
  const Json reply = chain.say("And what is a chair made of?");
  EXPECT_EQ(reply["prompt_cache_diagnostics"]["reason"], "input_changed");
  EXPECT_EQ(chain.report(reply)["divergence"]["class"], "changed_system_prompt") << chain.report(reply);
}

// Neither vendor's messages have changed, nor the history: only what the template prints of it.
TEST(CacheDivergence, AnotherEffortIsNoChangeOfMessages) {
  const std::string turns = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
                            "{{ message['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
  const TestServer server({}, engine_of(1200),
                          "<|im_start|>system\nThink {% if enable_thinking %}long and hard{% elif reasoning_effort %}"
                          "{{ reasoning_effort }}{% else %}little{% endif %}.<|im_end|>\n" + turns);
  MessagesChat messages{server};
  messages.say("What is bread made of, and who has made it?");
  messages.request["thinking"] = {{"type", "adaptive"}};
  EXPECT_EQ(messages.say("And what is cake made of?"), "unavailable");
  EXPECT_EQ(messages.report["divergence"]["class"], "changed_effort") << messages.report;
  EXPECT_EQ(messages.report["divergence"]["segment"], "effort");
  EXPECT_FALSE(messages.report["divergence"].contains("message"));
  messages.request["messages"][0]["content"] = "What is a loaf made of, and who has made it?";
  EXPECT_EQ(messages.say("And a biscuit?"), "messages_changed");

  Chain chain{server};
  chain.say("What is a table made of, and who has made it?");
  chain.request["reasoning"] = {{"effort", "high"}};
  const Json reply = chain.say("And what is a chair made of?");
  EXPECT_EQ(reply["prompt_cache_diagnostics"]["reason"], "reasoning_effort_changed");
  EXPECT_EQ(chain.report(reply)["divergence"]["class"], "changed_effort") << chain.report(reply);
}

}  // namespace
}  // namespace larder
