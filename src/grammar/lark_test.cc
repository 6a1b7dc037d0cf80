#include "grammar/lark.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_test_support.h"
#include "grammar/grammar_text.h"

namespace larder {
namespace {

Grammar parse_lark(std::string_view text, TextForm form = TextForm::kPlain) {
  return grammar_of([&](GrammarBuilder& builder) { return add_lark(builder, text, form); });
}

void expect_texts(std::string_view rules, const std::vector<std::string_view>& of_it,
                  const std::vector<std::string_view>& not_of_it, TextForm form = TextForm::kPlain) {
  expect_texts_of(parse_lark(rules, form), rules, of_it, not_of_it);
}

Grammar read_lark(std::string_view rules) { return parse_lark(rules); }

std::string message_of(std::string_view rules, ErrorKind kind = ErrorKind::kInvalidArgument) {
  return message_of(read_lark, rules, kind);
}

void expect_error(std::string_view rules, std::string_view part) { expect_error_of(read_lark, rules, part); }

TEST(Lark, Elements) {
  expect_texts(R"(start: "ab")", {"ab"}, {"", "a", "abc", "b"});
  expect_texts(R"(start: "a" | "bc" |)", {"a", "bc", ""}, {"b", "abc"});
  expect_texts("start:\n  | \"a\"\n  | b -> c\nb: \"b\" // one\n # two\n", {"", "a", "b"}, {"ab"});
  expect_texts(R"(start: ("a" "b" | "c")+ ["d"] "e"?)", {"ab", "abc", "cd", "cde", "ce"}, {"", "d", "a", "cee"});
  expect_texts(R"(start: "a"~2 "b"~1..3 "c"{2} "d"{1,2} "e"{,1} "f"{2,})", {"aabccdff", "aabbbccddefff"},
               {"abccdff", "aabccdf", "aabbbbccdff"});
  expect_texts(R"(start: "a".."c" "\u03b1".."\u03b3"i "x".."z"i)", {"b\u03b2Y", "c\u03b3x"}, {"dab", "B\u03b2y"});
  expect_texts(R"(start: "SeLect"i "x")", {"SELECTx", "selectx"}, {"selectX"});
  expect_texts(R"(start: "\n\t\"\\\/\x41\u00e9\ud83d\ude00\U0001F600")", {"\n\t\"\\/A\u00e9\U0001F600\U0001F600"}, {});
  expect_texts("start: A B\nA.2: \"a\" | B\nB.-1: \"b\"+\n", {"ab", "bb", "bbb"}, {"a", "b"});
  expect_texts("?start: _a\n!_a: b\n?!b.3: \"x\"\n", {"x"}, {""});
  expect_texts("start: (\n \"a\"\n | \"b\"\n) \"c\"\n", {"ac", "bc"}, {"c"});
  expect_texts("start: \"\" a\na: \"\" | \"a\" a", {"", "aa"}, {"b"});
}

TEST(Lark, Expressions) {
  expect_texts(R"(start: /[a-z]+(?P<n>\d)?/ | /a.b/s | /x y # z
 w/x | /ab/i)",
               {"ab", "ab1", "a\nb", "xyw", "AB"}, {"1", "x y", "abc1d"});
  expect_texts(R"(start: /\/\// "//" /[^\/"]+/)", {"////a"}, {"///a"});
  expect_error("start: \"a\"\nA: /(?<=a)b/", "line 2: the pattern \"(?<=a)b\" is not supported: lookbehind, at character 1");
  expect_error("start: /^a/", "a ^ or $ in a part of a text, at character 1");
  expect_error("start: /a$/m", "a ^ or $ in a part of a text");
  expect_error("start: /a\nb/", "line 1: the expression that begins here has no / in its line");
  expect_error("start: /ab", "line 1: the expression that begins here has no / at its end");
  expect_texts("start: \"a\"b /c/b\nb: \"B\"i", {"aBcb"}, {"abc"});  // what touches an element is the next
  expect_texts("start: \"a\" \\\n  \"b\"", {"ab"}, {"a"});
}

