#include "grammar/gbnf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_state.h"
#include "grammar/grammar_test_support.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

Grammar parse_gbnf(std::string_view text) {
  GrammarBuilder builder(std::size_t{1} << 17);
  const Fragment whole = add_gbnf(builder, text);
  return builder.finish(whole);
}

void expect_texts(std::string_view rules, const std::vector<std::string_view>& of_it,
                  const std::vector<std::string_view>& not_of_it) {
  expect_texts_of(parse_gbnf(rules), rules, of_it, not_of_it);
}

std::string message_of(std::string_view rules, ErrorKind kind = ErrorKind::kInvalidArgument) {
  return message_of(parse_gbnf, rules, kind);
}

void expect_error(std::string_view rules, std::string_view part) { expect_error_of(parse_gbnf, rules, part); }

TEST(Gbnf, Elements) {
  expect_texts(R"(root ::= "ab")", {"ab"}, {"", "a", "abc", "b"});
  expect_texts(R"(root ::= "")", {""}, {"a"});
  expect_texts("root ::=", {""}, {"a"});
  expect_texts(R"(root ::= "a" | "bc" | "")", {"a", "bc", ""}, {"b", "abc"});
  expect_texts("root ::= [a-c] [^a-c] .", {"adz", "b\ns", "c\xc3\xa9\xf0\x9f\x98\x80"}, {"aaz", "dad", "ad", "ad\xc3"});
  expect_texts(R"(root ::= "a" ("b" | "c" "d") "e")", {"abe", "acde"}, {"ae", "abde", "ace"});
  expect_texts(R"(root ::= ("a" | ) "b")", {"ab", "b"}, {"a", ""});
  expect_texts("root ::= x-1 y_2\nx-1::=\"x\"\ny_2\t::= \"y\"", {"xy"}, {"x", "y"});
}

TEST(Gbnf, Repetitions) {
  expect_texts("root ::= [ab]*", {"", "a", "abba"}, {"c", "abc"});
  expect_texts("root ::= [ab]+", {"a", "abba"}, {"", "c"});
  expect_texts("root ::= \"ab\"?", {"", "ab"}, {"a", "abab"});
  expect_texts("root ::= \"ab\"{2}", {"abab"}, {"ab", "ababab", ""});
  expect_texts("root ::= \"a\"{2,}", {"aa", "aaaaaaa"}, {"a", ""});
  expect_texts("root ::= \"a\"{2,4}", {"aa", "aaa", "aaaa"}, {"a", "aaaaa", ""});
  expect_texts("root ::= \"a\" { 0 , 1 } \"b\"{0} \"c\"{0,}", {"", "a", "acc"}, {"aa", "ab", "b"});
  expect_texts("root ::= (\"a\" \"b\"{2}){2} \"c\"", {"abbabbc"}, {"abbc", "ababc"});
  expect_texts("root ::= (\"a\"*)* (\"b\"?)+ (\"c\"*){2,3} \"\"*", {"", "aabbcc", "bcccc"}, {"ba", "d"});
  expect_texts("root ::= \"a\"+? [b]?* \"c\"**", {"", "aabbc", "cc"}, {"ba"});
}

TEST(Gbnf, Escapes) {
  expect_texts(R"(root ::= "\n\r\t\\\"\[\]\-\x41\u00e9\U0001F600")", {"\n\r\t\\\"[]-A\xc3\xa9\xf0\x9f\x98\x80"}, {"n"});
  expect_texts(R"(root ::= [\]\[\\\-\x41\n\"])", {"]", "[", "\\", "-", "A", "\n", "\""}, {"n", "x", "^", ""});
  expect_texts(R"(root ::= "\xe9")", {"\xc3\xa9"}, {"\xe9"});
  expect_texts(R"(root ::= [\x00-\x1F"])", {std::string_view("\0", 1), "\x1f", "\""}, {" ", ""});
  expect_texts(R"(root ::= "[a-z]{2}|#")", {"[a-z]{2}|#"}, {"ab"});
}

