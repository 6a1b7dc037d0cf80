// What a request of the Responses API asks for, without a server.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/api/openai_request.h"
#include "server/api/responses_request.h"
#include "server/api/server_config.h"
#include "server/json_reader.h"

namespace larder {
namespace {

const ServerLimits kLimits;

GenerationOptions options_of(const std::string& fields, HistoryStrategy server = HistoryStrategy::kNone) {
  RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  rules.history.strategy = server;
  const std::string input = fields.starts_with("\"input\"") ? "" : "\"input\":\"x\",";
  return parse_responses_request(parse_json("{" + input + fields + "}", {}), rules).options;
}

TEST(ResponsesRequest, WhatLarderIsToldOfHistoryComesFirst) {
  const auto strategy = [](const std::string& fields, HistoryStrategy server = HistoryStrategy::kNone) {
    return options_of(fields, server).history.strategy;
  };
  EXPECT_EQ(strategy(R"("truncation":"auto")"), HistoryStrategy::kRollingWindow);
  EXPECT_EQ(strategy(R"("truncation":"auto","larder":{"history":{"strategy":"none"}})"), HistoryStrategy::kNone);
  const std::string compaction = R"("context_management":[{"type":"compaction"}])";
  EXPECT_EQ(strategy(compaction), HistoryStrategy::kSummary);
  EXPECT_EQ(strategy(compaction + R"(,"larder":{"history":{"strategy":"retrieval"}})"), HistoryStrategy::kRetrieval);
  const HistoryStrategy by_default = HistoryStrategy::kSummary;
  EXPECT_EQ(strategy(R"("user":"a")", by_default), HistoryStrategy::kSummary);
  EXPECT_EQ(strategy(R"("truncation":"auto")", by_default), HistoryStrategy::kSummary);
  EXPECT_EQ(strategy(R"("truncation":"disabled")", by_default), HistoryStrategy::kNone);
}

// Else it would be another prompt.
TEST(ResponsesRequest, APrewarmLeavesTheRoomOfTheRequestThatItPrepares) {
  const std::string prewarm = R"("prompt_cache_options":{"prewarm":true})";
  EXPECT_EQ(options_of(R"("max_output_tokens":300)").answer_tokens(1000), 300);
  EXPECT_EQ(options_of(R"("max_output_tokens":300,)" + prewarm).answer_tokens(1000), 300);
  EXPECT_EQ(options_of(prewarm).answer_tokens(1000), std::nullopt);
  EXPECT_EQ(options_of(prewarm).sampling.max_tokens, 0);
}

TEST(ResponsesRequest, ErrorsNameTheField) {
  const auto param = [](const std::string& fields) {
    try {
      options_of(fields);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.param();
    }
    return std::string();
  };
  const std::string long_stop(1 << 20, 'x');
  std::string many_members;
  for (int i = 0; i < 300; ++i) many_members += fmt::format("\"m{}\":1,", i);
  std::string many_functions = R"({"type":"function","name":"f"})";
  for (std::size_t i = 0; i < kMaxTools; ++i) many_functions += R"(,{"type":"function","name":"f"})";
  const std::pair<std::string, const char*> cases[] = {
      {R"("max_output_tokens":0)", "max_output_tokens"},
      {R"("max_output_tokens":-1)", "max_output_tokens"},
      {R"("max_output_tokens":2147483648)", "max_output_tokens"},
      {R"("max_output_tokens":4,"min_tokens":5)", "min_tokens"},
      {R"("top_k":-2)", "top_k"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
      {R"("top_logprobs":21)", "top_logprobs"},
      {R"("logit_bias":{"100":1})", "logit_bias"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {"\"user\":\"" + std::string(5000, 'u') + "\"", "user"},
      {R"("stop":")" + long_stop + "\"", "stop"},
      {R"("chat_template_kwargs":{"a":")" + long_stop + "\"}", "chat_template_kwargs"},
      {R"("chat_template_kwargs":{)" + many_members + R"("a":1})", "chat_template_kwargs"},
      {R"("tools":[{"type":"function","name":""}])", "tools[0].name"},
      {R"("tools":[{"type":"function"}])", "tools[0].name"},
      {R"("tools":[{"type":"namespace","name":"n"}])", "tools[0].tools"},
      {R"("tools":[{"type":"namespace","name":")" + std::string(257, 'n') + R"(","tools":[]}])", "tools[0].name"},
      {R"("tools":[{"type":"namespace","name":"n","tools":[)" + many_functions + "]}]", "tools"},
      {R"("tools":[)" + many_functions + "]", "tools"},
      {R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"mcp"}]}])", "tools[0].tools[0].type"},
      {R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"custom"}]}])", "tools[0].tools[0].name"},
      {R"("tools":[{"type":"custom","name":"c","format":{"type":"grammar","syntax":"ebnf"}}])", "tools[0].format.syntax"},
      {R"("tools":[{"type":"custom","name":"c","format":{"type":"grammar","syntax":"lark","definition":""}}])",
       "tools[0].format.definition"},
      {R"("tools":[{"type":"custom","name":"c"},{"type":"function","name":"c"}])", "tools"},
      {R"("tools":[{"type":"function","name":"c"},{"type":"custom","name":"c"}])", "tools"},
      {R"("tools":[{"type":"function","name":"f","description":[]}])", "tools[0].description"},
      {R"("tools":[{"type":"function","name":"f","parameters":"{}"}])", "tools[0].parameters"},
      {R"("input":[{"type":"function_call","call_id":"a","name":"","arguments":"{}"}])", "input[0].name"},
      {R"("reasoning":"high")", "reasoning"},
      {R"("reasoning":{"effort":5})", "reasoning.effort"},
      {R"("reasoning":{"summary":[]})", "reasoning.summary"},
      {R"("user":5)", "user"},
      {R"("safety_identifier":{})", "safety_identifier"},
      {R"("max_tool_calls":"3")", "max_tool_calls"},
      {R"("max_tool_calls":-1)", "max_tool_calls"},
      {R"("text":{"verbosity":1})", "text.verbosity"},
  };
  for (const auto& [fields, name] : cases) EXPECT_EQ(param(fields), name) << fields.substr(0, 80);
}

