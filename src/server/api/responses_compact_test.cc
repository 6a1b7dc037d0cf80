// Conversations that are summed up on request, over HTTP.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "server/api/responses_test_support.h"

namespace larder {
namespace {

class CompactedResponses : public ResponsesTest {
 protected:
  static EngineConfig engine() {
    EngineConfig engine = TestServer::default_engine();
    engine.max_model_len = 1200;
    return engine;
  }
  static Json says(const char* role, const std::string& text) { return {{"role", role}, {"content", text}}; }
  static Json conversation(int num_turns) {
    Json items = Json::array();
    for (int turn = 0; turn < num_turns; ++turn) {
      items.push_back(says("user", fmt::format("question {}", turn)));
      items.push_back(says("assistant", fmt::format("answer {}", turn)));
    }
    return items;
  }
  Json ask(const std::string& path, const Json& request) const {
    const auto answer = long_.post(path, request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  Json compact(const Json& request) const { return ask("/v1/responses/compact", request); }
  // What a request after it has in its prompt.
  int count(Json items, const Json& instructions = nullptr) const {
    items.push_back(says("user", "more"));
    return ask("/v1/responses/input_tokens", {{"input", items}, {"instructions", instructions}})["input_tokens"];
  }
  static Json content_of(const Json& compaction) {
    return Json::parse(compaction["encrypted_content"].get<std::string>());
  }

  const TestServer long_{{}, engine()};
};

TEST_F(CompactedResponses, KeepTheLastTurnAndSumUpTheRest) {
  const Json items = conversation(4);
  const Json made = compact({{"input", items}, {"model", "tiny"}});
  EXPECT_EQ(made["object"], "response.compaction");
  EXPECT_TRUE(made["id"].get<std::string>().starts_with("resp_"));
  EXPECT_GT(made["created_at"], 0);
  const Json& output = made["output"];
  ASSERT_EQ(output.size(), 3u) << made;
  EXPECT_EQ(output[0]["content"][0]["text"], "question 3");
  EXPECT_EQ(output[1]["content"][0]["text"], "answer 3");
  EXPECT_EQ(output[2]["type"], "compaction");
  const Json content = content_of(output[2]);
  EXPECT_FALSE(content["summary"].get<std::string>().empty());
  EXPECT_EQ(content["messages"].size(), 2u);
  EXPECT_EQ(made["larder"]["history"]["dropped_turns"], 3);
  const Json usage = made["usage"];
  EXPECT_GT(usage["input_tokens"], 0);
  EXPECT_GT(usage["output_tokens"], 0);
  EXPECT_EQ(usage["total_tokens"], usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  // The summary is known now.
  const Json again = compact({{"input", items}});
  EXPECT_EQ(content_of(again["output"][2]), content);
  EXPECT_EQ(again["usage"]["total_tokens"], 0);

  // All of it and the compaction alone are the same history, and it goes on as any other.
  EXPECT_EQ(count(output), count(Json::array({output[2]})));
  Json input = output;
  input.push_back(says("user", "more"));
  const Json next = ask("/v1/responses", {{"input", input}, {"max_output_tokens", 4}});
  EXPECT_EQ(next["usage"]["input_tokens"], count(output));
}

// Instructions of which a vendor's line is left out are none, and everything else stays where it was.
TEST_F(CompactedResponses, InstructionsThatAreLeftOutMoveNothing) {
  Json request = {{"input", conversation(4)}, {"larder", {{"normalise", {"nonce_headers"}}}}};
  request["instructions"] = "x-anthropic-billing-header: a=1;";
  const Json output = compact(request)["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["content"][0]["text"], "question 3");
  EXPECT_EQ(content_of(output[2])["messages"].size(), 2u);
}

TEST_F(CompactedResponses, AreCompactedAgain) {
  Json items = compact({{"input", conversation(4)}})["output"];
  const Json summary = content_of(items.back())["summary"];
  const Json more = conversation(3);
  items.insert(items.end(), more.begin(), more.end());
  const Json second = compact({{"input", items}})["output"];
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(second[0]["content"][0]["text"], "question 2");
  // The first alone holds its messages: so does the second then, with no items beside it.
  Json alone = Json::array({items[2]});
  alone.insert(alone.end(), more.begin(), more.end());
  const Json third = compact({{"input", alone}})["output"];
  ASSERT_EQ(third.size(), 1u);
  EXPECT_EQ(content_of(third[0]), content_of(second[2])) << "what is summed up is the same";
  EXPECT_EQ(count(third), count(second));
}

TEST_F(CompactedResponses, LeaveInstructionsToEachRequest) {
  Json items = conversation(3);
  items.insert(items.begin(), says("developer", "Be kind."));
  const Json output = compact({{"input", items}, {"instructions", "Be brief."}})["output"];
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(output[0]["role"], "developer");
  const Json kept = content_of(output[3])["messages"];
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0]["content"], "Be kind.");
  const Json alone = Json::array({output[3]});
  for (const Json& instructions : {Json("Be brief."), Json()}) EXPECT_EQ(count(output, instructions), count(alone, instructions));
  EXPECT_EQ(compact({{"input", conversation(3)}, {"instructions", "Be brief."}})["output"].size(), 3u);
}

TEST_F(CompactedResponses, FollowAChain) {
  Json request = body("hello");
  const Json first = ask("/v1/responses", request);
  request["previous_response_id"] = first["id"];
  const Json second = ask("/v1/responses", request);
  const Json output = compact({{"previous_response_id", second["id"]}})["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[1]["id"], second["output"][0]["id"]);
  // A single turn that has been answered is summed up itself.
  const Json whole = compact({{"previous_response_id", first["id"]}})["output"];
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(content_of(whole[0])["messages"], Json::array());
  EXPECT_GT(count(whole), count(Json::array()));
}

TEST_F(CompactedResponses, NeedSomethingToSumUp) {
  const auto refused = [&](const Json& request) {
    const auto answer = long_.post("/v1/responses/compact", request.dump());
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.param();
  };
  EXPECT_EQ(refused({{"model", "tiny"}}), "input");
  EXPECT_EQ(refused({{"input", Json::array({says("system", "Be brief.")})}}), "input");
  EXPECT_EQ(refused({{"input", 5}}), "input");
  // Where there is no room for the question nothing may be lost, with an earlier summary either.
  const std::string instructions(1100, 'x');
  Json items = conversation(3);
  EXPECT_EQ(refused({{"input", items}, {"instructions", instructions}}), "input");
  items.insert(items.begin(), compact({{"input", conversation(2)}})["output"].back());
  EXPECT_EQ(refused({{"input", items}, {"instructions", instructions}}), "input");
  EXPECT_EQ(long_.post("/v1/responses/compact", R"({"input": "a", "model": "other"})").status, 404);
}

}  // namespace
}  // namespace larder
