#include "server/chat/history_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "server/chat/prompt.h"
#include "server/chat/tool_prompt.h"
#include "server/server_test_support.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

Json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

Digest user(const std::string& content) {
  return HistoryTokens::digest_of(message("user", content));
}

std::vector<ChatMessage> chat(const std::string& question, const std::string& answer) {
  return messages_of({message("user", question), message("assistant", answer)});
}

TEST(HistoryTokens, RecallsAnAnswerAfterItsQuestionUnderItsSalt) {
  HistoryTokens history(1 << 20);
  history.remember("salt", user("hi"), "hello", {1, 2, 3});
  const auto turns = history.recall("salt", chat("hi", "hello"));
  ASSERT_EQ(turns.size(), 1u);
  EXPECT_EQ(turns[0].message, 1u);
  EXPECT_EQ(*turns[0].tokens, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_TRUE(history.recall("other", chat("hi", "hello")).empty());
  EXPECT_TRUE(history.recall("salt", chat("hi", "hello!")).empty());
  EXPECT_TRUE(history.recall("salt", chat("ho", "hello")).empty());
  EXPECT_TRUE(history.recall("salt", messages_of(Json::array({message("assistant", "hello")}))).empty());
  std::vector<ChatMessage> users = chat("hi", "hello");
  users[1].json["role"] = "user";
  EXPECT_TRUE(history.recall("salt", users).empty());
}

TEST(HistoryTokens, TheSameTextTwiceKeepsTheLastTokens) {
  HistoryTokens history(1 << 20);
  history.remember("", user("hi"), "hello", {1});
  history.remember("", user("hi"), "hello", {2});
  ASSERT_EQ(history.recall("", chat("hi", "hello")).size(), 1u);
  EXPECT_EQ(history.recall("", chat("hi", "hello"))[0].tokens->front(), 2);
}

TEST(HistoryTokens, StaysWithinItsBytesAndDropsWhatIsLongestUnused) {
  HistoryTokens history(10'000);
  const std::vector<TokenId> tokens(100, 7);
  history.remember("", user("first"), "a", tokens);
  for (int i = 0; i < 100; ++i) {
    history.remember("", user(std::to_string(i)), "a", tokens);
    ASSERT_EQ(history.recall("", chat("first", "a")).size(), 1u) << "used again and again";
    ASSERT_LE(history.size_bytes(), 10'000u);
  }
  EXPECT_TRUE(history.recall("", chat("0", "a")).empty());
  EXPECT_FALSE(history.recall("", chat("99", "a")).empty());
  history.remember("", user("big"), "a", std::vector<TokenId>(10'000, 1));
  EXPECT_TRUE(history.recall("", chat("big", "a")).empty()) << "larger than everything together";
  EXPECT_FALSE(history.recall("", chat("99", "a")).empty());
}

// Its vocabulary has tokens like "x99", which the tokenizer never makes: it has no merges.
TEST(HistoryTokens, AnAnswerThatComesBackIsPromptedAsItWasGenerated) {
  TestServer server;
  for (const bool streams : {false, true}) {
    const std::string question = streams ? "hi" : "ho";
    Json body = {{"messages", Json::array({message("user", question)})},
                 {"max_tokens", 60},
                 {"seed", 3},
                 {"logit_bias", {{"100", 3}, {"101", 3}, {"96", -100}, {"97", -100}}},
                 {"return_token_ids", true}};
    const Json first = server.post("/v1/chat/completions", body.dump()).json();
    const Json answer = first["choices"][0];
    const auto generated = answer["token_ids"].get<std::vector<TokenId>>();
    ASSERT_TRUE(std::ranges::find(generated, 100) != generated.end());
    if (streams) {  // the same seed gives the same answer, remembered here by the stream alone
      body["stream"] = true;
      body["cache_salt"] = "streams";
      server.post("/v1/chat/completions", body.dump());
      body["stream"] = false;
    }
    body["messages"].push_back(message("assistant", answer["message"]["content"]));
    body["messages"].push_back(message("user", "go on"));
    body["max_tokens"] = 1;
    const Json second = server.post("/v1/chat/completions", body.dump()).json();
    const auto prompt = second["prompt_token_ids"].get<std::vector<TokenId>>();
    EXPECT_FALSE(std::ranges::search(prompt, generated).empty());
    const int num_reusable = first["usage"]["total_tokens"].get<int>() - 1;
    EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(), num_reusable);
    // Another salt has not heard of it, and encodes the text.
    body["cache_salt"] = "other" + question;
    const Json other = server.post("/v1/chat/completions", body.dump()).json();
    EXPECT_GT(other["usage"]["prompt_tokens"].get<int>(),
              second["usage"]["prompt_tokens"].get<int>());
  }
  const std::string metrics = server.get("/metrics").body;
  EXPECT_NE(metrics.find("larder:history_turns_kept_total{model_name=\"tiny\",engine=\"0\"} 2"),
            metrics.npos);
}

// Where the template shows no tools, calls are parts of the answer's text: "x99" is a token that encoding never makes.
TEST(HistoryTokens, AnAnswerWithCallsIsPromptedAsItWasGenerated) {
  const TestServer server;
  const ServedModel& model = server.model();
  const auto call = [](const char* id, const char* city) {
    return Json{{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"city", city}}}}}};
  };
  for (const std::string& said : {std::string(), std::string("Let me see x99.")}) {
    ChatRequest request;
    Json answer = message("assistant", said);
    answer["tool_calls"] = Json::array({call("a", "x99"), call("b", "Oslo")});
    request.messages = messages_of({message("user", "Why?"), answer, message("tool", "20"), message("tool", "21")});
    request.tools = parse_json(R"([{"type":"function","function":{"name":"f"}}])", {});
    adapt_chat(request, {});
    ASSERT_EQ(request.messages[2].json["role"], "assistant");
    const auto text = request.messages[2].json["content"].get<std::string>();
    const std::size_t place = text.find("x99");
    std::vector<TokenId> generated = model.tokenizer.encode(text.substr(0, place), false, false);
    generated.push_back(model.tokenizer.find("x99").value());
    for (const TokenId token : model.tokenizer.encode(text.substr(place + 3), false, false)) generated.push_back(token);
    ChatRequest unknown = request;
    request.known_turns.push_back({.message = 2, .tokens = std::make_shared<const std::vector<TokenId>>(generated)});
    const std::vector<TokenId> known_prompt = encode_chat(request, model).tokens;
    EXPECT_FALSE(std::ranges::search(known_prompt, generated).empty()) << text;
    const std::vector<TokenId> other_prompt = encode_chat(unknown, model).tokens;
    EXPECT_TRUE(std::ranges::search(other_prompt, generated).empty()) << text;
  }
}

