// What a template may use grows with the conversation, and all that it does is paid for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "tokenizer/jinja/chat_template.h"
#include "tokenizer/jinja/jinja_budget.h"
#include "tokenizer/jinja/jinja_unicode.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::string failure_of(const std::string& source, const TemplateInput& input = {}, TemplateLimits limits = {}) {
  try {
    ChatTemplate(source, limits).render(input);
  } catch (const Error& error) {
    const bool is_long = error.message().starts_with("prompt is too long");
    EXPECT_EQ(error.kind(), is_long ? ErrorKind::kPromptTooLong : ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "it did not fail";
}

TemplateInput chat_of(int num_turns) {
  TemplateInput input;
  for (int i = 0; i < num_turns; ++i) {
    const Json call = {{"function", {{"name", "look"}, {"arguments", {{"place", i}}}}}};
    input.messages.push_back({.json = {{"role", "user"}, {"content", "a"}}});
    input.messages.push_back({.json = {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}});
    input.messages.push_back({.json = {{"role", "tool"}, {"content", "b"}}});
  }
  return input;
}

constexpr const char* kEndless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";

// gpt-oss' looks over all later messages for each call.
TEST(TemplateLimits, GrowWithTheConversation) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/gpt-oss.jinja");
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const TemplateInput input = chat_of(1000);
  EXPECT_THAT(failure_of(source, input, {.most_steps = 0}), HasSubstr("an endless loop?"));
  EXPECT_THAT(ChatTemplate(source).render(input).text, HasSubstr("{\"place\": 999}"));
}

TEST(TemplateLimits, GrowWithItsText) {
  TemplateInput input;
  input.messages.push_back({.json = {{"role", "user"}, {"content", std::string(3'000'000, 'a')}}});
  const TemplateLimits limits{.max_steps = 1'000'000};
  EXPECT_EQ(ChatTemplate("{{ messages[0].content|title|length }}", limits).render(input).text, "3000000");
  // Not for others.
  input.max_steps = 1'000'000;
  EXPECT_THAT(failure_of("{{ messages[0].content|title|length }}", input, limits), HasSubstr("more steps"));
}

TEST(TemplateLimits, SayWhetherTheLengthIsTheReason) {
  EXPECT_THAT(failure_of(kEndless, chat_of(3)), HasSubstr("line 1: it takes more steps than are allowed (an endless loop?)"));
  EXPECT_THAT(failure_of("\n" + std::string(kEndless), chat_of(200)),
              HasSubstr("prompt is too long: its 600 messages take the chat template more steps"));
  // The cap holds for any.
  EXPECT_THAT(failure_of(kEndless, chat_of(200), {.max_steps = 1000, .most_steps = 3000}), HasSubstr("its 600 messages"));
}

// Each would take minutes if it went on.
TEST(TemplateLimits, ComparingAndCountingArePaidFor) {
  const std::string head =
      "{% set x = 'a' * 4000000 %}{% set y = x ~ 'b' %}{% set z = x ~ 'c' %}{% set d = {y: 1} %}{% set ns = namespace(**d) %}";
  const std::string loop = "{% for i in range(99999) %}{% set r = ";
  for (const char* work : {"'a'|truncate(9000000, true, x)", "y.removeprefix(z)", "y.removesuffix('b' ~ x)",
                           "ns|attr(z)", "d[z]", "x|attr(z)", "x.find('a', 3999999)"}) {
    EXPECT_THAT(failure_of(head + loop + work + " %}{% endfor %}"), HasSubstr("more steps")) << work;
  }
}

TEST(TemplateLimits, WhatIsLookedAtIsPaidFor) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "é";
  // No more than its beginning.
  jinja::Budget small(10, 0, 0);
  EXPECT_EQ(jinja::byte_offset(small, text, 3), 6u);
  EXPECT_TRUE(jinja::begins_with(small, text, "éé"));
  EXPECT_FALSE(jinja::ends_with(small, "a", text));
  EXPECT_THROW(jinja::byte_offset(small, text, 99'999), jinja::Failure);
  EXPECT_THROW(jinja::count_characters(small, text), jinja::Failure);
  EXPECT_THROW(jinja::is_ascii(small, text), jinja::Failure);
  EXPECT_THROW(jinja::begins_with(small, text, text), jinja::Failure);
  EXPECT_THROW(jinja::ends_with(small, text, text), jinja::Failure);
  EXPECT_THROW(jinja::map_case(small, text, jinja::Case::kUpper), jinja::Failure);
  jinja::Budget large(1'000'000, 0, 0);
  EXPECT_EQ(jinja::byte_offset(large, text, 99'999), text.size() - 2);
  EXPECT_EQ(jinja::count_characters(large, text), 100'000u);
  EXPECT_EQ(jinja::byte_offset(large, "abc", 9), 3u);
}

}  // namespace
}  // namespace larder
