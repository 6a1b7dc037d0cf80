#include "grammar/regex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_state.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

enum Where { kAnywhere, kWholly };

Grammar grammar_of(std::string_view expression, TextForm form = TextForm::kPlain, Where where = kWholly) {
  GrammarBuilder builder(std::size_t{1} << 17);
  return builder.finish(add_regex(builder, expression, form, where == kWholly));
}

bool matches(const Grammar& grammar, std::string_view text) {
  GrammarState state(grammar);
  for (const char byte : text) {
    if (!state.push(static_cast<std::uint8_t>(byte))) return false;
  }
  return state.is_whole();
}

void expect_whole(std::string_view expression, const std::vector<std::string>& yes, const std::vector<std::string>& no,
                  TextForm form = TextForm::kPlain) {
  const Grammar grammar = grammar_of(expression, form);
  for (const std::string& each : yes) EXPECT_TRUE(matches(grammar, each)) << expression << " on " << each;
  for (const std::string& each : no) EXPECT_FALSE(matches(grammar, each)) << expression << " on " << each;
}

void expect_json(std::string_view expression, const std::vector<std::string>& yes, const std::vector<std::string>& no) {
  expect_whole(expression, yes, no, TextForm::kJsonString);
}

void expect_search(std::string_view expression, const std::vector<std::string>& yes,
                   const std::vector<std::string>& no) {
  const Grammar grammar = grammar_of(expression, TextForm::kPlain, kAnywhere);
  for (const std::string& each : yes) EXPECT_TRUE(matches(grammar, each)) << expression << " on " << each;
  for (const std::string& each : no) EXPECT_FALSE(matches(grammar, each)) << expression << " on " << each;
}

std::string utf8(char32_t code_point) {
  std::string text;
  append_utf8(code_point, text);
  return text;
}

void expect_error(std::string_view expression, const std::string& what, std::size_t character) {
  for (const Where where : {kWholly, kAnywhere}) {
    try {
      grammar_of(expression, TextForm::kPlain, where);
      ADD_FAILURE() << expression << " is taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << expression;
      const std::string expected = " is not supported: " + what + ", at character " + std::to_string(character);
      EXPECT_TRUE(error.message().ends_with(expected)) << error.message() << "\n instead of " << expected;
    }
  }
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Regex, LiteralsAlternativesAndGroups) {
  expect_whole("", {""}, {"a"});
  expect_whole("abc", {"abc"}, {"", "ab", "abcd", "abd"});
  expect_whole("a|bc|", {"a", "bc", ""}, {"b", "abc", "ac"});
  expect_whole("a(b|c)d", {"abd", "acd"}, {"ad", "abcd"});
  expect_whole("a(?:b|)(?<rest_1>c)", {"abc", "ac"}, {"ab", "a"});
  expect_whole("(?<$\u00e9>a)", {"a"}, {""});
  expect_whole("((((a)|b)|c)|d)", {"a", "b", "c", "d"}, {"e", ""});
  expect_whole("()()", {""}, {"a"});
  // Alternatives that share how they begin, or all of it.
  expect_whole("ab*|abc|ab|a[bc]d|a", {"a", "ab", "abbb", "abc", "abd", "acd"}, {"abbc", "abbd", "ac", "abcd"});
  expect_whole("a+b|ab|aac", {"ab", "aab", "aac"}, {"aaac", "ac"});
}

TEST(Regex, Quantifiers) {
  expect_whole("a*", {"", "a", "aaaa"}, {"b", "ab"});
  expect_whole("a+b", {"ab", "aab"}, {"b", "a"});
  expect_whole("ab?c", {"ac", "abc"}, {"abbc"});
  expect_whole("a{3}", {"aaa"}, {"", "aa", "aaaa"});
  expect_whole("a{2,}", {"aa", "aaaaa"}, {"", "a"});
  expect_whole("a{1,3}b", {"ab", "aab", "aaab"}, {"b", "aaaab"});
  expect_whole("a{0}b", {"b"}, {"ab"});
  expect_whole("a{0,0}", {""}, {"a"});
  expect_whole("a{1}b{0,1}c{0,}d{1,}", {"ad", "abccdd"}, {"abbd", "abc", "d"});
  expect_whole("a{007}", {"aaaaaaa"}, {"aaaaaa"});
  expect_whole("a*?b+?c??d{1,2}?", {"bd", "aabbcdd"}, {"ad", "bccd"});
  expect_whole("(a|bc){2}", {"aa", "abc", "bcbc"}, {"a", "abcb", "aaa"});
}