// As of a chat that its reader stops, and goes on with.
TEST(HistoryTokens, WhatWasReadOfAnAnswerThatBrokeOffIsPromptedAsItWasGenerated) {
  EngineConfig config = TestServer::default_engine();
  config.max_model_len = 4000;
  TestServer server({}, config);
  Json body = {{"messages", Json::array({message("user", "hi")})},
               {"max_tokens", 3000},
               {"seed", 3},
               {"stream", true},
               {"ignore_eos", true},
               {"logit_bias", {{"100", 3}, {"101", 3}, {"96", -100}, {"97", -100}}},
               {"return_token_ids", true}};
  std::string text;
  std::vector<TokenId> generated;
  {
    RawClient client(server.port());
    client.send(TestServer::request("/v1/chat/completions", body.dump()));
    std::string events;
    while (generated.size() < 30) {
      events += client.receive("\n\n");
      for (auto end = events.find("\n\n"); end != events.npos; end = events.find("\n\n")) {
        const auto begin = events.find("data: {");
        if (begin < end) {
          const Json choice = parse_json(events.substr(begin + 6, end - begin - 6), {})["choices"][0];
          text += choice["delta"].value("content", "");
          if (choice.contains("token_ids"))
            for (const Json& token : choice["token_ids"]) generated.push_back(token.get<TokenId>());
        }
        events.erase(0, end + 2);
      }
    }
  }
  ASSERT_TRUE(std::ranges::find(generated, 100) != generated.end());
  ASSERT_TRUE(server.becomes_idle());
  body["messages"].push_back(message("assistant", text));
  body["messages"].push_back(message("user", "go on"));
  body["max_tokens"] = 1;
  body["stream"] = false;
  const Json second = server.post("/v1/chat/completions", body.dump()).json();
  const auto prompt = second["prompt_token_ids"].get<std::vector<TokenId>>();
  EXPECT_FALSE(std::ranges::search(prompt, generated).empty());
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"].get<std::size_t>(), generated.size());
  // Another answer to the same question is none of it, however it begins.
  body["messages"][1]["content"] = text + " and all that nobody has said";
  const Json third = server.post("/v1/chat/completions", body.dump()).json();
  const auto other = third["prompt_token_ids"].get<std::vector<TokenId>>();
  EXPECT_TRUE(std::ranges::search(other, generated).empty());
}

}  // namespace
}  // namespace larder
