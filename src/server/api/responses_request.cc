#include "server/api/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "server/answer/custom_tool.h"
#include "server/api/openai_tools.h"
#include "server/api/responses_echo.h"
#include "server/chat/response_items.h"
#include "server/json_fields.h"
#include "server/utf8.h"

namespace larder {
namespace {

// Doing something else than was asked would be worse than refusing.
void refuse_missing_features(const Fields& fields) {
  for (const char* name : {"prompt", "moderation"}) {
    if (fields.has(name)) fields.fail(name, "is not supported; leave it out");
  }
}

void read_text_format(const Fields& fields, ResponsesRequest& request) {
  const Json* text = fields.find("text");
  if (text == nullptr) return;
  const Json* format = Fields(*text, "text").find("format");
  if (format == nullptr) return;
  AnswerFormat found = read_format(*format, "text.format");
  if (!found.is_text()) request.options.format = std::move(found);
}

// The API's flat shape -> the one that templates know.
Json chat_tool(const Json& tool, const std::string& path) {
  const Fields fields(tool, path);
  const std::string type = fields.string("type", kMaxNameBytes).value_or("");
  if (type != "function" && type != "custom") {
    fields.fail("type", fmt::format("\"function\" and \"custom\" are supported, it is \"{}\"; leave it out", shorten(type)));
  }
  const std::string name = fields.string("name", kMaxNameBytes).value_or("");
  if (name.empty()) fields.fail("name", "is missing; send the tool's name");
  if (type == "custom") return custom_as_function(name, fields);
  check_definition(fields);
  Json function = Json::object();
  function["name"] = name;
  for (const char* other : {"description", "parameters"}) {
    if (const Json* value = fields.find(other)) function[other] = *value;
  }
  Json shaped = {{"type", "function"}};
  shaped["function"] = std::move(function);
  return shaped;
}

// A search that may not reach the network finds nothing, which is as good as none.
bool is_idle_search(const Fields& tool, std::string_view type) {
  return type == "web_search" && !tool.boolean("external_web_access", true);
}

// Agents send a search to any server, and say how far it may reach, which others leave out. It is on offer beside their
// functions only: without them it is what is wanted.
bool is_search_on_offer(const Fields& tool) {
  return tool.string("type", kMaxNameBytes) == "web_search" && tool.boolean("external_web_access", false);
}

struct ReadTool {
  Json shaped;  // see chat_tool()
  std::string space;
  bool is_strict = false;
  std::optional<CustomTool> custom = {};
};

ReadTool read_callable(const Json& tool, const std::string& path, std::string space) {
  const Fields fields(tool, path);
  ReadTool read{chat_tool(tool, path), std::move(space), fields.boolean("strict", false)};
  if (fields.string("type", kMaxNameBytes) == "custom") read.custom = read_custom_tool(fields);
  return read;
}

// To found; the tools of a namespace, each by itself.
void read_tool(const Json& tool, const std::string& path, std::vector<ReadTool>& found) {
  constexpr std::size_t kMaxSpaceBytes = 256;  // it may be repeated in each function's name
  const Fields fields(tool, path);
  const std::string type = fields.string("type", kMaxNameBytes).value_or("");
  if (is_idle_search(fields, type) || is_search_on_offer(fields)) return;
  if (type != "namespace") return found.push_back(read_callable(tool, path, ""));
  const std::string space = fields.string("name", kMaxSpaceBytes).value_or("");
  const Json* tools = fields.array("tools");
  if (tools == nullptr) fields.fail("tools", "is missing; send the namespace's tools");
  require_few_tools(found.size() + tools->size(), "tools");
  for (std::size_t i = 0; i < tools->size(); ++i)
    found.push_back(read_callable((*tools)[i], fmt::format("{}.tools[{}]", path, i), space));
}

// The model is to know which of several it calls.
void name_tools(std::vector<ReadTool> found, ResponsesRequest& request) {
  std::map<std::string, int> counts;
  for (const ReadTool& tool : found) ++counts[tool.shaped["function"]["name"].get<std::string>()];
  Json shaped = Json::array();
  CustomTools custom;
  for (ReadTool& tool : found) {
    Json& name = tool.shaped["function"]["name"];
    const ToolName own{tool.space, name.get<std::string>()};
    if (!own.space.empty() && counts[own.name] > 1) name = whole_name(own);
    const auto [known, is_new] = request.tool_names.emplace(name.get<std::string>(), own);
    const bool is_of_both_kinds = tool.custom ? !is_new : custom.contains(known->first);
    if ((!is_new && known->second != own) || is_of_both_kinds)
      fail_field("tools", fmt::format("two of them would be \"{}\" to the model; rename one", shorten(known->first)));
    if (tool.is_strict) request.options.tool_choice.strict_names.insert(known->first);
    if (tool.custom) custom.emplace(known->first, *std::move(tool.custom));
    shaped.push_back(std::move(tool.shaped));
  }
  if (!shaped.empty()) request.tools = std::move(shaped);
  request.options.tool_calls.custom = names_of(custom);
  request.options.tool_choice.take_custom(std::move(custom));
}

void read_tools(const Fields& fields, ResponsesRequest& request) {
  request.options.tool_choice = read_tool_choice(fields);
  request.echo["tool_choice"] = nullptr;  // its place
  request.echo["tools"] = Json::array();
  if (const Json* tools = fields.array("tools")) {
    std::vector<ReadTool> found;
    const auto path = [](std::size_t index) { return fmt::format("tools[{}]", index); };
    for (std::size_t i = 0; i < tools->size(); ++i) read_tool((*tools)[i], path(i), found);
    for (std::size_t i = 0; found.empty() && i < tools->size(); ++i)
      if (is_search_on_offer(Fields((*tools)[i], path(i)))) (void)chat_tool((*tools)[i], path(i));  // refuses it
    request.echo["tools"] = echoed_tools(*tools);
    name_tools(std::move(found), request);
  }
  check_tool_choice(request.options.tool_choice, request.tools);
  request.echo["tool_choice"] = echoed_choice(fields.find("tool_choice"), request.options.tool_choice);
}

void read_sessions(const Fields& fields, ResponsesRequest& request) {
  request.previous_response_id =
      fields.string("previous_response_id", kMaxNameBytes).value_or("");
  if (const Json* value = fields.find("conversation")) {
    if (value->is_string()) {
      request.conversation_id = value->get<std::string>();
    } else {
      const Fields inner(*value, "conversation");
      request.conversation_id = inner.string("id", kMaxNameBytes).value_or("");
      if (request.conversation_id.empty()) inner.fail("id", "is missing; send the conversation's id");
    }
  }
  if (!request.previous_response_id.empty() && !request.conversation_id.empty()) {
    fields.fail("previous_response_id",
                "excludes conversation, which has its own history; send one of them");
  }
}

void read_input(const Fields& fields, ResponsesRequest& request) {
  request.instructions = fields.string("instructions", std::string::npos).value_or("");
  const Json* input = fields.find("input");
  if (input != nullptr) request.input = normalize_items(*input, "input");
  const bool has_history =
      !request.previous_response_id.empty() || !request.conversation_id.empty();
  if (request.input.empty() && !has_history) {
    fields.fail("input", fmt::format("is {}; send a string or an array of items",
                                     input == nullptr ? "missing" : "empty"));
  }
}

void read_logprobs(const Fields& fields, const RequestRules& rules, ResponsesRequest& request) {
  if (const Json* include = fields.find("include")) {
    if (!include->is_array()) fields.fail("include", "must be an array of strings");
    request.wants_logprobs = std::ranges::find(*include, "message.output_text.logprobs") !=
                             include->end();
  }
  const auto top = fields.integer("top_logprobs", {0, rules.limits.max_logprobs}).value_or(0);
  if (request.wants_logprobs) request.options.sampling.num_logprobs = static_cast<int>(top);
  request.echo["top_logprobs"] = top;
}

void read_length(const Fields& fields, ResponsesRequest& request) {
  GenerationOptions& options = request.options;
  const auto given = fields.integer("max_output_tokens", {1, INT32_MAX});
  if (given) {
    options.sampling.max_tokens = static_cast<int>(*given);
    options.has_max_tokens = true;
    if (options.sampling.min_tokens > *given) {
      fields.fail("min_tokens",
                  fmt::format("must be at most max_output_tokens, which is {}", *given));
    }
  }
  request.echo["max_output_tokens"] = given ? Json(*given) : Json();
  if (request.prewarms) {
    options.prepared_answer_tokens = static_cast<int>(given.value_or(-1));
    options.sampling.max_tokens = 0;
    options.sampling.min_tokens = 0;
    options.has_max_tokens = true;
  }
}

// What is Responses' own about the cache; the rest is read as chat's.
void read_cache(const Fields& fields, ResponsesRequest& request) {
  GenerationOptions& options = request.options;
  const auto read = [&](const Fields& from) {
    request.prewarms |= from.boolean("prewarm", false);
    if (const auto id = from.string("comparison_response_id", kMaxNameBytes)) {
      options.comparison_id = *id;
      options.wants_diagnostics = true;
    }
  };
  read(fields);
  const Json* value = fields.find("prompt_cache_options");
  Json shown = {{"mode", "implicit"}};
  if (value != nullptr) {
    const Fields inner(*value, "prompt_cache_options");
    read(inner);
    for (const char* name : {"mode", "ttl"}) {
      if (const Json* given = inner.find(name)) shown[name] = *given;
    }
  }
  // Without a ttl only explicit breakpoints get one; and without one there is nothing that clients could read.
  if (shown["mode"] == "explicit" && !shown.contains("ttl")) shown["ttl"] = "30m";
  if (options.comparison_id) shown["comparison_response_id"] = *options.comparison_id;
  request.echo["prompt_cache_options"] = shown.contains("ttl") ? std::move(shown) : Json();
  options.prompt_cache_key = fields.string("prompt_cache_key", kMaxNameBytes).value_or("");
}

// What becomes of a long history, where "larder" does not say.
void read_context(const Fields& fields, ResponsesRequest& request) {
  const std::string truncation = fields.string("truncation", kMaxNameBytes).value_or("disabled");
  if (truncation != "auto" && truncation != "disabled") {
    fields.fail("truncation", fmt::format("must be \"auto\" or \"disabled\", it is \"{}\"",
                                          shorten(truncation)));
  }
  request.echo["truncation"] = truncation;
  request.options.truncation = "\"truncation\": \"auto\"";
  HistoryOptions& history = request.options.history;
  const Json* larder = fields.find("larder");
  const bool is_said = larder != nullptr && larder->is_object() && larder->contains("history");
  // Not even what the server does by default.
  if (!is_said && fields.has("truncation") && truncation == "disabled") history = {};
  if (!is_said && truncation == "auto" && history.strategy == HistoryStrategy::kNone) {
    history = {.strategy = HistoryStrategy::kRollingWindow, .max_tokens = INT32_MAX};
  }
  const Json* entries = fields.array("context_management");
  if (entries == nullptr) return;
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const Fields entry((*entries)[i], fmt::format("context_management[{}]", i));
    const std::string type = entry.string("type", kMaxNameBytes).value_or("");
    if (type != "compaction") {
      entry.fail("type", fmt::format("must be \"compaction\", it is \"{}\"", shorten(type)));
    }
    const auto threshold = entry.integer("compact_threshold", {1, INT32_MAX});
    if (is_said) continue;
    history = {.strategy = HistoryStrategy::kSummary,
               .max_tokens = static_cast<int>(threshold.value_or(0))};
    request.compacts = true;
  }
}

// Nobody may be there to end it, or to keep what comes of it.
void read_background(const Fields& fields, ResponsesRequest& request) {
  request.is_background = fields.boolean("background", false) && request.use == ResponsesUse::kAnswer;
  if (!request.is_background) return;
  if (!request.stores) fields.fail("background", "needs the response to be stored; leave \"store\" out, or send true");
  if (request.options.attention.window > 0 && !request.options.has_max_tokens)
    fields.fail("max_output_tokens", "is missing; in the background an answer with an endless context needs an end");
}

// Clients read what is repeated in the reply as these types.
void check_echoed(const Fields& fields) {
  for (const char* name : {"safety_identifier", "user"}) (void)fields.string(name, kMaxNameBytes);
  (void)fields.integer("max_tool_calls", {0, kMaxInt32});
  if (const Json* text = fields.find("text")) {
    (void)Fields(*text, "text").string("verbosity", kMaxNameBytes);
  }
  if (const Json* reasoning = fields.find("reasoning")) {
    const Fields inner(*reasoning, "reasoning");
    for (const char* name : {"effort", "summary", "generate_summary"}) {
      (void)inner.string(name, kMaxNameBytes);
    }
  }
}

void echo_as_given(const Fields& fields, ResponsesRequest& request) {
  check_echoed(fields);
  for (const char* name :
       {"instructions", "previous_response_id", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "user", "max_tool_calls"}) {
    const Json* value = fields.find(name);
    request.echo[name] = value == nullptr ? Json() : *value;
  }
  request.echo["parallel_tool_calls"] = request.options.tool_calls.takes_many;
  request.echo["temperature"] = fields.number("temperature", {0, 2}).value_or(1);
  request.echo["top_p"] = fields.number("top_p", {0, 1}).value_or(1);
  Json text = {{"format", {{"type", "text"}}}};
  if (const Json* given = fields.find("text")) {
    const Fields inner(*given, "text");
    if (const Json* format = inner.find("format")) text["format"] = echoed_format(*format);
    if (const Json* verbosity = inner.find("verbosity")) text["verbosity"] = *verbosity;
  }
  request.echo["text"] = std::move(text);
  const Json* reasoning = fields.find("reasoning");
  request.echo["reasoning"] =
      reasoning == nullptr ? Json({{"effort", nullptr}, {"summary", nullptr}})
                           : known_members(*reasoning, {"effort", "summary", "generate_summary"});
  request.echo["background"] = request.is_background;
  request.echo["service_tier"] = "default";
}

}  // namespace

