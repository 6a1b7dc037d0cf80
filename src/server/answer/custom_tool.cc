#include "server/answer/custom_tool.h"

#include <fmt/format.h>

#include <utility>

#include "server/answer/answer_format.h"
#include "server/json_fields.h"

namespace larder {
namespace {

constexpr const char* kInput = "input";

std::string require_text(const Fields& fields, const char* name) {
  const auto text = fields.string(name, std::string::npos);
  if (!text || text->empty()) fields.fail(name, "is missing; send a string");
  return *text;
}

}  // namespace

std::shared_ptr<const CustomNames> names_of(const CustomTools& tools) {
  if (tools.empty()) return nullptr;
  auto names = std::make_shared<CustomNames>();
  for (const auto& [name, tool] : tools) names->insert(name);
  return names;
}

CustomTool read_custom_tool(const Fields& custom) {
  (void)custom.string("description", std::string::npos);
  const Json* value = custom.find("format");
  if (value == nullptr) return {};
  const Fields format(*value, custom.path_of("format"));
  const std::string type = format.string("type", kMaxNameBytes).value_or("");
  if (type == "text") return {};
  if (type != "grammar") format.fail("type", fmt::format("must be \"text\" or \"grammar\", it is \"{}\"", shorten(type)));
  const Json* inner = format.find("grammar");  // chat's shape; Responses has its members beside the type
  const Fields grammar = inner == nullptr ? format : Fields(*inner, format.path_of("grammar"));
  const std::string syntax = require_text(grammar, "syntax");
  if (syntax != "lark" && syntax != "regex")
    grammar.fail("syntax", fmt::format("must be \"lark\" or \"regex\", it is \"{}\"", shorten(syntax)));
  CustomTool tool{.syntax = syntax == "lark" ? CustomTool::Syntax::kLark : CustomTool::Syntax::kRegex,
                  .definition = require_text(grammar, "definition"),
                  .field = grammar.path_of("definition")};
  if (const std::size_t size = tool.definition.size(); size > kMaxSourceBytes)
    grammar.fail("definition", fmt::format("has {} bytes, at most {} are taken", size, kMaxSourceBytes));
  return tool;
}

Json custom_as_function(const std::string& name, const Fields& custom) {
  Json function = {{"name", name}};
  if (const Json* description = custom.find("description")) function["description"] = *description;
  Json parameters = {{"type", "object"}};
  parameters["properties"][kInput] = {{"type", "string"}};
  parameters["required"] = Json::array({kInput});
  parameters["additionalProperties"] = false;
  function["parameters"] = std::move(parameters);
  Json tool = {{"type", "function"}};
  tool["function"] = std::move(function);
  return tool;
}

Json custom_arguments(Json input) {
  Json arguments = Json::object();
  arguments[kInput] = std::move(input);
  return arguments;
}

std::string custom_input(const Json& arguments) {
  const auto input = arguments.find(kInput);
  const bool is_text = input != arguments.end() && input->is_string();
  return is_text ? input->get<std::string>() : dump_json(arguments);
}

}  // namespace larder
