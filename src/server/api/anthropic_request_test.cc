#include "server/api/anthropic_request.h"
#include "server/api/openai_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/jinja/chat_test_support.h"

namespace larder {
namespace {

const ServerLimits kLimits;
const RequestRules kRules{.limits = kLimits, .vocab_size = 100, .max_model_len = 512};

ChatRequest parse(const std::string& fields) {
  return parse_messages_request(parse_json(R"({"max_tokens":5,)" + fields + "}", {}), kRules);
}

ChatRequest parse_contents(const std::string& messages) {
  return parse(R"("messages":[)" + messages + "]");
}

// The param of the body's error, "" if there is none.
std::string param_of(const std::string& body) {
  try {
    parse_messages_request(parse_json(body, {}), kRules);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.param();
  }
  return "";
}

std::string param(const std::string& fields) {
  return param_of(R"({"max_tokens":5,)" + fields + "}");
}

const std::string kHi = R"("messages":[{"role":"user","content":"hi"}])";

TEST(AnthropicRequest, Defaults) {
  const ChatRequest request = parse(kHi);
  EXPECT_EQ(json_of(request.messages), parse_json(R"([{"role":"user","content":"hi"}])", {}));
  EXPECT_EQ(request.options.sampling.max_tokens, 5);
  EXPECT_EQ(request.options.sampling.temperature, 1);
  EXPECT_TRUE(request.options.has_max_tokens);
  EXPECT_FALSE(request.options.stream);
  EXPECT_FALSE(request.options.marks_whole_prompt);
  EXPECT_FALSE(request.options.wants_diagnostics);
  EXPECT_TRUE(request.add_generation_prompt);
  EXPECT_TRUE(request.marks.empty());
}

TEST(AnthropicRequest, ReadsEveryField) {
  const ChatRequest request = parse(
      kHi + R"(,"model":"m","temperature":0.5,"top_p":0.9,"top_k":3,"stop_sequences":["a","b"],
      "stream":true,"metadata":{"user_id":"u"},"system":"S","thinking":{"type":"disabled"},
      "diagnostics":{"previous_message_id":"msg_1"},"service_tier":"auto","mcp_servers":[],"cache_salt":"s",
      "output_config":{"effort":"high"},"container":null,
      "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"},{"type":"clear_thinking_20251015","keep":{"type":"all"}}]},
      "tool_choice":{"type":"auto","disable_parallel_tool_use":true},"tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}])");
  EXPECT_EQ(request.options.model, "m");
  EXPECT_FLOAT_EQ(request.options.sampling.temperature, 0.5F);
  EXPECT_EQ(request.options.sampling.top_k, 3);
  EXPECT_EQ(request.options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.options.stream);
  EXPECT_TRUE(request.options.wants_diagnostics);
  EXPECT_EQ(request.options.comparison_id, "msg_1");
  EXPECT_EQ(request.options.cache_salt, "s");
  EXPECT_FALSE(request.options.tool_calls.takes_many);
  EXPECT_EQ(request.messages[0].json, parse_json(R"({"role":"system","content":"S"})", {}));
  EXPECT_EQ(request.template_kwargs, parse_json(R"({"enable_thinking":false,"reasoning_effort":"high"})", {}));
  EXPECT_EQ(request.tools, parse_json(R"([{"type":"function","function":{"name":"f","description":"d",
                                          "parameters":{"type":"object"}}}])",
                                      {}));
}