TEST(Lark, Ignore) {
  constexpr std::string_view kList = R"(
start: "[" [NUMBER ("," NUMBER)*] "]"
%import common (NUMBER, WS)
%ignore WS
%ignore "#" /[^\n]*/ "\n"
)";
  expect_texts(kList, {"[]", " [ 1 ,\n2.5e3 ] \n", "[1,#a,]\n 2]", "#x\n[\t]"}, {"", "[1 2]", "[1,]", "[1#\n2]"});
  expect_texts("start: A B\nA: \"a\" \"a\"\nB: \"b\"\n%ignore \" \"", {"aab", " aa  b "}, {"a ab"});
  expect_texts("start: \"a\"*\n%ignore \" \"", {"", " ", " a a"}, {"b"});
}

TEST(Lark, CommonTerminals) {
  const auto expect_common = [](std::string_view name, const std::vector<std::string_view>& yes,
                                const std::vector<std::string_view>& no) {
    expect_texts("%import common." + std::string(name) + " -> X\nstart: X", yes, no);
  };
  expect_common("INT", {"0", "042"}, {"", "-1", "1."});
  expect_common("SIGNED_NUMBER", {"-1", "+2.", ".5", "1e5", "-1.5E-3"}, {".", "e5", "--1"});
  expect_common("SIGNED_FLOAT", {"-1.0", "1e5", ".5", "1."}, {"1", "e5"});
  expect_common("DECIMAL", {"1.", ".5"}, {"1", "."});
  expect_common("ESCAPED_STRING", {R"("")", R"("a\"b\\")"}, {R"("a"b")", "\"\n\"", R"("\")"});
  expect_common("CNAME", {"_a1", "B"}, {"1a", ""});
  expect_common("NEWLINE", {"\n", "\r\n\n"}, {"\r", ""});
  expect_common("C_COMMENT", {"/**/", "/* a * b\n**/"}, {"/*/", "/* */ */"});
  expect_common("SQL_COMMENT", {"--", "-- a"}, {"-", "--\n"});
  for (const char* name : {"DIGIT", "HEXDIGIT", "SIGNED_INT", "FLOAT", "NUMBER", "LCASE_LETTER", "UCASE_LETTER", "LETTER", "WORD",
                           "WS_INLINE", "WS", "CR", "LF", "SH_COMMENT", "CPP_COMMENT", "_STRING_INNER", "_STRING_ESC_INNER"})
    EXPECT_EQ(message_of("%import common." + std::string(name) + "\nstart: " + name), "no error");
  expect_texts("%import common.WORD\n%import common.WS_INLINE -> _SP\nstart: WORD (_SP WORD)*", {"a b", "Hi"}, {"a ", "1"});
  expect_error("start: A\n%import common.NO", "line 2: common has no terminal 'NO'");
  expect_error("start: A\n%import python.NAME", "line 2: 'python.NAME' cannot be imported; only common's terminals");
  expect_error("start: A\n%import .mine.NAME", "line 2: there are no files to import from");
  expect_error("start: A\n%import common", "line 2: 'common' cannot be imported");
  expect_error("start: A\n%import common.a.b", "line 2: 'common.a.b' cannot be imported");
}

// Lark's own example, left recursion and aliases included.
constexpr std::string_view kCalculator = R"lark(
    ?start: sum
          | NAME "=" sum    -> assign_var
    ?sum: product
        | sum "+" product   -> add
        | sum "-" product   -> sub
    ?product: atom
        | product "*" atom  -> mul
        | product "/" atom  -> div
    ?atom: NUMBER           -> number
         | "-" atom         -> neg
         | NAME             -> var
         | "(" sum ")"
    %import common.CNAME -> NAME
    %import common.NUMBER
    %import common.WS_INLINE
    %ignore WS_INLINE
)lark";

