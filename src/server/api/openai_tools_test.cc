#include "server/api/openai_tools.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "server/api/openai_request.h"
#include "server/api/openai_test_support.h"

namespace larder {
namespace {

TEST(OpenAiTools, ErrorsNameTheField) {
  const std::pair<std::string, const char*> cases[] = {
      {R"("tool_choice":{"type":"function"})", "tool_choice.name"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"allowed_tools"})", "tool_choice.tools"},
      {R"("tool_choice":{"type":"allowed_tools","mode":"none","tools":[]})", "tool_choice.mode"},
      {R"("tool_choice":"any")", "tool_choice"},
      {R"("tool_choice":{"type":"custom"})", "tool_choice.name"},
      {R"("tool_choice":{"type":"custom","custom":{}})", "tool_choice.custom.name"},
      {R"("tool_choice":{"type":"mcp"})", "tool_choice.type"},
      {R"("tool_choice":{"type":"function","function":{"name":"g"}},"tools":[{"function":{"name":"f"}}])",
       "tool_choice"},
      {R"("tools":{})", "tools"},
      {R"("tools":[1])", "tools[0]"},
      {R"("tools":[{"type":"mcp","custom":{"name":"sh"}}])", "tools[0].type"},
      {R"("tools":[{"type":"custom"}])", "tools[0].custom"},
      {R"("tools":[{"type":"custom","custom":{}}])", "tools[0].custom.name"},
      {R"("tools":[{"type":"custom","custom":{"name":"sh","description":5}}])", "tools[0].custom.description"},
      {R"("tools":[{"type":"custom","custom":{"name":"sh","format":5}}])", "tools[0].custom.format"},
      {R"("tools":[{"type":"custom","custom":{"name":"sh","format":{"type":"xml"}}}])", "tools[0].custom.format.type"},
      {R"("tools":[{"type":"custom","custom":{"name":"sh","format":{"type":"grammar","grammar":{"syntax":"gbnf"}}}}])",
       "tools[0].custom.format.grammar.syntax"},
      {R"("tools":[{"type":"custom","custom":{"name":"sh","format":{"type":"grammar","grammar":{"syntax":"lark"}}}}])",
       "tools[0].custom.format.grammar.definition"},
      {R"("tools":[{"type":"custom","custom":{"name":"sh","format":{"type":"grammar","grammar":{"syntax":"regex","definition":")" +
           std::string(65537, 'a') + R"("}}}}])",
       "tools[0].custom.format.grammar.definition"},
      {R"("tools":[{"type":"custom","custom":{"name":"f"}},{"function":{"name":"f"}}])", "tools[0].custom.name"},
      {R"("tools":[{"type":"custom","custom":{"name":"f"}},{"type":"custom","custom":{"name":"f"}}])", "tools[1].custom.name"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tools":[{"type":"function","function":{}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":"f","description":5}}])", "tools[0].function.description"},
      {R"("tools":[{"function":{"name":"f","parameters":"{}"}}])", "tools[0].function.parameters"},
      {R"("tools":[{"function":{"name":"f","parameters":[]}}])", "tools[0].function.parameters"},
  };
  for (const auto& [fields, param] : cases) EXPECT_EQ(param_of([&] { chat(fields); }), param) << fields.substr(0, 200);
}

TEST(OpenAiTools, CallsInTheHistoryAreChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {"1", ""},
      {"\"x\"", ""},
      {"null", ""},
      {"[]", ""},
      {"{}", ".function"},
      {R"({"function":null})", ".function"},
      {R"({"function":"f"})", ".function"},
      {R"({"function":{}})", ".function.name"},
      {R"({"function":{"name":5,"arguments":7}})", ".function.name"},
      {R"({"function":{"name":""}})", ".function.name"},
      {R"({"function":{"name":"f","arguments":7}})", ".function.arguments"},
      {R"({"function":{"name":"f","arguments":[]}})", ".function.arguments"},
  };
  for (const auto& [call, field] : cases) {
    const std::string body =
        fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}},
                       {{"role":"assistant","content":null,"tool_calls":[{}]}}]}})", call);
    EXPECT_EQ(param_of([&] { parse_chat_request(parse_json(body, {}), kRules); }),
              fmt::format("messages[1].tool_calls[0]{}", field))
        << call;
  }
}

