// The Responses API over HTTP.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/api/responses_test_support.h"
#include "server/api/router.h"

namespace larder {
namespace {

using Responses = ResponsesTest;

TEST_F(Responses, HaveTheirShape) {
  Json request = body("hello");
  request["metadata"] = {{"a", "b"}};
  request["instructions"] = "Be brief.";
  request["prompt_cache_key"] = "key";
  const Json response = create(request);
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["metadata"]["a"], "b");
  EXPECT_EQ(response["instructions"], "Be brief.");
  EXPECT_EQ(response["prompt_cache_key"], "key");
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["content"][0]["type"], "output_text");
  const Json usage = response["usage"];
  EXPECT_EQ(usage["output_tokens"], 8);
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + 8);
  request.erase("max_output_tokens");
  const auto count = [&] {
    return server_.post("/v1/responses/input_tokens", request.dump()).json()["input_tokens"];
  };
  EXPECT_EQ(count(), usage["input_tokens"]);
  request["truncate_prompt_tokens"] = 7;
  EXPECT_EQ(count(), 7);
}

TEST_F(Responses, StreamTypedEvents) {
  Json request = body("hello");
  request["seed"] = 1;
  const Json whole = create(request);
  request["stream"] = true;
  const auto list = events(server_.post("/v1/responses", request.dump()).body);
  std::string text;
  std::vector<std::string> types;
  for (const Json& event : list) {
    if (event["type"] == "response.output_text.delta") text += event["delta"];
    if (types.empty() || types.back() != event["type"]) types.push_back(event["type"]);
  }
  EXPECT_EQ(types, (std::vector<std::string>{
                       "response.created", "response.in_progress", "response.output_item.added",
                       "response.content_part.added", "response.output_text.delta",
                       "response.output_text.done", "response.content_part.done",
                       "response.output_item.done", "response.incomplete"}));
  EXPECT_EQ(text, whole["output"][0]["content"][0]["text"]);
  const Json last = list.back()["response"];
  EXPECT_EQ(last["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
  EXPECT_EQ(last["id"], list.front()["response"]["id"]);
  EXPECT_EQ(server_.get("/v1/responses/" + last["id"].get<std::string>()).json(), last);
}

TEST_F(Responses, MetadataIsMeasuredInCharacters) {
  const auto text = [](int count) {
    std::string made;
    for (int i = 0; i < count; ++i) made += "\u00e9";
    return made;
  };
  Json request = body("x", 1);
  request["metadata"] = {{text(64), text(512)}};
  EXPECT_EQ(create(request)["metadata"], request["metadata"]);
  request["metadata"] = {{"a", text(513)}};
  EXPECT_EQ(refusal(request), "metadata.a");
  request["metadata"] = {{text(65), "b"}};
  EXPECT_EQ(refusal(request), "metadata");
}

TEST_F(Responses, ToolChoiceLeavesThePromptAsItIs) {
  Json request = body("hello");
  const auto count = [&] {
    return server_.post("/v1/responses/input_tokens", request.dump()).json()["input_tokens"].get<int>();
  };
  const int without = count();
  request["tools"] = Json::array({{{"type", "function"}, {"name", "f"}, {"parameters", Json::object()}}});
  const int with = count();
  request["tool_choice"] = "none";
  EXPECT_GT(with, without);
  EXPECT_EQ(count(), with);
}

TEST(ResponsesOfAgents, ACallGoesToTheNamespaceThatItWasMeantFor) {
  const TestServer server({}, {.num_blocks = 400, .max_model_len = 3000, .max_batch_tokens = 128});
  Json request = parse_json(R"({"input":"hello","temperature":0,"max_output_tokens":400,"tools":[
      {"type":"namespace","name":"mail","tools":[{"type":"function","name":"search"}]},
      {"type":"namespace","name":"calendar","tools":[{"type":"function","name":"search","parameters":
        {"type":"object","properties":{"day":{"enum":["today"]}},"required":["day"],"additionalProperties":false}}]}]})",
                            {});
  request["tool_choice"] = {{"type", "function"}, {"name", "calendar.search"}};
  const Json output = server.post("/v1/responses", request.dump()).json().at("output");
  ASSERT_EQ(output.size(), 1u) << output;
  EXPECT_EQ(output[0].at("name"), "search");
  EXPECT_EQ(output[0].at("namespace"), "calendar");
  EXPECT_EQ(output[0].at("arguments"), R"({"day":"today"})");
  // And comes back as the model wrote it: each character is a token.
  const auto num_tokens = [&](const char* space) {
    Json call = output[0];
    call["namespace"] = space;
    request["input"] = Json::array({call});
    return server.post("/v1/responses/input_tokens", request.dump()).json().at("input_tokens").get<int>();
  };
  EXPECT_EQ(num_tokens("calendar") - num_tokens("mail"), 4);
  EXPECT_EQ(num_tokens("mail") - num_tokens("unknown"), 5);
}

