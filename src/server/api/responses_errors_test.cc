// Errors of the Responses API speak of what the client sent, not of the chat that is made of it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/server_test_support.h"

namespace larder {
namespace {

class ResponsesErrors : public ::testing::Test {
 protected:
  // The error's param, which its message begins with.
  std::string refusal(const Json& request, const std::string& path = "/v1/responses") {
    const auto answer = server_.post(path, request.dump());
    EXPECT_EQ(answer.status, 400) << answer.body;
    message_ = answer.json()["error"]["message"];
    EXPECT_TRUE(message_.starts_with(answer.param())) << message_;
    return answer.param();
  }

  TestServer server_{[] {
    ServerConfig config;
    config.limits.max_logprob_entries = 48;
    config.limits.max_session_bytes = 400'000;
    return config;
  }()};
  std::string message_;  // of the last refusal
};

Json user_says(const Json& content) { return {{"role", "user"}, {"content", content}}; }

TEST_F(ResponsesErrors, NameTheField) {
  const auto with = [](const char* name, const Json& value) {
    Json request = {{"input", "x"}};
    request[name] = value;
    return request;
  };
  EXPECT_EQ(refusal(Json::object()), "input");
  EXPECT_EQ(refusal(with("max_output_tokens", 0)), "max_output_tokens");
  EXPECT_EQ(refusal(with("background", "yes")), "background");
  EXPECT_EQ(refusal(with("truncation", "some")), "truncation");
  EXPECT_EQ(refusal(with("tools", {{{"type", "web_search"}}})), "tools[0].type");
  const Json wrong_part = {{"type", "refusal"}, {"refusal", "x"}, {"text", 5}};
  EXPECT_EQ(refusal(with("input", {{{"role", "system"}, {"content", {wrong_part}}}})), "input[0].content[0].text");
  EXPECT_EQ(refusal(with("tool_choice", "required")), "tool_choice");
  EXPECT_EQ(refusal(with("text", {{"format", {{"type", "xml"}}}})), "text.format.type");
  EXPECT_EQ(refusal(with("text", {{"format", {{"type", "json_schema"}, {"schema", {{"type", "date"}}}}}})),
            "text.format.schema.type");
  EXPECT_EQ(refusal(with("metadata", {{"a", 3}})), "metadata.a");
  EXPECT_EQ(refusal(with("prompt_cache_options", {{"ttl", "1h"}})), "prompt_cache_options.ttl");
  Json both = with("conversation", "conv_1");
  both["previous_response_id"] = "resp_1";
  EXPECT_EQ(refusal(both), "previous_response_id");
  EXPECT_EQ(server_.post("/v1/responses", with("conversation", {{"id", "conv_1"}}).dump()).status,
            404);
}

TEST_F(ResponsesErrors, APromptTooLongIsInput) {
  const Json request = {{"input", std::string(500, 'a')}};
  EXPECT_EQ(refusal(request), "input");
  EXPECT_TRUE(message_.find("too long: it has 5") != std::string::npos) << message_;
  EXPECT_TRUE(message_.ends_with(R"(shorten it or send "truncation": "auto")")) << message_;
}

TEST_F(ResponsesErrors, LengthsAndLogprobsHaveTheirOwnNames) {
  Json request = {{"input", "a"}, {"max_output_tokens", 100}, {"min_tokens", 101}};
  EXPECT_EQ(refusal(request), "min_tokens");
  EXPECT_NE(message_.find("max_output_tokens, which is 100"), std::string::npos) << message_;
  request.erase("min_tokens");
  request["include"] = Json::array({"message.output_text.logprobs"});
  request["top_logprobs"] = 5;
  EXPECT_EQ(refusal(request), "top_logprobs");
  EXPECT_NE(message_.find("lower max_output_tokens, "), std::string::npos) << message_;
}

TEST_F(ResponsesErrors, AToolsNameIsItsOwnField) {
  const Json tool = {{"type", "function"}, {"name", ""}};
  EXPECT_EQ(refusal({{"input", "a"}, {"tools", Json::array({tool})}}), "tools[0].name");
}

// Where it would be stored, every answer to the conversation would fail by it.
TEST_F(ResponsesErrors, AWrongBreakpointIsRefusedWhereItIsSent) {
  const auto items = [](const Json& breakpoint) {
    const Json part = {
        {"type", "input_text"}, {"text", "a"}, {"prompt_cache_breakpoint", breakpoint}};
    return Json::array({user_says("first"), user_says(Json::array({part}))});
  };
  const std::string conversations = "/v1/conversations";
  const std::string id =
      server_.post(conversations, Json{{"items", items({{"mode", "explicit"}})}}.dump()).json()["id"];
  const std::string place = "[1].content[0].prompt_cache_breakpoint";
  const struct {
    Json breakpoint;
    std::string field;
  } cases[] = {{{{"mode", "implicit"}}, ".mode"},
               {Json::object(), ".mode"},
               {{{"mode", "explicit"}, {"ttl", "1h"}}, ".ttl"},
               {"explicit", ""}};
  for (const auto& [breakpoint, field] : cases) {
    const Json wrong = items(breakpoint);
    EXPECT_EQ(refusal({{"input", wrong}}), "input" + place + field);
    EXPECT_EQ(refusal({{"items", wrong}}, conversations), "items" + place + field);
    EXPECT_EQ(refusal({{"items", wrong}}, conversations + "/" + id + "/items"), "items" + place + field);
  }
  const Json request = {{"conversation", id}, {"input", "b"}, {"max_output_tokens", 2}};
  EXPECT_EQ(server_.post("/v1/responses", request.dump()).status, 200);
}

// A few bytes each, and the prompt has a copy of what they refer to.
TEST_F(ResponsesErrors, ReferencesAreBounded) {
  Json large[] = {user_says(std::string(60'000, 'x')), user_says(std::string(60'000, 'y'))};
  large[0]["id"] = "msg_a";
  large[1]["id"] = "msg_b";
  const std::string conversations = "/v1/conversations", count = "/v1/responses/input_tokens";
  EXPECT_EQ(server_.post(conversations, Json{{"items", large}}.dump()).status, 200);
  const auto refer_to = [](const std::vector<const char*>& ids) {
    Json items = Json::array();
    for (const char* id : ids) items.push_back({{"type", "item_reference"}, {"id", id}});
    return items;
  };
  EXPECT_EQ(server_.post(count, Json{{"input", refer_to({"msg_a"})}}.dump()).status, 200);
  for (const std::string& path : {std::string("/v1/responses"), count}) {
    EXPECT_EQ(refusal({{"input", refer_to({"msg_a", "msg_a"})}}, path), "input[1].id");
    EXPECT_EQ(refusal({{"input", refer_to({"msg_a", "msg_b"})}}, path), "input");
    EXPECT_NE(message_.find("at most 100000 may"), std::string::npos) << message_;
  }
  EXPECT_EQ(refusal({{"items", refer_to({"msg_a", "msg_b"})}}, conversations), "items");
}

// As chains are.
TEST_F(ResponsesErrors, ConversationsAreBounded) {
  const std::string count = "/v1/responses/input_tokens";
  Json large[] = {user_says(std::string(60'000, 'x')), user_says(std::string(60'000, 'y'))};
  large[0]["id"] = "msg_a";
  const std::string id = server_.post("/v1/conversations", Json{{"items", large}}.dump()).json()["id"];
  const Json request = {{"conversation", id}, {"input", "a"}};
  for (const std::string& path : {std::string("/v1/responses"), count}) {
    EXPECT_EQ(refusal(request, path), "conversation");
    EXPECT_NE(message_.find("at most 100000 may"), std::string::npos) << message_;
  }
  server_.exchange("DELETE /v1/conversations/" + id +
                   "/items/msg_a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(server_.post(count, request.dump()).status, 200);
}

TEST_F(ResponsesErrors, ARefusalsTextMayBeNull) {
  const Json parts = {{{"type", "refusal"}, {"refusal", "a"}, {"text", nullptr}},
                      {{"type", "input_text"}, {"text", "b"}}};
  const Json request = {{"input", {{{"role", "system"}, {"content", parts}}, user_says("hi")}},
                        {"instructions", "Be brief."},
                        {"max_output_tokens", 2}};
  const auto answer = server_.post("/v1/responses", request.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
}

// What only the chat's reader sees, here in a compaction that somebody changed.
TEST_F(ResponsesErrors, AMessageIsTheItemThatItIsMadeOf) {
  const Json kept = {{"larder", 1}, {"summed", {1, 1}}, {"summary", "s"}, {"messages", Json::array({user_says(Json::array({5}))})}};
  const Json compaction = {{"type", "compaction"}, {"id", "cmp_1"}, {"encrypted_content", kept.dump()}};
  const Json system = {{"role", "system"}, {"content", "Be kind."}};
  EXPECT_EQ(refusal({{"instructions", "Be brief."},
                     {"input", Json::array({system, compaction, user_says("a")})}}),
            "input[1]");
  EXPECT_EQ(message_, "input[1]: must be an object, it is a number");
  const Json made = {{"items", Json::array({compaction})}};
  const Json id = server_.post("/v1/conversations", made.dump()).json()["id"];
  EXPECT_EQ(refusal({{"conversation", id}, {"input", "a"}}), "conversation");
}

// What could not be built upon: calls join the answer before them.
TEST_F(ResponsesErrors, ACompactionThatSomebodyChangedIsAText) {
  const Json call = {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}};
  for (const char* member : {R"("tool_calls":"x")", R"("tool_calls":{"a":1})", R"("content":5)", R"("content":{})"}) {
    const std::string text =
        R"({"larder":1,"summary":"s","summed":[1,1],"messages":[{"role":"assistant",)" + std::string(member) + "}]}";
    const Json items = Json::array({{{"type", "compaction"}, {"encrypted_content", text}}, call});
    const Json id = server_.post("/v1/conversations", Json{{"items", items}}.dump()).json()["id"];
    for (const Json& request : {Json{{"input", items}}, Json{{"conversation", id}, {"input", "a"}}}) {
      const auto counted = server_.post("/v1/responses/input_tokens", request.dump());
      EXPECT_EQ(counted.status, 200) << member << counted.body;
      EXPECT_NE(server_.post("/v1/responses", request.dump()).status, 500) << member;
    }
  }
}

}  // namespace
}  // namespace larder
