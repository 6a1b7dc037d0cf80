#include "server/answer/answer_scanner.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace larder {
namespace {

// "text" and "name{arguments}", as the pieces come.
std::string show(const std::vector<AnswerPiece>& pieces) {
  std::string shown;
  for (const AnswerPiece& piece : pieces) {
    shown += piece.call ? "[" + piece.call->name + dump_json(piece.call->arguments) + "]" : piece.text;
  }
  return shown;
}

std::string by_bytes(const std::string& text, const ToolCallRules& rules) {
  AnswerScanner scanner(rules);
  std::string shown;
  for (const char byte : text) shown += show(scanner.push({&byte, 1}));
  return shown + show(scanner.finish());
}

std::string by_bytes(const std::string& text, bool takes_many = true) { return by_bytes(text, ToolCallRules{true, takes_many}); }

TEST(ToolCalls, FoundHoweverTheTextComes) {
  const struct {
    const char* text;
    const char* shown;
  } cases[] = {
      {"", ""},
      {"plain text\n", "plain text\n"},
      {"a < b <tool", "a < b <tool"},
      {R"(<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>)", R"([f{"x":1}])"},
      {"Hm.\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n", "Hm.[f{}]"},
      {"\n<tool_call>{\"name\":\"f\",\"parameters\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}"
       "</tool_call> so",
       "[f{}][g{}]so"},
      {"<tool_call>{\"name\":\"f\"}", "[f{}]"},
      {R"(<tool_call>{"name":"f","arguments":{"id":25000000000000000001}}</tool_call>)",
       R"([f{"id":25000000000000000001}])"},
      {"<tool_call>{\"name\":", "<tool_call>{\"name\":"},
      {"<tool_call>no</tool_call> x", "<tool_call>no</tool_call> x"},
      {"between <tool_call> and so", "between <tool_call> and so"},
      {"a\n<tool_call>no</tool_call> x", "a\n<tool_call>no</tool_call> x"},
      {"a \n<tool_call>no</tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call>",
       "a \n<tool_call>no</tool_call>[f{}]"},
      {R"(<tool_call>{"name":"f","arguments":"{}"}</tool_call>)",
       "[f{}]"},
      {R"(<tool_call>{"name":"f","arguments":"{\"a\":1}"}</tool_call>)", R"([f{"a":1}])"},
      {R"(<tool_call>{"name":"f","arguments":"a"}</tool_call>)",
       R"(<tool_call>{"name":"f","arguments":"a"}</tool_call>)"},
      {"<tool_call><tool_call>{}</tool_call>", "<tool_call><tool_call>{}</tool_call>"},
      // A tag that is only spoken of takes no call with it.
      {"<tool_call><tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>[f{}]"},
      {"I write <tool_call> and then\n<tool_call>{\"name\":\"f\"}</tool_call>", "I write <tool_call> and then[f{}]"},
      {"<tool_call>{\"name\": <tool_call>{\"name\":\"f\"}", "<tool_call>{\"name\":[f{}]"},
      // Several in one tag, or without the closing ones.
      {"<tool_call>\n{\"name\":\"f\"}\n{\"name\":\"g\"}\n</tool_call> so", "[f{}][g{}]so"},
      {"<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}</tool_call>", "[f{}][g{}]"},
      {"<tool_call>{\"name\":\"f\"} so", "[f{}]so"},
      {"<tool_call>{\"name\":\"f\"} {\"no\":1} so", "[f{}]{\"no\":1} so"},
      // Nor is one missed that the answer's end has cut.
      {"<tool_call>{\"name\":\"f\"} </tool", "[f{}]"},
      {"<tool_call>{\"name\":\"f\"}\n<", "[f{}]"},
      {"<tool_call>{\"name\":\"f\"}\n<tool", "[f{}]<tool"},
      {"<tool_call>{\"name\":\"f\"}\n</tool_cull", "[f{}]</tool_cull"},
      {"<tool_call>{\"name\":\"f\"}</tool_call>\n</tool", "[f{}]</tool"},
      // What is thought is not called.
      {"<think>maybe <tool_call>{\"name\":\"f\"}</tool_call></think>\n<tool_call>{\"name\":\"g\"}</tool_call>",
       "<think>maybe <tool_call>{\"name\":\"f\"}</tool_call></think>[g{}]"},
      {" \n<think>maybe <tool_call>{\"name\":\"f\"}</tool_call> ", " \n<think>maybe <tool_call>{\"name\":\"f\"}</tool_call> "},
      {"I write <think> and\n<tool_call>{\"name\":\"f\"}</tool_call>", "I write <think> and[f{}]"},
      {"<think>a </thin", "<think>a </thin"},
      {"<<think><tool_call>{\"name\":\"f\"}", "<<think>[f{}]"},
      {"a <thin <think", "a <thin <think"},
      // A closing tag in a string closes nothing.
      {R"(<tool_call>{"name":"f","arguments":{"s":"a</tool_call>b"}}</tool_call> so)",
       R"([f{"s":"a</tool_call>b"}]so)"},
      {R"(<tool_call>{"name":"f","arguments":{"s":"\"</tool_call>\\"}}</tool_call> so)",
       R"([f{"s":"\"</tool_call>\\"}]so)"},
      {R"(<tool_call>{"name":"f","arguments":{"s":"</tool_call>"}})", R"([f{"s":"</tool_call>"}])"},
      // Unless there is no JSON to hold the string.
      {R"(<tool_call>not "json</tool_call> after)", R"(<tool_call>not "json</tool_call> after)"},
      {R"(<tool_call>not "json</tool_call> then <tool_call>{"name":"f"}</tool_call> so)",
       R"(<tool_call>not "json</tool_call> then[f{}]so)"},
      {R"(<tool_call>a "b</tool_call> c" d</tool_call> e)",
       R"(<tool_call>a "b</tool_call> c" d</tool_call> e)"},
  };
  for (const auto& [text, shown] : cases) {
    EXPECT_EQ(show(split_answer(text, {true})), shown) << text;
    EXPECT_EQ(by_bytes(text), shown) << text;
    EXPECT_EQ(show(split_answer(text, {})), text);
  }
}