TEST(ResponsesOfAgents, CallsOfCustomToolsHaveTheirOwnShape) {
  const TestServer server({}, {.num_blocks = 400, .max_model_len = 3000, .max_batch_tokens = 128});
  Json request = parse_json(R"({"input":"hello","temperature":0,"max_output_tokens":400,"tools":[
      {"type":"namespace","name":"files","tools":[{"type":"custom","name":"patch","format":
        {"type":"grammar","syntax":"lark","definition":"start: \"begin\" LF \"\\\"a\\\"\"\n%import common.LF"}}]}],
      "tool_choice":{"type":"custom","name":"patch"}})", {});
  const Json reply = server.post("/v1/responses", request.dump()).json();
  const Json& output = reply.at("output");
  ASSERT_EQ(output.size(), 1u) << output;
  EXPECT_EQ(output[0].at("type"), "custom_tool_call");
  EXPECT_TRUE(output[0].at("id").get<std::string>().starts_with("ctc_"));
  EXPECT_EQ(output[0].at("name"), "patch");
  EXPECT_EQ(output[0].at("namespace"), "files");
  EXPECT_EQ(output[0].at("input"), "begin\n\"a\"");
  EXPECT_EQ(output[0].at("status"), "completed");
  request["stream"] = true;
  const std::string events = server.post("/v1/responses", request.dump()).body;
  for (const char* name : {"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"})
    EXPECT_NE(events.find(name), std::string::npos) << name;
  EXPECT_EQ(events.find("function_call"), std::string::npos);
  // What is wrong with the grammar is told with its field.
  request["tools"][0]["tools"][0]["format"]["definition"] = "start: a";
  const auto refused = server.post("/v1/responses", request.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "tools[0].tools[0].format.definition");
}

// What is stored may be large: copying it is not for the threads that serve streams.
TEST(StoredItems, AreReadByOtherThreadsThanStreams) {
  const TestServer server;
  const ServerConfig config;
  ServerMetrics metrics("m", 1);
  const ServerGauges gauges;
  const Router router(config, server.model(), metrics, gauges);
  const auto is_quick = [&](const std::string& method, const std::string& path) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    return router.is_quick(request);
  };
  for (const char* path : {"/health", "/version", "/load", "/metrics", "/v1/models"}) {
    EXPECT_TRUE(is_quick("GET", path)) << path;
  }
  for (const char* path : {"/v1/conversations/c", "/v1/conversations/c/items", "/v1/responses/r",
                           "/v1/conversations/c/items/i", "/v1/responses/r/input_items",
                           "/v1/cache/requests"}) {
    EXPECT_FALSE(is_quick("GET", path)) << path;
  }
  EXPECT_FALSE(is_quick("DELETE", "/v1/conversations/c/items/i"));
}

