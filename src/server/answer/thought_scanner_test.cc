#include "server/answer/thought_scanner.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/answer/answer_scanner.h"

namespace larder {
namespace {

// Thoughts in parentheses, calls in brackets.
std::string show(const std::vector<AnswerPiece>& pieces) {
  std::string shown;
  for (const AnswerPiece& piece : pieces) {
    if (piece.call) {
      shown += "[" + piece.call->name + "]";
    } else {
      shown += piece.is_thought ? "(" + piece.text + ")" : piece.text;
    }
  }
  return shown;
}

// Whole, byte by byte, and cut anywhere, the answer has the same parts.
void expect_split(const std::string& text, const std::string& expected, ToolCallRules rules = {}) {
  rules.parts_thoughts = true;
  EXPECT_EQ(show(split_answer(text, rules)), expected) << text;
  std::vector<std::vector<std::string>> cuts;
  for (std::size_t size = 0; size <= text.size(); ++size) cuts.push_back({text.substr(0, size), text.substr(size)});
  cuts.emplace_back();
  for (const char byte : text) cuts.back().emplace_back(1, byte);
  for (const std::vector<std::string>& cut : cuts) {
    AnswerScanner scanner(rules);
    std::string thought, rest;
    const auto take = [&](const std::vector<AnswerPiece>& pieces) {
      for (const AnswerPiece& piece : pieces) {
        if (piece.is_thought) {
          EXPECT_EQ(rest, "") << text;
          thought += piece.text;
        } else {
          rest += show({piece});
        }
      }
    };
    for (const std::string& part : cut) take(scanner.push(part));
    take(scanner.finish());
    EXPECT_EQ((thought.empty() ? "" : "(" + thought + ")") + rest, expected) << text;
  }
}

TEST(ThoughtScanner, PartsWhatAnAnswerBeginsWith) {
  expect_split("<think>\nI know  it.\n</think>\n\nBern.", "(I know  it.)Bern.");
  expect_split(" \n<think>a</think>b", "(a)b");
  expect_split("<think>\n\n</think>\n\nBern.", "Bern.");
  expect_split("<think>a < b </ think></thin></think> c ", "(a < b </ think></thin>)c ");
  expect_split("<think><think>a</think> b</think>", "(<think>a)b</think>");
}

TEST(ThoughtScanner, LaterTagsAreText) {
  expect_split("Bern. <think>no</think>", "Bern. <think>no</think>");
  expect_split("<thin", "<thin");
  expect_split(" <thing>", " <thing>");
  expect_split("", "");
  expect_split("  \n", "  \n");
}

TEST(ThoughtScanner, AThoughtThatThePromptOpensNeedsNoTag) {
  const ToolCallRules opened{.begins_in_thought = true};
  expect_split("\nI know.\n</think>\nBern.", "(I know.)Bern.", opened);
  expect_split("I kno", "(I kno)", opened);
  expect_split("I know </thi", "(I know </thi)", opened);
  expect_split("</think>Bern.", "Bern.", opened);
}

TEST(ThoughtScanner, CallsAreReadBehindThoughtsOnly) {
  const ToolCallRules rules{.are_read = true};
  expect_split("<think>maybe <tool_call>{\"name\":\"f\"}</tool_call></think>\n<tool_call>{\"name\":\"g\"}</tool_call>",
               "(maybe <tool_call>{\"name\":\"f\"}</tool_call>)[g]", rules);
  expect_split("<tool_call>{\"name\":\"g\"}</tool_call>", "[g]", rules);
}

// As ToolCallScanner does; to look at all again for each would take many minutes.
TEST(ThoughtScanner, AMillionSpacesAreLookedAtOnce) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"", "<think>a</think>b", "(a)b"},
      {"<think>", "a</think>b", "(a)b"},
      {"<think>a</think>", "b", "b"},
      {"<think>", "</think>b", "b"}};
  for (const auto& [before, after, shown] : cases) {
    AnswerScanner scanner({.parts_thoughts = true});
    scanner.push(before);
    for (int i = 0; i < 1'000'000; ++i) ASSERT_TRUE(scanner.push(i % 2 == 0 ? " " : "\n").empty());
    EXPECT_EQ(show(scanner.push(after)), shown);
  }
}

// What counts tokens of thoughts goes by it.
TEST(ThoughtScanner, TellsWhetherTheTextEndsInOne) {
  AnswerScanner scanner({.parts_thoughts = true});
  const std::vector<std::pair<const char*, bool>> parts = {
      {"<thi", false}, {"nk>", true}, {" a", true}, {"</think", true}, {">", false}, {" b", false}, {"<think>", false}};
  for (const auto& [part, expected] : parts) {
    scanner.push(part);
    EXPECT_EQ(scanner.is_in_thought(), expected) << part;
  }
  AnswerScanner harmony({.is_harmony = true});
  harmony.push("<|channel|>analysis<|message|>Hm");
  EXPECT_TRUE(harmony.is_in_thought());
  harmony.push("<|end|><|start|>assistant<|channel|>final<|message|>Bern.");
  EXPECT_FALSE(harmony.is_in_thought());
}

}  // namespace
}  // namespace larder
