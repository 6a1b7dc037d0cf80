// Tools as text: what the ledger still knows of the request as it was sent.
#include "server/api/openai_request.h"
#include "server/chat/tool_prompt.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "server/answer/answer_scanner.h"
#include "server/api/anthropic_request.h"
#include "server/server_test_support.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

const ServerLimits kLimits;
const RequestRules kRules{.limits = kLimits, .vocab_size = 128, .max_model_len = 100'000};
// Speaks of no tools.
const std::string kTemplate =
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}";

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
constexpr const char* kTurns =
    R"({"role":"user","content":"a"},
       {"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
       {"role":"tool","tool_call_id":"1","content":"b"},{"role":"user","content":"c"},
       {"role":"assistant","content":"d"},{"role":"user","content":"e"})";

// Refuses system prompts, and roles that do not take turns.
std::string gemma2() {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/gemma2.jinja");
  return std::string(std::istreambuf_iterator<char>(file), {});
}

ChatRequest adapted(ChatRequest request, const std::string& source = kTemplate) {
  adapt_chat(request, probe_template(ChatTemplate(source)));
  return request;
}

ChatRequest chat(const std::string& messages) {
  return adapted(parse_chat_request(
      parse_json(std::string("{\"model\":\"m\",") + kTools + ",\"messages\":[" + messages + "]}", {}),
      kRules));
}

TEST(ToolPrompt, KeepsTheToolsForTheLedger) {
  const ChatRequest request = chat(kTurns);
  EXPECT_TRUE(request.tools.is_null());
  ASSERT_EQ(request.adapted_tools.size(), 1u);
  EXPECT_NE(request.messages[0].json["content"].get<std::string>().find("\"name\": \"f\""),
            std::string::npos);
}

// Whatever a turn may do, its prompt begins as the turns' before it.
TEST(ToolPrompt, IsTheSameWhereNoToolMayBeCalled) {
  const auto read = [](const char* choice) {
    return adapted(parse_chat_request(
        parse_json(std::string("{\"model\":\"m\",") + kTools + ",\"tool_choice\":\"" + choice +
                       "\",\"messages\":[" + kTurns + "]}", {}),
        kRules));
  };
  const auto read_anthropic = [](const char* choice) {
    return adapted(parse_messages_request(
        parse_json(std::string(R"({"max_tokens":1,"tool_choice":{"type":")") + choice +
                       R"("},"tools":[{"name":"f","input_schema":{},"cache_control":{"type":"ephemeral"}}],
                       "messages":[{"role":"user","content":"a"}]})", {}),
        kRules));
  };
  for (const auto& [free, barred] : {std::pair(read("auto"), read("none")),
                                     std::pair(read_anthropic("auto"), read_anthropic("none"))}) {
    EXPECT_EQ(json_of(free.messages), json_of(barred.messages));
    EXPECT_EQ(free.adapted_tools, barred.adapted_tools);
    EXPECT_EQ(free.marks.size(), barred.marks.size());
    EXPECT_TRUE(free.options.tool_calls.are_read);
    EXPECT_FALSE(barred.options.tool_calls.are_read);
  }
  EXPECT_EQ(read_anthropic("none").marks.size(), 1u);
}

TEST(SystemPrompt, GoesToTheUserWhereTheTemplateRefusesIt) {
  const ChatTemplate chat_template(gemma2());
  const auto read = [](const std::string& fields, const std::string& messages) {
    return adapted(parse_chat_request(
        parse_json("{" + fields + "\"messages\":[" + messages + "]}", {}), kRules), gemma2());
  };
  const auto text_of = [&](const ChatRequest& request) {
    TemplateInput input;
    input.messages = request.messages;
    return chat_template.render(input).text;
  };
  const std::string tools = std::string(kTools) + ",";
  const ChatRequest plain =
      read("", R"({"role":"system","content":"s"},{"role":"user","content":"a"},
                  {"role":"assistant","content":"b"},{"role":"user","content":"c"})");
  EXPECT_EQ(text_of(plain),
            "<start_of_turn>user\ns\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n"
            "<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(sent_as(plain.messages), (std::vector<int>{0, 2, 3}));
  const ChatRequest called = read(tools, kTurns);
  EXPECT_NE(text_of(called).find("</tool_call>\n\na<end_of_turn>"), std::string::npos);
  EXPECT_EQ(sent_as(called.messages), (std::vector<int>{0, 1, 2, 4, 5}));
  const ChatRequest alone = read("", R"({"role":"system","content":"s"})");
  EXPECT_EQ(alone.messages[0].json["role"], "user");
  // Templates that take them get them.
  EXPECT_EQ(chat(kTurns).messages[0].json["role"], "system");
}

TEST(SystemPrompt, KeepsItsMarksAmongTheUsers) {
  const ChatRequest request = adapted(parse_messages_request(
      parse_json(R"({"max_tokens":1,
        "system":[{"type":"text","text":"s"},{"type":"text","text":"t","cache_control":{"type":"ephemeral"}}],
        "messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},
          {"role":"assistant","content":[{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]},
          {"role":"user","content":"c"}]})", {}),
      kRules), gemma2());
  EXPECT_EQ(request.messages[0].json["content"], "s\nt\n\na");
  ASSERT_EQ(request.messages[0].parts.size(), 3u);
  EXPECT_EQ(request.messages[0].parts[1].end, 3u);
  EXPECT_EQ(request.messages[0].parts[2].end, 6u);
  ASSERT_EQ(request.marks.size(), 3u);
  const auto place = [&](std::size_t i) {
    return std::pair(request.marks[i].message, request.marks[i].part);
  };
  EXPECT_EQ(place(0), std::pair(0, 1));
  EXPECT_EQ(place(1), std::pair(0, 2));
  EXPECT_EQ(place(2), std::pair(1, 0));
  EXPECT_EQ(sent_as(request.messages), (std::vector<int>{0, 1, 2}));
}