TEST(Regex, NestedQuantifiers) {
  expect_whole("(a{2}b){2,3}", {"aabaab", "aabaabaab"}, {"aab", "aabab", "aabaabaabaab"});
  expect_whole("((a{1,2}b?){2}c){2}", {"aacaac", "abaabcaac"}, {"aac", "aacac", "aacaaacc"});
  expect_whole("(((a+)+)+)+b", {"ab", "aaaaaab"}, {"b", "aaa"});
  expect_whole("([a-z]+(,[a-z]+)*;)*", {"", "a;", "a,bc;d;"}, {"a", "a,;", ",a;"});
}

TEST(Regex, RepeatingWhatMayBeEmptyEnds) {
  expect_whole("(a*)*", {"", "aaa"}, {"b"});
  expect_whole("(a?|b*|)+c", {"c", "abbac"}, {"", "ab"});
  expect_whole("(){3}", {""}, {"a"});
  expect_whole("()*()+(){2,}a", {"a"}, {"", "aa"});
  expect_whole("(a?){3}", {"", "a", "aaa"}, {"aaaa"});
  expect_whole("(a*){2,}b", {"b", "aab"}, {"a"});
  expect_whole("((a?){2}|b){2,5}", {"", "aaaa", "babab"}, {"bbbbbb", "ababababab"});
}

TEST(Regex, Classes) {
  expect_whole("[abc]", {"a", "b", "c"}, {"", "d", "ab"});
  expect_whole("[a-c0-2_]+", {"a1_", "c0"}, {"d", "3"});
  expect_whole("[^a-c]", {"d", "\n", "\u00e9"}, {"a", "b", "c", ""});
  expect_whole("[-a]", {"-", "a"}, {"b"});
  expect_whole("[a-]", {"-", "a"}, {"b"});
  expect_whole("[^-]", {"a"}, {"-"});
  expect_whole("[a\\-c]", {"a", "-", "c"}, {"b"});
  expect_whole("[--/]", {"-", ".", "/"}, {",", "0"});
  expect_whole("[\\]\\\\^]", {"]", "\\", "^"}, {"["});
  expect_whole("[[(){}*+?.|$]{15}", {"[(){}*+?.|$$$$$"}, {"[(){}*+?.|$$$$a"});
  expect_whole("[\\b\\x41\\n]", {"\b", "A", "\n"}, {"b", "x"});
  expect_whole("[\\d\\s_]+", {"0 9_\t"}, {"a"});
  expect_whole("[^\\D5]", {"4"}, {"5", "a"});
  expect_whole("[\\da-f-]+", {"0-f"}, {"g"});
  expect_whole("[b-da-ca-zm]", {"a", "m", "z"}, {"A"});
  expect_whole("[^]", {"a", "\n", "\xf0\x9f\x98\x80"}, {""});
  expect_whole("[^\\ud800-\\udfff]", {"a"}, {""});
}

TEST(Regex, EscapesOfSets) {
  expect_whole("\\d\\D", {"1a"},
               {"11", "a1",
                "\u0661"
                "a"});
  expect_whole("\\w\\W", {"_-", "Z\u00e9"}, {"__", "--"});
  expect_whole("\\s",
               {" ", "\t", "\n", "\v", "\f", "\r", "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028", "\u2029", "\u202f",
                "\u205f", "\u3000", "\ufeff"},
               {"a", "\u200b", "\u0085", "\u180e"});
  expect_whole("\\S", {"a", "\u200b", "\xf0\x9f\x98\x80"}, {" ", "\u2028", "\ufeff"});
  expect_whole("[\\s\\S]", {"a", " ", "\n"}, {""});
  expect_whole(".", {"a", " ", "\u2027", "\u202a", "\u0085", std::string(1, '\0')},
               {"", "\n", "\r", "\u2028", "\u2029"});
}