TEST(Gbnf, Classes) {
  expect_texts("root ::= [+-]", {"+", "-"}, {","});
  expect_texts("root ::= [-+]", {"+", "-"}, {","});
  expect_texts("root ::= [a-c-e]", {"a", "c", "-", "e"}, {"d"});
  expect_texts("root ::= [a^]", {"a", "^"}, {"b"});
  expect_texts("root ::= [#|()*.\"]", {"#", "|", ")", ".", "\""}, {"a"});
  expect_texts("root ::= [^\\n]", {"a", "\xe2\x82\xac", "\r"}, {"\n", ""});
  expect_texts("root ::= [a-fc-hb]", {"a", "g", "h"}, {"i"});
  expect_texts("root ::= [\u3041-\u30ff\u4e00-\u9fffa]+", {"\u3042\u6f22a", "\u30ff\u4e00\u9fff"}, {"b", "\u3040"});
  expect_texts("root ::= [^\u0430-\u044f]", {"\u0410", "a", "\u0450", "\U0001F600"}, {"\u0430", "\u043f", "\u044f"});
  expect_texts("root ::= [\\U0001F600-\\U0001F64F]", {"\U0001F600", "\U0001F64F"}, {"\U0001F650", "\xf0\x9f\x98"});
  expect_texts("root ::= [\\uD000-\\uE000]", {"\ud7ff", "\ue000"}, {"\xed\xa0\x80", "\xed\xbf\xbf"});
  expect_texts("root ::= \"\u20ac\" \"\u00e9\"?", {"\u20ac", "\u20ac\u00e9"}, {"\xe2\x82"});
}

TEST(Gbnf, NoSequenceOfBytesThatIsNoCharacter) {
  const std::vector<std::string_view> broken = {"\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                                "\xff", "\xc3("};
  expect_texts("root ::= .*", {"", "\n", "a\u00e9\u20ac\U0001F600"}, broken);
  expect_texts("root ::= [^x]*", {"", "\n", "a\u00e9\u20ac\U0001F600"}, broken);
}

TEST(Gbnf, Layout) {
  const std::string_view kAb = "a|b";
  for (const std::string_view rules :
       {"root ::= \"a\" | \"b\"", "root ::= \"a\" |\n \"b\"", "root ::= \"a\"\n | \"b\"\n",
        "root ::=\n \"a\"\n|\n\"b\"", "# x\nroot ::= \"a\" # one | \"c\"\n# between\n\n  | \"b\" # two",
        "\r\nroot ::= \"a\"\r\n  | \"b\"\r\n", "root ::= (\n\"a\"\n|\n\"b\"\n)\n",
        "root ::= b |\na ::= \"z\"\nb ::= \"a\" | \"b\"", "  root ::= one # comment at the end\n  one ::= [ab]#",
        "b::=\"b\"\nroot::=\"a\"|b"}) {
    const Grammar grammar = parse_gbnf(rules);
    EXPECT_TRUE(matches(grammar, "a") && matches(grammar, "b")) << rules;
    EXPECT_FALSE(matches(grammar, "z") || matches(grammar, "ab") || matches(grammar, kAb)) << rules;
  }
  expect_texts("root ::= (\"a\"\n  \"b\"\n  ( # all\n \"c\" )\n  *\n)\n", {"ab", "abcc"}, {"a"});
}

TEST(Gbnf, Arithmetic) {
  expect_texts(R"gbnf(
    root  ::= (expr "=" ws term "\n")+
    expr  ::= term ([-+*/] term)*
    term  ::= ident | num | "(" ws expr ")" ws
    ident ::= [a-z] [a-z0-9_]* ws
    num   ::= [0-9]+ ws
    ws    ::= [ \t\n]*
  )gbnf",
               {"1+2=3\n", "x *(y2 -10) = z\n", "((1))=1\na=b\n"}, {"1+=3\n", "1+2=3", "(1=1\n", "", "2x=1\n"});
}

constexpr std::string_view kJson = R"(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space
ws ::= | " " | "\n" [ \t]{0,20}
)";

