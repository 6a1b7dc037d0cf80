// Histories with calls that Larder made are taken by the templates that are particular about them.
#include "server/tool_turns.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "server/server_test_support.h"
#include "server/tool_prompt.h"

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
  request.messages = Json::array({{{"role", "user"}, {"content", "q"}}});
  for (const Json& message : messages) request.messages.push_back(message);
  const Json parameters = {{"type", "object"}, {"properties", Json::object()}};
  const Json function = {{"name", "f"}, {"description", "d"}, {"parameters", parameters}};
  request.tools = Json::array({{{"type", "function"}, {"function", function}}});
  return request;
}

std::string prompt_of(ChatRequest request, const ChatTemplate& chat_template) {
  adapt_chat(request, probe_template(chat_template));
  TemplateInput input;
  input.messages = request.messages;
  input.parts = request.parts;
  input.tools = request.tools;
  return chat_template.render(input).text;
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
    longer.messages.push_back({{"role", "assistant"}, {"content", "so"}});
    EXPECT_TRUE(prompt_of(longer, chat_template).starts_with(text)) << name;
  }
  // Others see what the client sent.
  ChatRequest other = chat({turn({call(kId, "f", 1)}), result(kId, "a")});
  adapt_chat(other, probe_template(load_template("qwen3")));
  EXPECT_EQ(other.messages[2]["tool_call_id"], kId);
}

TEST(CallIds, StayApartAndTogether) {
  Json messages = Json::array(
      {turn({call("call_1", "f", 1), call("call_2", "f", 2)}), result("call_2", "b"), result("call_1", "a")});
  shorten_call_ids(messages);
  const auto id = [&](std::size_t i) { return messages[0]["tool_calls"][i]["id"].get<std::string>(); };
  EXPECT_EQ(id(0).size(), 9u);
  EXPECT_NE(id(0), id(1));
  EXPECT_EQ(messages[1]["tool_call_id"], id(1));
  EXPECT_EQ(messages[2]["tool_call_id"], id(0));
  // An id that another one has become already gives way; one that nothing has become stays.
  const std::string taken = id(0);
  Json others = Json::array(
      {turn({call("call_1", "f", 1), call(taken, "f", 2), call("Abcdef123", "f", 3)}), result(taken, "b")});
  shorten_call_ids(others);
  const Json& calls = others[0]["tool_calls"];
  EXPECT_EQ(calls[0]["id"], taken);
  EXPECT_NE(calls[1]["id"], taken);
  EXPECT_EQ(calls[1]["id"].get<std::string>().size(), 9u);
  EXPECT_EQ(calls[1]["id"], others[1]["tool_call_id"]);
  EXPECT_EQ(calls[2]["id"], "Abcdef123");
  // What has none is left alone.
  Json odd = Json::parse(R"([{"role":"user","content":"a"},{"role":"tool","tool_call_id":null},
      {"tool_calls":[1,{"id":2}]},{"tool_calls":null}])");
  const Json before = odd;
  shorten_call_ids(odd);
  EXPECT_EQ(odd, before);
}

}  // namespace
}  // namespace larder