TEST(Regex, EscapesOfCharacters) {
  expect_whole("\\n\\r\\t\\v\\f", {"\n\r\t\v\f"}, {"nrtvf"});
  expect_whole("\\0\\cA\\cz", {std::string("\0\x01\x1a", 3)}, {});
  expect_whole("\\x41\\u0042\\u{43}\\u{0001F600}", {"ABC\xf0\x9f\x98\x80"}, {});
  expect_whole("\\ud83d\\ude00", {"\xf0\x9f\x98\x80"}, {});
  expect_whole("[\\ud83d\\ude00-\\ud83d\\ude02]", {"\xf0\x9f\x98\x81"}, {"\xf0\x9f\x98\x83"});
  expect_whole("\\^\\$\\\\\\.\\*\\+\\?\\(\\)\\[\\]\\{\\}\\|\\/", {"^$\\.*+?()[]{}|/"}, {});
  expect_whole("\\-\\\"\\_\\@\\ ", {"-\"_@ "}, {});
}

TEST(Regex, CharactersAreUtf8) {
  const std::string two = "\u00e9", three = "\u20ac", four = "\xf0\x9f\x98\x80";
  expect_whole(two + three + "+" + four, {two + three + three + four}, {two + four, two + three});
  expect_whole("[" + two + "-" + four + "]", {two, three, four, "\uffff"}, {"a", "\u00e8", "\xf0\x9f\x98\x81"});
  expect_whole(".{3}", {two + three + four, "abc"}, {two, "ab"});
  expect_whole("[^a]", {two, three, four, "\x7f"},
               {"a", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
                "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\x80", "\xc3", "\xe2\x82", "\xff"});
}

TEST(Regex, ClassesHaveTheirCharactersAndNoOthers) {
  std::mt19937 random(1);
  const char32_t kHighest[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
  for (int round = 0; round < 100; ++round) {
    struct Range {
      char32_t first, last;
    };
    std::vector<Range> ranges;
    std::vector<char32_t> probes{0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF};
    const bool is_negated = round % 2 == 1;
    std::string expression = is_negated ? "[^" : "[";
    for (int i = 0; i < 4; ++i) {
      const char32_t first = random() % (kHighest[random() % 4] + 1);
      const char32_t last = std::min<char32_t>(first + random() % (1 << random() % 20), 0x10FFFF);
      ranges.push_back({first, last});
      expression +=
          fmt::format("\\u{{{:x}}}-\\u{{{:X}}}", static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last));
      for (const char32_t edge : {first, last}) probes.insert(probes.end(), {edge - 1, edge, edge + 1});
      probes.push_back(first + (last - first) / 2);
    }
    const Grammar grammar = grammar_of(expression + "]");
    for (const char32_t probe : probes) {
      if (probe > 0x10FFFF || (probe >= 0xD800 && probe <= 0xDFFF)) continue;
      const bool is_in = std::ranges::any_of(
          ranges, [probe](const Range& range) { return probe >= range.first && probe <= range.last; });
      ASSERT_EQ(matches(grammar, utf8(probe)), is_in != is_negated) << expression << " on " << std::uint32_t{probe};
    }
  }
}