TEST(Lark, Calculator) {
  expect_texts(kCalculator, {"1+2", "a = 1 - 2*(3 + -b) / 4.5", "--1", "((x))", "1 +1\t-1*1*1"},
               {"", "1+", "a=", "a=b=c", "1\n+1", "(1", "2 2"});
  std::string sum = "1";
  for (int i = 0; i < 3'000; ++i) sum += " + 1";
  EXPECT_TRUE(matches(parse_lark(kCalculator), sum));
}

// As outlines sends it to vLLM.
TEST(Lark, Json) {
  expect_texts(R"(?start: value

?value: object
| array
| ESCAPED_STRING
| SIGNED_NUMBER      -> number
| "true"             -> true
| "false"            -> false
| "null"             -> null

array  : "[" [value ("," value)*] "]"
object : "{" [pair ("," pair)*] "}"
pair   : ESCAPED_STRING ":" value

%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS

%ignore WS
)",
               {R"({"a": [1, -2.5e3, "x\"", true], "b": {}})", "[]", "null", " [ [ ] ] "}, {"", "{a:1}", "[1,]", "{\"a\"}", "tru", "'a'"});
}

// The grammar of the tool with which OpenAI's Codex edits files.
constexpr std::string_view kPatch = R"(start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
)";

TEST(Lark, CodexPatch) {
  expect_texts(kPatch,
               {"*** Begin Patch\n*** Add File: a.py\n+x\n+\n*** End Patch",
                "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ def f():\n-a\n+b\n c\n*** End of File\n*** Delete File: c\n*** End Patch\n"},
               {"*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a\n*** End Patch", "x",
                "*** Begin Patch\n*** Update File: a\nx\n*** End Patch"});
  expect_texts(kPatch, {R"(*** Begin Patch\n*** Add File: a\n+x = \"\\n\"\t\u0007\n*** End Patch)"},
               {"*** Begin Patch\n*** Add File: a\n+x\n*** End Patch", R"(*** Begin Patch\n*** Add File: a\n+"\n*** End Patch)",
                R"(*** Begin Patch\u000a*** Add File: a\n+x\n*** End Patch)"},
               TextForm::kJsonString);
}

TEST(Lark, CodexScripts) {
  expect_texts(R"(
start: pragma_source | plain_source
pragma_source: PRAGMA_LINE NEWLINE SOURCE
plain_source: SOURCE

PRAGMA_LINE: /[ \t]*\/\/ @exec:[^\r\n]*/
NEWLINE: /\r?\n/
SOURCE: /[\s\S]+/
)",
               {R"(// @exec: {\"a\": 1}\nprint(\"\\n\")\n)", "x", R"(\n)"}, {"", "\n", "\""}, TextForm::kJsonString);
}

// OpenAI's examples of custom tools.
TEST(Lark, OpenAisExamples) {
  expect_texts(R"(
start: expr
expr: term (SP ADD SP term)* -> add
| term
term: factor (SP MUL SP factor)* -> mul
| factor
factor: INT
SP: " "
ADD: "+"
MUL: "*"
%import common.INT
)",
               {"4 + 4", "1", "2 * 3 + 10"}, {"4+4", "4 + ", "+ 4"});
  expect_texts(R"(
// ---------- Punctuation & operators ----------
SP: " "
COMMA: ","
GT: ">"
EQ: "="
SEMI: ";"

// ---------- Start ----------
start: "SELECT" SP "TOP" SP NUMBER SP select_list SP "FROM" SP table SP "WHERE" SP amount_filter SP "AND" SP date_filter SP "ORDER" SP "BY" SP sort_cols SEMI

// ---------- Projections ----------
select_list: column (COMMA SP column)*
column: IDENTIFIER

// ---------- Tables ----------
table: IDENTIFIER

// ---------- Filters ----------
amount_filter: "total_amount" SP GT SP NUMBER
date_filter: "order_date" SP GT SP DATE

// ---------- Sorting ----------
sort_cols: "order_date" SP "DESC"

// ---------- Terminals ----------
IDENTIFIER: /[A-Za-z_][A-Za-z0-9_]*/
NUMBER: /[0-9]+/
DATE: /'[0-9]{4}-[0-9]{2}-[0-9]{2}'/
)",
               {"SELECT TOP 5 id, total FROM orders WHERE total_amount > 500 AND order_date > '2025-01-01' ORDER BY order_date DESC;"},
               {"SELECT id FROM orders;", "select TOP 5 id FROM orders"});
}