TEST(AnthropicRequest, DocumentsOfTextAreRead) {
  const std::string sky = R"({"type":"document","title":"On skies","source":{"type":"text","media_type":"text/plain","data":"green"}})";
  const std::string blocks = R"({"type":"document","source":{"type":"content","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      "citations":{"enabled":false},"cache_control":{"type":"ephemeral"}})";
  const std::string found = R"({"type":"search_result","source":"http://x","title":"T","content":[{"type":"text","text":"c"}]})";
  const ChatRequest request = parse_contents(
      R"({"role":"user","content":[)" + sky + "," + blocks + R"(,{"type":"text","text":"?"}]},
      {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[)" + found + "]}]}");
  EXPECT_EQ(request.messages[0].json["content"], "On skies\ngreen\na\nb\n?");
  ASSERT_EQ(request.marks.size(), 1U);
  EXPECT_EQ(request.marks[0].part, 1);
  EXPECT_EQ(request.messages[2].json["content"], "T\nhttp://x\nc");
  const auto odd = [](const std::string& block) {
    return param(R"("messages":[{"role":"user","content":[)" + block + "]}]");
  };
  EXPECT_EQ(odd(R"({"type":"document","source":{"type":"base64","data":"x"}})"), "messages[0].content[0].source.type");
  EXPECT_EQ(odd(R"({"type":"document","source":{"type":"text"}})"), "messages[0].content[0].source.data");
  EXPECT_EQ(odd(R"({"type":"document"})"), "messages[0].content[0].source");
  EXPECT_EQ(odd(R"({"type":"document","source":{"type":"text","data":"x"},"citations":{"enabled":true}})"),
            "messages[0].content[0].citations.enabled");
  EXPECT_EQ(odd(R"({"type":"search_result","source":"s","content":[{"type":"image"}]})"),
            "messages[0].content[0].content[0].type");
}

TEST(AnthropicRequest, BlocksBecomeMessages) {
  const ChatRequest request = parse_contents(
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
         {"role":"user","content":"c"},
         {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},
           {"type":"redacted_thinking","data":"x"},{"type":"text","text":"d"},
           {"type":"tool_use","id":"t","name":"f","input":{"k":[1]}}]},
         {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"r"},
           {"type":"text","text":"e"}]})");
  EXPECT_EQ(json_of(request.messages), parse_json(R"([{"role":"user","content":"a\nb\nc"},
      {"role":"assistant","content":"d","reasoning_content":"hm","tool_calls":[{"id":"t","type":"function",
        "function":{"name":"f","arguments":{"k":[1]}}}]},
      {"role":"tool","content":"r","tool_call_id":"t","name":"f"},{"role":"user","content":"e"}])",
                                         {}));
}

TEST(AnthropicRequest, AnAnswerThatHasBegunIsGoneOnWith) {
  const ChatRequest request = parse_contents(
      R"({"role":"user","content":"a"},{"role":"assistant","content":"The answer is ("})");
  EXPECT_TRUE(request.continue_final_message);
  EXPECT_FALSE(request.add_generation_prompt);
}

TEST(AnthropicRequest, AnAnswerWithoutTextIsBegunAnew) {
  for (const char* content : {R"([{"type":"thinking","thinking":"hm","signature":"x"}])", R"(" \n")",
                              R"([{"type":"text","text":" "}])"}) {
    const ChatRequest request = parse_contents(
        std::string(R"({"role":"user","content":"a"},{"role":"assistant","content":)") + content + "}");
    EXPECT_FALSE(request.continue_final_message) << content;
    EXPECT_TRUE(request.add_generation_prompt) << content;
  }
  const ChatRequest call = parse_contents(
      R"({"role":"user","content":"a"},{"role":"assistant","content":[
         {"type":"tool_use","id":"t","name":"f","input":{}}]})");
  EXPECT_TRUE(call.continue_final_message);
}

TEST(AnthropicRequest, EmptyTextsBesideOthersAreLeftOut) {
  const ChatRequest request = parse_contents(
      R"({"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"a"}]},
         {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{}}]},
         {"role":"user","content":[{"type":"tool_result","tool_use_id":"t"},{"type":"text","text":""}]},
         {"role":"assistant","content":""})");
  EXPECT_EQ(request.messages[0].json["content"], "a");
  EXPECT_EQ(request.messages.back().json["role"], "tool");
  EXPECT_TRUE(request.add_generation_prompt);
}

TEST(AnthropicRequest, ThinkingIsOnUnlessItIsDisabled) {
  for (const char* type : {"enabled", "adaptive", "between_tools", "disabled"}) {
    const ChatRequest request = parse(kHi + fmt::format(R"(,"thinking":{{"type":"{}"}})", type));
    EXPECT_EQ(request.template_kwargs["enable_thinking"], type != std::string("disabled")) << type;
  }
}

