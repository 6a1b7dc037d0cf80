// Clients of a server that ask why their prompts were computed.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "server/server_test_support.h"

namespace larder {

// Tokens by reason; and that the report adds up.
inline std::map<std::string, int> reasons(const Json& report) {
  std::map<std::string, int> sums;
  int place = report["cached_tokens"].get<int>();
  for (const Json& miss : report["misses"]) {
    EXPECT_EQ(miss["begin"], place);
    place += miss["tokens"].get<int>();
    sums[miss["reason"].get<std::string>()] += miss["tokens"].get<int>();
  }
  EXPECT_EQ(place, report["prompt_tokens"].get<int>());
  int from_sources = 0;
  for (const auto& [source, count] : report["cached_by_source"].items())
    from_sources += count.get<int>();
  EXPECT_EQ(from_sources, report["cached_tokens"].get<int>());
  return sums;
}

inline EngineConfig engine_of(int max_model_len) {
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = max_model_len;
  engine.num_blocks = 1000;
  return engine;
}

// A chain of responses, each compared with the one before.
struct Chain {
  const TestServer& server;
  Json request = {{"max_output_tokens", 10}, {"temperature", 0}, {"ignore_eos", true}};

  Json say(const std::string& text) {
    request["input"] = text;
    const auto answer = server.post("/v1/responses", request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    Json reply = answer.json();
    request["previous_response_id"] = reply["id"];
    request["prompt_cache_options"] = {{"comparison_response_id", reply["id"]}};
    return reply;
  }
  Json report(const Json& reply) const {
    return server.get("/v1/cache/requests/" + reply["id"].get<std::string>()).json();
  }
};

// A chat with Anthropic's API, each reply compared with the one before.
struct MessagesChat {
  const TestServer& server;
  Json request = {{"max_tokens", 4}, {"temperature", 0}, {"messages", Json::array()}};
  Json report = {};

  Json say(const std::string& text) {
    request["messages"].push_back({{"role", "user"}, {"content", text}});
    if (!request.contains("diagnostics")) request["diagnostics"]["previous_message_id"] = nullptr;
    const auto answer = server.post("/v1/messages", request.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json reply = answer.json();
    report = server.get("/v1/cache/requests/" + reply["id"].get<std::string>()).json();
    request["diagnostics"]["previous_message_id"] = reply["id"];
    request["messages"].push_back({{"role", "assistant"}, {"content", "So it is."}});
    const Json& told = reply["diagnostics"];
    return told.is_null() ? Json() : told["cache_miss_reason"]["type"];
  }
};

}  // namespace larder
