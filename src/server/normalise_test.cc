#include "server/normalise.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

Json chat(const std::string& system, const std::string& question) {
  return Json::array({{{"role", "system"}, {"content", system}},
                      {{"role", "user"}, {"content", "Hello"}},
                      {{"role", "assistant"}, {"content", "At 10:00 it rained."}},
                      {{"role", "user"}, {"content", question}}});
}

Normalisation all() {
  Normalisation normalisation;
  EXPECT_TRUE(add_normalisation("all", normalisation));
  return normalisation;
}

TEST(Normalise, DoesNothingUnasked) {
  Json messages = chat("x-anthropic-billing-header: cch=1;\nIt is 10:02.", "Hi");
  const Json before = messages;
  Json tools;
  EXPECT_TRUE(normalise({}, messages, tools).empty());
  EXPECT_EQ(messages, before);
  Normalisation none;
  EXPECT_FALSE(add_normalisation("spaces", none));
  EXPECT_FALSE(none.any());
}

TEST(Normalise, DropsTheBillingHeader) {
  Json messages = chat("x-anthropic-billing-header: cc_version=1; cch=ab12;\nYou are a clerk.\nBe kind.", "Hi");
  Json tools;
  EXPECT_EQ(normalise(all(), messages, tools), std::vector<std::string>{"nonce_headers"});
  EXPECT_EQ(messages[0]["content"], "You are a clerk.\nBe kind.");
  // A user may speak of it.
  Json other = chat("You are a clerk.", "x-anthropic-billing-header: what is it?");
  EXPECT_TRUE(normalise(all(), other, tools).empty());
}

TEST(Normalise, MovesTheTimeToTheEnd) {
  Json messages = chat("You are a clerk.\nThe time is 2026-11-22 10:02:33 UTC.\nBe kind.", "What now?");
  Json tools;
  EXPECT_EQ(normalise(all(), messages, tools), std::vector<std::string>{"timestamps"});
  EXPECT_EQ(messages[0]["content"], "You are a clerk.\nBe kind.");
  EXPECT_EQ(messages[1]["content"], "Hello");
  EXPECT_EQ(messages[3]["content"], "What now?\n\nThe time is 2026-11-22 10:02:33 UTC.");
  // Neither data nor prose of some length is torn apart; nor is a day's date, which moves rarely.
  for (const std::string& line : {std::string("{\"time\": \"10:02\"}"),
                                 std::string(180, 'x') + " at 10:02 it was time to go home",
                                 std::string("Today is 2026-11-22.")}) {
    Json kept = chat("You are a clerk.\n" + line, "What now?");
    EXPECT_TRUE(normalise(all(), kept, tools).empty()) << line;
  }
}

TEST(Normalise, PutsTheKeysOfToolsInOrder) {
  const auto tool = [](const char* text) { return Json::array({Json::parse(text)}); };
  Json one = tool(R"({"function":{"parameters":{"type":"object","properties":{"b":{"type":"string"},"a":{"enum":["y","x"]}}},"name":"f"},"type":"function"})");
  Json other = tool(R"({"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"enum":["y","x"]},"b":{"type":"string"}},"type":"object"}}})");
  Json messages = chat("You are a clerk.", "Hi");
  EXPECT_EQ(normalise(all(), messages, one), std::vector<std::string>{"tool_keys"});
  EXPECT_TRUE(normalise(all(), messages, other).empty());
  EXPECT_EQ(one.dump(), other.dump());
  // The order of lists says something.
  EXPECT_EQ(one[0]["function"]["parameters"]["properties"]["a"]["enum"].dump(), R"(["y","x"])");
}

}  // namespace
}  // namespace larder