TEST(OpenAiTools, CallsWithoutArgumentsHaveNone) {
  for (const char* arguments : {R"(,"arguments":"")", R"(,"arguments":null)", R"(,"arguments":"{}")", ""}) {
    const ChatRequest request = parse_chat_request(
        parse_json(R"({"messages":[{"role":"user","content":"hi"},
            {"role":"assistant","tool_calls":[{"function":{"name":"f")" + std::string(arguments) + "}}]}]}", {}),
        kRules);
    EXPECT_EQ(dump_json(request.messages[1].json["tool_calls"][0]["function"]),
              R"({"name":"f","arguments":{}})");
  }
}

TEST(OpenAiTools, ArgumentsReachTheTemplateWithAllTheirDigits) {
  const ChatTemplate shows(
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }} "
      "{{ c.function.arguments.id + 1 }}{% endfor %}{% endfor %}");
  TemplateInput input;
  input.messages = parse_chat_request(
      parse_json(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[
          {"function":{"name":"f","arguments":"{\"id\":-25000000000000000001}"}}]}]})", {}),
      kRules).messages;
  EXPECT_EQ(shows.render(input).text, R"({"id": -25000000000000000001} -25000000000000000000)");
}

TEST(OpenAiTools, CallsMayBeAskedForOneByOne) {
  EXPECT_TRUE(chat("").options.tool_calls.takes_many);
  EXPECT_FALSE(chat(R"("parallel_tool_calls":false)").options.tool_calls.takes_many);
}

// They are in the body as a text each, and values of their own once they were read.
TEST(OpenAiTools, ArgumentsOfAllCallsHaveALimitTogether) {
  const auto calls_of = [](int num_messages) {
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})}};
    std::string arguments = "{\"a\":[0";
    for (int i = 0; i < 400'000; ++i) arguments += ",0";
    for (int i = 0; i < num_messages; ++i)
      body["messages"].push_back(
          {{"role", "assistant"},
           {"tool_calls", {{{"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments + "]}"}}}}}}});
    return body;
  };
  EXPECT_NO_THROW(parse_chat_request(calls_of(2), kRules));
  EXPECT_EQ(param_of([&] { parse_chat_request(calls_of(3), kRules); }),
            "messages[3].tool_calls[0].function.arguments");
}

TEST(OpenAiTools, AToolsTypeMayBeNull) {
  EXPECT_EQ(chat(R"("tools":[{"type":null,"function":{"name":"f"}}])").tools.size(), 1u);
}

TEST(OpenAiTools, CustomToolsAreFunctionsToTheModel) {
  const ChatRequest request = chat(R"("tools":[{"type":"function","function":{"name":"f"}},
      {"type":"custom","custom":{"name":"sh","description":"d"}},
      {"type":"custom","custom":{"name":"date","format":{"type":"grammar","grammar":{"syntax":"regex","definition":"\\d+"}}}}],
      "tool_choice":{"type":"custom","custom":{"name":"sh"}})");
  EXPECT_EQ(request.tools[1], parse_json(R"({"type":"function","function":{"name":"sh","description":"d","parameters":{
      "type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}}})", {}));
  EXPECT_EQ(request.tools[2]["function"]["name"], "date");
  const ToolChoice& choice = request.options.tool_choice;
  EXPECT_TRUE(choice.has_to_call() && choice.is_one_call && choice.permits("sh") && !choice.permits("f"));
  EXPECT_TRUE(choice.is_strict("date") && !choice.is_strict("sh"));
  EXPECT_EQ(choice.custom.at("date").definition, "\\d+");
  EXPECT_EQ(choice.custom.at("date").field, "tools[2].custom.format.grammar.definition");
  EXPECT_EQ(*request.options.tool_calls.custom, (CustomNames{"date", "sh"}));
  EXPECT_EQ(chat(R"("tools":[{"function":{"name":"f"}}])").options.tool_calls.custom, nullptr);
}

TEST(OpenAiTools, CallsOfCustomToolsAreCallsOfTheirFunctions) {
  const auto body = [](const std::string& custom) {
    return parse_json(
        R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[
            {"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},
            {"id":"b","type":"custom","custom":)" + custom + "}]}]}", {});
  };
  const ChatRequest request = parse_chat_request(body(R"({"name":"sh","input":"ls \"a\""})"), kRules);
  EXPECT_EQ(request.messages[1].json["tool_calls"][1],
            parse_json(R"({"id":"b","type":"function","function":{"name":"sh","arguments":{"input":"ls \"a\""}}})", {}));
  EXPECT_EQ(param_of([&] { parse_chat_request(body(R"({"name":"sh"})"), kRules); }), "messages[1].tool_calls[1].custom.input");
  EXPECT_EQ(param_of([&] { parse_chat_request(body(R"({"input":"ls"})"), kRules); }), "messages[1].tool_calls[1].custom.name");
  EXPECT_EQ(param_of([&] { parse_chat_request(body("null"), kRules); }), "messages[1].tool_calls[1].custom");
}