std::shared_ptr<const ArgumentTypes> types_of_tools() {
  return std::make_shared<const ArgumentTypes>(parse_json(R"([{"type":"function","function":{"name":"f","parameters":{
      "type":"object","properties":{"s":{"type":"string"},"n":{"type":["number","null"]},"b":{"type":"boolean"},
      "o":{"anyOf":[{"type":"object"},{"type":"string"}]},"e":{"enum":["1","2"]},"c":{"const":1},"r":{"$ref":"#/x"}}}}},
      {"type":"function","function":{"name":"g"}}])", {}));
}

// As GLM 4.5 and 4.6 write it, and 4.7 without line breaks.
TEST(ToolCalls, ArgumentsInTagsAreOfTheTypesThatSchemasLetThemBe) {
  const struct {
    const char* argument;
    const char* value;
    const char* shown;
  } cases[] = {
      {"s", "5", R"("5")"}, {"s", " a\n<b> \"q\" ", R"(" a\n<b> \"q\" ")"}, {"s", "", R"("")"}, {"s", "</tool_call>", R"("</tool_call>")"},
      {"n", "5", "5"}, {"n", "null", "null"}, {"n", "-2.5e3 ", "-2500.0"}, {"n", "five", R"("five")"}, {"n", "25000000000000000001", "25000000000000000001"},
      {"b", "true", "true"}, {"b", "\n true\n", "true"}, {"b", "True", R"("True")"},
      {"o", R"({"a": [1, 2]})", R"({"a":[1,2]})"}, {"o", "5", R"("5")"}, {"o", R"({"a": )", R"("{\"a\": ")"},
      {"e", "1", R"("1")"}, {"c", "1", "1"}, {"r", "1", "1"}, {"r", R"("1")", R"("\"1\"")"}, {"other", "[1]", "[1]"}, {"other", "a", R"("a")"},
  };
  for (const auto& [argument, value, shown] : cases) {
    for (const char* gap : {"\n", ""}) {
      const std::string name = argument, before = *gap == 0 ? "" : "Hm.\n";
      const std::string text = before + "<tool_call>f" + gap + "<arg_key>" + name + "</arg_key>" + gap + "<arg_value>" + value +
                               "</arg_value>" + gap + "</tool_call>" + gap;
      const std::string expected = (before.empty() ? "" : "Hm.") + std::string("[f{\"") + name + "\":" + shown + "}]";
      const ToolCallRules rules{.are_read = true, .tagged = types_of_tools()};
      EXPECT_EQ(show(split_answer(text, rules)), expected);
      EXPECT_EQ(by_bytes(text, rules), expected);
      EXPECT_EQ(show(split_answer(text, {.are_read = true})), text);
    }
  }
}

TEST(ToolCalls, WhatIsNoCallInTagsStaysText) {
  const std::string one = "<arg_key>s</arg_key><arg_value>1</arg_value>";
  const std::pair<std::string, std::string> cases[] = {
      {"<tool_call>g</tool_call>", "[g{}]"},
      {"<tool_call>\ng\n</tool_call>\n<tool_call>f" + one + "</tool_call> so", "[g{}][f{\"s\":\"1\"}]so"},
      {"<tool_call>unknown" + one + "</tool_call>", "[unknown{\"s\":1}]"},
      {"<tool_call>word</tool_call>", ""},
      {"between <tool_call> and </tool_call> so", ""},
      {"<tool_call>f" + one + " so</tool_call>", ""},
      {"<tool_call>f" + one + one + "</tool_call>", ""},
      {"<tool_call>f<arg_key>a<b</arg_key><arg_value>1</arg_value></tool_call>", ""},
      {"<tool_call>f<arg_key>s</arg_key></tool_call>", ""},
      {"<tool_call>f<arg_value>1</arg_value></tool_call>", ""},
      {"<tool_call></tool_call>", ""},
      // What was cut is not called, nor what a text within it tells of.
      {"<tool_call>f" + one, ""},
      {"<tool_call>f<arg_key>s</arg_key><arg_value><tool_call>g</tool_call>", ""},
      // What comes behind one that is none is looked at.
      {"<tool_call><tool_call>g</tool_call>", "<tool_call>[g{}]"},
      {"<tool_call>f so <tool_call>g</tool_call>", "<tool_call>f so[g{}]"},
      // JSON is read all the same.
      {"<tool_call>{\"name\":\"f\"}</tool_call><tool_call>g</tool_call>", "[f{}][g{}]"},
  };
  for (const auto& [text, shown] : cases) {
    const ToolCallRules rules{.are_read = true, .tagged = types_of_tools()};
    EXPECT_EQ(show(split_answer(text, rules)), shown.empty() ? text : shown);
    EXPECT_EQ(by_bytes(text, rules), shown.empty() ? text : shown);
  }
  const ToolCallRules first{.are_read = true, .takes_many = false, .tagged = types_of_tools()};
  EXPECT_EQ(by_bytes("<tool_call>g</tool_call><tool_call>f" + one + "</tool_call> so", first), "[g{}]so");
  const ToolCallRules thoughts{.are_read = true, .begins_in_thought = true, .tagged = types_of_tools()};
  EXPECT_EQ(by_bytes("a <tool_call>g</tool_call></think><tool_call>g</tool_call>", thoughts), "a <tool_call>g</tool_call></think>[g{}]");
}

TEST(ToolCalls, AnAnswerMayBeginInAThought) {
  const ToolCallRules rules{.are_read = true, .begins_in_thought = true};
  const std::string thought = "I could <tool_call>{\"name\":\"f\"}</tool_call> <think> so";
  EXPECT_EQ(show(split_answer(thought, rules)), thought);
  EXPECT_EQ(show(split_answer(thought + "</think>\n<tool_call>{\"name\":\"g\"}", rules)), thought + "</think>[g{}]");
}

TEST(ToolCalls, OnlyTheFirstIsTakenWhereOneIsWanted) {
  const std::string first = "Hm. <tool_call>{\"name\":\"f\"}</tool_call>\n";
  const std::string second = "<tool_call>{\"name\":\"g\"}";
  for (const std::string& text : {first + second, first + second + "</tool_call>\n",
                                  first + second + "</tool_call>" + second}) {
    EXPECT_EQ(show(split_answer(text, {true, false})), "Hm.[f{}]") << text;
    EXPECT_EQ(by_bytes(text, false), "Hm.[f{}]") << text;
  }
  EXPECT_EQ(by_bytes(first + second + "</tool_call> so", false), "Hm.[f{}]so");
}

std::string lists(std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

// A schema of any names bars none from coming twice, and one that refers to itself goes deeper than a body may.
TEST(ToolCalls, WhatAFormPermitsIsACall) {
  const std::string deep = "{\"a\":" + lists(300) + "}";
  const std::pair<std::string, std::string> cases[] = {
      {R"({"a":1,"b":2,"a":3})", R"({"a":3,"b":2})"},
      {R"({"o":{"":null,"x":[],"":{"y":1,"y":2}}})", R"({"o":{"":{"y":2},"x":[]}})"},
      {deep, deep},
  };
  for (const auto& [arguments, shown] : cases) {
    const std::string called = "[f" + shown + "]";
    EXPECT_EQ(by_bytes("<tool_call>{\"name\":\"f\",\"arguments\":" + arguments + "}</tool_call>"), called);
    EXPECT_EQ(by_bytes("<tool_call>{\"name\":\"f\",\"arguments\":" + Json(arguments).dump() + "}</tool_call>"), called);
    EXPECT_EQ(by_bytes("<|channel|>commentary to=functions.f<|message|>" + arguments + "<|call|>",
                       {.are_read = true, .is_harmony = true}),
              called);
    EXPECT_EQ(by_bytes("<tool_call>f<arg_key>o</arg_key><arg_value>" + arguments + "</arg_value></tool_call>",
                       {.are_read = true, .tagged = types_of_tools()}),
              "[f{\"o\":" + shown + "}]");
  }
  const std::string endless = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":" + lists(100'000) + "}}</tool_call>";
  EXPECT_EQ(show(split_answer(endless, {true})), endless);
}

// It could not come back in a history.
TEST(ToolCalls, ACallOfNobodyIsText) {
  const std::string text = "<tool_call>{\"name\":\"\"}</tool_call>";
  EXPECT_EQ(show(split_answer(text, {true})), text);
}

TEST(ToolCalls, WhiteSpaceAroundACallGoesWhereverTheTextIsCut) {
  for (const auto& [text, shown] : {std::pair{"a  \n <tool_call>{\"name\":\"f\"}</tool_call>  b", "a[f{}]b"},
                                    std::pair{"a  \n <tool <tool_cal  \n b", "a  \n <tool <tool_cal  \n b"}}) {
    const std::string_view all = text;
    for (std::size_t first = 0; first <= all.size(); ++first) {
      for (std::size_t second = first; second <= all.size(); ++second) {
        AnswerScanner scanner({true});
        std::string seen = show(scanner.push(all.substr(0, first)));
        seen += show(scanner.push(all.substr(first, second - first)));
        seen += show(scanner.push(all.substr(second)));
        EXPECT_EQ(seen + show(scanner.finish()), shown) << first << " " << second;
      }
    }
  }
}

// Each of them could begin a call's gap; to look at all again for each would take many minutes.
TEST(ToolCalls, AMillionSpacesAreLookedAtOnce) {
  constexpr int kMany = 1'000'000;
  const struct {
    const char* before;
    const char* shown;
    const char* after;
    std::size_t size;
  } cases[] = {{"a", "a", "b", kMany + 1},
               {"<tool_call>", "", "b", kMany + 12},
               {"<tool_call>{\"name\":\"f\"}", "", "b", 6}};
  for (const auto& [before, shown, after, size] : cases) {
    AnswerScanner scanner({true});
    EXPECT_EQ(show(scanner.push(before)), shown);
    for (int i = 0; i < kMany; ++i) ASSERT_TRUE(scanner.push(i % 2 == 0 ? " " : "\n").empty());
    EXPECT_EQ(show(scanner.push(after)).size(), size);
  }
}

TEST(ToolCalls, AMillionTagsAreLookedAtOnce) {
  for (const char* tag : {"<tool_call>", "<tool_call>{", "<tool_call>{\"", "<tool_call>{\"a\":{", "<think>"}) {
    std::string text;
    while (text.size() < 1'000'000) text += tag;
    EXPECT_EQ(show(split_answer(text, {true})), text);
  }
}

TEST(ToolCalls, TextIsNotHeldBackWithoutNeed) {
  AnswerScanner scanner({true});
  EXPECT_EQ(show(scanner.push("one two")), "one two");
  EXPECT_EQ(show(scanner.push(" ")), "");
  EXPECT_EQ(show(scanner.push("three <too")), " three");
  EXPECT_EQ(show(scanner.push("l>")), " <tool>");
  EXPECT_EQ(show(scanner.push(" I write <tool_call> and then JSON")), " I write <tool_call> and then JSON");
  EXPECT_EQ(show(scanner.push(" <think>and more")), " <think>and more");
  EXPECT_EQ(show(scanner.push("</think>")), "</think>");
  const std::string broken = " <tool_call>it is 5\" wide\n</tool_call> and";
  EXPECT_EQ(show(scanner.push(broken)), broken);
}

}  // namespace
}  // namespace larder