TEST(ResponsesRequest, AgentsToolsAreTheirFunctions) {
  const RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  const Json body = parse_json(
      R"({"input":"x","tools":[{"type":"function","name":"f"},{"type":"web_search","external_web_access":false},
      {"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"g"},{"type":"function","name":"h"}]}]})", {});
  const ResponsesRequest request = parse_responses_request(body, rules);
  ASSERT_EQ(request.tools.size(), 3U);
  EXPECT_EQ(request.tools[0]["function"]["name"], "f");
  EXPECT_EQ(request.tools[2]["function"]["name"], "h");
  EXPECT_EQ(request.echo["tools"].size(), 3U);
}

TEST(ResponsesRequest, CustomToolsAreFunctionsToTheModel) {
  const RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  const std::string patch = R"({"type":"custom","name":"patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: \"a\""}})";
  const Json body = parse_json(R"({"input":"x","tools":[)" + patch + R"(,{"type":"function","name":"f"},
      {"type":"namespace","name":"n","tools":[{"type":"custom","name":"patch","format":{"type":"text"}}]}],
      "tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"patch"},{"type":"function","name":"f"}]}})", {});
  const ResponsesRequest request = parse_responses_request(body, rules);
  EXPECT_EQ(request.tools[0]["type"], "function");
  EXPECT_EQ(request.tools[0]["function"]["description"], "d");
  EXPECT_EQ(request.tools[2]["function"]["name"], "n.patch");
  const ToolChoice& choice = request.options.tool_choice;
  EXPECT_TRUE(choice.is_strict("patch") && !choice.is_strict("n.patch"));
  EXPECT_EQ(choice.custom.at("patch").definition, "start: \"a\"");
  EXPECT_EQ(*request.options.tool_calls.custom, (CustomNames{"n.patch", "patch"}));
  EXPECT_EQ(request.echo["tools"][0], parse_json(patch, {}));
  EXPECT_EQ(request.echo["tools"][2]["tools"][0]["format"]["type"], "text");
  EXPECT_EQ(request.echo["tool_choice"]["tools"], parse_json(R"([{"type":"function","name":"f"},{"type":"custom","name":"patch"}])", {}));
  const Json named = {{"type", "custom"}, {"name", "patch"}};
  const auto parse_named = [&] {
    Json copy = body;
    copy["tool_choice"] = named;
    return parse_responses_request(copy, rules);
  };
  EXPECT_EQ(parse_named().echo["tool_choice"], named);
  EXPECT_TRUE(parse_named().options.tool_choice.is_one_call);
}