TEST(Regex, AJsonStringHasEscapes) {
  expect_json("a\"b", {"a\\\"b"}, {"a\"b", "a\\u0022b"});
  expect_json("\\\\", {"\\\\"}, {"\\"});
  expect_json("\\n\\r\\t\\f[\\b]", {"\\n\\r\\t\\f\\b"}, {"\n\r\t\f\b"});
  expect_json("/", {"/"}, {"\\/"});
  expect_json("\\x01\\x1f\\x7f", {"\\u0001\\u001f\x7f", "\\u0001\\u001F\x7f"}, {"\x01\x1f\x7f"});
  expect_json("\\v", {"\\u000b", "\\u000B"}, {"\\v", "\v"});
  expect_json("\u00e9\xf0\x9f\x98\x80", {"\u00e9\xf0\x9f\x98\x80"}, {"\\u00e9\xf0\x9f\x98\x80"});
  expect_json("[^a]", {"b", "\\\"", "\\\\", "\\n", "\\u0000", "\\u001f", "\u20ac", "/", "\x7f"},
              {"a", "\"", "\\", "\n", "\\u0020", "\\u0061", "\\u000a", "\\u0008", "\x1f", "\\v", "\xed\xa0\x80"});
  expect_json("\\s+", {" \\t\\n\\u000b", "\u3000"}, {"\t", "\\u0020"});
  expect_json(".*", {"", "a\\\"b", "\\t"}, {"\\n", "\\r", "\u2028", "\""});
  expect_json("\"a|\"b|\\\\c|\\nd", {"\\\"a", "\\\"b", "\\\\c", "\\nd"}, {"\\\"c", "\\na"});
  const Grammar search = grammar_of("\"", TextForm::kJsonString, kAnywhere);
  for (const char* text : {"\\\"", "a\\\"", "\\\\\\\"\\n", "\\\"\\\""}) EXPECT_TRUE(matches(search, text)) << text;
  for (const char* text : {"", "\\\\", "\"", "\\\"\"", "\\\\\""}) EXPECT_FALSE(matches(search, text)) << text;
}

std::uint16_t num_free_behind(std::string_view expression, std::string_view text, Where where,
                              TextForm kind = TextForm::kJsonString) {
  const Grammar grammar = grammar_of(expression, kind, where);
  GrammarState state(grammar);
  for (const char byte : text) EXPECT_TRUE(state.push(static_cast<std::uint8_t>(byte)));
  return state.num_free_characters();
}

TEST(Regex, FreeCharactersAreToldOnlyWhereAllAre) {
  for (const char* expression : {"a", "a$", "[^]*", "[\\s\\S]+a", "[^\"\\\\]*", "[^\\x00-\\x1f]*"}) {
    EXPECT_EQ(num_free_behind(expression, "", kAnywhere), Grammar::kAnyNumber) << expression;
  }
  EXPECT_EQ(num_free_behind("^a", "", kAnywhere), 0);
  EXPECT_EQ(num_free_behind("^a", "a", kAnywhere), Grammar::kAnyNumber);
  EXPECT_EQ(num_free_behind("^a$", "", kAnywhere), 0);
  EXPECT_EQ(num_free_behind("a", "", kAnywhere, TextForm::kPlain), 0);
  for (const char* expression : {"[^]*", "[\\s\\S]+", "[^\"\\\\]*", "[^\\x00-\\x1f]{1,}x", "[\\d\\D]*a"}) {
    EXPECT_EQ(num_free_behind(expression, "", kWholly), Grammar::kAnyNumber) << expression;
    EXPECT_EQ(num_free_behind(expression, "xyz", kWholly), Grammar::kAnyNumber) << expression;
  }
  for (const char* expression : {".*", "[^x]*", "\\W*", "[^]", "[^]?", "[^]{2,}", "[^]{0,9}", "([^]a)*", "[^/]*"}) {
    EXPECT_EQ(num_free_behind(expression, "", kWholly), 0) << expression;
  }
}

TEST(Regex, AnchorsOfOutermostAlternatives) {
  expect_search("^a", {"a", "ab\n"}, {"", "ba"});
  expect_search("a$", {"a", "\nba"}, {"", "ab"});
  expect_search("^a$", {"a"}, {"", "ab", "ba"});
  expect_search("^a|b$", {"a", "ax", "b", "xb"}, {"", "xa", "bx", "xax"});
  expect_search("^a|b|c$|^d$", {"ax", "xbx", "xc", "d"}, {"xa", "cx", "dx", "xd", ""});
  expect_search("^(a|b)$", {"a", "b"}, {"ab", "xa", ""});
  expect_search("^$", {""}, {"a"});
  expect_search("^", {"", "a"}, {});
  expect_search("$", {"", "a"}, {});
  expect_search("^|a", {"", "b"}, {});
  expect_search("^^a$$", {"a"}, {"aa"});
  expect_search("^a*$|b", {"", "aa", "aba"}, {"ac"});
}