TEST(Lark, TimesListsAndRulesOfEachOther) {
  expect_texts(R"lark(
start: "(" YEAR "-" MONTH "-" DAY "T"i HOUR ":" MIN [":" SEC] ")"
YEAR: DIGIT~4
MONTH: "0" "1".."9" | "1" "0".."2"
DAY: /0[1-9]|[12]\d|3[01]/
HOUR: /([01]\d|2[0-3])/
MIN: /[0-5]\d/x
SEC: MIN ("." DIGIT~1..3)?
%import common.DIGIT
)lark",
               {"(2025-12-01T10:11:12.5)", "(1999-01-31t00:00)"}, {"(2025-13-01T10:11)", "(2025-12-32T10:11)", "(2025-12-01T10:11:12.)"});
  expect_texts(R"lark(
start: header row+
header: "#" " "? (WORD _SEPARATOR?)+ _NEWLINE
row: (value _SEPARATOR?)+ _NEWLINE
value: /[0-9]+/ | /[a-z]+/
_SEPARATOR: /[ ]+/ | "\t" | ","
_NEWLINE: /\n/
%import common.WORD
)lark",
               {"# a b\n1,2\nab\t3\n", "#a\n1\n"}, {"# a b\n", "# a b\n1,2", "#\n1\n", "# a\n,1\n"});
  expect_texts("start: a\na: b \"x\" | \"1\" | c a \"z\"\nb: a \"y\" | \"2\" | c\nc: b \"w\" | \"v\"\n",
               {"1yx", "2wx", "vx", "v1z", "2w1yxz"}, {"2", "v", "1x", "2z", "wx", "v1"});
}

// As its ll_grammar() writes select(), gen(), a recursive function and json().
TEST(Lark, Guidance) {
  expect_texts(R"(%llguidance {}

start: "Say: " q x expr
q[capture]: Q

Q: "yes"
     | "no"

x[capture="the x", stop_capture="y"]: X
X: /[a-z ]+/
expr: expr "+" "1"
     | "1"
)",
               {"Say: yesab1", "Say: nox1+1+1"}, {"Say: yes1", "Say: maybe x1"});
  expect_texts("%llguidance {}\n\nstart: START\nSTART: A+ B{0,3}\nA: \"a\"\n     | \"b\\n\"\nB: /(?s:.)/\n", {"aab\nx\ny"}, {"x"});
  constexpr std::string_view kSchema = R"(%llguidance {}

start: json

json: %json {
  "type": "object",
  "properties": {
    "a}": {
      "type": "integer"
    }
  },
  "required": [
    "a}"
  ],
  "x-guidance": {
    "whitespace_flexible": false,
    "whitespace_pattern": null,
    "item_separator": ", ",
    "key_separator": ": "
  }
}
)";
  expect_texts(kSchema, {R"({"a}": 12})"}, {R"({"a}":12})", "{}", R"({"a}": "x"})"});
  expect_error("start: %json {\"type\": 1}", "line 1: %json");
  expect_error("start: %json {\"type\": }", "line 1: what stands behind %json is no JSON");
  expect_error("start: %json [1]", "line 1: behind %json an object of JSON is expected");
  expect_error("start: %json {\"a\": \"}\"", "line 1: behind %json an object of JSON is expected");
  expect_error("start: a\na[max_tokens=10]: \"b\"", "line 2: the attribute 'max_tokens' of a rule is not supported");
  expect_error("start: %lark {\nstart: \"a\"\n}", "line 1: '%lark'");
  expect_error("start: <|tool|>", "line 1: tokens in a grammar (as in <think>) are not supported");
  EXPECT_THROW(parse_lark(kSchema, TextForm::kJsonString), Error);
}