Json read_metadata(const Json& body) {
  constexpr std::size_t kMaxEntries = 16, kMaxKeyCharacters = 64, kMaxValueCharacters = 512;
  const Fields fields(body, "");
  const Json* value = fields.find("metadata");
  if (value == nullptr) return Json::object();
  const Fields inner(*value, "metadata");
  if (value->size() > kMaxEntries) {
    fields.fail("metadata",
                fmt::format("at most {} entries, there are {}", kMaxEntries, value->size()));
  }
  for (const auto& [key, text] : value->items()) {
    if (const std::size_t size = count_characters(key); size > kMaxKeyCharacters) {
      fields.fail("metadata", fmt::format("a key may have {} characters, one has {}",
                                          kMaxKeyCharacters, size));
    }
    const bool fits = text.is_string() && count_characters(text.get_ref<const std::string&>()) <=
                                              kMaxValueCharacters;
    if (!fits) {
      inner.fail(key, fmt::format("must be a string of at most {} characters", kMaxValueCharacters));
    }
  }
  return *value;
}

ResponsesRequest parse_responses_request(const Json& body, const RequestRules& rules,
                                         ResponsesUse use) {
  const Fields fields(body, "");
  refuse_missing_features(fields);
  ResponsesRequest request;
  request.use = use;
  RequestRules longer = rules;
  longer.takes_long_ttl = true;
  request.options = read_generation_options(fields, longer);
  request.options.names = {
      .messages = "input", .max_tokens = "max_output_tokens", .logprobs = "top_logprobs"};
  read_text_format(fields, request);
  request.options.n = request.options.best_of = 1;
  if (use != ResponsesUse::kAnswer) request.options.stream = false;
  read_cache(fields, request);
  read_length(fields, request);
  read_logprobs(fields, rules, request);
  read_sessions(fields, request);
  read_input(fields, request);
  read_tools(fields, request);
  read_context(fields, request);
  if (use == ResponsesUse::kCompaction) {
    request.options.history.strategy = HistoryStrategy::kSummary;
    request.options.history.drops_all = true;
  }
  request.stores = use != ResponsesUse::kCompaction && fields.boolean("store", true);
  read_background(fields, request);
  request.echo["metadata"] = read_metadata(body);
  request.echo["store"] = request.stores;
  request.template_kwargs = read_template_kwargs(fields);
  echo_as_given(fields, request);
  return request;
}

}  // namespace larder