TEST(AnthropicRequest, ErrorsNameTheField) {
  const std::pair<std::string, const char*> cases[] = {
      {kHi + R"(,"temperature":1.5)", "temperature"},
      {kHi + R"(,"top_p":-0.1)", "top_p"},
      {kHi + R"(,"top_k":-1)", "top_k"},
      {kHi + R"(,"top_k":2147483648)", "top_k"},
      {kHi + R"(,"stop_sequences":"a")", "stop_sequences"},
      {kHi + R"(,"stop_sequences":[""])", "stop_sequences"},
      {kHi + R"(,"tool_choice":{"type":"any"})", "tool_choice"},
      {kHi + R"(,"tool_choice":{"type":"some"})", "tool_choice.type"},
      {kHi + R"(,"tool_choice":{"type":"tool"})", "tool_choice.name"},
      {kHi + R"(,"tool_choice":{"type":"tool","name":"g"},"tools":[{"name":"f","input_schema":{}}])", "tool_choice"},
      {kHi + R"(,"tools":[{"name":"f"}])", "tools[0].input_schema"},
      {kHi + R"(,"tools":[{"type":"web_search_20250305","name":"f"}])", "tools[0].type"},
      {kHi + R"(,"output_config":{"format":{}})", "output_config.format.type"},
      {kHi + R"(,"output_format":{"type":"json_schema"})", "output_format.schema"},
      {kHi + R"(,"mcp_servers":[{"type":"url"}])", "mcp_servers"},
      {kHi + R"(,"container":{"skills":[]})", "container"},
      {kHi + R"(,"output_config":{"effort":5})", "output_config.effort"},
      {kHi + R"(,"output_config":{"task_budget":{"type":"tokens","total":1000}})", "output_config.task_budget"},
      {kHi + R"(,"context_management":{"edits":5})", "context_management.edits"},
      {kHi + R"(,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]})", "context_management.edits[0].type"},
      {kHi + R"(,"context_management":{"edits":[{"type":"clear_thinking_20251015"}]})", "context_management.edits[0].type"},
      {kHi + R"(,"system":5)", "system"},
      {kHi + R"(,"system":[{"type":"image"}])", "system[0].type"},
      {kHi + R"(,"cache_control":{"type":"other"})", "cache_control.type"},
      {kHi + R"(,"cache_control":{"type":"ephemeral","ttl":"2h"})", "cache_control.ttl"},
      {R"("messages":[])", "messages"},
      {kHi + R"(,"tools":[{"name":"","input_schema":{}}])", "tools[0].name"},
      {kHi + R"(,"thinking":{})", "thinking.type"},
      {kHi + R"(,"thinking":{"type":"off"})", "thinking.type"},
      {kHi + R"(,"thinking":"disabled")", "thinking"},
      {R"("messages":[{"role":"user","content":""}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Yes."},{"role":"user","content":""}])",
       "messages[2].content"},
      {R"("messages":[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":""}]}])",
       "messages[0].content"},
      {R"("messages":[{"role":"system","content":""},{"role":"user","content":"hi"}])", "messages[0].content"},
      {R"("messages":[{"role":"assistant","content":""}])", "messages"},
      {R"("messages":[{"role":"tool","content":"x"}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":[]}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0].type"},
      // Fault 27: nothing is fetched, from wherever.
      {R"("messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://169.254.169.254/x"}}]}])",
       "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"document","source":{"type":"url","url":"http://[fe80::1]/x"}}]}])",
       "messages[0].content[0].source.type"},
      {R"("messages":[{"role":"user","content":[{"type":"tool_use"}]}])", "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"text","text":"","cache_control":{"type":"ephemeral"}}]}])",
       "messages[0].content[0].cache_control"},
  };
  for (const auto& [fields, name] : cases) EXPECT_EQ(param(fields), name) << fields;
  const std::string long_stop(1 << 20, 'x');
  EXPECT_EQ(param(kHi + R"(,"stop_sequences":[")" + long_stop + "\"]"), "stop_sequences");
  const auto of_length = [](const char* max_tokens) {
    return param_of(fmt::format(R"({{"max_tokens":{},{}}})", max_tokens, kHi));
  };
  for (const char* wrong : {"-1", "null", "1.5", "2147483648"}) {
    EXPECT_EQ(of_length(wrong), "max_tokens") << wrong;
  }
  EXPECT_NO_THROW(parse_count_tokens_request(parse_json("{" + kHi + "}", {}), kRules));
}

