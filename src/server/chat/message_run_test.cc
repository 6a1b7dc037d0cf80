#include "server/chat/message_run.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace larder {
namespace {

Json message(const std::string& role, const Json& content) { return {{"role", role}, {"content", content}}; }

MessageRun run_of(const Json& messages) {
  MessageRun run;
  for (const Json& one : messages) run.add(one);
  return run;
}

TEST(MessageRun, FindsWhatStandsInIt) {
  std::mt19937 random(1);
  Json all = Json::array();
  for (int i = 0; i < 60; ++i) all.push_back(message(i % 2 == 0 ? "user" : "assistant", std::to_string(random() % 3)));
  const MessageRun run = run_of(all);
  for (std::size_t begin = 0; begin < all.size(); begin += 7) {
    for (std::size_t end = begin + 1; end <= all.size(); end += 5) {
      Json part = Json::array();
      for (std::size_t i = begin; i < end; ++i) part.push_back(all[i]);
      EXPECT_TRUE(run.has(run_of(part).whole())) << begin << ' ' << end;
      part.back()["content"] = "other";
      EXPECT_FALSE(run.has(run_of(part).whole())) << begin << ' ' << end;
    }
  }
  EXPECT_FALSE(run.has({}));
  EXPECT_FALSE(run_of(Json::array()).has(run.whole()));
}

TEST(MessageRun, OrderAndRolesCount) {
  const Json a = message("user", "a"), b = message("assistant", "b");
  EXPECT_FALSE(run_of({b, a, a}).has(run_of({a, b}).whole()));
  EXPECT_FALSE(run_of({message("assistant", "a"), b}).has(run_of({a, b}).whole()));
  EXPECT_TRUE(run_of({b, a, message("system", "s"), b, a}).has(run_of({message("developer", "d"), a, b}).whole()));
}

TEST(MessageRun, PartsAreOneText) {
  const Json parts = Json::parse(R"([{"type": "text", "text": ""}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}])");
  EXPECT_TRUE(run_of(Json::array({message("user", parts)})).has(run_of(Json::array({message("user", "\na\nb")})).whole()));
}

TEST(MessageRun, KnowsItsEnd) {
  const Json a = message("user", "a"), b = message("assistant", "b"), s = message("system", "s");
  EXPECT_TRUE(run_of({a, b, a}).ends_with({s, b, a}));
  EXPECT_FALSE(run_of({a, b, a}).ends_with({a, b}));
  EXPECT_FALSE(run_of(Json::array({a})).ends_with({b, a}));
  EXPECT_TRUE(run_of(Json::array({s})).ends_with(Json::array()));
  EXPECT_FALSE(run_of(Json::array({a})).ends_with(Json::array({s})));
  MessageRun run = run_of({a, b});
  run.drop_last();
  EXPECT_TRUE(run.ends_with(Json::array({a})));
}

}  // namespace
}  // namespace larder
