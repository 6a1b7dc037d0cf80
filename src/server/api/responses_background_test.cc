// Responses that are generated whether or not their clients stay, over HTTP.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/api/responses_test_support.h"

namespace larder {
namespace {

class BackgroundResponsesTest : public ResponsesTest {
 protected:
  static std::string path_of(const Json& response) { return "/v1/responses/" + response["id"].get<std::string>(); }
  // With no end in sight.
  static Json endless() {
    return {{"input", "hello"}, {"background", true}, {"ignore_eos", true}, {"attention_window", 32}, {"max_output_tokens", 1'000'000}};
  }
  static Json start(const TestServer& server, const Json& request) {
    const auto answer = server.post("/v1/responses", request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  static Json status_of(const TestServer& server, const Json& response) { return server.get(path_of(response)).json()["status"]; }
  static bool becomes(const TestServer& server, const Json& response, const char* status) {
    return eventually([&] { return status_of(server, response) == status; });
  }
  TestServer::Answer cancel(const Json& response) const { return server_.post(path_of(response) + "/cancel", ""); }
};

TEST_F(BackgroundResponsesTest, EndAsOthersDo) {
  Json request = body("hello");
  request["seed"] = 1;
  const Json whole = create(request);
  request["background"] = true;
  for (const bool streams : {false, true}) {
    request["stream"] = streams;
    const auto answer = server_.post("/v1/responses", request.dump());
    const Json begun = streams ? events(answer.body).front()["response"] : answer.json();
    EXPECT_EQ(begun["status"], "queued");
    EXPECT_EQ(begun["background"], true);
    EXPECT_TRUE(begun["output"].empty());
    EXPECT_NE(answer.head.find("x-request-id: " + begun["id"].get<std::string>()), std::string::npos);
    ASSERT_TRUE(becomes(server_, begun, "incomplete"));
    const Json ended = server_.get(path_of(begun)).json();
    EXPECT_EQ(ended["output"][0]["content"], whole["output"][0]["content"]);
    EXPECT_EQ(ended["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    EXPECT_EQ(ended["created_at"], begun["created_at"]);
    if (streams) {
      EXPECT_EQ(events(answer.body).back()["response"], ended);
    }
    // It can be followed, and its end cannot be cancelled.
    EXPECT_EQ(create({{"input", "more"}, {"max_output_tokens", 1}, {"previous_response_id", begun["id"]}})["previous_response_id"],
              begun["id"]);
    EXPECT_EQ(cancel(begun).json(), ended);
    EXPECT_EQ(server_.get(path_of(begun) + "/input_items").json()["data"].size(), 1u);
  }
  EXPECT_EQ(server_.get("/load").json()["server_load"], 0);
}

TEST_F(BackgroundResponsesTest, StreamWhatBecomesOfThem) {
  Json request = body("hello");
  request["background"] = request["stream"] = true;
  std::vector<std::string> types;
  for (const Json& event : events(server_.post("/v1/responses", request.dump()).body))
    if (types.empty() || types.back() != event["type"]) types.push_back(event["type"]);
  EXPECT_EQ(types, (std::vector<std::string>{"response.created", "response.queued", "response.in_progress", "response.output_item.added",
                                             "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                                             "response.content_part.done", "response.output_item.done", "response.incomplete"}));
}

TEST_F(BackgroundResponsesTest, GoOnWithoutTheirClients) {
  Json request = endless();
  request["stream"] = true;
  RawClient client(server_.port());
  client.send(TestServer::request("/v1/responses", request.dump()));
  const std::string text = client.receive("response.output_text.delta");
  const auto at = text.find("resp_");
  ASSERT_NE(at, std::string::npos) << text;
  const Json response = {{"id", text.substr(at, text.find_first_of("\"\r", at) - at)}};
  client.close();
  EXPECT_EQ(status_of(server_, response), "in_progress");
  ASSERT_TRUE(eventually([&] { return server_.get("/load").body.find(":1}") != std::string::npos; })) << "its client has gone";
  const auto num_steps = server_.engine().stats().step_tokens.num_observed();
  EXPECT_TRUE(eventually([&] { return server_.engine().stats().step_tokens.num_observed() > num_steps + 100; }));
  EXPECT_EQ(cancel(response).json()["status"], "cancelled");
  EXPECT_TRUE(server_.becomes_idle());
}

TEST_F(BackgroundResponsesTest, AreCancelled) {
  const Json response = start(server_, endless());
  ASSERT_TRUE(becomes(server_, response, "in_progress"));
  EXPECT_EQ(server_.get(path_of(response) + "/input_items").json()["data"].size(), 1u);
  const auto refused = server_.post("/v1/responses", Json({{"input", "x"}, {"previous_response_id", response["id"]}}).dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "previous_response_id");
  const Json cancelled = cancel(response).json();
  EXPECT_EQ(cancelled["status"], "cancelled");
  EXPECT_EQ(cancelled["id"], response["id"]);
  EXPECT_EQ(cancelled["output"][0]["status"], "incomplete");
  EXPECT_EQ(cancel(response).json(), cancelled);
  EXPECT_EQ(server_.get(path_of(response)).json(), cancelled);
  EXPECT_TRUE(server_.becomes_idle());
}

TEST_F(BackgroundResponsesTest, AreDeletedWhileTheyAreUnderWay) {
  const Json response = start(server_, endless());
  EXPECT_EQ(remove(path_of(response)).json()["deleted"], true);
  EXPECT_EQ(server_.get(path_of(response)).status, 404);
  EXPECT_EQ(remove(path_of(response)).status, 404);
  EXPECT_TRUE(server_.becomes_idle());
}

TEST_F(BackgroundResponsesTest, WaitInLine) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_sequences = 1;
  const TestServer server({}, engine);
  const Json first = start(server, endless());
  ASSERT_TRUE(becomes(server, first, "in_progress"));
  const Json second = start(server, endless());
  EXPECT_EQ(status_of(server, second), "queued");
  EXPECT_EQ(server.post(path_of(second) + "/cancel", "").json()["status"], "cancelled");
  const Json third = start(server, endless());
  server.post(path_of(first) + "/cancel", "");
  EXPECT_TRUE(becomes(server, third, "in_progress"));
}

TEST_F(BackgroundResponsesTest, AreBounded) {
  ServerConfig config;
  config.limits.max_background_responses = 1;
  const TestServer server(config);
  const Json first = start(server, endless());
  const auto refused = server.post("/v1/responses", endless().dump());
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.param(), "background");
  EXPECT_NE(server.get("/metrics").body.find("reason=\"background_full\"} 1"), std::string::npos);
  EXPECT_EQ(server.post("/v1/responses", body("hello", 1).dump()).status, 200) << "of others there may be more";
  server.post(path_of(first) + "/cancel", "");
  start(server, endless());
}

TEST_F(BackgroundResponsesTest, FailWithTheEngine) {
  TestServer server;
  const Json response = start(server, endless());
  ASSERT_TRUE(becomes(server, response, "in_progress"));
  server.engine().stop(false);
  ASSERT_TRUE(becomes(server, response, "failed"));
  EXPECT_EQ(server.get(path_of(response)).json()["error"]["code"], "server_error");
}

TEST_F(BackgroundResponsesTest, KeepNoServerFromEnding) {
  TestServer server;
  ASSERT_TRUE(becomes(server, start(server, endless()), "in_progress"));
  server.server().shutdown(true);
  server.join();
  EXPECT_TRUE(server.becomes_idle());
}

TEST_F(BackgroundResponsesTest, GrowTheirConversations) {
  const Json made = server_.post("/v1/conversations", "{}").json();
  const std::string items = "/v1/conversations/" + made["id"].get<std::string>() + "/items";
  Json request = body("hello");
  request["background"] = true;
  request["conversation"] = made["id"];
  ASSERT_TRUE(becomes(server_, start(server_, request), "incomplete"));
  EXPECT_EQ(server_.get(items).json()["data"].size(), 2u);
  request = endless();
  request["conversation"] = made["id"];
  cancel(start(server_, request));
  EXPECT_EQ(server_.get(items).json()["data"].size(), 2u) << "not by what was cancelled";
}

TEST_F(BackgroundResponsesTest, AreTheirKeysOwn) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  const TestServer server(config);
  const std::string one = "x-api-key: one\r\n", two = "x-api-key: two\r\n";
  const Json response = server.post("/v1/responses", endless().dump(), one).json();
  const std::string path = path_of(response);
  EXPECT_EQ(server.get(path, two).status, 404);
  EXPECT_EQ(server.get(path + "/input_items", two).status, 404);
  EXPECT_EQ(server.post(path + "/cancel", "", two).status, 404);
  EXPECT_EQ(server.get(path, one).status, 200);
  EXPECT_EQ(server.post(path + "/cancel", "", one).json()["status"], "cancelled");
}

TEST_F(BackgroundResponsesTest, AreRefusedWhereTheyCannotBe) {
  const Json stored = create(body("hello", 1));
  const auto refused = cancel(stored);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.param(), "response_id");
  EXPECT_EQ(cancel({{"id", "resp_none"}}).status, 404);
  Json request = body("hello", 1);
  request["background"] = true;
  request["store"] = false;
  EXPECT_EQ(refusal(request), "background");
  request = endless();
  request.erase("max_output_tokens");
  EXPECT_EQ(refusal(request), "max_output_tokens");
  EXPECT_EQ(server_.exchange("POST " + path_of(stored) + "/cancel HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a.example\r\n"
                             "Content-Length: 0\r\nConnection: close\r\n\r\n").status,
            403);
}

}  // namespace
}  // namespace larder
