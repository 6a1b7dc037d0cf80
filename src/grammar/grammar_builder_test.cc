#include "grammar/grammar_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "grammar/grammar_test_support.h"

namespace larder {
namespace {

TEST(GrammarBuilder, PutsPartsTogether) {
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    return b.sequence(
        {b.optional(b.text("-")),
         b.choice({b.text("0"), b.sequence({b.bytes({{'1', '9'}}), b.any_number(b.bytes({{'0', '9'}}))})})});
  });
  for (const char* text : {"0", "-0", "7", "-42", "1000"}) EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {"", "-", "01", "--1", "1-", "a"}) EXPECT_FALSE(matches(grammar, text)) << text;
  EXPECT_TRUE(begins(grammar, "-"));
  EXPECT_FALSE(begins(grammar, "00"));
}

TEST(GrammarBuilder, CountsRepetitions) {
  for (const std::uint32_t min : {0u, 1u, 3u}) {
    for (const std::optional<std::uint32_t> max :
         {std::optional<std::uint32_t>(), std::optional(3u), std::optional(5u)}) {
      const Grammar grammar = grammar_of([&](GrammarBuilder& b) { return b.repeat(b.rule(b.text("ab")), {min, max}); });
      std::string text;
      for (std::uint32_t i = 0; i < 9; ++i, text += "ab") {
        EXPECT_EQ(matches(grammar, text), i >= min && (!max || i <= *max))
            << min << " " << max.value_or(99) << " " << i;
        EXPECT_FALSE(matches(grammar, text + "a"));
      }
    }
  }
}

TEST(GrammarBuilder, RulesCallThemselves) {
  // Brackets, balanced.
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    const GrammarRule list = b.declare();
    b.define(list, b.any_number(b.sequence({b.text("("), b.call(list), b.text(")")})));
    return b.call(list);
  });
  for (const char* text : {"", "()", "(())()", "((()(())))"}) EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {"(", "())", ")("}) EXPECT_FALSE(matches(grammar, text)) << text;
  // As deep as calls may be, and no deeper: refused, not run out of memory.
  const std::string deep(GrammarState::kMaxDepth - 8, '('), deeper(GrammarState::kMaxDepth + 8, '(');
  EXPECT_TRUE(begins(grammar, deep));
  EXPECT_FALSE(begins(grammar, deeper));
}

TEST(GrammarBuilder, NothingIsBegunThatWouldBeTooDeepToEnd) {
  // A node holds a text that takes two calls more, and another node perhaps.
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    const GrammarRule inner = b.rule(b.sequence({b.text("("), b.call(b.rule(b.text("x"))), b.text(")")}));
    const GrammarRule outer = b.rule(b.sequence({b.text("<"), b.call(inner), b.text(">")}));
    const GrammarRule node = b.declare();
    const Fragment next = b.sequence({b.text(","), b.call(node)});
    b.define(node, b.sequence({b.text("{"), b.call(outer), b.optional(next), b.text("}")}));
    return b.call(node);
  });
  // As deep as it may.
  GrammarState state(grammar);
  std::string text;
  while (!state.is_over()) {
    const auto goes_on = [&](char byte) {
      GrammarState next = state;
      if (!next.push(static_cast<std::uint8_t>(byte))) return false;
      state = next;
      text += byte;
      return true;
    };
    ASSERT_TRUE(std::ranges::any_of(std::string_view(",{<(x)>}"), goes_on)) << text;
  }
  EXPECT_TRUE(state.is_whole());
  EXPECT_GT(std::ranges::count(text, '{'), 100);
}

TEST(GrammarBuilder, ALastCallLeavesNothingBehind) {
  // list: "x" list | "x" : a thousand calls, and each is its rule's end.
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    const GrammarRule list = b.declare();
    b.define(list, b.choice({b.sequence({b.text("x"), b.call(list)}), b.text("x")}));
    return b.call(list);
  });
  EXPECT_TRUE(matches(grammar, std::string(1000, 'x')));
}