TEST(Regex, AnchorsInAGroupThatIsAll) {
  expect_search("(^a|b$)", {"a", "ax", "xb"}, {"xa", "bx"});
  expect_search("(?:(^a$)|(?<n>b))", {"a", "xbx"}, {"ax", "xa"});
  expect_search("^(a$|b)", {"a", "bx"}, {"ax", "xb"});
  expect_search("(a|^b)$", {"xa", "b"}, {"ax", "bx", "xb"});
  expect_search("(^a$)|(^b$)", {"a", "b"}, {"xa", "ax", "bb"});
  expect_search("^(^(^a$)$)$", {"a"}, {"aa"});
  expect_search("((a))", {"xax"}, {"x"});
}

TEST(Regex, AnchorsAreRedundantWhereItMatchesWholly) {
  for (const char* expression : {"a|b", "^a|b$", "^a$|^b$", "(^a|b$)", "^(a|b)$", "^(?:^a$|b)$"}) {
    expect_whole(expression, {"a", "b"}, {"", "ab", "xa", "bx"});
  }
}

TEST(Regex, SearchFindsItAnywhere) {
  expect_search("", {"", "anything\n\u20ac"}, {"\xff"});
  expect_search("bc", {"bc", "abcd", "a\nbc\n", "bbc", "bcbc", "\u20acbc"}, {"", "b", "cb", "b\nc", "bc\xff"});
  expect_search("a{2,3}", {"aa", "baab", "aaaaaa"}, {"a", "abab"});
  expect_search("a|", {"", "b"}, {});
  expect_search("(ab)+c", {"xababcx"}, {"abac"});
  expect_search("\u00e9", {"a\u00e9"}, {"\u00e8", "e"});
}

TEST(Regex, ErrorsSayWhatAndWhere) {
  expect_error("abcd(?=e)", "lookahead", 5);
  expect_error("(?!e)", "lookahead", 1);
  expect_error("a(?<=e)", "lookbehind", 2);
  expect_error("a(?<!e)", "lookbehind", 2);
  expect_error("\u20ac(?x:e)", "a group of an unknown kind", 2);
  expect_error("\u20ac(?i=e)", "a group of an unknown kind", 2);
  expect_error("(?", "a ( without its )", 1);
  expect_error("(?<>a)", "a group without a proper name", 1);
  expect_error("(?<a-b>a)", "a group without a proper name", 1);
  expect_error("(?<1>a)", "a group without a proper name", 1);
  expect_error("(?<abc)", "a group without a proper name", 1);
  expect_error("(a)\\1", "a back reference", 4);
  expect_error("(?<n>a)\\k<n>", "a back reference", 8);
  expect_error("\\bfoo", "a word boundary", 1);
  expect_error("foo\\B", "a word boundary", 4);
  expect_error("[\\B]", "a word boundary", 2);
  expect_error("\\p{L}", "a class by a Unicode property", 1);
  expect_error("[\\P{L}]", "a class by a Unicode property", 2);
  expect_error("a\\q", "the escape \\q", 2);
  expect_error("a\\c1", "the escape \\c", 2);
  expect_error("a\\00", "the escape \\0", 2);
  expect_error("ab\\", "a backslash with nothing behind it", 3);
  expect_error("\\x4", "an escape without its 2 hexadecimal digits", 1);
  expect_error("[\\x]4]", "an escape without its 2 hexadecimal digits", 2);
  expect_error("\\u004g", "an escape without its 4 hexadecimal digits", 1);
  expect_error("\\ud83d\\u12", "an escape without its 4 hexadecimal digits", 7);
  expect_error("\\u{}", "an escape without its hexadecimal digits", 1);
  expect_error("\\u{41", "an escape without its hexadecimal digits", 1);
  expect_error("\\u{110000}", "an escape above U+10FFFF", 1);
  expect_error("\\u{" + std::string(100, 'f') + "}", "an escape above U+10FFFF", 1);
  expect_error("a\xff", "what is not UTF-8", 2);
}