// Every turn is prompted with the tokens that were generated, although the text would be encoded
// otherwise (see tiny_vocabulary).
TEST_F(Responses, AChainReusesEverything) {
  std::string previous;
  int num_known = 0;
  for (int turn = 0; turn < 6; ++turn) {
    Json request = body("turn", 10);
    if (!previous.empty()) request["previous_response_id"] = previous;
    const auto counted = server_.post("/v1/responses/input_tokens", request.dump()).json();
    const Json response = create(request);
    const Json usage = response["usage"];
    EXPECT_EQ(counted["input_tokens"], usage["input_tokens"]);
    EXPECT_GE(usage["input_tokens_details"]["cached_tokens"].get<int>(), num_known);
    num_known = usage["total_tokens"].get<int>() - 1;
    previous = response["id"];
    EXPECT_EQ(response["previous_response_id"].is_null(), turn == 0);
  }
  const auto items = server_.get("/v1/responses/" + previous + "/input_items").json();
  EXPECT_EQ(items["data"].size(), 1u);
  EXPECT_EQ(remove("/v1/responses/" + previous).json()["deleted"], true);
  EXPECT_EQ(server_.get("/v1/responses/" + previous).status, 404);
  Json request = body("turn");
  request["previous_response_id"] = previous;
  EXPECT_EQ(server_.post("/v1/responses", request.dump()).status, 404);
}

// Responses that are being generated, each with an item of that many bytes that no prompt shows.
class LargeInputs : public ::testing::Test {
 protected:
  static ServerConfig config() {
    ServerConfig config;
    config.limits.max_session_bytes = 40'000;
    config.limits.max_total_draft_bytes = 40'000;
    config.limits.max_stream_buffer_bytes = std::size_t{1} << 30;  // nobody reads them to the end
    return config;
  }
  static std::string request(std::size_t num_bytes, bool stores, bool ends) {
    Json body = {{"store", stores}, {"ignore_eos", true}, {"stream", !ends}};
    body["max_output_tokens"] = ends ? 1 : 1'000'000;
    if (!ends) body["attention_window"] = 64;  // goes on until the client leaves
    body["input"] = Json::array({{{"role", "user"}, {"content", "hello"}},
                                 {{"type", "reasoning"}, {"id", "rs_1"}, {"summary", Json::array()}}});
    body["input"][1]["encrypted_content"] = std::string(num_bytes, 'x');
    return body.dump();
  }
  // Has begun to answer.
  std::unique_ptr<RawClient> start(std::size_t num_bytes, bool stores) {
    auto client = std::make_unique<RawClient>(server_.port());
    client->send(TestServer::request("/v1/responses", request(num_bytes, stores, false)));
    const std::string text = client->receive("response.created");
    EXPECT_NE(text.find("response.created"), std::string::npos) << text;
    return client;
  }
  int status_of(std::size_t num_bytes, bool stores = true) {
    return server_.post("/v1/responses", request(num_bytes, stores, true)).status;
  }

  TestServer server_{config(), {.num_blocks = 400, .max_model_len = 1200, .max_batch_tokens = 128}};
};

