#include "server/answer/harmony_answer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
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
    if (piece.call)
      shown += "[" + piece.call->name + dump_json(piece.call->arguments) + "]";
    else
      shown += piece.is_thought ? "(" + piece.text + ")" : piece.text;
  }
  return shown;
}

const ToolCallRules kRules{.are_read = true, .is_harmony = true};

// By so many bytes at a time; pieces of one kind are put together.
std::vector<AnswerPiece> split_in_steps(std::string_view text, std::size_t step, const ToolCallRules& rules) {
  AnswerScanner scanner(rules);
  std::vector<AnswerPiece> pieces;
  const auto take = [&](std::vector<AnswerPiece> more) {
    for (AnswerPiece& piece : more) {
      if (!piece.call && !pieces.empty() && !pieces.back().call && pieces.back().is_thought == piece.is_thought)
        pieces.back().text += piece.text;
      else
        pieces.push_back(std::move(piece));
    }
  };
  for (std::size_t at = 0; at < text.size(); at += step) take(scanner.push(text.substr(at, step)));
  take(scanner.finish());
  return pieces;
}

void expect_split(std::string_view text, std::string_view shown, const ToolCallRules& rules = kRules) {
  EXPECT_EQ(show(split_answer(text, rules)), shown) << text;
  for (const std::size_t step : {1, 2, 3, 7, 16})
    EXPECT_EQ(show(split_in_steps(text, step, rules)), shown) << text << " by " << step;
}

TEST(Harmony, ChannelsAreToldApart) {
  expect_split("", "");
  expect_split("<|channel|>final<|message|>Hi < there <|", "Hi < there <|");
  expect_split("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>", "(Hm.)Hi");
  expect_split("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>", "(A\n\nB)");
  expect_split("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>So.",
               "I look.\n\nSo.");
  // Cut off: within a thought, and within a header.
  expect_split("<|channel|>analysis<|message|>because <|e", "(because <|e)");
  expect_split("<|channel|>analysis<|message|>A<|end|><|start|>assist", "(A)");
  expect_split("<|channel|>fin", "");
  // An end is missing, or one too many.
  expect_split("<|channel|>analysis<|message|>A<|start|>assistant<|channel|>final<|message|>B", "(A)B");
  expect_split("<|channel|>analysis<|message|>A<|channel|>final<|message|>B<|end|><|return|>", "(A)B");
}

TEST(Harmony, CallsAreRead) {
  const std::string thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  const char* const headers[] = {
      "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
      "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
      "<|channel|>commentary to=functions.get_weather json<|message|>",
      " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
      " to=functions.get_weather<|channel|>commentary json<|message|>",
      "<|channel|>analysis to=functions.get_weather <|message|>",
      "<|channel|>commentary to=get_weather <|constrain|>json<|message|>",
  };
  for (const std::string header : headers) {
    expect_split(thought + header + R"({"city": "Bern"}<|call|>)", R"((Hm.)[get_weather{"city":"Bern"}])");
    expect_split(header + R"({"city": "Bern <|x"})", R"([get_weather{"city":"Bern <|x"}])");
    expect_split(header + "<|call|>", "[get_weather{}]");
  }
  const std::string header = headers[0];
  expect_split("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + header + "{}<|call|>",
               "I look.[get_weather{}]");
  const std::string two = header + R"({"a":1}<|call|><|start|>assistant)" + header + R"({"a":2}<|call|>)";
  expect_split(two, R"([get_weather{"a":1}][get_weather{"a":2}])");
  expect_split(two, R"([get_weather{"a":1}])", {.are_read = true, .takes_many = false, .is_harmony = true});
}

TEST(Harmony, WhatIsNoCallIsText) {
  const std::string header = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
  expect_split(header + R"({"a": 1)", R"({"a": 1)");  // cut by the length
  expect_split(header + "[1]<|call|>", "[1]");
  expect_split(header + "{}<|call|>", "{}", {.is_harmony = true});  // nobody reads calls
}

TEST(Harmony, AnAnswerWithoutAHeaderIsText) {
  expect_split("Hello <|x|> there", "Hello <|x|> there");
  expect_split(" to be", " to be");
  expect_split("<b>", "<b>");
  expect_split("to=" + std::string(600, 'x'), "to=" + std::string(600, 'x'));
  // Nor is a header without an end one, however long it is.
  const std::string endless = "<|channel|>" + std::string(600, 'x');
  expect_split(endless, std::string(600, 'x'));
  // It goes on with a message that the prompt ends with.
  const ToolCallRules goes_on{.is_harmony = true, .begins_in_text = true};
  expect_split("and <|channel|>so on", "and ", goes_on);
  expect_split("more<|end|><|start|>assistant<|channel|>final<|message|>B", "more\n\nB", goes_on);
}

// As in tags; to look at all again for each byte would take minutes.
TEST(Harmony, AMillionBytesAreLookedAtOnce) {
  const std::string call = "<|channel|>commentary to=functions.f<|message|>";
  for (const auto& [before, byte, after] : {std::tuple{std::string(), " ", ""},
                                            std::tuple{call + "{\"a\":\"", "x", "\"}<|call|>"},
                                            std::tuple{"<|channel|>analysis<|message|>" + std::string(), " ", "<|end|>"}}) {
    AnswerScanner scanner(kRules);
    std::size_t num_bytes = 0;
    const auto take = [&](const std::vector<AnswerPiece>& pieces) { num_bytes += show(pieces).size(); };
    take(scanner.push(before));
    for (int i = 0; i < 1'000'000; ++i) take(scanner.push(byte));
    take(scanner.push(after));
    take(scanner.finish());
    EXPECT_GE(num_bytes, 1'000'000U) << before;
  }
}

}  // namespace
}  // namespace larder