// Codex, run without a sandbox, offers a search of the network beside its functions.
TEST(ResponsesRequest, AnAgentsSearchIsAsNone) {
  const RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  const auto parse = [&](const std::string& tools, const std::string& more = "") {
    return parse_responses_request(parse_json(R"({"input":"x","tools":[)" + tools + "]" + more + "}", {}), rules);
  };
  const std::string function = R"({"type":"function","name":"exec_command","strict":false,"parameters":{"type":"object"}})";
  const std::string search = R"({"type":"web_search","external_web_access":true})";
  const ResponsesRequest request = parse(function + "," + search, R"(,"tool_choice":"auto","parallel_tool_calls":true)");
  ASSERT_EQ(request.tools.size(), 1U);
  EXPECT_EQ(request.tools[0]["function"]["name"], "exec_command");
  // The reply says that nothing was searched.
  EXPECT_EQ(request.echo["tools"][1].dump(), R"({"type":"web_search","external_web_access":false})");
  const auto refusal = [&](const std::string& tools) {
    try {
      parse(tools);
    } catch (const Error& error) {
      return error.param();
    }
    return std::string();
  };
  EXPECT_EQ(refusal(search), "tools[0].type");
  EXPECT_EQ(refusal(function + R"(,{"type":"web_search"})"), "tools[1].type");
  EXPECT_EQ(refusal(function + R"(,{"type":"web_search","external_web_access":"yes"})"), "tools[1].external_web_access");
}

TEST(ResponsesRequest, FunctionsOfOneNameAreToldApart) {
  const RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  const auto parse = [&](const std::string& more, const std::string& fields = "") {
    const std::string function = R"({"type":"function","name":)";
    return parse_responses_request(
        parse_json(R"({"input":"x",)" + fields + R"("tools":[{"type":"namespace","name":"mail","tools":[)" + function +
                       R"("search","strict":true},)" + function + R"("send"}]},{"type":"namespace","name":"calendar","tools":[)" +
                       function + R"("search"}]})" + more + "]}",
                   {}),
        rules);
  };
  const auto names = [](const ResponsesRequest& request) {
    std::vector<std::string> list;
    for (const Json& tool : request.tools) list.push_back(tool["function"]["name"]);
    return list;
  };
  const ResponsesRequest request = parse("");
  EXPECT_EQ(names(request), (std::vector<std::string>{"mail.search", "send", "calendar.search"}));
  EXPECT_EQ(request.tool_names.at("mail.search"), (ToolName{"mail", "search"}));
  EXPECT_EQ(request.tool_names.at("send"), (ToolName{"mail", "send"}));
  const ToolChoice& choice = request.options.tool_choice;
  EXPECT_TRUE(choice.is_strict("mail.search") && !choice.is_strict("calendar.search"));
  // One that stands by itself keeps its name.
  EXPECT_EQ(names(parse(R"(,{"type":"function","name":"search"})")).back(), "search");
  EXPECT_TRUE(parse("", R"("tool_choice":{"type":"function","name":"calendar.search"},)")
                  .options.tool_choice.permits("calendar.search"));
  try {
    parse(R"(,{"type":"function","name":"mail.search"})");
    ADD_FAILURE() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.param(), "tools");
  }
}

