// What is no edit of a history, over real sockets.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "server/cache_report_test_support.h"
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

}  // namespace
}  // namespace larder
