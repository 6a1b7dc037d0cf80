#include "server/chat/normalise.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "server/text_pattern.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

std::vector<ChatMessage> chat(const std::string& system, const std::string& question) {
  return messages_of({{{"role", "system"}, {"content", system}},
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
  auto messages = chat("x-anthropic-billing-header: cch=1;\nIt is 10:02.", "Hi");
  const Json before = json_of(messages);
  Json tools;
  EXPECT_TRUE(normalise({}, messages, tools).empty());
  EXPECT_EQ(json_of(messages), before);
  Normalisation none;
  EXPECT_FALSE(add_normalisation("spaces", none));
  EXPECT_FALSE(none.any());
}

TEST(Normalise, DropsTheBillingHeader) {
  auto messages = chat("x-anthropic-billing-header: cc_version=1; cch=ab12;\nYou are a clerk.\nBe kind.", "Hi");
  Json tools;
  EXPECT_EQ(normalise(all(), messages, tools), std::vector<std::string>{"nonce_headers"});
  EXPECT_EQ(messages[0].json["content"], "You are a clerk.\nBe kind.");
  // A user may speak of it.
  auto other = chat("You are a clerk.", "x-anthropic-billing-header: what is it?");
  EXPECT_TRUE(normalise(all(), other, tools).empty());
}

TEST(Normalise, MovesTheTimeToTheEnd) {
  auto messages = chat("You are a clerk.\nThe time is 2026-11-22 10:02:33 UTC.\nBe kind.", "What now?");
  Json tools;
  EXPECT_EQ(normalise(all(), messages, tools), std::vector<std::string>{"timestamps"});
  EXPECT_EQ(messages[0].json["content"], "You are a clerk.\nBe kind.");
  EXPECT_EQ(messages[1].json["content"], "Hello");
  EXPECT_EQ(messages[3].json["content"], "What now?\n\nThe time is 2026-11-22 10:02:33 UTC.");
  // Neither data nor prose of some length is torn apart; nor is a day's date, which moves rarely.
  for (const std::string& line : {std::string("{\"time\": \"10:02\"}"),
                                 std::string(180, 'x') + " at 10:02 it was time to go home",
                                 std::string("Today is 2026-11-22.")}) {
    auto kept = chat("You are a clerk.\n" + line, "What now?");
    EXPECT_TRUE(normalise(all(), kept, tools).empty()) << line;
  }
}

TEST(Normalise, PutsTheKeysOfToolsInOrder) {
  const auto tool = [](const char* text) { return Json::array({Json::parse(text)}); };
  Json one = tool(R"({"function":{"parameters":{"type":"object","properties":{"b":{"type":"string"},"a":{"enum":["y","x"]}}},"name":"f"},"type":"function"})");
  Json other = tool(R"({"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"enum":["y","x"]},"b":{"type":"string"}},"type":"object"}}})");
  auto messages = chat("You are a clerk.", "Hi");
  EXPECT_EQ(normalise(all(), messages, one), std::vector<std::string>{"tool_keys"});
  EXPECT_TRUE(normalise(all(), messages, other).empty());
  EXPECT_EQ(one.dump(), other.dump());
  // The order of lists says something.
  EXPECT_EQ(one[0]["function"]["parameters"]["properties"]["a"]["enum"].dump(), R"(["y","x"])");
}

// A trillion ways to share out the letters, and a text that is read for too long.
TEST(TextPattern, GivesUpWhereMatchingTakesTooLong) {
  const TextPattern letters("(a+)+b"), tag(R"(<a>[\s\S]*?</a>)");
  EXPECT_EQ(letters.replace_all(std::string(10, 'a') + "c ab", ""), std::string(10, 'a') + "c ");
  const auto begin = std::chrono::steady_clock::now();
  for (const std::size_t num_letters : {20, 40}) {
    const std::string text = std::string(num_letters, 'a') + "c ab";
    EXPECT_EQ(letters.replace_all(text, ""), text);
  }
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "<a>";
  text += "</a>";
  EXPECT_EQ(tag.replace_all(text, ""), text);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// The marks of a prompt are at the ends of parts.
TEST(Normalise, KeepsThePlacesOfParts) {
  const std::string header = "x-anthropic-billing-header: cch=1;";
  const std::vector<std::string> texts = {header + "\nYou are a clerk.", "It is 10:02.\nBe kind.",
                                          "Be brief.\nIt is 10:02."};
  const std::vector<std::string> kept = {"You are a clerk.", "Be kind.", "Be brief."};
  auto messages = chat("", "Hi");
  std::vector<ContentPart>& parts = messages[0].parts;
  Json tools;
  std::string text;
  for (const std::string& part : texts) {
    if (!text.empty()) text += '\n';
    text += part;
    parts.push_back({.end = text.size()});
  }
  messages[0].json["content"] = text;
  EXPECT_EQ(normalise(all(), messages, tools).size(), 2u);
  EXPECT_EQ(messages[0].json["content"], "You are a clerk.\nBe kind.\nBe brief.");
  const std::string now = messages[0].json["content"];
  std::size_t expected = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    expected += kept[i].size() + (i > 0 ? 1 : 0);
    EXPECT_EQ(parts[i].end, expected) << i;
  }
  EXPECT_EQ(now.size(), expected);
}

// A request can have so many; in time that grows with their square it would take hours.
TEST(Normalise, TakesManyKeysAndParts) {
  constexpr int kMany = 200'000;
  auto messages = chat("", "Hi");
  std::vector<ContentPart>& parts = messages[0].parts;
  Json tools = Json::array({{{"type", "function"}}});
  Json properties = Json::object();
  for (int i = kMany; i > 0; --i) {
    properties.get_ref<Json::object_t&>().emplace_back(std::to_string(1'000'000 + i), i);
  }
  tools[0]["function"] = {{"name", "f"}, {"parameters", std::move(properties)}};
  std::string text;
  for (int i = 0; i < kMany; ++i) {
    text += i == 0 ? "" : "\n";
    text += i % 2 == 0 ? "x-anthropic-billing-header:" : "kept";
    parts.push_back({.end = text.size()});
  }
  messages[0].json["content"] = text;
  EXPECT_EQ(normalise(all(), messages, tools),
            (std::vector<std::string>{"nonce_headers", "tool_keys"}));
  const auto& sorted = tools[0]["function"]["parameters"].get_ref<const Json::object_t&>();
  EXPECT_EQ(sorted.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(sorted.front().first, "1000001");
  EXPECT_EQ(sorted.back().second, kMany);
  EXPECT_EQ(messages[0].json["content"].get_ref<const std::string&>().size(), kMany / 2 * 5u - 1);
  EXPECT_EQ(parts[1].end, 4u);
  EXPECT_EQ(parts.back().end, kMany / 2 * 5u - 1);
}

}  // namespace
}  // namespace larder
