// Answers with calls that are a part of their text, once they come back as history.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "server/server_test_support.h"

namespace larder {
namespace {

// Its template, ChatML, shows no tools, and its vocabulary has tokens like "x99", which the tokenizer never makes.
class ToolHistoryTest : public testing::Test {
 protected:
  static EngineConfig long_prompts() {
    EngineConfig config = TestServer::default_engine();
    config.max_model_len = 4000;
    return config;
  }

  TestServer server_{{}, long_prompts()};
};

TEST_F(ToolHistoryTest, SeveralCallsAreFoundInTheCache) {
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"maxLength", 20}}}}}, {"required", {"a"}}};
  const Json function = {{"name", "f"}, {"parameters", schema}};
  Json flat = function;
  flat["type"] = "function";
  const Json tool = {{"type", "function"}, {"function", function}};
  // No end until there are as many calls as may be.
  const Json common = {{"seed", 3}, {"tool_choice", "required"}, {"logit_bias", {{"100", 5}, {"96", -100}, {"97", -100}}}};
  Json body = common;
  body["tools"] = Json::array({tool});
  body["messages"] = Json::array({{{"role", "user"}, {"content", "hi"}}});
  const Json first = server_.post("/v1/chat/completions", body.dump()).json();
  const Json& answer = first["choices"][0]["message"];
  ASSERT_GT(answer["tool_calls"].size(), 2u) << first;
  ASSERT_NE(answer.dump().find("x100"), std::string::npos);
  body["messages"].push_back(answer);
  for (const Json& call : answer["tool_calls"])
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "b"}});
  body["max_tokens"] = 1;
  body["tool_choice"] = "none";
  const Json second = server_.post("/v1/chat/completions", body.dump()).json();
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"], first["usage"]["total_tokens"].get<int>() - 1);

  for (const bool is_stored : {false, true}) {
    body = common;
    body["tools"] = Json::array({flat});
    body["input"] = Json::array({{{"role", "user"}, {"content", is_stored ? "ho" : "ha"}}});
    const Json begun = server_.post("/v1/responses", body.dump()).json();
    ASSERT_GT(begun["output"].size(), 2u) << begun;
    if (is_stored) {
      body["previous_response_id"] = begun["id"];
      body["input"] = Json::array();
    } else {
      for (const Json& item : begun["output"]) body["input"].push_back(item);
    }
    for (const Json& item : begun["output"])
      body["input"].push_back({{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "b"}});
    body["max_output_tokens"] = 1;
    body["tool_choice"] = "none";
    const Json next = server_.post("/v1/responses", body.dump()).json();
    EXPECT_GE(next["usage"]["input_tokens_details"]["cached_tokens"], begun["usage"]["total_tokens"].get<int>() - 1);
  }
}

// As a client may keep it.
TEST_F(ToolHistoryTest, AnAnswerOfSeveralPartsIsFoundInTheCache) {
  Json body = {{"seed", 3}, {"logit_bias", {{"100", 5}}}, {"guided_regex", R"(Well\.\n[x0-9]{20})"}};
  body["messages"] = Json::array({{{"role", "user"}, {"content", "hi"}}});
  const Json first = server_.post("/v1/chat/completions", body.dump()).json();
  const std::string text = first["choices"][0]["message"]["content"];
  ASSERT_NE(text.find("x100"), text.npos) << text;
  Json parts = Json::array();
  for (const std::string& part : {text.substr(0, 5), text.substr(6)}) parts.push_back({{"type", "text"}, {"text", part}});
  body["messages"].push_back({{"role", "assistant"}, {"content", std::move(parts)}});
  body["messages"].push_back({{"role", "user"}, {"content", "go on"}});
  body["max_tokens"] = 1;
  const Json second = server_.post("/v1/chat/completions", body.dump()).json();
  EXPECT_GE(second["usage"]["prompt_tokens_details"]["cached_tokens"], first["usage"]["total_tokens"].get<int>() - 1);
}

}  // namespace
}  // namespace larder