TEST_F(LargeInputs, PushNothingOutOfTheStore) {
  const auto kept = server_.post("/v1/conversations", R"({"metadata":{"a":"b"}})").json();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(start(30'000, false));
  const auto stored = server_.post("/v1/responses", request(10, true, true));
  EXPECT_EQ(stored.status, 200) << stored.body;
  EXPECT_EQ(server_.get("/v1/conversations/" + kept["id"].get<std::string>()).status, 200);
  EXPECT_EQ(server_.get("/v1/responses/" + stored.json()["id"].get<std::string>()).status, 200);
}

TEST_F(LargeInputs, WaitForTheirAnswersWithinABudget) {
  auto first = start(30'000, true);
  const auto refusal = server_.post("/v1/responses", request(20'000, true, true));
  EXPECT_EQ(refusal.status, 503) << refusal.body;
  EXPECT_EQ(refusal.param(), "input");
  EXPECT_NE(server_.get("/metrics").body.find("reason=\"body_memory\"} 1"), std::string::npos);
  EXPECT_EQ(status_of(20'000, false), 200) << "of what is not stored nothing waits";
  first->close();
  ASSERT_TRUE(server_.becomes_idle());
  EXPECT_TRUE(eventually([&] { return status_of(20'000) == 200; }));
  EXPECT_EQ(status_of(100'000), 200) << "a larger one goes alone";
}

TEST_F(Responses, PrewarmFillsTheCacheAndSaysNothing) {
  Json request = body("a longer question about many things");
  request["prompt_cache_options"] = {{"prewarm", true}};
  for (const bool streams : {false, true}) {
    request["stream"] = streams;
    const std::string text = server_.post("/v1/responses", request.dump()).body;
    const Json response = streams ? events(text).back()["response"] : parse_json(text, {});
    EXPECT_EQ(response["status"], "completed");
    EXPECT_TRUE(response["output"].empty());
    EXPECT_EQ(response["usage"]["output_tokens"], 0);
  }
  const Json usage = create(body("a longer question about many things"))["usage"];
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"],
            usage["input_tokens"].get<int>() - 1);
}

TEST_F(Responses, WhatIsWrittenCountsUnderTheTimeThatItIsPinnedFor) {
  const auto details = [&](const Json& options, bool is_marked) {
    Json part = {{"type", "input_text"}, {"text", "a text of more than one block"}};
    if (is_marked) part["prompt_cache_breakpoint"] = {{"mode", "explicit"}};
    Json request = body("", 1);
    request["input"] = Json::array({{{"role", "user"}, {"content", Json::array({part})}}});
    request["prompt_cache_options"] = options;
    request["cache_salt"] = options.dump() + std::to_string(is_marked);
    return create(request)["usage"]["input_tokens_details"];
  };
  const Json unpinned = details(nullptr, false);
  const int num_all = unpinned["cache_write_tokens"];
  EXPECT_GT(num_all, 30);
  EXPECT_FALSE(unpinned.contains("cache_write_tokens_details")) << unpinned;
  const auto expect = [&](const Json& told, int num_written, int num_short, int num_long) {
    EXPECT_EQ(told["cache_write_tokens"], num_written);
    const Json& times = told["cache_write_tokens_details"];
    EXPECT_EQ(times, (Json{{"ttl_30m_tokens", num_short}, {"ttl_12h_tokens", num_long}}));
  };
  expect(details({{"ttl", "30m"}}, false), num_all, num_all, 0);
  expect(details({{"ttl", "12h"}}, false), num_all, 0, num_all);
  const Json explicit_only = details({{"mode", "explicit"}}, true);
  const int num_marked = explicit_only["cache_write_tokens"];
  EXPECT_LT(num_marked, num_all);
  expect(explicit_only, num_marked, num_marked, 0);
  expect(details(nullptr, true), num_all, num_marked, 0);
}

// Here a character is a token, so that questions for a summary take hundreds.
TEST_F(Responses, LongConversationsAreBounded) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 600;
  const TestServer larger({}, engine);
  engine.max_model_len = 200;  // no question fits
  const TestServer smaller({}, engine);
  for (const TestServer* server : {&larger, &smaller}) {
    for (const char* strategy : {"rolling_window", "retrieval", "summary"}) {
      const std::string made = server->post("/v1/conversations", "{}").json()["id"];
      int num_dropped = 0;
      std::string summary;
      Json report;
      for (int turn = 0; turn < 16; ++turn) {
        Json request = body("turn " + std::to_string(turn), 10);
        request["conversation"] = made;
        request["larder"]["history"] = {{"strategy", strategy}, {"max_tokens", 300}};
        const auto answer = server->post("/v1/responses", request.dump());
        ASSERT_EQ(answer.status, 200) << answer.body;
        report = answer.json().at("larder").at("history");
        EXPECT_EQ(report.at("strategy"), strategy);
        EXPECT_GE(report.at("dropped_turns"), num_dropped);
        num_dropped = report.at("dropped_turns");
        if (report.at("summary").is_string()) summary = report["summary"];
        EXPECT_LE(answer.json().at("usage").at("input_tokens"), report.at("max_tokens").get<int>() + 4)
            << report;
      }
      EXPECT_GT(num_dropped, 3);
      const bool sums_up = std::string(strategy) == "summary";
      EXPECT_EQ(!summary.empty(), sums_up && server == &larger);
      EXPECT_EQ(report.at("untold_messages") > 0, sums_up && server != &larger) << report;
      const Json items = server->get("/v1/conversations/" + made + "/items?limit=100").json();
      EXPECT_EQ(items.at("data").size(), 32u) << "nothing is deleted";
    }
  }
}

TEST_F(Responses, ChatsAreBoundedToo) {
  Json request = {{"max_tokens", 4}, {"messages", Json::array()}};
  for (int turn = 0; turn < 20; ++turn) {
    request["messages"].push_back({{"role", "user"}, {"content", "question"}});
    request["messages"].push_back({{"role", "assistant"}, {"content", "answer"}});
  }
  request["messages"].push_back({{"role", "user"}, {"content", "question"}});
  EXPECT_EQ(server_.post("/v1/chat/completions", request.dump()).status, 400);
  request["larder"]["history"] = {{"strategy", "rolling_window"}, {"max_tokens", 150}};
  const auto answer = server_.post("/v1/chat/completions", request.dump());
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_GT(answer.json()["larder"]["history"]["dropped_turns"], 10);
  request["larder"]["history"]["strategy"] = "magic";
  EXPECT_EQ(server_.post("/v1/chat/completions", request.dump()).param(),
            "larder.history.strategy");
}

TEST_F(Responses, TruncateAndCompactOnRequest) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 600;
  const TestServer server({}, engine);
  const auto ask = [&](const Json& request) {
    const auto answer = server.post("/v1/responses", request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  };
  Json request = body("x", 4);
  request["instructions"] = "Be brief.";
  request["input"] = Json::array({{{"role", "developer"}, {"content", "Be kind."}}});
  for (int turn = 0; turn < 30; ++turn) {
    request["input"].push_back({{"role", "user"}, {"content", "question"}});
    request["input"].push_back({{"role", "assistant"}, {"content", "answer"}});
  }
  request["input"].push_back({{"role", "user"}, {"content", "question"}});
  EXPECT_EQ(server.post("/v1/responses", request.dump()).param(), "input");
  request["truncation"] = "auto";
  EXPECT_GT(ask(request).at("larder").at("history").at("dropped_turns"), 0);

  request["context_management"] = Json::array({{{"type", "compaction"}, {"compact_threshold", 300}}});
  const Json whole = ask(request);
  const Json output = whole.at("output");
  ASSERT_EQ(output.size(), 2u);
  EXPECT_EQ(output[0]["type"], "compaction");
  EXPECT_EQ(output[1]["type"], "message");
  const Json counted = server.post("/v1/responses/input_tokens", request.dump()).json();
  EXPECT_EQ(counted.at("input_tokens"), whole.at("usage").at("input_tokens"));
  request["stream"] = true;
  const auto list = events(server.post("/v1/responses", request.dump()).body);
  EXPECT_EQ(list.back().at("response").at("output").size(), 2u);
  request["stream"] = false;

  // Whoever keeps the compaction only and whoever keeps all are prompted alike, and told once.
  const Json question = {{"role", "user"}, {"content", "more"}};
  Json all = request, rest = request;
  rest["input"] = Json::array();
  for (const Json& item : output) {
    all["input"].push_back(item);
    rest["input"].push_back(item);
  }
  all["input"].push_back(question);
  rest["input"].push_back(question);
  const Json of_all = ask(all), of_rest = ask(rest);
  EXPECT_EQ(of_all.at("usage").at("input_tokens"), of_rest.at("usage").at("input_tokens"));
  EXPECT_GT(of_rest.at("usage").at("input_tokens_details").at("cached_tokens"),
            whole.at("usage").at("input_tokens").get<int>() - 32);
  EXPECT_EQ(of_all.at("output").size(), 1u);
  EXPECT_EQ(of_rest.at("output").size(), 1u);
  request["context_management"][0]["type"] = "magic";
  EXPECT_EQ(server.post("/v1/responses", request.dump()).param(), "context_management[0].type");
}

// It is told to be none that has come to its end, and goes with the next request all the same.
TEST(ResponsesOfThinkers, AThoughtThatIsCutIsIncomplete) {
  TestServer server({}, TestServer::default_engine(),
                    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.reasoning_content }}{{ m.content }}<|im_end|>{% endfor %}"
                    "<|im_start|>assistant <think>");
  Json request = {{"input", "hi"}, {"max_output_tokens", 4}, {"logit_bias", {{"96", -100}, {"97", -100}}}};
  const Json whole = server.post("/v1/responses", request.dump()).json();
  EXPECT_EQ(whole["status"], "incomplete");
  const Json& item = whole["output"][0];
  EXPECT_EQ(item["type"], "reasoning");
  EXPECT_EQ(item["status"], "incomplete");
  EXPECT_NE(item["content"][0]["text"], "");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 4);
  request["previous_response_id"] = whole["id"];
  request["include"] = {"reasoning.encrypted_content"};
  const Json next = server.post("/v1/responses", request.dump()).json();
  Json without = request;
  without.erase("previous_response_id");
  without["input"] = {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", ""}}, {{"role", "user"}, {"content", "hi"}}};
  const Json shorter = server.post("/v1/responses", without.dump()).json();
  EXPECT_GT(next["usage"]["input_tokens"], shorter["usage"]["input_tokens"]) << next;
}

// A conversation whose answer takes a summary first, of a model that takes 3,000 tokens.
Json request_with_summary() {
  Json request = {{"max_tokens", 4}, {"messages", Json::array()}};
  for (int turn = 0; turn < 150; ++turn) {
    request["messages"].push_back({{"role", "user"}, {"content", "question"}});
    request["messages"].push_back({{"role", "assistant"}, {"content", "answer"}});
  }
  request["messages"].push_back({{"role", "user"}, {"content", "question"}});
  request["larder"]["history"] = {{"strategy", "summary"}, {"max_tokens", 2400}};
  return request;
}

EngineConfig engine_of_summaries() {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 3000;
  return engine;
}

// What a model thinks of a summary is none, and where it can it is told not to think.
TEST(LongHistories, SummariesHaveNoThoughts) {
  const std::string turns = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant ";
  const auto history = [&](const std::string& opening) {
    TestServer server({}, engine_of_summaries(), turns + opening);
    const auto answer = server.post("/v1/chat/completions", request_with_summary().dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json().at("larder").at("history");
  };
  const Json thinking = history("<think>");
  EXPECT_GT(thinking.at("summary_usage").at("output_tokens"), 0);
  EXPECT_EQ(thinking.at("summary"), Json()) << thinking;
  EXPECT_GT(thinking.at("untold_messages"), 0);
  const Json told = history("{% if enable_thinking is undefined or enable_thinking %}<think>{% endif %}");
  EXPECT_TRUE(told.at("summary").is_string()) << told;
  EXPECT_EQ(told.at("untold_messages"), 0);
}

// A client that leaves takes its summary with it.
TEST(LongHistories, SummariesEndWithTheirClient) {
  TestServer server({}, engine_of_summaries());
  const Json request = request_with_summary();
  {
    RawClient client(server.port());
    client.send(TestServer::request("/v1/chat/completions", request.dump()));
    while (server.engine().stats().step_tokens.num_observed() == 0) std::this_thread::yield();
  }
  EXPECT_TRUE(server.becomes_idle());
  EXPECT_LT(server.engine().stats().num_generated_tokens, 590u) << "the summary would have that many";
}

// As if the answer itself had failed: in the shape of the API.
TEST(LongHistories, SummariesFailInTheClientsShape) {
  TestServer server({}, engine_of_summaries());
  RawClient client(server.port());
  client.send(TestServer::request("/v1/messages", request_with_summary().dump()));
  while (server.engine().stats().step_tokens.num_observed() == 0) std::this_thread::yield();
  server.engine().stop(false);
  const auto answer = TestServer::split(client.receive());
  EXPECT_EQ(answer.status, 529);
  EXPECT_NE(answer.head.find("request-id: req_"), std::string::npos);
  EXPECT_EQ(answer.json()["type"], "error");
  EXPECT_EQ(answer.json()["error"]["type"], "overloaded_error");
}

TEST(ResponsesOfKeys, AreTheirOwn) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  TestServer server(config);
  const std::string one = "Authorization: Bearer one\r\n", two = "Authorization: Bearer two\r\n";
  const std::string request = R"({"input": "hi", "max_output_tokens": 2})";
  const std::string response =
      server.post("/v1/responses", request, one).json()["id"].get<std::string>();
  const std::string conversation =
      server.post("/v1/conversations", "{}", one).json()["id"].get<std::string>();
  for (const std::string& path :
       {"/v1/responses/" + response, "/v1/responses/" + response + "/input_items",
        "/v1/conversations/" + conversation, "/v1/conversations/" + conversation + "/items"}) {
    EXPECT_EQ(server.get(path, one).status, 200);
    EXPECT_EQ(server.get(path, two).status, 404);
    EXPECT_EQ(server.get(path).status, 401);
  }
  Json follow = parse_json(request, {});
  follow["previous_response_id"] = response;
  EXPECT_EQ(server.post("/v1/responses", follow.dump(), two).status, 404);
  EXPECT_EQ(server.post("/v1/responses", follow.dump(), one).status, 200);
}

// They are text that goes out as it is: the events, the whole and what is stored have the same, as JSON writes it.
TEST_F(Responses, TellLogprobsAsJsonWritesThem) {
  Json request = body("hello");
  request["seed"] = 1;
  request["include"] = {"message.output_text.logprobs"};
  request["top_logprobs"] = 3;
  const std::string whole = server_.post("/v1/responses", request.dump()).body;
  EXPECT_EQ(dump_json(parse_json(whole, {})), whole);
  const Json response = parse_json(whole, {});
  const Json logprobs = response["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 8u) << whole;
  for (const Json& entry : logprobs) {
    std::string keys;
    for (const auto& [key, value] : entry.items()) keys += key + ' ';
    EXPECT_EQ(keys, "token bytes logprob top_logprobs ");
    EXPECT_TRUE(entry["bytes"].is_array() && entry["logprob"].is_number());
    ASSERT_EQ(entry["top_logprobs"].size(), 3u);
    EXPECT_EQ(entry["top_logprobs"][0].size(), 3u);
  }
  EXPECT_EQ(server_.get("/v1/responses/" + response["id"].get<std::string>()).json()["output"], response["output"]);

  request["stream"] = true;
  Json of_deltas = Json::array();
  int num_repeated = 0;
  const auto list = events(server_.post("/v1/responses", request.dump()).body);
  for (const Json& event : list) {
    if (event["type"] == "response.output_text.delta")
      of_deltas.insert(of_deltas.end(), event["logprobs"].begin(), event["logprobs"].end());
    if (event["type"] == "response.output_text.done") num_repeated += event["logprobs"] == logprobs;
    if (event["type"] == "response.content_part.done") num_repeated += event["part"]["logprobs"] == logprobs;
    if (event["type"] == "response.output_item.done") num_repeated += event["item"]["content"][0]["logprobs"] == logprobs;
  }
  EXPECT_EQ(of_deltas, logprobs);
  EXPECT_EQ(num_repeated, 3);
  EXPECT_EQ(list.back()["response"]["output"][0]["content"][0]["logprobs"], logprobs);
}

}  // namespace
}  // namespace larder
