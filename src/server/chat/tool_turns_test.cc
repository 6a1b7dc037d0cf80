// Histories with calls that Larder made are taken by the templates that are particular about them.
#include "server/api/openai_request.h"
#include "server/chat/tool_turns.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "server/api/anthropic_request.h"
#include "server/chat/render_chat.h"
#include "server/chat/tool_prompt.h"
#include "server/server_test_support.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

ChatTemplate load_template(const std::string& name) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/" + name + ".jinja", std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return ChatTemplate({std::istreambuf_iterator<char>(file), {}});
}

Json call(const std::string& id, const std::string& name, int argument) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", {{"k", argument}}}}}};
}

Json result(const std::string& id, const std::string& content) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"content", content}};
}

Json turn(std::initializer_list<Json> calls) {
  return {{"role", "assistant"}, {"content", "I look."}, {"tool_calls", Json(calls)}};
}

ChatRequest chat(std::initializer_list<Json> messages) {
  ChatRequest request;
  request.messages = messages_of(Json(messages));
  request.messages.insert(request.messages.begin(), message_of("user", "q"));
  const Json parameters = {{"type", "object"}, {"properties", Json::object()}};
  const Json function = {{"name", "f"}, {"description", "d"}, {"parameters", parameters}};
  request.tools = Json::array({{{"type", "function"}, {"function", function}}});
  return request;
}

std::string prompt_of(ChatRequest request, const ChatTemplate& chat_template) {
  adapt_chat(request, probe_template(chat_template));
  TemplateInput input;
  input.messages = request.messages;
  input.tools = request.tools;
  return chat_template.render(input).text;
}

void expect_order(const std::string& text, std::initializer_list<const char*> parts) {
  std::size_t at = 0;
  for (const char* part : parts) {
    const std::size_t found = text.find(part, at);
    ASSERT_NE(found, text.npos) << part << " is not behind " << text.substr(0, at) << "\nbut: " << text.substr(at);
    at = found + std::string_view(part).size();
  }
}

TEST(CallIds, AreShortWhereTheTemplateWantsThem) {
  constexpr const char* kId = "call_0123456789abcdef01234567";
  for (const char* name : {"mistral-nemo", "mistral-small3.2"}) {
    const ChatTemplate chat_template = load_template(name);
    EXPECT_TRUE(probe_template(chat_template).wants_short_ids) << name;
    const ChatRequest request =
        chat({turn({call(kId, "f", 1), call("toolu_1", "f", 2)}), result("toolu_1", "b"), result(kId, "a")});
    const std::string text = prompt_of(request, chat_template);
    EXPECT_EQ(text.find(kId), text.npos);
    EXPECT_EQ(text.find("toolu_1"), text.npos);
    // The same in every prompt.
    ChatRequest longer = request;
    longer.messages.push_back(message_of("assistant", "so"));
    EXPECT_TRUE(prompt_of(longer, chat_template).starts_with(text)) << name;
  }
  // Others see what the client sent.
  ChatRequest other = chat({turn({call(kId, "f", 1)}), result(kId, "a")});
  adapt_chat(other, probe_template(load_template("qwen3")));
  EXPECT_EQ(other.messages[2].json["tool_call_id"], kId);
}

