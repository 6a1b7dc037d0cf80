// What published templates do with tools is found out, whatever their source says.
#include "server/api/openai_request.h"
#include "server/chat/template_abilities.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "base/error.h"
#include "server/chat/render_chat.h"
#include "server/chat/tool_prompt.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

std::string load(const std::string& name) {
  std::ifstream file(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates/" + name + ".jinja", std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

TemplateAbilities abilities_of(const std::string& source) { return probe_template(ChatTemplate(source)); }

using Names = std::set<std::string>;

Names names_with(bool (*has)(const TemplateAbilities& abilities)) {
  Names names;
  for (const auto& entry :
       std::filesystem::directory_iterator(LARDER_SOURCE_DIR "/tests/golden/chat_template/templates")) {
    const std::string name = entry.path().stem().string();
    if (has(abilities_of(load(name)))) names.insert(name);
  }
  return names;
}

// Reads tools from messages: "tools" stands in it, the variable of that name does not.
constexpr const char* kPhi4Mini =
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not "
    "none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + "
    "'<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}";

// Mistral Small 3.1's template prints the last nine characters, and wants no fewer.
TEST(TemplateAbilities, IdsMayBeTooShort) {
  const auto wants_short_ids = [](const std::string& condition) {
    return probe_template(ChatTemplate("{% for m in messages %}{% for call in m.tool_calls or [] %}{% if " + condition +
                                       " %}{{ raise_exception('ids') }}{% endif %}{{ call.id[-9:] }}{{ call.function.arguments }}"
                                       "{% endfor %}{{ m.content }}{% endfor %}"))
        .wants_short_ids;
  };
  EXPECT_TRUE(wants_short_ids("call.id|length < 9"));
  EXPECT_TRUE(wants_short_ids("call.id|length != 9"));
  EXPECT_FALSE(wants_short_ids("call.id|length < 1"));
  EXPECT_FALSE(wants_short_ids("call.id|length < 10"));
}

TEST(TemplateAbilities, AreThoseThatShow) {
  using A = TemplateAbilities;
  EXPECT_EQ(names_with([](const A& a) { return a.shows_tools(); }),
            (Names{"command-r-plus", "command-r7b", "deepseek-v3.2", "functionary3.1", "gemma4", "glm4.6", "gpt-oss",
                   "hermes2-pro", "llama3.1", "llama3.2", "minimax-m2", "mistral-nemo", "mistral-small3.2", "nemotron-nano2",
                   "qwen2.5", "qwen3", "qwen3-coder", "qwq"}));
  // The one prints no calls, the other changes a list for them, which the sandbox forbids.
  EXPECT_EQ(names_with([](const A& a) { return a.prints_tools && !a.shows_tools(); }), (Names{"granite3.3", "kimi-k2"}));
  EXPECT_EQ(names_with([](const A& a) { return a.wants_short_ids; }), (Names{"mistral-nemo", "mistral-small3.2"}));
  EXPECT_EQ(names_with([](const A& a) { return a.shows_tools() && !a.takes_several_calls; }),
            (Names{"gpt-oss", "llama3.1", "llama3.2"}));
  EXPECT_EQ(names_with([](const A& a) { return a.is_harmony; }), (Names{"gpt-oss"}));
  EXPECT_EQ(names_with([](const A& a) { return a.writes_call_tags; }),
            (Names{"glm4.6", "hermes2-pro", "qwen2.5", "qwen3", "qwen3-coder", "qwq"}));
  EXPECT_EQ(names_with([](const A& a) { return a.writes_tagged_calls; }), (Names{"glm4.6"}));
  EXPECT_EQ(names_with([](const A& a) { return a.call_spelling.has_value(); }),
            (Names{"hermes2-pro", "qwen2.5", "qwen3", "qwq"}));
  EXPECT_EQ(names_with([](const A& a) { return !a.takes_system_prompts; }), (Names{"gemma2"}));
}

std::string spelling_of_calls(const std::string& call, const std::string& between = "") {
  const auto found = abilities_of("{% for m in messages %}{% for c in m.tool_calls or [] %}" + call +
                                  "{% if not loop.last %}" + between +
                                  "{% endif %}{% endfor %}[{{ m.content }}]{% endfor %}{{ tools|tojson }}")
                         .call_spelling;
  if (!found) return "none";
  return fmt::format("({})({})({}){}", found->begin, found->end, found->between, found->has_blanks ? "" : " no blanks");
}

TEST(TemplateAbilities, HowCallsAreSpelledIsWhatIsPrinted) {
  const std::string json = "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}";
  EXPECT_EQ(spelling_of_calls("<tool_call>\n" + json + "\n</tool_call>", "{{ '\n' }}"), "(\n)(\n)(\n)");
  EXPECT_EQ(spelling_of_calls("<tool_call>" + json + " </tool_call>"), "()( )()");
  EXPECT_EQ(spelling_of_calls("<tool_call>{\"name\":\"{{ c.function.name }}\",\"arguments\":{{ "
                              "c.function.arguments|tojson(separators=(',', ':')) }}}</tool_call>"),
            "()()() no blanks");
  // Calls that are written otherwise, and words between them.
  EXPECT_EQ(spelling_of_calls("<tool_call>{{ c.function.name }}({{ c.function.arguments|tojson }})</tool_call>"), "none");
  EXPECT_EQ(spelling_of_calls("[call]" + json + "[/call]"), "none");
  EXPECT_EQ(spelling_of_calls("<tool_call>\n" + json + "\n</tool_call>", "<|im_end|>"), "none");
}

TEST(TemplateAbilities, AWordInTheSourceIsNone) {
  const TemplateAbilities phi = abilities_of(kPhi4Mini);
  EXPECT_FALSE(phi.prints_tools);
  EXPECT_FALSE(phi.prints_calls);
  EXPECT_TRUE(phi.prints_results && phi.takes_system_prompts);
  const TemplateAbilities smol = abilities_of(
      "{% if xml_tools %}{{ xml_tools }}<tool_call>{% endif %}{# tools raise_exception <|channel|><|message|> #}"
      "{% for m in messages %}[{{ m.content }}]{% endfor %}");
  EXPECT_FALSE(smol.prints_tools || smol.writes_call_tags || smol.is_harmony);
}

ChatRequest chat_with_tools() {
  const ServerLimits limits;
  const RequestRules rules{.limits = limits, .vocab_size = 128, .max_model_len = 100'000};
  return parse_chat_request(parse_json(R"({"model":"m",
      "tools":[{"type":"function","function":{"name":"look_up","parameters":{"type":"object"}}}],
      "messages":[{"role":"user","content":"a"},
        {"role":"assistant","content":"","tool_calls":[
          {"id":"1","type":"function","function":{"name":"look_up","arguments":"{\"k\":7}"}}]},
        {"role":"tool","tool_call_id":"1","content":"b"}]})", {}), rules);
}

// What a template does not show of them, a text does.
TEST(TemplateAbilities, ToolsAndCallsReachTheModelOnceWhateverTheTemplate) {
  for (const std::string& source :
       {std::string(kPhi4Mini), load("granite3.3"), load("smollm3"), load("deepseek-v3.1"), load("qwen3")}) {
    const ChatTemplate chat_template(source);
    ChatRequest request = chat_with_tools();
    adapt_chat(request, probe_template(chat_template));
    EXPECT_TRUE(request.options.tool_calls.are_read);
    TemplateInput input;
    input.messages = request.messages;
    input.tools = request.tools;
    const std::string text = chat_template.render(input).text;
    const auto count = [&](const std::string& part) {
      int number = 0;
      for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++number;
      return number;
    };
    EXPECT_EQ(count("\"parameters\": {"), 1) << text;
    EXPECT_EQ(count("<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"k\": 7}}\n</tool_call>"), 1) << text;
    EXPECT_EQ(count("<tool_response>\nb\n</tool_response>"), 1) << text;
  }
}

TEST(TemplateAbilities, OneThatRefusesAllProbesServesChatsWithoutTools) {
  const ChatTemplate chat_template(
      "{% if 'larder-probe' in messages|tojson %}{{ raise_exception('no') }}{% endif %}"
      "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}");
  const TemplateAbilities abilities = probe_template(chat_template);
  EXPECT_FALSE(abilities.shows_tools());
  EXPECT_TRUE(abilities.takes_system_prompts && abilities.may_reprint_answers);
  ChatRequest request;
  request.messages = {message_of("system", "s"), message_of("user", "a")};
  adapt_chat(request, abilities);
  TemplateInput input;
  input.messages = request.messages;
  EXPECT_EQ(chat_template.render(input).text, "[system s][user a]");
}

TEST(TemplateAbilities, OneThatTakesManyStepsForAllIsGivenUp) {
  const std::string loop = "{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}";
  const std::string printed = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}";
  EXPECT_TRUE(abilities_of(printed).prints_tools);
  EXPECT_FALSE(abilities_of(loop + printed).prints_tools);
  TemplateInput input;
  input.messages = {message_of("user", "a")};
  EXPECT_EQ(ChatTemplate(loop + printed).render(input).text, "aNone");
}

// What a template drops of a chat goes where it does not.
TEST(TemplateAbilities, ASystemPromptThatIsNotPrintedIsNotTaken) {
  EXPECT_FALSE(abilities_of("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}").takes_system_prompts);
  EXPECT_TRUE(abilities_of("{% for m in messages %}{{ m.content }}{% endfor %}").takes_system_prompts);
}

}  // namespace
}  // namespace larder
