// What a request of the Responses API asks for, without a server.
#include <gtest/gtest.h>

#include "server/json_reader.h"
#include "server/responses_request.h"
#include "server/server_config.h"

namespace larder {
namespace {

const ServerLimits kLimits;

GenerationOptions options_of(const std::string& fields, HistoryStrategy server = HistoryStrategy::kNone) {
  RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  rules.history.strategy = server;
  return parse_responses_request(parse_json("{\"input\":\"x\"," + fields + "}", {}), rules).options;
}

TEST(ResponsesRequest, WhatLarderIsToldOfHistoryComesFirst) {
  const auto strategy = [](const std::string& fields, HistoryStrategy server = HistoryStrategy::kNone) {
    return options_of(fields, server).history.strategy;
  };
  EXPECT_EQ(strategy(R"("truncation":"auto")"), HistoryStrategy::kRollingWindow);
  EXPECT_EQ(strategy(R"("truncation":"auto","larder":{"history":{"strategy":"none"}})"), HistoryStrategy::kNone);
  const std::string compaction = R"("context_management":[{"type":"compaction"}])";
  EXPECT_EQ(strategy(compaction), HistoryStrategy::kSummary);
  EXPECT_EQ(strategy(compaction + R"(,"larder":{"history":{"strategy":"retrieval"}})"), HistoryStrategy::kRetrieval);
  const HistoryStrategy by_default = HistoryStrategy::kSummary;
  EXPECT_EQ(strategy(R"("user":"a")", by_default), HistoryStrategy::kSummary);
  EXPECT_EQ(strategy(R"("truncation":"auto")", by_default), HistoryStrategy::kSummary);
  EXPECT_EQ(strategy(R"("truncation":"disabled")", by_default), HistoryStrategy::kNone);
}

// Else it would be another prompt.
TEST(ResponsesRequest, APrewarmLeavesTheRoomOfTheRequestThatItPrepares) {
  const std::string prewarm = R"("prompt_cache_options":{"prewarm":true})";
  EXPECT_EQ(options_of(R"("max_output_tokens":300)").answer_tokens(1000), 300);
  EXPECT_EQ(options_of(R"("max_output_tokens":300,)" + prewarm).answer_tokens(1000), 300);
  EXPECT_EQ(options_of(prewarm).answer_tokens(1000), std::nullopt);
  EXPECT_EQ(options_of(prewarm).sampling.max_tokens, 0);
}

}  // namespace
}  // namespace larder