TEST(CallIds, StayApartAndTogether) {
  std::vector<ChatMessage> messages = messages_of(
      {turn({call("call_1", "f", 1), call("call_2", "f", 2)}), result("call_2", "b"), result("call_1", "a")});
  shorten_call_ids(messages);
  const auto id = [&](std::size_t i) { return messages[0].json["tool_calls"][i]["id"].get<std::string>(); };
  EXPECT_EQ(id(0).size(), 9u);
  EXPECT_NE(id(0), id(1));
  EXPECT_EQ(messages[1].json["tool_call_id"], id(1));
  EXPECT_EQ(messages[2].json["tool_call_id"], id(0));
  // An id that another one has become already gives way; one that nothing has become stays.
  const std::string taken = id(0);
  std::vector<ChatMessage> others = messages_of(
      {turn({call("call_1", "f", 1), call(taken, "f", 2), call("Abcdef123", "f", 3)}), result(taken, "b")});
  shorten_call_ids(others);
  const Json& calls = others[0].json["tool_calls"];
  EXPECT_EQ(calls[0]["id"], taken);
  EXPECT_NE(calls[1]["id"], taken);
  EXPECT_EQ(calls[1]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(calls[1]["id"], others[1].json["tool_call_id"]);
  EXPECT_EQ(calls[2]["id"], "Abcdef123");
  // What has none is left alone.
  std::vector<ChatMessage> odd = messages_of(Json::parse(R"([{"role":"user","content":"a"},{"role":"tool","tool_call_id":null},
      {"tool_calls":[1,{"id":2}]},{"tool_calls":null}])"));
  const Json before = json_of(odd);
  shorten_call_ids(odd);
  EXPECT_EQ(json_of(odd), before);
}

TEST(Turns, OfSeveralCallsAreOnesOfOneWhereTheTemplateTakesNoMore) {
  for (const char* name : {"llama3.1", "llama3.2"}) {
    const ChatTemplate chat_template = load_template(name);
    const std::string text = prompt_of(
        chat({turn({call("1", "f", 1), call("2", "g", 2), call("3", "h", 3)}), result("3", "c!"), result("1", "a!"),
              result("2", "b!"), {{"role", "user"}, {"content", "more"}}}),
        chat_template);
    expect_order(text, {"{\"name\": \"f\", \"parameters\": {\"k\": 1}}", "a!", "{\"name\": \"g\"", "b!", "{\"name\": \"h\"",
                        "c!", "more"});
  }
}

// It takes calls in a row, but prints the first of a turn alone, and its name before each result.
TEST(Turns, OfHarmonyNameEachResult) {
  ChatRequest request = chat({turn({call("1", "f", 1), call("2", "g", 2)}), result("1", "a!"), result("2", "b!")});
  request.messages[1].json["reasoning_content"] = "Hm.";
  expect_order(prompt_of(request, load_template("gpt-oss")),
               {"analysis<|message|>Hm.\n\nI look.<|end|>",
                "to=functions.f<|channel|>commentary json<|message|>{\"k\": 1}",
                "functions.f to=assistant<|channel|>commentary<|message|>\"a!\"",
                "to=functions.g<|channel|>commentary json<|message|>{\"k\": 2}",
                "functions.g to=assistant<|channel|>commentary<|message|>\"b!\""});
}

TEST(Turns, StayWholeWhereTheTemplateTakesThem) {
  for (const char* name : {"qwen3", "mistral-nemo", "hermes2-pro"}) {
    ChatRequest request = chat({turn({call("1", "f", 1), call("2", "g", 2)}), result("1", "a"), result("2", "b")});
    adapt_chat(request, probe_template(load_template(name)));
    EXPECT_EQ(request.messages.size(), 4u) << name;
    EXPECT_TRUE(request.options.tool_calls.takes_many) << name;
  }
}

TEST(Turns, AreOfOneCallWhereTheTemplateTakesNoMore) {
  ChatRequest request = chat({});
  adapt_chat(request, probe_template(load_template("llama3.1")));
  EXPECT_FALSE(request.options.tool_calls.takes_many);
  ChatRequest harmony = chat({});
  adapt_chat(harmony, probe_template(load_template("gpt-oss")));
  EXPECT_TRUE(harmony.options.tool_calls.takes_many) << "they come back as turns of one";
}

TEST(Turns, FindResultsByTheirPlaceWhereNoIdTells) {
  ChatRequest request = chat({turn({call("1", "f", 1), call("2", "g", 2), call("2", "h", 3)}), result("2", "b"),
                              result("x", "a"), result("2", "c"), result("y", "d")});
  split_turns(request);
  std::string order;
  for (const Json& message : json_of(request.messages)) {
    if (message.contains("tool_calls")) {
      ASSERT_EQ(message["tool_calls"].size(), 1u);
      order += message["tool_calls"][0]["function"]["name"].get<std::string>() + "(";
    } else {
      order += message["content"].get<std::string>();
    }
  }
  EXPECT_EQ(order, "qf(ag(bh(cd");
  EXPECT_EQ(request.messages[1].json["content"], "I look.");
  EXPECT_EQ(request.messages[3].json["content"], "");
}

TEST(Turns, KeepTheirMarksAndWhatIsKnownOfThem) {
  const ServerLimits limits;
  const RequestRules rules{.limits = limits, .vocab_size = 128, .max_model_len = 100'000};
  ChatRequest request = parse_messages_request(
      parse_json(R"({"max_tokens":1,"messages":[{"role":"user","content":"q"},
        {"role":"assistant","content":[{"type":"text","text":"s"},{"type":"tool_use","id":"1","name":"f","input":{}},
          {"type":"tool_use","id":"2","name":"g","input":{},"cache_control":{"type":"ephemeral"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"a"},
          {"type":"tool_result","tool_use_id":"2","content":"b","cache_control":{"type":"ephemeral"}}]},
        {"role":"assistant","content":"d"},{"role":"user","content":"e"}]})", {}), rules);
  ASSERT_EQ(request.messages.size(), 6u);
  request.known_turns = {{.message = 1, .tokens = nullptr}, {.message = 4, .tokens = nullptr}};
  split_turns(request);
  ASSERT_EQ(request.messages.size(), 7u);
  EXPECT_EQ(sent_as(request.messages), (std::vector<int>{0, 1, 2, 1, 2, 3, 4}));
  EXPECT_EQ(request.known_turns[0].message, 1u);
  EXPECT_EQ(request.known_turns[1].message, 5u);
  // The mark of the second call is found where it is printed.
  const RenderedPrompt prompt = [&] {
    TemplateInput input;
    input.messages = request.messages;
      return load_template("llama3.1").render(input);
  }();
  ASSERT_EQ(request.marks.size(), 2u);
  const auto text_of = [&](const CacheMark& mark) {
    std::string text;
    for (const TextSpan& span : prompt.spans)
      if (!span.trusted && span.message == mark.message && span.part == mark.part)
        text += prompt.text.substr(span.begin, span.end - span.begin);
    return text;
  };
  EXPECT_EQ(text_of(request.marks[0]), "g{}");
  EXPECT_EQ(text_of(request.marks[1]), "\"b\"");
}

}  // namespace
}  // namespace larder
