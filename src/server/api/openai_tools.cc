#include "server/api/openai_tools.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "server/answer/custom_tool.h"

namespace larder {
namespace {

constexpr const char* kCustom = "custom";

// A tool or a call of one.
void check_is_function(const Fields& tool, const std::string& path) {
  const Json* type = tool.find("type");
  if (type == nullptr || *type == "function") return;
  fail_field(path + ".type", fmt::format("{} is not supported; \"function\" and \"custom\" are",
                                         shorten(type->is_string() ? '"' + type->get<std::string>() + '"'
                                                                   : describe_type(*type))));
}

// What a tool, or a call of one, has under its kind, "function" or "custom": an object with a name.
Fields read_kind(const Json& value, const std::string& path, const char* kind, std::size_t max_name_bytes) {
  const Fields fields(value, path);
  const Json* inner = fields.find(kind);
  if (inner == nullptr) fields.fail(kind, "is missing; send an object with a name");
  const Fields within(*inner, fields.path_of(kind));
  const auto name = within.string("name", max_name_bytes);
  if (!name || name->empty()) within.fail("name", fmt::format("is missing; send the {}'s name", kind == kCustom ? "tool" : kind));
  return within;
}

Fields read_function(const Json& value, const std::string& path, std::size_t max_name_bytes) {
  check_is_function(Fields(value, path), path);
  return read_kind(value, path, "function", max_name_bytes);
}

bool is_custom_tool(const Json& value) { return value.is_object() && value.contains("type") && value["type"] == kCustom; }

// A call of a custom tool in the history -> one of the function that it is to the model.
void make_function_call(Json& call, const std::string& path) {
  const Fields custom = read_kind(call, path, kCustom, std::string::npos);
  const Json* input = custom.find("input");
  if (input == nullptr || !input->is_string()) custom.fail("input", "must be a string, the text that the tool was called with");
  Json function = {{"name", call[kCustom]["name"]}};
  function["arguments"] = custom_arguments(*input);
  Json made = Json::object();
  if (call.contains("id")) made["id"] = call["id"];
  made["type"] = "function";
  made["function"] = std::move(function);
  call = std::move(made);
}

// The function of a call in the history, of which templates print the name and the arguments.
Json& function_of(Json& call, const std::string& path) {
  const Fields inner = read_function(call, path, std::string::npos);
  const Json* arguments = inner.find("arguments");
  if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
    inner.fail("arguments", fmt::format("must be a string or an object, it is {}", describe_type(*arguments)));
  }
  return call["function"];
}

// Its name is no other tool's: a call would be of either.
void read_custom(Json& tool, const std::string& path, const CustomNames& others, CustomTools& found) {
  const Fields custom = read_kind(tool, path, kCustom, kMaxNameBytes);
  const auto name = tool[kCustom]["name"].get<std::string>();
  const bool is_new = !others.contains(name) && found.emplace(name, read_custom_tool(custom)).second;
  if (!is_new) custom.fail("name", fmt::format("\"{}\" is another tool's, too; rename one", shorten(name)));
  tool = custom_as_function(name, custom);
}

}  // namespace

void check_definition(const Fields& function) {
  (void)function.string("description", std::string::npos);
  const Json* parameters = function.find("parameters");
  if (parameters != nullptr) (void)Fields(*parameters, function.path_of("parameters"));
}

void parse_tool_arguments(Json& message, const std::string& path, std::size_t& values_left) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (!calls->is_array()) fail_field(path + ".tool_calls", "must be an array");
  for (std::size_t i = 0; i < calls->size(); ++i) {
    const std::string call_path = fmt::format("{}.tool_calls[{}]", path, i);
    if (is_custom_tool((*calls)[i])) {
      make_function_call((*calls)[i], call_path);
      continue;
    }
    Json& arguments = function_of((*calls)[i], call_path)["arguments"];
    if (arguments.is_null() || arguments == "") arguments = Json::object();  // a call without any
    if (!arguments.is_string()) continue;
    std::size_t num_values = 0;
    try {
      Json parsed = parse_json(arguments.get_ref<const std::string&>(), {.max_values = values_left}, &num_values);
      if (!parsed.is_object()) continue;
      values_left -= num_values;
      arguments = std::move(parsed);
    } catch (const Error&) {
      // A model may have written broken JSON into the history; the template then gets its text.
      if (num_values <= values_left) continue;
      fail_field(call_path + ".function.arguments",
                 fmt::format("the arguments of all calls have more than {} JSON values; send fewer messages",
                             JsonLimits{}.max_values));
    }
  }
}

void read_tools(const Fields& fields, ChatRequest& request) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return;
  request.tools = *tools;
  const auto path_of = [](std::size_t index) { return fmt::format("tools[{}]", index); };
  CustomNames functions;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    if (is_custom_tool((*tools)[i])) continue;
    const Fields function = read_function((*tools)[i], path_of(i), kMaxNameBytes);
    check_definition(function);
    functions.insert(*function.string("name", kMaxNameBytes));
  }
  CustomTools custom;
  for (std::size_t i = 0; i < tools->size(); ++i)
    if (is_custom_tool((*tools)[i])) read_custom(request.tools[i], path_of(i), functions, custom);
  if (custom.empty()) return;  // Responses has told which there are
  request.options.tool_calls.custom = names_of(custom);
  request.options.tool_choice.take_custom(std::move(custom));
}

ToolChoice read_choice_among(const Json& tools, CustomTools custom, const Fields& fields) {
  ToolChoice choice = read_tool_choice(fields);
  check_tool_choice(choice, tools);
  choice.take_custom(std::move(custom));
  if (tools.is_null()) return choice;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Fields function(tools[i]["function"], fmt::format("tools[{}].function", i));
    if (function.boolean("strict", false))
      choice.strict_names.insert(tools[i]["function"]["name"].get<std::string>());
  }
  return choice;
}

}  // namespace larder