// The prompt is to stay what it was in the turns before.
TEST(OpenAiTools, ToolChoiceNoneKeepsTheTools) {
  for (const char* choice : {"none", "auto"}) {
    const ChatRequest request = chat(
        fmt::format(R"("tools":[{{"type":"function","function":{{"name":"f"}}}}],"tool_choice":"{}")", choice));
    EXPECT_EQ(request.tools.size(), 1u);
    EXPECT_EQ(request.options.tool_choice.may_call(), choice == std::string("auto"));
  }
}

TEST(OpenAiTools, ReadsWhichToolsMayBeCalled) {
  const auto choice = [](const std::string& tool_choice) {
    return chat(
               R"("tools":[{"function":{"name":"f","strict":true}},{"function":{"name":"g","strict":false}}],"tool_choice":)" +
               tool_choice)
        .options.tool_choice;
  };
  EXPECT_EQ(choice("null").mode, ToolChoice::Mode::kAuto);
  EXPECT_TRUE(choice("null").is_strict("f") && !choice("null").is_strict("g"));
  EXPECT_TRUE(choice("\"required\"").has_to_call() && choice("\"required\"").permits("g"));
  for (
      const char* one :
      {R"({"type":"function","function":{"name":"g"}})", R"({"type":"function","name":"g"})",
       R"({"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}})",
       R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]})"}) {
    EXPECT_TRUE(choice(one).has_to_call() && choice(one).permits("g") && !choice(one).permits("f")) << one;
  }
  const ToolChoice some = choice(R"({"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]})");
  EXPECT_TRUE(some.may_call() && !some.has_to_call() && some.permits("f") && !some.permits("g"));
}

TEST(OpenAiTools, ToolsAndTheirChoiceHaveABound) {
  // So many functions, and a choice among so many of them, each by its name.
  const auto ask = [](std::size_t num_tools, std::size_t num_names) {
    Json tools = Json::array(), names = Json::array();
    for (std::size_t i = 0; i < num_tools; ++i)
      tools.push_back({{"type", "function"}, {"function", {{"name", fmt::format("f{}", i)}}}});
    for (std::size_t i = 0; i < num_names; ++i)
      names.push_back({{"type", "function"}, {"name", fmt::format("f{}", i % num_tools)}});
    const Json choice = {{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", std::move(names)}};
    return chat("\"tools\":" + tools.dump() + ",\"tool_choice\":" + choice.dump());
  };
  const ToolChoice all = ask(kMaxTools, kMaxTools).options.tool_choice;
  EXPECT_EQ(all.names.size(), kMaxTools);
  EXPECT_TRUE(all.permits("f0") && all.permits(fmt::format("f{}", kMaxTools - 1)) && !all.permits("f"));
  EXPECT_EQ(param_of([&] { ask(kMaxTools + 1, 1); }), "tools");
  EXPECT_EQ(param_of([&] { ask(3, kMaxTools + 1); }), "tool_choice.tools");
  // One that is named again is one.
  EXPECT_EQ(ask(3, 9).options.tool_choice.names.size(), 3u);
}

}  // namespace
}  // namespace larder