TEST(Regex, ErrorsOfBracketsAndQuantifiers) {
  expect_error("a(b", "a ( without its )", 2);
  expect_error("(a))", "a ) without its (", 4);
  expect_error("a[b", "a [ without its ]", 2);
  expect_error("[b\\]", "a [ without its ]", 1);
  expect_error("a]", "a bracket that was not opened", 2);
  expect_error("a}", "a bracket that was not opened", 2);
  expect_error("*a", "a quantifier on nothing", 1);
  expect_error("a|?", "a quantifier on nothing", 3);
  expect_error("(+)", "a quantifier on nothing", 2);
  expect_error("a**", "a quantifier on nothing", 3);
  expect_error("a{2}{3}", "a quantifier on nothing", 5);
  expect_error("^*", "a quantifier on nothing", 2);
  expect_error("a???", "a quantifier on nothing", 4);
  expect_error("{2}", "a quantifier on nothing", 1);
  expect_error("a{,2}", "a { without a number", 2);
  expect_error("a{2", "a { without its }", 2);
  expect_error("a{2,3,}", "a { without its }", 2);
  expect_error("a{x}", "a { without a number", 2);
  expect_error("a{3,2}", "bounds of which the second is the smaller one", 2);
  expect_error("[b-a]", "a range that ends before it begins", 2);
  expect_error("[\\d-z]", "a range that begins or ends with many characters", 2);
  expect_error("[x+-\\d]", "a range that begins or ends with many characters", 3);
  expect_error("a[]", "what no character matches", 2);
  expect_error("[^\\s\\S]", "what no character matches", 1);
  expect_error("a\\ud83d", "what no character matches", 2);
}

TEST(Regex, ErrorsOfAnchors) {
  constexpr const char* kBegin = "a ^ that is not at the beginning of an outermost alternative";
  constexpr const char* kEnd = "a $ that is not at the end of an outermost alternative";
  expect_error("a^b", kBegin, 2);
  expect_error("a$b", kEnd, 2);
  expect_error("$*", kEnd, 1);
  expect_error("$^", kEnd, 1);
  expect_error("(^a)b", kBegin, 2);
  expect_error("a(b$)", kEnd, 4);
  expect_error("(^a)*", kBegin, 2);
  expect_error("(a$)$b", kEnd, 3);
  expect_error("(?:^|,)a", kBegin, 4);
  expect_error("a(,|$)", kEnd, 5);
}

TEST(Regex, ErrorsShowLongPatternsInShort) {
  try {
    std::string expression(5000, 'a');
    expression += "(?=\u20ac)";
    grammar_of(expression);
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(error.message().size(), 200u);
    EXPECT_TRUE(error.message().starts_with("the pattern \"aaaa"));
    EXPECT_TRUE(error.message().ends_with("lookahead, at character 5001"));
  }
}

TEST(Regex, DeepNestingIsRefused) {
  const auto nested = [](int depth, std::string_view quantifier) {
    return repeated("(", depth) + "a" + repeated(std::string(")") += quantifier, depth);
  };
  for (const char* quantifier : {"", "*", "+", "?", "{1}", "b"}) {
    EXPECT_NO_THROW(grammar_of(nested(100, quantifier))) << quantifier;
  }
  expect_whole(nested(100, "*"), {"", "aaa"}, {"b"});
  expect_whole(nested(100, "{1}"), {"a"}, {""});
  for (const int depth : {101, 200'000}) {
    expect_error(nested(depth, ""), "more than 100 groups within each other", 101);
    expect_error(repeated("(?:", depth), "more than 100 groups within each other", 301);
  }
}

TEST(Regex, HugeCountsAreTooLarge) {
  for (const char* expression :
       {"a{0,200000}", "a{1000000000}", "a{4294967297}", "a{99999999999999999999999,}",
        "a{1,99999999999999999999999999999999999999999}", "(a{100000}){100000}", "(((){9999}){99999}){99999}"}) {
    try {
      grammar_of(expression);
      ADD_FAILURE() << expression;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTooLarge) << expression;
    }
  }
  const Grammar grammar = grammar_of("([a-z]{1000}-){1000}");
  EXPECT_LT(grammar.num_nodes(), 2100u);
  EXPECT_FALSE(matches(grammar, std::string(1000, 'a')));
  expect_whole("a{500,1000}", {std::string(500, 'a'), std::string(1000, 'a')},
               {std::string(499, 'a'), std::string(1001, 'a')});
}