TEST(Gbnf, Json) {
  expect_texts(
      kJson,
      {"{}", "{ \"a\": 1}", R"({"a":[1,-2.5e+3,"x\u00e9\n",true,null,{"b":[]}],"c":{}})",
       "{\n  \"k\":\"\u00e9\u20ac\U0001F600\"}"},
      {"", "[]", "{", "{\"a\"}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\n\"}", R"({"a":"\x"})", "{}}", "{'a':1}"});
}

TEST(Gbnf, JsonOfTheOldSpaces) {
  const Grammar grammar =
      parse_gbnf("root ::= \"[\" ws ([0-9] ws (\",\" ws [0-9] ws)*)? \"]\"\nws ::= ([ \\t\\n] ws)?");
  EXPECT_TRUE(matches(grammar, "[ 1 ,\n\t2,3   ]"));
  EXPECT_TRUE(matches(grammar, "[" + std::string(10'000, ' ') + "]"));  // calls that are the last thing of their rule
  EXPECT_FALSE(matches(grammar, "[1 2]"));
}

TEST(Gbnf, ChessAndLists) {
  expect_texts(R"(
root    ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move    ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
)",
               {"1. e4 e5\n2. Nf3 Nc6\n", "1. O-O-O O-O+\n12. exd8=Q# Rad1\n"},
               {"1. e4 e5\n", "1. e9 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. Nf3\n"});
  expect_texts("root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"",
               {"- one\n", "- \u00e9t\u00e9\n- two\n"}, {"", "- \n", "one\n", "- a\u2028\n", "- one"});
}

TEST(Gbnf, Recursion) {
  expect_texts("root ::= \"(\" root \")\" root | \"\"", {"", "()", "(())()", "((()()))"}, {"(", ")", "(()", "())"});
  expect_texts("root ::= \"a\" root \"b\" | \"c\"", {"c", "acb", "aaacbbb"}, {"ac", "acbb", "ab"});
  expect_texts("root ::= a\na ::= \"x\" b | \"\"\nb ::= \"y\" a", {"", "xy", "xyxy"}, {"x", "xyx"});
}

// As llama.cpp makes them of schemas.
TEST(Gbnf, NamesBeginWithDigitsAndHyphens) {
  expect_texts("root ::= -id 2fa? 0\n-id ::= \"a\"\n2fa ::= \"b\" -\n- ::= \"c\"\n0 ::= \"d\"", {"ad", "abcd"}, {"a", "abd"});
}

TEST(Gbnf, ErrorsOfRules) {
  expect_error("", "no rule 'root'");
  expect_error("# only this", "no rule 'root'");
  expect_error("rot ::= \"a\"", "no rule 'root'");
  expect_error("root ::= \"a\"\n\n  b", "line 3: a rule is expected, as name ::= ..., and not 'b'");
  expect_error("root ::= \"a\"\n\"b\"", "line 2: a rule is expected");
  expect_error("\n\"b\"", "line 2: a rule is expected");
  expect_error("root ::= \"a\"\n* ", "line 2: a rule is expected, as name ::= ..., and not '*'");
  expect_error("root ::= \"a\" b ::= \"c\"", "line 1: the rule 'b' begins within the line of another");
  expect_error("root ::= a |\n b\nb ::= \"b\"\n", "line 1: there is no rule 'a'");
  expect_error("root ::= \"b\" |\n a\nb ::= \"b\"\n", "line 2: there is no rule 'a'");
  expect_error("root ::= \"a\"\nb ::= \"b\"\n#\nroot ::= b", "line 4: the rule 'root' is defined a second time");
  expect_error("root ::= \"a\"\nb := \"b\"", "line 2: a rule is written as name ::=");
  expect_error("root = \"a\"", "line 1: a rule is written as name ::=");
  expect_error("root ::= a : b", "line 1: a rule is written as name ::=");
  expect_error("root: \"a\"", "line 1: a rule is written as name ::=");
  expect_error("root ::= a\n%ignore \" \"\n", "line 2: a rule is written as name ::=");
  expect_error("::= \"a\"", "line 1: a rule is written as name ::=");
  expect_error("_a ::= \"a\"", "line 1: unexpected character '_'");
}

TEST(Gbnf, ErrorsOfElements) {
  expect_error("root ::= \"a\n\nb ::= c", "line 1: the literal that begins here has no end");
  expect_error("root ::=\n\"a\\\"", "line 2: the literal that begins here has no end");
  expect_error("root ::= [a-", "line 1: the class that begins here has no end");
  expect_error("root ::= [^", "line 1: the class that begins here has no end");
  expect_error("root ::=\n\n [z-a]", "line 3: the class has a range whose end");
  expect_error("root ::= []", "line 1: the class is empty");
  expect_error("root ::= [^]", "line 1: the class is empty");
  expect_error("root ::= [^\\x00-\\U0010FFFF]", "line 1: the class leaves no character");
  expect_error("root ::= [^\\x00-\\ud7ff\\ue000-\\U0010FFFF]", "line 1: the class leaves no character");
  expect_error("root ::=\n\"\\q\"", "line 2: unknown escape '\\q'");
  expect_error("root ::= \"\\", "line 1: unknown escape '\\'");
  expect_error("root ::= \"\\x4\"", "line 1: the escape takes 2 hexadecimal digits");
  expect_error("root ::= \"\\u12g4\"", "line 1: the escape takes 4 hexadecimal digits");
  expect_error("root ::= \"\\U0001F60", "line 1: the escape takes 8 hexadecimal digits");
  expect_error("root ::= \"\\uD800\"", "line 1: U+D800 is no character");
  expect_error("root ::= [a\\U00110000]", "line 1: U+110000 is no character");
  expect_error("root ::= \"\\UFFFFFFFF\"", "line 1: U+FFFFFFFF is no character");
  expect_error("root ::= \"\xc3(\"", "line 1: the text is not UTF-8");
  expect_error("root ::= [\x80]", "line 1: the text is not UTF-8");
  expect_error("root ::= \xc3\xa9", "line 1: unexpected character '?'");
  expect_error(std::string_view("root ::= \"a\" \0", 14), "line 1: unexpected character '?'");
  expect_error("root ::= 'a'", "line 1: a literal is written in double quotes");
  expect_error("root ::=\n <think> \"a\"", "line 2: tokens in a grammar (as in <think>) are not supported");
  expect_error("root ::= !<[1000]>", "line 1: tokens in a grammar");
  expect_error("root ::= \"a\" ; \"b\"", "line 1: unexpected character ';'");
}

TEST(Gbnf, ErrorsOfGroupsAndRepetitions) {
  expect_error("root ::= (\"a\"\n\"b\"\n", "line 1: the group that begins here has no )");
  expect_error("root ::=\n(\"a\"\n\nb ::= \"b\")", "line 2: the group that begins here has no )");
  expect_error("root ::= \"a\")", "line 1: the ) has no ( before it");
  expect_error("root ::= *", "line 1: there is nothing before '*'");
  expect_error("root ::= \"a\" |\n + \"b\"", "line 2: there is nothing before '+'");
  expect_error("root ::= (? \"b\")", "line 1: there is nothing before '?'");
  expect_error("root ::= {2}", "line 1: there is nothing before '{2}'");
  expect_error("root ::= \"a\"{3,2}", "line 1: the repetitions {3,2} have a least number above the greatest");
  for (const char* bounds :
       {"{", "{}", "{,}", "{,3}", "{a}", "{-1}", "{2", "{2,", "{2,3", "{2 3}", "{2,3,4}", "{2,a}"}) {
    expect_error("root ::=\n\"a\"" + std::string(bounds), "line 2: repetitions are written {m}, {m,} or {m,n}");
  }
}

TEST(Gbnf, RulesThatBeginWithThemselves) {
  expect_texts("x ::= \"x\"\nroot ::= root \"a\" | x", {"x", "xa", "xaaa"}, {"", "a", "xx", "xax"});
  expect_texts("root ::= e\ne ::= \"n\" | (\"-\"? (e) \"+\" e)", {"n", "n+n", "-n+n+n", "n+-n+n"}, {"-n", "n+", "+n", "nn"});
  expect_texts(R"gbnf(root ::= sum
sum ::= sum [+-] product | product
product ::= product [*/] atom | atom
atom ::= [0-9] | "(" sum ")" | "-" atom)gbnf",
               {"1", "1+2*3-4/5", "(1+2)*-3", "((1))+(2)-1*1*1*1"}, {"", "1+", "+1", "1++2", "(1", "1)", "12", "1*/2"});
  expect_texts("root ::= (\"a\" | root)* \"b\"", {"b", "ab", "aab", "bb", "abab"}, {"", "a", "ba"});
  // Behind what may be empty, and being empty itself.
  expect_texts("root ::= ws root \"a\" | \"b\"\nws ::= \" \"*", {"b", "ba", " ba", "   baaa"}, {"", "a", " b", "b a", " baa "});
  expect_texts("root ::= ws root \"a\" | \"b\"\nws ::= v? v\nv ::= \" \"?", {"b", "ba", " ba", "    baaa"}, {"", "a", " b"});
  expect_texts("root ::= root \"a\" | \"\"", {"", "a", "aaa"}, {"b", "ab"});
  expect_texts("root ::= root root | \"a\" | \"\"", {"", "a", "aaaa"}, {"b", "ab"});
  expect_texts("root ::= n root \"a\" | \"b\"\nn ::= n \"c\" | \"\"", {"b", "ba", "cba", "cccbaa", "ccbaa"}, {"", "cb", "cbac"});
  expect_texts("root ::= root | \"a\"", {"a"}, {"", "aa"});
}

TEST(Gbnf, RulesThatBeginWithEachOther) {
  expect_texts("root ::= a\na ::= b \"x\" | \"1\"\nb ::= a \"y\" | \"2\"", {"1", "2x", "1yx", "2xyx", "1yxyx"},
               {"", "2", "1x", "1y", "2y", "1yxy", "2xx"});
  expect_texts("root ::= a | b\na ::= b \"x\" | c \"1\"\nb ::= a \"y\" | b \"z\" | \"2\"\nc ::= a | \"(\" b \")\"",
               {"2", "2x", "2x1", "2xy", "2zzx", "2zx1y", "(2)1", "(2x1y)1yzx", "(2)11"}, {"", "1", "(2)", "2y", "2x)", "(2)x", "(2x)1"});
  expect_texts("root ::= \"a\" b\nb ::= c \"x\" | \"y\"\nc ::= [0-9]* b", {"ay", "ayx", "a12yx", "a12yxx", "a1yxx"}, {"a", "a1y", "ax"});
  // A member of a member, a call of a call.
  expect_texts("root ::= e\ne ::= e \".\" n | e \"(\" l \")\" | n\nl ::= l \",\" e | e | \"\"\nn ::= [a-z]",
               {"a", "a.b", "a.b(c.d,e()).f(g)()", "a(,b)"}, {"a.", "a(b", "a(b,)", ".a", "a()b"});
}

// Alternatives of each rule, of letters and the names of rules.
using Ways = std::vector<std::vector<std::vector<std::string>>>;

Ways random_ways(std::mt19937& random) {
  Ways ways(3);
  for (auto& rule : ways) {
    rule.resize(1 + random() % 3);
    for (auto& way : rule) {
      way.resize(random() % 4);
      for (std::string& part : way) part = std::vector<std::string>{"a", "b", "r0", "r1", "r2"}[random() % 5];
    }
  }
  return ways;
}

std::string written(const Ways& ways) {
  std::string rules = "root ::= r0";
  for (std::size_t i = 0; i < ways.size(); ++i) {
    rules += fmt::format("\nr{} ::=", i);
    for (const auto& way : ways[i]) {
      rules += &way == &ways[i].front() ? "" : " |";
      for (const std::string& part : way) rules += part.size() == 1 ? " \"" + part + "\"" : " " + part;
    }
  }
  return rules;
}

// Texts of the first rule, of some length at most: what is derived step by step, until nothing new comes.
std::set<std::string> texts_of(const Ways& ways, std::size_t max_length) {
  std::vector<std::set<std::string>> texts(ways.size());
  const auto derive = [&](const std::vector<std::string>& way) {
    std::set<std::string> derived{""};
    for (const std::string& part : way) {
      std::set<std::string> longer;
      const std::set<std::string> ends = part.size() == 1 ? std::set{part} : texts[static_cast<std::size_t>(part[1] - '0')];
      for (const std::string& begin : derived)
        for (const std::string& end : ends)
          if (begin.size() + end.size() <= max_length) longer.insert(begin + end);
      derived = std::move(longer);
    }
    return derived;
  };
  for (bool grows = true; grows;) {
    grows = false;
    for (std::size_t i = 0; i < ways.size(); ++i)
      for (const auto& way : ways[i])
        for (const std::string& text : derive(way)) grows |= texts[i].insert(text).second;
  }
  return texts[0];
}

TEST(Gbnf, RandomRulesMatchWhatIsDerivedFromThem) {
  constexpr std::size_t kMaxLength = 5;
  std::mt19937 random(7);
  std::size_t num_checked = 0, num_too_many = 0;
  for (int round = 0; round < 400; ++round) {
    const Ways ways = random_ways(random);
    const std::string rules = written(ways);
    if (message_of(rules) != "no error") continue;
    const std::set<std::string> texts = texts_of(ways, kMaxLength);
    const Grammar grammar = parse_gbnf(rules);
    for (unsigned number = 1; number < 2u << kMaxLength; ++number) {  // a one, and a bit for each letter
      std::string text;
      for (unsigned bits = number; bits > 1; bits >>= 1) text += "ab"[bits & 1];
      GrammarState state(grammar);
      const bool is_of_it = std::ranges::all_of(text, [&](char c) { return state.push(static_cast<std::uint8_t>(c)); });
      num_too_many += state.has_too_many() ? 1 : 0;
      if (state.has_too_many()) continue;
      ++num_checked;
      EXPECT_EQ(is_of_it && state.is_whole(), texts.contains(text)) << rules << "\n" << text;
    }
  }
  EXPECT_GT(num_checked, 15'000u);
  EXPECT_LT(num_too_many, num_checked / 50);
}

TEST(Gbnf, LongSumsTakeNoDepth) {
  const Grammar grammar = parse_gbnf("root ::= root \"+\" t | t\nt ::= t \"*\" [0-9] | [0-9]");
  std::string sum = "1";
  for (int i = 0; i < 5'000; ++i) sum += "+2*3";
  EXPECT_TRUE(matches(grammar, sum));
  EXPECT_FALSE(matches(grammar, sum + "+"));
}

TEST(Gbnf, RulesWithoutAnotherBeginningAreRefused) {
  expect_error("root ::= root", "line 1: the rule 'root' begins with itself (left recursion)");
  expect_error("root ::= root \"a\"", "line 1: the rule 'root' begins with itself");
  expect_error("root ::= \"a\" | b\nb ::= c \"x\"\nc ::= [0-9]* b", "line 2: the rule 'b' begins with itself");
  EXPECT_EQ(message_of("root ::= ws \"a\" root | \"b\"\nws ::= \" \"*"), "no error");
}

TEST(Gbnf, TextsWithMistakesAreReadOrRefused) {
  std::mt19937 random(1);
  constexpr std::string_view kBytes = "\"\\[]-^(){}|*+?.,#:=<! \nar09\xc3\xff";
  int num_read = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string rules(kJson);
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      const std::size_t at = random() % rules.size();
      if (random() % 3 == 0) rules.erase(at, 1 + random() % 4);
      if (random() % 2 == 0) rules.insert(at % rules.size(), 1, kBytes[random() % kBytes.size()]);
      if (random() % 40 == 0) rules.resize(at + 1);
    }
    const std::string message = message_of(rules);
    num_read += message == "no error" ? 1 : 0;
    EXPECT_TRUE(message == "no error" || message.starts_with("line ") || message.find("root") != std::string::npos ||
                message.find("left recursion") != std::string::npos)
        << message;
  }
  EXPECT_GT(num_read, 200);
  EXPECT_LT(num_read, 1800);
}

TEST(Gbnf, HostileTextsEndInTime) {
  const auto start = std::chrono::steady_clock::now();
  const auto groups = [](std::size_t n) { return "root ::= " + std::string(n, '(') + "\"a\"" + std::string(n, ')'); };
  expect_texts(groups(200), {"a"}, {""});
  expect_error(groups(201), "line 1: there are more than 200 groups within each other");
  expect_error("root ::= " + std::string(1'000'000, '('), "more than 200 groups");
  expect_texts("root ::= " + std::string(199, '(') + "\"a\"" + std::string(199, ')') + "{2} (\"b\")", {"aab"}, {"ab"});

  std::string chain, left_chain = "root ::= r0\n";
  for (int i = 0; i < 10'000; ++i) chain += fmt::format("r{} ::= \"{}\" r{}\n", i, i % 10, i + 1);
  for (int i = 0; i < 10'000; ++i) left_chain += fmt::format("r{} ::= r{} | \"{}\"\n", i, i + 1, i);
  const Grammar long_one = parse_gbnf(chain + "r10000 ::= \"\"\nroot ::= r9000");
  std::string digits;
  for (int i = 9'000; i < 10'000; ++i) digits += static_cast<char>('0' + i % 10);
  EXPECT_TRUE(matches(long_one, digits));
  EXPECT_FALSE(matches(long_one, digits + "0"));
  EXPECT_EQ(message_of(left_chain + "r10000 ::= \"end\""), "no error");
  EXPECT_NE(message_of(left_chain + "r10000 ::= r0", ErrorKind::kTooLarge), "no error");
  left_chain.clear();
  for (int i = 0; i < 5'000; ++i) left_chain += fmt::format("r{} ::= r{} \"{}\" | \"{}\"\n", i, i, i, i + 1);
  expect_texts(left_chain + "root ::= r4999", {"5000", "50004999"}, {"4999", "50005000"});
  EXPECT_NE(message_of(left_chain + "r10000 ::= r10001").find("line 5001: there is no rule 'r10001'"), std::string::npos);

  for (const char* bounds : {"{100000}", "{0,131072}", "{131073}", "{1,99999999999999999999999}", "{100000}{2}"}) {
    const std::string rules = "root ::= \"a\"" + std::string(bounds) + "\"b\"{100000}";
    EXPECT_NE(message_of(rules, ErrorKind::kTooLarge), "no error") << bounds;
  }
  expect_texts("root ::= ((\"a\"{100}){100}){100}", {}, {"a", ""});
  expect_texts("root ::= \"a\"" + std::string(2'000, '*'), {"", "aaa"}, {"b"});
  EXPECT_NE(message_of("root ::= \"" + std::string(2'000'000, 'a') + "\"", ErrorKind::kTooLarge), "no error");

  std::string wide = "root ::= [";
  for (char32_t c = 0x4E00; c < 0x9FFF; c += 2) append_utf8(c, wide);
  expect_texts(wide + "]+", {"\u4e00\u4e02", "\u9ffc"}, {"\u4e01", "\u9ffd"});
  std::string empty = "root ::= ";
  for (int i = 0; i < 200'000; ++i) empty += '|';
  EXPECT_EQ(message_of(empty.substr(0, 40'000) + " \"a\""), "no error");
  EXPECT_NE(message_of(empty, ErrorKind::kTooLarge), "no error");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace larder