TEST(GrammarBuilder, RefusesRulesThatNeverBegin) {
  const auto fails = [](const std::function<Fragment(GrammarBuilder&)>& make) {
    EXPECT_THROW(grammar_of(make), Error);
  };
  fails([](GrammarBuilder& b) {
    const GrammarRule rule = b.declare();
    b.define(rule, b.sequence({b.call(rule), b.text("x")}));
    return b.call(rule);
  });
  fails([](GrammarBuilder& b) {  // by way of another one, behind what may be empty
    const GrammarRule one = b.declare(), other = b.declare();
    const GrammarRule blank = b.rule(b.optional(b.text(" ")));
    b.define(one, b.choice({b.sequence({b.text("1"), b.call(one)}), b.sequence({b.call(blank), b.call(other)})}));
    b.define(other, b.sequence({b.call(one), b.text("y")}));
    return b.call(one);
  });
  // A byte before it makes it one that ends.
  EXPECT_TRUE(matches(grammar_of([](GrammarBuilder& b) {
                        const GrammarRule rule = b.declare();
                        b.define(rule, b.choice({b.text("."), b.sequence({b.text("x"), b.call(rule)})}));
                        return b.call(rule);
                      }),
                      "xx."));
}

TEST(GrammarBuilder, CirclesOfNothingEnd) {
  const Grammar grammar =
      grammar_of([](GrammarBuilder& b) { return b.any_number(b.any_number(b.optional(b.text("a")))); });
  EXPECT_TRUE(matches(grammar, ""));
  EXPECT_TRUE(matches(grammar, "aaaa"));
}

TEST(GrammarBuilder, HasABound) {
  GrammarBuilder builder(100);
  const GrammarRule rule = builder.rule(builder.text("x"));
  EXPECT_THROW(builder.repeat(rule, {0, 200}), Error);
}

TEST(GrammarState, EqualPlacesHaveEqualKeys) {
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    const GrammarRule item = b.rule(b.bytes({{'a', 'z'}}));
    return b.sequence({b.call(item), b.any_number(b.sequence({b.text(","), b.call(item)}))});
  });
  const auto after = [&](std::string_view text) {
    GrammarState state(grammar);
    for (const char byte : text) EXPECT_TRUE(state.push(static_cast<std::uint8_t>(byte)));
    return std::vector<std::uint32_t>(state.key().begin(), state.key().end());
  };
  EXPECT_EQ(after("a"), after("b,c"));
  EXPECT_EQ(after("a,"), after("b,c,d,"));
  EXPECT_NE(after("a"), after("a,"));
}

TEST(GrammarState, KnowsItsEnd) {
  const Grammar grammar = grammar_of([](GrammarBuilder& b) { return b.choice({b.text("ab"), b.text("abc")}); });
  GrammarState state(grammar);
  EXPECT_FALSE(state.is_whole());
  EXPECT_TRUE(state.push('a') && state.push('b'));
  EXPECT_TRUE(state.is_whole());
  EXPECT_FALSE(state.is_over());
  EXPECT_TRUE(state.push('c'));
  EXPECT_TRUE(state.is_whole() && state.is_over());
  EXPECT_FALSE(state.push('c'));
}

TEST(GrammarState, KnowsWhatHasToFollow) {
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    return b.sequence({b.choice({b.text("ab1"), b.text("ab2")}), b.optional(b.text("end")), b.bytes({{'x', 'y'}})});
  });
  GrammarState state(grammar);
  const auto after = [&](char byte) {
    EXPECT_TRUE(state.push(static_cast<std::uint8_t>(byte)));
    return state.only_byte();
  };
  EXPECT_EQ(state.only_byte(), 'a');
  EXPECT_EQ(after('a'), 'b');
  EXPECT_EQ(after('b'), std::nullopt) << "1 or 2";
  EXPECT_EQ(after('1'), std::nullopt) << "e, x or y";
  EXPECT_EQ(after('e'), 'n');
  EXPECT_EQ(after('n'), 'd');
  EXPECT_EQ(after('d'), std::nullopt);
  EXPECT_EQ(after('y'), std::nullopt) << "nothing follows";
  const Grammar list = grammar_of([](GrammarBuilder& b) { return b.repeat(b.rule(b.text("ab")), {1, 3}); });
  state = GrammarState(list);
  EXPECT_EQ(state.only_byte(), 'a');
  EXPECT_EQ(after('a'), 'b');
  EXPECT_EQ(after('b'), std::nullopt) << "it may end";
}

