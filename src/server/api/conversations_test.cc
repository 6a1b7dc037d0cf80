// Conversations over HTTP, and the items that they and responses are made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/api/responses_test_support.h"
#include "server/chat/session_store.h"

namespace larder {
namespace {

class Conversations : public ResponsesTest {};

// Else a list of them could not be walked by ids.
TEST_F(Conversations, HoldNoIdTwice) {
  const auto item = [](const char* id) {
    return Json{{"role", "user"}, {"content", "hi"}, {"id", id}};
  };
  const auto refused = [&](const std::string& path, const Json& items) {
    const Json request = {{"items", items}};
    const auto answer = server_.post(path, request.dump());
    return answer.status == 400 ? answer.param() : std::to_string(answer.status);
  };
  EXPECT_EQ(refused("/v1/conversations", Json::array({item("a"), item("a")})), "items[1].id");
  const Json made = {{"items", Json::array({item("a"), item("b")})}};
  const Json conversation = server_.post("/v1/conversations", made.dump()).json();
  const std::string path =
      "/v1/conversations/" + conversation["id"].get<std::string>() + "/items";
  const Json reference = {{"type", "item_reference"}, {"id", "a"}};
  EXPECT_EQ(refused(path, Json::array({item("c"), item("b")})), "items[1].id");
  EXPECT_EQ(refused(path, Json::array({reference})), "items[0].id");
  EXPECT_EQ(refused(path, Json::array({item("c")})), "200");

  Json request = body("x");
  request["conversation"] = conversation["id"];
  request["input"] = Json::array({item("d"), item("a")});
  EXPECT_EQ(refusal(request), "input[1].id");
  request["input"] = Json::array({reference, item("d"), reference});
  const Json response = create(request);
  std::vector<std::string> ids;
  const Json list = server_.get(path + "?order=asc").json();
  for (const Json& one : list["data"]) ids.push_back(one["id"]);
  EXPECT_EQ(ids, (std::vector<std::string>{"a", "b", "c", "d", response["output"][0]["id"]}));
}

TEST_F(Conversations, HoldABoundedNumberOfItems) {
  Json items = Json::array();
  for (std::size_t i = 0; i < kMaxConversationItems; ++i)
    items.push_back({{"role", "user"}, {"content", "hi"}});
  const Json more = {{"items", Json::array({items[0]})}};
  const std::string id = server_.post("/v1/conversations", Json{{"items", items}}.dump()).json()["id"];
  EXPECT_EQ(server_.post("/v1/conversations/" + id + "/items", more.dump()).param(), "items");
  Json request = body("hi");
  request["conversation"] = id;
  EXPECT_EQ(refusal(request), "conversation");
  items.push_back(items[0]);
  EXPECT_EQ(server_.post("/v1/conversations", Json{{"items", items}}.dump()).param(), "items");
}

// An answer does not stand there without what it answers.
TEST_F(Conversations, AnIdTakenMeanwhileLosesNoInput) {
  const auto item = [](const char* text) {
    return Json{{"role", "user"}, {"content", text}, {"id", "same"}};
  };
  Json request = body("x");
  request["stream"] = true;
  request["max_output_tokens"] = 160;
  request["ignore_eos"] = true;
  request["input"] = Json::array({item("first")});
  const Json other = {{"items", Json::array({item("second")})}};
  std::string path;
  bool was_beside = false;
  for (int i = 0; i < 50 && !was_beside; ++i) {
    request["conversation"] = server_.post("/v1/conversations", "{}").json()["id"];
    path = "/v1/conversations/" + request["conversation"].get<std::string>() + "/items";
    RawClient client(server_.port());
    client.send(TestServer::request("/v1/responses", request.dump()));
    client.receive("response.created");
    was_beside = server_.post(path, other.dump()).status == 200;
    client.receive();
  }
  ASSERT_TRUE(was_beside);
  const Json list = server_.get(path + "?order=asc").json()["data"];
  ASSERT_EQ(list.size(), 3u) << list;
  EXPECT_EQ(list[0]["content"][0]["text"], "second");
  EXPECT_EQ(list[1]["content"][0]["text"], "first");
  EXPECT_NE(list[1]["id"], "same");
  EXPECT_EQ(list[2]["role"], "assistant");
}

TEST_F(Conversations, GrowAndCanBeEdited) {
  Json made = {{"metadata", {{"topic", "x"}}}};
  made["items"] = Json::parse(R"([{"role": "user", "content": "one"}])");
  const Json conversation = server_.post("/v1/conversations", made.dump()).json();
  const std::string path = "/v1/conversations/" + conversation["id"].get<std::string>();
  EXPECT_EQ(conversation["object"], "conversation");
  EXPECT_EQ(server_.get(path).json(), conversation);

  Json request = body("two");
  request["conversation"] = {{"id", conversation["id"]}};
  request["store"] = false;
  const Json response = create(request);
  EXPECT_EQ(response["conversation"]["id"], conversation["id"]);
  EXPECT_EQ(server_.get("/v1/responses/" + response["id"].get<std::string>()).status, 404);
  const Json more = {{"items", Json::parse(R"([{"role": "user", "content": "three"},
                                               {"role": "user", "content": "four"}])")}};
  EXPECT_EQ(server_.post(path + "/items", more.dump()).json()["data"].size(), 2u);

  // Page by page, both ways.
  for (const char* order : {"asc", "desc"}) {
    std::vector<std::string> texts;
    std::string after;
    bool has_more = true;
    while (has_more) {
      const Json page =
          server_.get(path + "/items?limit=2&order=" + order + after).json();
      for (const Json& item : page["data"]) texts.push_back(item["content"][0]["text"]);
      after = "&after=" + page["last_id"].get<std::string>();
      has_more = page["has_more"];
    }
    const std::string answer = response["output"][0]["content"][0]["text"];
    std::vector<std::string> wanted = {"one", "two", answer, "three", "four"};
    if (std::string(order) == "desc") std::ranges::reverse(wanted);
    EXPECT_EQ(texts, wanted);
  }
  EXPECT_EQ(server_.get(path + "/items?limit=0").param(), "limit");
  EXPECT_EQ(server_.get(path + "/items?after=none").param(), "after");

  const std::string answer_path =
      path + "/items/" + response["output"][0]["id"].get<std::string>();
  EXPECT_EQ(server_.get(answer_path).json(), response["output"][0]);
  EXPECT_EQ(remove(answer_path).json()["id"], conversation["id"]);
  EXPECT_EQ(server_.get(answer_path).status, 404);
  const auto updated = server_.post(path, R"({"metadata": {"topic": "y"}})").json();
  EXPECT_EQ(updated["metadata"]["topic"], "y");
  EXPECT_EQ(server_.post(path, "{}").json()["error"]["message"].get<std::string>().find("metadata: is missing"), 0u);
  EXPECT_EQ(server_.get(path).json()["metadata"]["topic"], "y");
  EXPECT_EQ(server_.post(path, R"({"metadata": null})").json()["metadata"], Json::object());
  EXPECT_EQ(remove(path).json()["object"], "conversation.deleted");
  EXPECT_EQ(server_.get(path).status, 404);
}

TEST_F(Conversations, ItemsCanBeReferredTo) {
  const Json first = create(body("hello"));
  Json request = body("x");
  request["input"] = Json::array({{{"role", "user"}, {"content", "hello"}},
                                  {{"type", "item_reference"}, {"id", first["output"][0]["id"]}},
                                  {{"role", "user"}, {"content", "again"}}});
  const Json usage = create(request)["usage"];
  EXPECT_GE(usage["input_tokens_details"]["cached_tokens"].get<int>(),
            first["usage"]["total_tokens"].get<int>() - 1);
  request["input"][1]["id"] = "msg_none";
  const auto answer = server_.post("/v1/responses", request.dump());
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.param(), "input[1].id");
}

// What the history has is in the prompt already, whether its response is still stored or not.
TEST_F(Conversations, ReferencesToTheHistoryAreAppendedNoSecondTime) {
  const std::string made = server_.post("/v1/conversations", "{}").json()["id"];
  for (const bool is_chain : {true, false}) {
    Json request = body("hello", 4);
    if (!is_chain) request["conversation"] = made;
    std::vector<Json> turns;
    for (int turn = 0; turn < 3; ++turn) {
      if (is_chain && turn > 0) request["previous_response_id"] = turns.back()["id"];
      turns.push_back(create(request));
    }
    if (is_chain) request["previous_response_id"] = turns.back()["id"];
    const auto count = [&](bool refers) {
      request["input"] = Json::array({{{"role", "user"}, {"content", "again"}}});
      const Json reference = {{"type", "item_reference"}, {"id", turns[1]["output"][0]["id"]}};
      if (refers) request["input"].push_back(reference);
      return server_.post("/v1/responses/input_tokens", request.dump()).json().value("input_tokens", -1);
    };
    const int num_tokens = count(false);
    EXPECT_GT(num_tokens, 0);
    EXPECT_EQ(count(true), num_tokens);
    const std::string path = "/v1/responses/" + turns[1]["id"].get<std::string>();
    EXPECT_EQ(remove(path).status, 200);
    EXPECT_EQ(count(true), num_tokens);
    const Json last = create(request);
    const auto items = server_.get("/v1/responses/" + last["id"].get<std::string>() + "/input_items").json();
    EXPECT_EQ(items["data"].size(), 1u);
    request["input"].push_back({{"type", "item_reference"}, {"id", "msg_none"}});
    EXPECT_EQ(server_.post("/v1/responses", request.dump()).param(), "input[2].id");
  }
}

}  // namespace
}  // namespace larder
