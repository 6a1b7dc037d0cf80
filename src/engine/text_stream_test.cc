#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace larder {
namespace {

std::shared_ptr<const StopStrings> stops_of(std::vector<std::string> stops) {
  return std::make_shared<const StopStrings>(std::move(stops));
}

// What the text must become: cut at the first place where a stop string ends.
std::string reference(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      const bool ends_here = !stop.empty() && end >= stop.size() &&
                             text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends_here) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopFinder, FindsTheStopHoweverTheTextIsCut) {
  std::mt19937 random(7);
  int num_found = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + random() % 3);
    std::vector<std::string> stops;
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      stops.push_back(text.substr(random() % 25, random() % 8));
      if (random() % 2 == 0 && !stops.back().empty()) stops.back().back() = 'c';
    }
    StopFinder finder(stops_of(stops));
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 6, text.size() - at);
      shown += finder.push(text.substr(at, size));
      at += size;
      // Only the beginning of a stop may be missing, and nothing of one may be shown.
      if (!finder.found()) {
        const std::string held = text.substr(shown.size(), at - shown.size());
        ASSERT_TRUE(held.empty() || std::ranges::any_of(stops, [&](const std::string& stop) {
                      return held.size() < stop.size() && stop.starts_with(held);
                    }));
      }
    }
    num_found += finder.found();
    shown += finder.finish();
    ASSERT_EQ(shown, reference(text, stops));
    ASSERT_EQ(finder.found(), shown.size() < text.size());
  }
  EXPECT_GT(num_found, 1000);
}

TEST(StopFinder, NothingFollowsTheStop) {
  StopFinder finder(stops_of({"\n\n"}));
  EXPECT_EQ(finder.push("one\n"), "one");
  EXPECT_EQ(finder.push("\ntwo"), "");
  EXPECT_TRUE(finder.found());
  EXPECT_EQ(finder.stop(), "\n\n");
  EXPECT_EQ(finder.push("three"), "");
  EXPECT_EQ(finder.finish(), "");
}

std::string to_utf8(unsigned code) {
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

// "a", "b", "ST", "OP" and the two bytes of an accented e; then, as byte-level BPE asks, all bytes:
// printable ones as themselves, the others as characters from 256 on.
Vocabulary letters() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = "gpt-2";
  vocabulary.tokens = {"a", "b", "ST", "OP", "\u00c3", "\u00a9"};
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool is_printable =
        (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte != 173);
    const std::string text = to_utf8(is_printable ? byte : next++);
    if (std::ranges::find(vocabulary.tokens, text) == vocabulary.tokens.end()) {
      vocabulary.tokens.push_back(text);
    }
  }
  vocabulary.kinds.assign(vocabulary.tokens.size(), TokenKind::kNormal);
  return vocabulary;
}

TEST(TextStream, CutsAtTheStopAcrossTokens) {
  const Tokenizer tokenizer(letters());
  TextStream stream(tokenizer, stops_of({"STOP"}));
  EXPECT_EQ(stream.push(0), "a");
  EXPECT_EQ(stream.push(2), "");
  EXPECT_EQ(stream.push(1), "STb");
  EXPECT_EQ(stream.push(2), "");
  EXPECT_EQ(stream.push(3), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.stop_string(), "STOP");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, MayKeepTheStop) {
  const Tokenizer tokenizer(letters());
  TextStream stream(tokenizer, stops_of({"STOP"}), /*include_stop=*/true);
  std::string text;
  for (const TokenId token : {0, 2, 3}) text += stream.push(token);
  EXPECT_EQ(text, "aSTOP");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, StopsOnlyBehindTheLeastTokens) {
  const Tokenizer tokenizer(letters());
  const auto text_of = [&](int min_tokens, const std::vector<TokenId>& tokens) {
    TextStream stream(tokenizer, stops_of({"STOP", "a"}), false, false, false, min_tokens);
    std::string text;
    for (const TokenId token : tokens) text += stream.push(token) + '|';
    return text + stream.finish() + (stream.stopped() ? "!" : "");
  };
  EXPECT_EQ(text_of(0, {1, 0}), "b||!");
  EXPECT_EQ(text_of(1, {0, 1, 0}), "a|b||!");
  EXPECT_EQ(text_of(4, {0, 2, 3, 1, 2, 3}), "a||STOP|b|||!");
  // One that begins before and ends behind them is one.
  EXPECT_EQ(text_of(2, {1, 2, 3}), "b|||!");
  EXPECT_EQ(text_of(9, {0, 2}), "a||ST");
}

TEST(TextStream, HoldsHalfACharacterBack) {
  const Tokenizer tokenizer(letters());
  TextStream stream(tokenizer, {});
  EXPECT_EQ(stream.push(4), "");
  EXPECT_EQ(stream.push(5), "\u00e9");
  EXPECT_EQ(stream.push(4), "");
  EXPECT_EQ(stream.finish(), "\ufffd");
}

TEST(TextStream, FlushesAnUnfinishedStop) {
  const Tokenizer tokenizer(letters());
  TextStream stream(tokenizer, stops_of({"STOP"}));
  EXPECT_EQ(stream.push(2), "");
  EXPECT_EQ(stream.finish(), "ST");
  EXPECT_FALSE(stream.stopped());
}

}  // namespace
}  // namespace larder