TEST(ToolPrompt, KnowsWhichMessageWasTheClients) {
  // A system prompt is put in, and the tool's result goes with the question behind it.
  EXPECT_EQ(sent_as(chat(kTurns).messages), (std::vector<int>{-1, 0, 1, 2, 4, 5}));
  EXPECT_EQ(sent_as(chat(std::string(R"({"role":"system","content":"s"},)") + kTurns).messages),
            (std::vector<int>{0, 1, 2, 3, 5, 6}));
}

TEST(ToolPrompt, KnowsAnthropicsMessagesToo) {
  const ChatRequest request = adapted(parse_messages_request(
      parse_json(R"({"max_tokens":1,"system":"s","tools":[{"name":"f","input_schema":{"type":"object"}}],
        "messages":[{"role":"user","content":"a"},
          {"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"b"},{"type":"text","text":"c"}]},
          {"role":"assistant","content":"d"},{"role":"user","content":"e"}]})", {}),
      kRules));
  EXPECT_EQ(sent_as(request.messages), (std::vector<int>{-1, 0, 1, 2, 3, 4}));
}

// What its template shows it of a call is what it would write.
TEST(ToolPrompt, CallsOfGlmAreReadAsTheyArePrinted) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/glm4.6.jinja");
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const Json arguments = parse_json(R"({"s":"5","text":"a\n<b> \"q\" ","n":5,"list":[1,{"a":null}],"none":null,"yes":true})", {});
  const Json function = {{"name", "f"}, {"arguments", dump_json(arguments)}};
  const Json call = {{"id", "1"}, {"type", "function"}, {"function", function}};
  const Json properties = parse_json(R"({"s":{"type":"string"},"text":{"type":"string"},"n":{"type":"integer"},"list":{"type":"array"},
      "none":{"type":["string","null"]},"yes":{"type":"boolean"}})", {});
  const Json tool = {{"name", "f"}, {"parameters", {{"type", "object"}, {"properties", properties}}}};
  const Json body = {{"model", "m"}, {"tools", Json::array({{{"type", "function"}, {"function", tool}}})},
                     {"messages", Json::array({{{"role", "user"}, {"content", "a"}},
                                               {{"role", "assistant"}, {"content", "I look."}, {"tool_calls", Json::array({call, call})}}})}};
  const ChatRequest request = adapted(parse_chat_request(body, kRules), source);
  TemplateInput input;
  input.messages = request.messages;
  input.tools = request.tools;
  input.add_generation_prompt = false;
  const std::string text = ChatTemplate(source).render(input).text, begin = "<|assistant|>";
  ToolCallRules rules = request.options.tool_calls;
  EXPECT_TRUE(rules.are_read && rules.takes_many && rules.tagged != nullptr);
  rules.parts_thoughts = true;
  const auto pieces = split_answer(text.substr(text.find(begin) + begin.size()), rules);
  ASSERT_EQ(pieces.size(), 3u) << text;
  EXPECT_EQ(pieces[0].text, "I look.");
  for (std::size_t i = 1; i < 3; ++i) {
    ASSERT_TRUE(pieces[i].call) << text;
    EXPECT_EQ(pieces[i].call->name, "f");
    EXPECT_EQ(pieces[i].call->arguments, arguments);
  }
}

// gpt-oss' template refuses a turn that thinks and speaks before it calls.
TEST(ToolPrompt, WhatHarmonySaysBeforeACallJoinsItsThought) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/gpt-oss.jinja");
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const std::string call = R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]})";
  const auto prompt_of = [&](const std::string& turn) {
    const ChatRequest request = adapted(
        parse_chat_request(parse_json(std::string("{\"model\":\"m\",") + kTools +
                                          R"(,"messages":[{"role":"user","content":"a"},)" + turn + call +
                                          R"(,{"role":"tool","tool_call_id":"1","content":"b"}]})",
                                      {}),
                           kRules),
        source);
    EXPECT_TRUE(request.options.tool_calls.is_harmony && request.options.tool_calls.are_read);
    TemplateInput input;
    input.messages = request.messages;
    input.tools = request.tools;
    return ChatTemplate(source).render(input).text;
  };
  const std::string begin = "<|start|>assistant<|channel|>analysis<|message|>", end = "<|end|>";
  const auto has = [&](const std::string& turn, const std::string& thought) {
    return prompt_of(turn).find(begin + thought + end) != std::string::npos;
  };
  EXPECT_TRUE(has(R"({"role":"assistant","content":"I look.","reasoning_content":"Hm.",)", "Hm.\n\nI look."));
  EXPECT_TRUE(has(R"({"role":"assistant","content":null,"reasoning_content":"Hm.",)", "Hm."));
  EXPECT_TRUE(has(R"({"role":"assistant","content":"I look.",)", "I look."));
}

}  // namespace
}  // namespace larder