TEST(Regex, ThousandsOfAlternativesAreFewPlaces) {
  const auto begin = std::chrono::steady_clock::now();
  std::string expression = "^(";
  for (int i = 0; i < 5000; ++i) expression += fmt::format("{}word\u4e00{}", i == 0 ? "" : "|", i * 17);
  const Grammar grammar = grammar_of(expression + ")$", TextForm::kJsonString, kAnywhere);
  EXPECT_TRUE(matches(grammar, "word\u4e0084983"));
  EXPECT_FALSE(matches(grammar, "word\u4e0084984"));
  EXPECT_EQ(GrammarState(grammar).num_places(), 1u);
  EXPECT_LT(seconds_since(begin), 10.0);
}

TEST(Regex, TimeGrowsWithTheExpression) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& expression :
       {repeated("[^a]", 5000), repeated("\\W", 5000), "[" + repeated("\\W", 20000) + "]", repeated("a|", 50000),
        repeated("^(a)$|", 20000), repeated("(a)", 20000), "[" + repeated("a-z", 50000) + "]", repeated("^", 100000),
        std::string(100, '(') + repeated("a", 20000) + repeated(")$", 100) + repeated("$", 50000)}) {
    EXPECT_NO_THROW(grammar_of(expression, TextForm::kJsonString, kAnywhere)) << expression.substr(0, 10);
  }
  EXPECT_LT(seconds_since(begin), 20.0);
}

// Expressions that both this and the standard library take, and in the same sense.
class RandomExpressions {
 public:
  std::string alternatives(int depth) {
    std::string out = sequence(depth);
    while (chance(3)) (out += '|') += sequence(depth);
    return out;
  }

  std::string anchored(int depth) {
    std::string out;
    do {
      if (!out.empty()) out += '|';
      if (chance(3)) out += '^';
      out += sequence(depth);
      if (chance(3)) out += '$';
    } while (chance(3));
    return out;
  }

  std::string text() {
    std::string out;
    for (auto left = random_() % 9; left > 0; --left) out += "abc-"[random_() % 4];
    return out;
  }

 private:
  bool chance(std::uint32_t of) { return random_() % of == 0; }

  std::string sequence(int depth) {
    std::string out;
    for (auto left = 1 + random_() % 3; left > 0; --left) {
      const bool is_group = depth > 0 && chance(3);
      if (is_group) out += chance(2) ? "(" : "(?:";
      out += is_group ? alternatives(depth - 1) : atom();
      if (is_group) out += ')';
      if (chance(2)) out += quantifier();
    }
    return out;
  }

  std::string atom() {
    static constexpr const char* kAtoms[] = {"a",      "b",    "c",    ".", "\\w", "\\W",
                                             "[^a-b]", "[ab]", "[^b]", "-", "\\d", "[\\Dc]"};
    return kAtoms[random_() % std::size(kAtoms)];
  }

  std::string quantifier() {
    static constexpr const char* kQuantifiers[] = {"?", "{2}", "{1,2}", "{0,2}", "{1}", "*", "+", "{2,}", "*?", "+?"};
    return kQuantifiers[random_() % std::size(kQuantifiers)];
  }

  std::mt19937 random_{1};
};