// Many places at once: 3^n ways to read a text of n letters are one, as what follows is the same.
TEST(GrammarState, WaysThatMeetAreOne) {
  const Grammar grammar = grammar_of([](GrammarBuilder& b) {
    const Fragment letter = b.choice({b.bytes({{'a', 'z'}}), b.bytes({{'a', 'm'}}), b.bytes({{'a', 'c'}})});
    return b.any_number(letter);
  });
  GrammarState state(grammar);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(state.push('a'));
  EXPECT_LE(state.num_places(), 3u);
}

TEST(GrammarBuilder, PrunesWhatLeadsToNoEnd) {
  const auto dead = [](GrammarBuilder& builder) { return Fragment{builder.add_node(), builder.add_node()}; };
  const Grammar grammar = grammar_of([&](GrammarBuilder& builder) {
    const GrammarRule endless = builder.declare();  // "b" and itself
    builder.define(endless, builder.sequence({builder.text("b"), builder.call(endless)}));
    const GrammarRule lists = builder.declare();  // itself in brackets, or none
    builder.define(lists, builder.sequence({builder.text("["), builder.optional(builder.call(lists)), builder.text("]")}));
    const Fragment open = builder.text("outside of it");
    const Fragment whole = builder.choice({builder.sequence({builder.text("a"), dead(builder)}),
                                           builder.sequence({builder.text("c"), builder.call(endless), builder.text("d")}),
                                           builder.sequence({builder.text("e"), builder.call(lists)})});
    EXPECT_TRUE(builder.prune(whole));
    EXPECT_FALSE(builder.prune(builder.call(endless)));
    return builder.choice({whole, open});
  });
  EXPECT_TRUE(matches(grammar, "e[[[]]]"));
  EXPECT_TRUE(matches(grammar, "outside of it"));
  for (const char* text : {"a", "c", "cb", "ed"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

TEST(GrammarBuilder, FindsThePartsThatLeaveTheWholeWithoutAnEnd) {
  GrammarBuilder builder;
  std::vector<GrammarBuilder::Replaceable> parts;
  const auto part = [&](Fragment inside) {
    parts.push_back(builder.replaceable(inside));
    return parts.back().outer;
  };
  const auto dead = [&] { return Fragment{builder.add_node(), builder.add_node()}; };
  const GrammarRule endless = builder.declare();
  builder.define(endless, part(builder.sequence({builder.text("a"), part(builder.call(endless))})));  // 0 in 1
  const Fragment within = part(builder.sequence({part(dead()), builder.text("b")}));  // 2 in 3
  const Fragment either = builder.choice({part(dead()), builder.text("c")});  // 4
  const Fragment one = part(either);
  const Fragment neither = builder.choice({part(dead()), part(dead())});  // 6, 7
  const Fragment other = part(neither);
  const Fragment perhaps = builder.optional(part(dead()));  // 9
  const Fragment whole =
      builder.sequence({builder.call(endless), within, one, other, perhaps, part(builder.text("d"))});
  std::vector<std::size_t> found = builder.find_dead_parts(whole, parts, std::vector{either.begin, neither.begin});
  std::ranges::sort(found);
  EXPECT_EQ(found, (std::vector<std::size_t>{1, 2, 6, 7, 9}));
  for (const std::size_t index : found) builder.replace(parts[index], builder.text("!"));
  EXPECT_TRUE(builder.prune(whole));
  const Grammar grammar = builder.finish(whole);
  for (const char* text : {"!!bc!d", "!!bc!!d"}) EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {"a", "!!b!"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

}  // namespace
}  // namespace larder
