#include "grammar/utf8_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_state.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

struct Range {
  char32_t first, last;
};

Grammar grammar_of(const std::vector<Range>& ranges, bool together = true) {
  GrammarBuilder builder;
  const Fragment whole{builder.add_node(), builder.add_node()};
  CodePointPaths paths(builder, whole.begin, whole.end);
  for (const Range& range : ranges) {
    if (together) paths.add(range.first, range.last);
    if (!together) add_code_points(builder, whole.begin, range.first, range.last, whole.end);
  }
  return builder.finish(whole);
}

// The most places at once on the way, 0 where the text does not match.
std::size_t places_of_match(const Grammar& grammar, const std::string& text) {
  GrammarState state(grammar);
  std::size_t most = state.num_places();
  for (const char byte : text) {
    if (!state.push(static_cast<std::uint8_t>(byte))) return 0;
    most = std::max(most, state.num_places());
  }
  return state.is_whole() && state.is_over() ? most : 0;
}

std::string utf8_of(char32_t code_point) {
  std::string text;
  append_utf8(code_point, text);
  return text;
}

bool is_surrogate(char32_t code_point) { return code_point >= 0xD800 && code_point <= 0xDFFF; }

void expect_exactly(const Grammar& grammar, const std::vector<Range>& ranges, char32_t code_point) {
  bool is_in = false;
  for (const Range& range : ranges) is_in |= range.first <= code_point && code_point <= range.last;
  is_in &= code_point <= kMaxCodePoint && !is_surrogate(code_point);
  EXPECT_EQ(places_of_match(grammar, utf8_of(code_point)) > 0, is_in) << std::hex << std::uint32_t{code_point};
}

TEST(Utf8Ranges, AllCharactersTakeFewNodes) {
  const std::vector<Range> all{{0, 0xFFFFFFFF}};
  const Grammar grammar = grammar_of(all);
  EXPECT_LT(grammar.num_nodes(), 14u);
  for (char32_t c = 0; c <= kMaxCodePoint; c += c < 0x11000 ? 1 : 61) expect_exactly(grammar, all, c);
  expect_exactly(grammar, all, kMaxCodePoint);
  for (const char* text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xc3(", "\xe2\x82", ""})
    EXPECT_EQ(places_of_match(grammar, text), 0u) << testing::PrintToString(text);
}

TEST(Utf8Ranges, EveryBoundIsExact) {
  constexpr char32_t kBounds[] = {0,       0x41,    0x7F,    0x80,    0xBF,    0xC0,     0x7FF,    0x800,   0xFFF,
                                  0x1000,  0x1FFF,  0xD7FF,  0xD800,  0xDABC,  0xDFFF,   0xE000,   0xFFFF,  0x10000,
                                  0x1F600, 0x1F640, 0x3FFFF, 0x40000, 0xFFFFF, 0x100000, 0x10FFFF, 0x110000};
  for (const char32_t first : kBounds) {
    for (const char32_t last : kBounds) {
      const std::vector<Range> ranges{{first, last}};
      const Grammar grammar = grammar_of(ranges, false);
      EXPECT_LT(grammar.num_nodes(), 24u);
      for (const char32_t bound : kBounds) {
        for (const std::uint32_t c : {bound + 0u, bound - 1u, bound + 1u}) {
          if (c <= kMaxCodePoint && !is_surrogate(c)) expect_exactly(grammar, ranges, c);
        }
      }
    }
  }
}

TEST(Utf8Ranges, RandomClassesHaveOneWayForEachCharacter) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    std::vector<Range> ranges;
    char32_t at = random() % 200;
    for (int i = 0; i < 200; ++i) {
      const char32_t last = at + random() % (i % 10 == 0 ? 5000 : 4);
      ranges.push_back({at, last});
      at = last + 2 + random() % (i % 10 == 5 ? 7000 : 5);
    }
    const Grammar grammar = grammar_of(ranges);
    for (const Range& range : ranges) {
      for (const std::uint32_t c : {range.first - 1u, range.first + 0u, range.last + 0u, range.last + 1u}) {
        if (c > kMaxCodePoint || is_surrogate(c)) continue;
        expect_exactly(grammar, ranges, c);
        EXPECT_LE(places_of_match(grammar, utf8_of(c)), 1u);
      }
    }
  }
}

TEST(Utf8Ranges, NothingWhereThereIsNoCharacter) {
  for (const Range& range : {Range{5, 4}, Range{0xD800, 0xDFFF}, Range{0x110000, 0xFFFFFFFF}}) {
    const Grammar grammar = grammar_of({range});
    EXPECT_TRUE(GrammarState(grammar).is_over());
  }
}

}  // namespace
}  // namespace larder