TEST(Lark, InJsonStrings) {
  expect_texts("start: \"a\\\"\\\\\\n\" /[\"-b]/ \"\\u0000\".. \"\\u001f\" \"\\u00e9\"",
               {R"(a\"\\\n\"\n)" "\u00e9", R"(a\"\\\n\\\u001f)" "\u00e9", R"(a\"\\\n\\\u001F)" "\u00e9", R"(a\"\\\nb\u0000)" "\u00e9"},
               {"a\"\\\n\"\n\u00e9", R"(a\"\\\nb\u000a)" "\u00e9", R"(a\"\\\nb\n\u00e9)", R"(a\"\\\n"\n)" "\u00e9"}, TextForm::kJsonString);
  expect_texts("start: WS WORD\n%import common (WS, WORD)", {R"(\n\t a)"}, {"\na"}, TextForm::kJsonString);
}

TEST(Lark, ErrorsOfRules) {
  expect_error("", "there is no rule 'start' for the text to begin with");
  expect_error("root: \"a\"", "there is no rule 'start'");
  expect_error("start: a\n", "line 1: there is no rule 'a'");
  expect_error("start: \"b\" |\n A\n", "line 2: there is no terminal 'A'");
  expect_error("start: \"a\"\nb: \"b\"\n\nb: \"c\"", "line 4: 'b' is defined a second time; the first is in line 2");
  expect_error("start: \"a\"\n%import common.WS\nWS: \" \"", "line 3: 'WS' is defined a second time");
  expect_error("start: \"a\"\n\"b\"", "line 2: a rule is expected, as name: ..., and not 'b'");
  expect_error("start: \"a\"\n  b", "line 2: a rule is expected, as name: ..., and not 'b'");
  expect_error("start: \"a\" b: \"c\"", "line 1: ':' cannot stand behind what comes before it");
  expect_error("start ::= \"a\"", "in Lark's notation a rule is written as name: ...");
  expect_error("start: start", "line 1: the rule 'start' begins with itself (left recursion) in all of its ways");
  expect_error("start: A\nA: b\nb: \"b\"", "line 2: a terminal has no rules in it, and 'b' is one");
  expect_error("start: _sep{\"a\", \",\"}\n_sep{x, y}: x (y x)*", "line 1: '_sep' has parameters, and templates are not supported");
  expect_error("start: \"a\"\n_sep{x, y}: x (y x)*", "line 2: '_sep' has parameters");
  expect_error("%declare A", "line 1: '%declare' is not supported");
  expect_error("start: \"a\"\n%extend a: \"b\"", "line 2: '%extend' is not supported");
  expect_error("start: @a", "line 1: '@' is not supported in a grammar");
  expect_error("start: \"a\" & \"b\"", "line 1: '&' is not supported in a grammar");
  expect_error("start: \"a\"\n%ignore b\nb: \"x\"", "line 2: a terminal has no rules in it");
}

TEST(Lark, ErrorsOfElements) {
  expect_error("start: \"a\nb: c", "line 1: the string that begins here has no end in its line");
  expect_error("start:\n\"a\\\"", "line 2: the string that begins here has no end");
  expect_error("start: 'a'", "line 1: a string is written in double quotes");
  expect_error("start: \"\\q\"", "line 1: unknown escape '\\q' in a string");
  expect_error("start: \"\\", "line 1: unknown escape");
  expect_error("start: \"\\x4\"", "line 1: the escape takes 2 hexadecimal digits");
  expect_error("start: \"\\ud800\"", "line 1: U+D800 is no character");
  expect_error("start: \"\\ud800\\u0041\"", "line 1: U+D800 is no character");
  expect_error("start: \"\\UFFFFFFFF\"", "line 1: U+FFFFFFFF is no character");
  expect_error("start: \"\xc3(\"", "line 1: the text is not UTF-8");
  expect_error(R"(start: %json {"const": )" + std::string(10'000, '[') + std::string(10'000, ']') + "}",
               "line 1: behind %json arrays and objects are nested deeper than 64 levels");
  expect_error("start: \"a\"..\"bc\"", "line 1: a range is written as \"a\"..\"z\"");
  expect_error("start: \"a\"..B", "line 1: a range is written as");
  expect_error("start: \"b\"..\"a\"", "line 1: the range ends before it begins");
  expect_error("start: (\"a\"\n\"b\"", "line 1: the group that begins here has no )");
  expect_error("start: [\"a\")", "line 1: the group that begins here has no ]");
  expect_error("start: \"a\")", "line 1: ')' cannot stand behind what comes before it");
  expect_error("start: * \"a\"", "line 1: there is nothing before '*'");
  expect_error("start: \"a\"~", "line 1: repetitions are written ~n, ~n..m or {n,m}");
  expect_error("start: \"a\"~3..2", "line 1: the repetitions have a least number above the greatest");
  expect_error("start: \"a\"{3,2}", "line 1: the repetitions have a least number above the greatest");
  expect_error("start: \"a\"{1", "line 1: behind repetitions a '}' is expected");
  expect_error("start: \"a\" $", "line 1: unexpected character '$'");
  expect_error(std::string_view("start: \0", 8), "line 1: unexpected character");
  EXPECT_NE(message_of("start: \"a\"~99999999999", ErrorKind::kTooLarge), "no error");
  EXPECT_NE(message_of("start: (\"a\"~60000)~60000 \"b\"~60000", ErrorKind::kTooLarge), "no error");
}

TEST(Lark, EitherNotationIsKnownByItsFirstRule) {
  const auto accepts = [](std::string_view rules, std::string_view text) {
    return matches(grammar_of([&](GrammarBuilder& builder) { return add_grammar(builder, rules); }), text);
  };
  EXPECT_TRUE(accepts("# a: b\nroot ::= \"x\"", "x"));
  EXPECT_TRUE(accepts("// a ::= b\n\n  start : \"x\"", "x"));
  EXPECT_TRUE(accepts("start: \"::=\"", "::="));
  EXPECT_TRUE(accepts("?start: \"::=\"", "::="));
  EXPECT_TRUE(accepts("%import common.WS\nstart: \"::=\"", "::="));
  EXPECT_TRUE(accepts("A.1: \"::=\"\nstart: A", "::="));
  EXPECT_TRUE(accepts("start[capture]: \"::=\"", "::="));
  const auto message = [&](std::string_view rules) -> std::string {
    try {
      return accepts(rules, "") ? "" : "none";
    } catch (const Error& error) {
      return error.message();
    }
  };
  EXPECT_NE(message("root := \"a\"\nb ::= \"b\"").find("GBNF"), std::string::npos) << message("root := \"a\"\nb ::= \"b\"");
  EXPECT_NE(message("").find("there is no rule 'start'"), std::string::npos);
  EXPECT_NE(message("root ::= a\na: \"x\"").find("this is GBNF, in Lark's notation all rules are name: ..."), std::string::npos);
}

TEST(Lark, TextsWithMistakesAreReadOrRefused) {
  std::mt19937 random(1);
  constexpr std::string_view kBytes = "\"\\[]-^(){}|*+?.,#:=<!~%/_ \nar09AZ\xc3\xff";
  int num_read = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string rules(round % 2 == 0 ? kCalculator : kPatch);
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      const std::size_t at = random() % rules.size();
      if (random() % 3 == 0) rules.erase(at, 1 + random() % 4);
      if (random() % 2 == 0) rules.insert(at % rules.size(), 1, kBytes[random() % kBytes.size()]);
      if (random() % 40 == 0) rules.resize(at + 1);
    }
    const std::string message = message_of(rules);
    num_read += message == "no error" ? 1 : 0;
    EXPECT_TRUE(message == "no error" || message.starts_with("line ") || message.find("start") != std::string::npos) << message;
  }
  EXPECT_GT(num_read, 200);
  EXPECT_LT(num_read, 1800);
}

TEST(Lark, HostileTextsEndInTime) {
  const auto start = std::chrono::steady_clock::now();
  const auto groups = [](std::size_t n) { return "start: " + std::string(n, '(') + "\"a\"" + std::string(n, ')'); };
  expect_texts(groups(200), {"a"}, {""});
  expect_error(groups(201), "line 1: there are more than 200 groups within each other");
  std::string names = "start: \"a\"\n";
  for (int i = 0; i < 10'000; ++i) names += "a\n";
  expect_error(names, "line 2: a rule is expected");
  std::string open = "start: \"a\"\n";  // each of them may begin a rule's attributes
  for (int i = 0; i < 10'000; ++i) open += "|a[\n";
  expect_error(open, "groups");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace larder