TEST(ResponsesRequest, AFunctionIsStrictWhereverItStands) {
  const ToolChoice choice = options_of(R"("tools":[{"type":"function","name":"f","strict":true},{"type":"namespace","name":"n","tools":[
      {"type":"function","name":"g","strict":true},{"type":"function","name":"h"}]}])").tool_choice;
  EXPECT_TRUE(choice.is_strict("f") && choice.is_strict("g") && !choice.is_strict("h"));
}

TEST(ResponsesRequest, WhatIsOfTheRightTypeIsRepeated) {
  const RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  const Json body = parse_json(R"({"input":"x","reasoning":{"effort":"low","summary":null},"user":"u",
                                   "safety_identifier":"s","max_tool_calls":3,"text":{"verbosity":"low"}})",
                               {});
  const Json echo = parse_responses_request(body, rules).echo;
  for (const char* name : {"reasoning", "user", "safety_identifier", "max_tool_calls"}) {
    EXPECT_EQ(echo[name], body[name]) << name;
  }
  EXPECT_EQ(echo["text"]["verbosity"], "low");
}

// The prompt shows what is known of a tool, so that it bounds that; nothing would bound the rest.
TEST(ResponsesRequest, WhatIsNotKnownIsNotRepeated) {
  const RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
  const char* const kFunction = R"({"type":"function","name":"f","description":"d","parameters":{"a":1},"strict":true)";
  const auto echo_of = [&](const std::string& more) {
    const std::string function = kFunction + more + "}";
    return parse_responses_request(
               parse_json(R"({"input":"x","tools":[)" + function + R"(,{"type":"web_search","external_web_access":false)" +
                              more + R"(},{"type":"namespace","name":"n","description":"d","tools":[)" + function + "]" +
                              more + R"(}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[
                              {"type":"function","name":"f")" + more + "}]" + more + R"(},"reasoning":{"effort":"low")" +
                              more + R"(},"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"string"})" +
                              more + "}" + more + "}" + more + "}", {}), rules)
        .echo;
  };
  const Json echo = echo_of("");
  EXPECT_EQ(echo["tools"][0], parse_json(std::string(kFunction) + "}", {}));
  EXPECT_EQ(echo["tools"][2]["tools"][0], echo["tools"][0]);
  EXPECT_EQ(echo["tool_choice"]["tools"], parse_json(R"([{"type":"function","name":"f"}])", {}));
  EXPECT_EQ(dump_json(echo_of(R"(,"junk":[1,2])")), dump_json(echo));
  for (const char* choice : {R"("required")", R"({"type":"function","name":"f"})", R"({"type":"auto"})"}) {
    const Json body = parse_json(std::string(R"({"input":"x","tools":[)") + kFunction + R"(}],"tool_choice":)" + choice + "}", {});
    EXPECT_EQ(parse_responses_request(body, rules).echo["tool_choice"], body["tool_choice"]);
  }
  // Chat's shape of a format is told as Responses'.
  const Json nested = parse_json(
      R"({"input":"x","text":{"format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"string"},"junk":1}}}})", {});
  EXPECT_EQ(parse_responses_request(nested, rules).echo["text"]["format"],
            parse_json(R"({"type":"json_schema","name":"n","schema":{"type":"string"}})", {}));
}

// A breakpoint without a ttl has the request's, half an hour if that has none; the prompt's end none.
TEST(ResponsesRequest, TheTtlThatIsShownIsTheOneThatIsApplied) {
  const auto shown = [](const std::string& options) {
    RequestRules rules{.limits = kLimits, .vocab_size = 100, .max_model_len = 1000};
    const Json body = parse_json("{\"input\":\"x\"" + options + "}", {});
    return parse_responses_request(body, rules).echo["prompt_cache_options"].dump();
  };
  EXPECT_EQ(shown(""), "null");
  EXPECT_EQ(shown(R"(,"prompt_cache_retention":"24h")"), "null");
  const std::string options = R"(,"prompt_cache_options":)";
  EXPECT_EQ(shown(options + R"({"ttl":"12h"})"), R"({"mode":"implicit","ttl":"12h"})");
  EXPECT_EQ(shown(options + R"({"mode":"explicit"})"), R"({"mode":"explicit","ttl":"30m"})");
}

}  // namespace
}  // namespace larder