TEST(Regex, MatchesWhatTheStandardLibraryMatches) {
  // GNU's own flag: without it, loops of loops take for ever.
  constexpr auto kSyntax = std::regex::ECMAScript | std::regex_constants::__polynomial;
  RandomExpressions random;
  int num_matching = 0, num_others = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string whole = random.alternatives(2), part = random.anchored(2);
    const std::regex whole_regex(whole, kSyntax), part_regex(part, kSyntax);
    const Grammar whole_grammar = grammar_of(whole), part_grammar = grammar_of(part, TextForm::kPlain, kAnywhere);
    for (int i = 0; i < 30; ++i) {
      const std::string text = random.text();
      const bool is_match = std::regex_match(text, whole_regex);
      ++(is_match ? num_matching : num_others);
      ASSERT_EQ(matches(whole_grammar, text), is_match) << whole << " on " << text;
      ASSERT_EQ(matches(part_grammar, text), std::regex_search(text, part_regex)) << part << " in " << text;
    }
  }
  EXPECT_GT(num_matching, 1000);
  EXPECT_GT(num_others, 1000);
}

TEST(Regex, Flags) {
  expect_whole("(?i:ab)c", {"abc", "ABc", "aBc"}, {"abC"});
  expect_whole("a(?i)b[c-e]|f", {"ab" "d", "aBD", "F", "f"}, {"ABD"});
  expect_whole("(?i)^Ab$", {"ab", "AB"}, {""});
  expect_whole("(a(?i)b)c", {"abc", "aBc"}, {"aBC", "ABc"});
  expect_whole("(?i:a(?-i:b))", {"Ab", "ab"}, {"aB"});
  expect_whole("(?i:[^a-c])", {"d", "D", "1"}, {"a", "B"});
  expect_whole("(?i:@[`{])", {"@`", "@{"}, {"`@"});
  expect_whole("(?s:.).", {"\na", "aa"}, {"a\n"});
  expect_whole("(?si:.A)", {"\na", "\nA"}, {"\nb"});
  expect_whole("(?P<year>[0-9]{2})-(?<month>[0-9]{2})", {"26-12"}, {"2612"});
  expect_json("(?i:a\\nb)", {R"(A\nB)"}, {"a\nb"});
}

void expect_python(std::string_view expression, const std::vector<std::string>& yes, const std::vector<std::string>& no,
                   RegexFlags flags = {}) {
  GrammarBuilder builder;
  const Grammar grammar = builder.finish(add_python_regex(builder, expression, TextForm::kPlain, flags));
  for (const std::string& each : yes) EXPECT_TRUE(matches(grammar, each)) << expression << " on " << each;
  for (const std::string& each : no) EXPECT_FALSE(matches(grammar, each)) << expression << " on " << each;
}

TEST(Regex, Python) {
  expect_python(".+", {"a\r\u2028"}, {"\n", ""});
  expect_python("a{,2}", {"", "a", "aa"}, {"aaa", "a{,2}"});
  expect_python("{[a-z]+}]", {"{ab}]"}, {"{}]"});
  expect_python("a{b}{2}{}", {"a{b}}{}"}, {"a{b}{b}"});
  expect_python("ax{,}", {"a", "axx"}, {"ax{,}"});
  expect_python("[]a]+[^]a]", {"]a]b"}, {"b", "]]"});
  expect_python("[a\\]b-]", {"a", "]", "b", "-"}, {"\\"});
  expect_python(R"(\U0001F600\a\/)", {"\U0001F600\a/"}, {});
  expect_python(R"(^(?P<month>May|June)\s+\d{1,2}$)", {"May 12"}, {"May"});
  expect_python("a b # one\n [ #] \\ c", {"ab  c", "ab# c"}, {"a b"}, {.is_verbose = true});
  expect_python("a.b", {"A\nB"}, {"AB"}, {.ignores_case = true, .dot_is_any = true});
  for (const char* anchored : {"^a", "a$", "(a$)", "b|^a", "(?i)^a"}) {
    GrammarBuilder builder;
    EXPECT_THROW(add_python_regex(builder, anchored, TextForm::kPlain, {.is_within = true}), Error) << anchored;
  }
  for (const char* broken : {"[]", "[^]", "a**", "{2}", "(?P=n)", "(?<!a)b", "(?=a)", "\\Z", "(?>a)"}) {
    GrammarBuilder builder;
    EXPECT_THROW(add_python_regex(builder, broken, TextForm::kPlain), Error) << broken;
  }
}

}  // namespace
}  // namespace larder
