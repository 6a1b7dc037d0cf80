#include "server/answer/answer_grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_test_support.h"
#include "server/answer/answer_scanner.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

using Mode = ToolChoice::Mode;

const Json& tools() {
  static const Json kTools = parse_json(R"([
      {"type": "function", "function": {"name": "weather", "parameters": {
          "type": "object", "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}, "required": ["city"]}}},
      {"type": "function", "function": {"name": "now"}},
      {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}])",
                                        {});
  return kTools;
}

AnswerFormat format_of(const char* schema) {
  return {.kind = AnswerFormat::Kind::kSchema, .schema = parse_json(schema, {}), .field = "response_format"};
}

std::string call(const std::string& name, const std::string& arguments) {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
}

// As marked tokens; beside that, as HarmonyScanner reads it.
std::string marked(std::string text) {
  for (const std::string_view token : kHarmonyTokens)
    for (auto at = text.find(token); at != text.npos; at = text.find(token, at + token.size() + 1)) text.insert(at, "\xFF");
  return text;
}

struct Asked {
  AnswerFormat format = {};
  ToolChoice choice = {};
  bool takes_many = true;
  bool is_harmony = false;
  std::optional<CallSpelling> spelling = {};

  AnswerRules rules() const {
    return {.format = format, .tool_choice = choice, .takes_many_calls = takes_many, .is_harmony = is_harmony,
            .spelling = spelling, .tools = tools()};
  }
  Grammar grammar() const { return make_answer_grammar(rules()); }
};

TEST(AnswerGrammar, ACallThatIsDemanded) {
  const Grammar grammar = Asked{.choice = {.mode = Mode::kRequired}}.grammar();
  const std::string weather = call("weather", R"({"city": "Oslo", "unit": "C"})");
  for (const std::string& text :
       {weather, weather + "\n" + call("now", "{}"), call("now", R"({"any": [1]})"), call("odd", "{}"),
        std::string(R"(<tool_call>{"name":"weather","arguments":{"city":"Oslo"}}</tool_call>)")}) {
    EXPECT_TRUE(matches(grammar, text)) << text;
    // And is read as one.
    EXPECT_TRUE(split_answer(text, {.are_read = true}).front().call) << text;
  }
  for (const std::string& text :
       {std::string(), std::string("Hello"), "Hello" + weather, call("none", "{}"), call("weather", "{}"),
        call("weather", R"({"city": "Oslo", "unit": "K"})"), weather + "Hello"}) {
    EXPECT_FALSE(matches(grammar, text)) << text;
  }
}

TEST(AnswerGrammar, ACallIsSpelledAsTheTemplatePrintsIt) {
  const CallSpelling in_lines{.begin = "\n", .end = "\n", .between = "\n"};
  const std::string weather = call("weather", R"({"city": "Oslo", "unit": "C"})");
  const std::string now = call("now", R"({"any": [1, {"b": []}], "c": {}})");
  for (const ToolChoice& choice : {ToolChoice{.mode = Mode::kRequired}, ToolChoice{.strict_names = {"weather"}}}) {
    const Grammar grammar = Asked{.choice = choice, .spelling = in_lines}.grammar();
    for (const std::string& text : {weather, now, weather + "\n" + now}) EXPECT_TRUE(matches(grammar, text)) << text;
    for (const std::string& text :
         {"<tool_call>" + weather.substr(12), call("weather", R"({"city":"Oslo"})"), call("weather", "{ \"city\": \"Oslo\"}"),
          call("weather", "{\n\"city\": \"Oslo\"}"), call("weather", R"({"city": "Oslo","unit": "C"})"),
          call("weather", "{\"city\": \"Oslo\"}\n"), call("now", "{\"any\": [1,2]}"), call("now", "{\"any\": [ 1]}")})
      EXPECT_FALSE(matches(grammar, text)) << text;
  }
  const Grammar demanded = Asked{.choice = {.mode = Mode::kRequired}, .spelling = in_lines}.grammar();
  for (const char* between : {"", " ", "\n\n"}) EXPECT_FALSE(matches(demanded, weather + between + now)) << between;
  const Grammar compact =
      Asked{.choice = {.mode = Mode::kRequired}, .spelling = CallSpelling{.has_blanks = false}}.grammar();
  EXPECT_TRUE(matches(compact, R"(<tool_call>{"name":"weather","arguments":{"city":"Oslo","unit":"C"}}</tool_call>)"));
  EXPECT_FALSE(matches(compact, weather));
}

// Its text stands in JSON as it has to.
TEST(AnswerGrammar, TheInputOfACustomTool) {
  const CustomTool patch{CustomTool::Syntax::kLark, "start: \"begin\" LF (\"+\" /.*/ LF)+\n%import common.LF\n", "tools[1].definition"};
  const CustomTool date{CustomTool::Syntax::kRegex, R"(\d+"\w+")", "tools[2].definition"};
  for (const bool is_demanded : {true, false}) {
    ToolChoice choice{.mode = is_demanded ? Mode::kRequired : Mode::kAuto};
    choice.take_custom({{"now", patch}, {"weather", date}, {"odd", {}}});
    const Grammar grammar = Asked{.choice = choice}.grammar();
    for (const std::string& text :
         {call("now", R"({"input": "begin\n+a \"b\" \\\n+\n"})"), call("weather", R"({"input":"1\"a\""})")}) {
      EXPECT_TRUE(matches(grammar, text)) << text;
      EXPECT_TRUE(split_answer(text, {.are_read = true}).front().call) << text;
    }
    for (const std::string& text : {call("now", "{}"), call("now", R"({"input": "begin"})"), call("now", R"({"input": "begin\n"})"),
                                    call("now", "{\"input\": \"begin\n+\n\"}"), call("weather", R"({"input": "1"})"),
                                    call("weather", R"({"input": "1\"a\"", "b": 1})")})
      EXPECT_FALSE(matches(grammar, text)) << text;
  }
  ToolChoice broken{.mode = Mode::kRequired};
  broken.take_custom({{"now", {CustomTool::Syntax::kLark, "start: a", "tools[1].definition"}}});
  try {
    Asked{.choice = broken}.grammar();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.param(), "tools[1].definition");
    EXPECT_EQ(error.message(), "tools[1].definition: line 1: there is no rule 'a'");
  }
}

TEST(AnswerGrammar, TheInputOfACustomToolInHarmony) {
  ToolChoice choice{.mode = Mode::kRequired};
  choice.take_custom({{"now", {CustomTool::Syntax::kRegex, "a+\n", "f"}}});
  const Grammar grammar = Asked{.choice = choice, .is_harmony = true}.grammar();
  const auto call_with = [](const std::string& input) {
    return marked("<|channel|>commentary to=functions.now <|constrain|>json<|message|>") + input;
  };
  EXPECT_TRUE(matches(grammar, call_with(R"({"input": "aa\n"})")));
  EXPECT_FALSE(begins(grammar, call_with(R"({"input": "b)")));
}

TEST(AnswerGrammar, CallsThatAreDemandedHaveAnEnd) {
  const Grammar many = Asked{.choice = {.mode = Mode::kRequired}}.grammar();
  std::string text;
  for (int i = 1; i <= 17; ++i) {
    text += call("now", "{}");
    EXPECT_EQ(matches(many, text), i <= 16) << i;
  }
  const Grammar one =
      Asked{.choice = {.mode = Mode::kRequired, .is_restricted = true, .is_one_call = true, .names = {"now"}}}
          .grammar();
  EXPECT_TRUE(matches(one, call("now", "{}")));
  EXPECT_FALSE(begins(one, call("now", "{}") + "\n"));
}

// It is no prompt that is too long, for which another server may be asked.
TEST(AnswerGrammar, AFormatThatIsTooLargeIsTheFieldsFault) {
  for (const char* schema : {R"({"type": "string", "maxLength": 200000})", R"({"enum": ["a"], "x": [)"}) {
    std::string text = schema;
    if (text.back() == '[') {
      for (int i = 0; i < 200'000; ++i) text += "0,";
      text += "0]}";
    }
    try {
      (void)Asked{.format = format_of(text.c_str())}.grammar();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.message();
      EXPECT_FALSE(error.param().empty());
    }
  }
}

TEST(AnswerGrammar, OneCallOfSome) {
  const Grammar one =
      Asked{.choice = {.mode = Mode::kRequired, .is_restricted = true, .names = {"now"}}, .takes_many = false}
          .grammar();
  EXPECT_TRUE(matches(one, call("now", "{}")));
  EXPECT_FALSE(matches(one, call("weather", R"({"city": "Oslo"})")));
  EXPECT_FALSE(matches(one, call("now", "{}") + call("now", "{}")));
}

TEST(AnswerGrammar, TextInWhichCallsAreStrict) {
  const Asked asked{.choice = {.is_restricted = true, .names = {"weather", "now"}, .strict_names = {"weather"}}};
  EXPECT_TRUE(are_constrained(asked.rules()));
  const Grammar grammar = asked.grammar();
  const std::string weather = call("weather", R"({"city": "Oslo"})");
  for (const std::string& text :
       {std::string(), std::string("Hello <tool <tool_cal <<tool_"), "Let me see. " + weather,
        weather + weather + " That is all.", "<think>I may call</think>" + call("now", R"({"x": 1})"),
        "<<tool_call>" + weather.substr(11)}) {
    EXPECT_TRUE(matches(grammar, text)) << text;
  }
  for (const std::string& text : {std::string("<tool_call>"), std::string("<tool_call>Hello"), call("odd", "{}"),
                                  call("weather", "{}"), std::string("a<tool_<tool_call>\n{\"name\": \"none\"")}) {
    EXPECT_FALSE(matches(grammar, text)) << text;
  }
}

TEST(AnswerGrammar, AFormatOrCalls) {
  const Grammar grammar =
      Asked{.format = format_of(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})")}
          .grammar();
  EXPECT_TRUE(matches(grammar, R"({"a": 1})"));
  EXPECT_TRUE(matches(grammar, call("now", "{}")));
  EXPECT_FALSE(matches(grammar, "Hello"));
  const Grammar without = Asked{.format = format_of("true"), .choice = {.mode = Mode::kNone}}.grammar();
  EXPECT_TRUE(matches(without, "[1]"));
  EXPECT_FALSE(begins(without, "<"));
}

TEST(AnswerGrammar, FormatsOfOtherKinds) {
  const auto grammar = [](AnswerFormat format) {
    return Asked{.format = std::move(format), .choice = {.mode = Mode::kNone}}.grammar();
  };
  using Kind = AnswerFormat::Kind;
  EXPECT_TRUE(matches(grammar({.kind = Kind::kRegex, .source = "[a-c]+x", .field = "f"}), "abcx"));
  EXPECT_FALSE(matches(grammar({.kind = Kind::kRegex, .source = "[a-c]+x", .field = "f"}), "abcxa"));
  EXPECT_TRUE(matches(grammar({.kind = Kind::kChoice, .choices = {"yes", "no", "y"}, .field = "f"}), "y"));
  EXPECT_FALSE(matches(grammar({.kind = Kind::kChoice, .choices = {"yes", "no", "y"}, .field = "f"}), "ye"));
  EXPECT_TRUE(matches(grammar({.kind = Kind::kGrammar, .source = "root ::= \"a\" root | \"b\"", .field = "f"}), "aab"));
  for (AnswerFormat bad : {AnswerFormat{.kind = Kind::kRegex, .source = "(", .field = "f"},
                           {.kind = Kind::kRegex, .source = "a{0}", .field = "f"},
                           {.kind = Kind::kGrammar, .source = "root ::= root", .field = "f"},
                           {.kind = Kind::kGrammar, .source = "x", .field = "f"},
                           {.kind = Kind::kSchema, .schema = parse_json(R"({"$ref": "#"})", {}), .field = "f"},
                           {.kind = Kind::kRegex, .source = "(a?){0,2000}", .field = "f"}}) {
    try {
      (void)grammar(bad);
      ADD_FAILURE() << bad.source;
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), "f") << error.message();
      EXPECT_TRUE(error.message().starts_with("f: ")) << error.message();
    }
  }
}

// As the reader of requests holds them.
TEST(AnswerGrammar, LongIntegersOfASchema) {
  const auto grammar = [](const char* schema) {
    return Asked{.format = format_of(schema), .choice = {.mode = Mode::kNone}}.grammar();
  };
  EXPECT_TRUE(matches(grammar(R"({"const": [123456789012345678901234567890]})"), "[123456789012345678901234567890]"));
  EXPECT_TRUE(matches(grammar(R"({"type": "number", "maximum": 123456789012345678901234567890})"), "5"));
}

TEST(AnswerGrammar, AToolThatHoldsItself) {
  const Json tree = parse_json(R"([{"type": "function", "function": {"name": "grow", "parameters": {
      "$defs": {"Node": {"type": "object", "properties": {"next": {"description": "x", "allOf": [{"$ref": "#/$defs/Node"}]}}}},
      "type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "required": ["root"]}}}])",
                               {});
  const AnswerFormat text;
  const ToolChoice required{.mode = Mode::kRequired};
  const Grammar grammar = make_answer_grammar({.format = text, .tool_choice = required, .tools = tree});
  EXPECT_TRUE(matches(grammar, call("grow", R"({"root": {"next": {"next": {}}}})")));
  EXPECT_FALSE(matches(grammar, call("grow", R"({"root": {"next": 1}})")));
}

TEST(AnswerGrammar, AStrictToolsSchemaHasToBeOneThatCanBeObeyed) {
  EXPECT_NO_THROW((void)Asked{.choice = {.mode = Mode::kRequired}}.grammar());
  try {
    (void)Asked{.choice = {.strict_names = {"odd"}}}.grammar();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.param(), "tools.odd.parameters.not");
  }
}

TEST(AnswerGrammar, NothingAskedIsNothingHeld) {
  EXPECT_FALSE(are_constrained(Asked{}.rules()));
  EXPECT_FALSE(are_constrained(Asked{.choice = {.mode = Mode::kNone, .strict_names = {"weather"}}}.rules()));
  const AnswerFormat text;
  const ToolChoice strict{.strict_names = {"weather"}};
  EXPECT_FALSE(are_constrained({.format = text, .tool_choice = strict, .tools = Json()}));
}

class ConstraintTableTest : public testing::Test {
 protected:
  std::shared_ptr<const Constraint> find(ConstraintTable& table, const std::string& choice) const {
    const AnswerFormat format{.kind = AnswerFormat::Kind::kChoice, .choices = {choice}, .field = "f"};
    const ToolChoice none;
    return table.find({.format = format, .tool_choice = none, .tools = Json()});
  }

  const Tokenizer tokenizer_{tiny_vocabulary()};
};

TEST_F(ConstraintTableTest, MakesEachOnce) {
  ConstraintTable table(tokenizer_, 1 << 20);
  const auto first = find(table, "abc");
  EXPECT_EQ(find(table, "abc"), first);
  EXPECT_NE(find(table, "abd"), first);
  EXPECT_EQ(find(table, "abd")->tokens, first->tokens);
}

TEST_F(ConstraintTableTest, HasABound) {
  ConstraintTable table(tokenizer_, 100'000);
  std::vector<std::shared_ptr<const Constraint>> used;
  try {
    for (int i = 0; i < 1000; ++i) used.push_back(find(table, std::string(200, 'a') + std::to_string(i)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_EQ(error.param(), "f");
    EXPECT_TRUE(error.message().starts_with("f: ")) << error.message();
  }
  const std::size_t num_used = used.size();
  EXPECT_GT(num_used, 2u);
  // Those that are not used any more make room.
  used.clear();
  for (int i = 0; i < 1000; ++i) EXPECT_NE(find(table, std::string(200, 'b') + std::to_string(i)), nullptr);
}

TEST(AnswerGrammar, MessagesOfHarmony) {
  const std::string thought = "<|channel|>analysis<|message|>Hm <|x|> {<|end|><|start|>assistant";
  const std::string final = "<|channel|>final<|message|>";
  const std::string weather = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>";
  const Grammar json = Asked{.format = format_of(R"({"enum": ["yes"]})"), .is_harmony = true}.grammar();
  const Grammar calls = Asked{.choice = {.mode = Mode::kRequired}, .is_harmony = true}.grammar();
  for (const std::string& before : {std::string(), thought}) {
    EXPECT_TRUE(matches(json, marked(before + final + "\"yes\"")));
    EXPECT_TRUE(matches(json, marked(before + weather + "{\"city\": \"Bern\"}")));
    EXPECT_FALSE(begins(json, marked(before + final + "no")));
    EXPECT_FALSE(begins(calls, marked(before + final)));
    const std::string call = before + weather + "{\"city\": \"Bern\"}";
    EXPECT_TRUE(matches(calls, marked(call)));
    EXPECT_EQ(split_answer(call, {.are_read = true, .is_harmony = true}).back().call->name, "weather");
    EXPECT_FALSE(begins(calls, marked(before + "<|channel|>commentary to=functions.none")));
  }
  // A second thought does not come; a message does not end within a string, nor does what reads like a token begin one.
  EXPECT_FALSE(begins(json, marked(thought + thought)));
  EXPECT_FALSE(begins(calls, marked(weather + "{\"city\": \"Be<|end|>")));
  EXPECT_TRUE(begins(calls, marked(weather) + "{\"city\": \"Be<|end|>"));
  EXPECT_FALSE(begins(json, final));
}

// It is neither whole nor cut by a length that somebody has set.
TEST(AnswerGrammar, AnAnswerThatCannotGoOnIsAnError) {
  TestServer server;
  const auto ask = [&](const char* more) {
    return server.post("/v1/completions", fmt::format(R"({{"prompt":"abc","max_tokens":200,"seed":1,{}}})", more));
  };
  const auto refused = ask(R"("guided_regex":"([a-z]{1,90}){80,90}")");
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_EQ(refused.param(), "guided_regex");
  const auto streamed = ask(R"("guided_regex":"([a-z]{1,90}){80,90}","stream":true)");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_NE(streamed.body.find("guided_regex: the answer has come to"), std::string::npos) << streamed.body;
  EXPECT_EQ(streamed.body.find("\"length\""), std::string::npos);
}

}  // namespace
}  // namespace larder