// A request with tools, system and a message, each with a cache_control or without ("").
std::string marked(const std::string& tool, const std::string& system, const std::string& text,
                   const std::string& top) {
  const auto control = [](const std::string& ttl) {
    return ttl.empty() ? "" : R"(,"cache_control":{"type":"ephemeral","ttl":")" + ttl + "\"}";
  };
  return R"("tools":[{"name":"f","input_schema":{})" + control(tool) +
         R"(}],"system":[{"type":"text","text":"s")" + control(system) +
         R"(}],"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b")" +
         control(text) + "}]}]" + control(top);
}

TEST(AnthropicRequest, BreakpointsAreInOrder) {
  const auto marks = parse(marked("1h", "1h", "5m", "")).marks;
  ASSERT_EQ(marks.size(), 3u);
  EXPECT_EQ(marks[0].message, -1);
  EXPECT_EQ(marks[0].ttl_s, 3600);
  EXPECT_EQ(marks[1].message, 0);
  EXPECT_EQ(marks[2].message, 1);
  EXPECT_EQ(marks[2].part, 1);
  EXPECT_EQ(marks[2].ttl_s, 300);
  EXPECT_EQ(param(marked("5m", "1h", "", "")), "system[0].cache_control.ttl");
  EXPECT_EQ(param(marked("", "5m", "1h", "")), "messages[0].content[1].cache_control.ttl");
  EXPECT_EQ(param(marked("", "5m", "", "1h")), "cache_control.ttl");
}

TEST(AnthropicRequest, TheTopLevelMarksTheLastBlock) {
  const auto marks = parse(marked("", "", "", "5m")).marks;
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0].message, 1);
  EXPECT_EQ(marks[0].part, 1);
  EXPECT_EQ(parse(marked("", "", "5m", "5m")).marks.size(), 1u);
  EXPECT_EQ(param(marked("", "", "1h", "5m")), "cache_control");
}

TEST(AnthropicRequest, FourBreakpointsAtMost) {
  const auto request = [](int num_blocks, const std::string& more = "") {
    std::string blocks;
    for (int i = 0; i < num_blocks; ++i) {
      blocks += i > 0 ? "," : "";
      blocks += R"({"type":"text","text":"x","cache_control":{"type":"ephemeral"}})";
    }
    return R"("messages":[{"role":"user","content":[)" + blocks + more + "]}]";
  };
  EXPECT_EQ(parse(request(4)).marks.size(), 4u);
  // One at the top level counts where the last block has none of its own.
  const std::string top = R"(,"cache_control":{"type":"ephemeral"})";
  const std::string last = R"(,{"type":"text","text":"y"})";
  EXPECT_EQ(parse(request(4) + top).marks.size(), 4u);
  EXPECT_EQ(parse(request(3, last) + top).marks.size(), 4u);
  EXPECT_EQ(param(request(4, last) + top), "cache_control");
  EXPECT_EQ(param(request(5)), "messages[0].content[4].cache_control");
  // Whatever comes behind the fifth is not read: each text there would pass over all marks.
  EXPECT_EQ(param(request(5, R"(,{"type":"image"})")), "messages[0].content[4].cache_control");
}

// Calls are numbered behind a turn's texts, in whichever order they come.
TEST(AnthropicRequest, MarksOfCallsBetweenTexts) {
  const ChatRequest request = parse_contents(
      R"({"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"},
         {"type":"tool_use","id":"t","name":"f","input":{},"cache_control":{"type":"ephemeral"}},
         {"type":"text","text":"c"}]})");
  EXPECT_EQ(request.messages[1].parts.size(), 2u);
  ASSERT_EQ(request.marks.size(), 1u);
  EXPECT_EQ(request.marks[0].part, 2);
}

}  // namespace
}  // namespace larder
