#include "server/answer/answer_format.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/json_fields.h"

namespace larder {
namespace {

constexpr std::size_t kMaxChoices = 1000;

// The schema of any object.
Json any_object() { return {{"type", "object"}}; }

AnswerFormat json_of(Json schema, std::string field) {
  return {.kind = AnswerFormat::Kind::kSchema, .schema = std::move(schema), .field = std::move(field)};
}

// A schema, or the text of one, as some clients send it.
AnswerFormat read_schema(const Json& value, const std::string& path) {
  if (value.is_object() || value.is_boolean()) return json_of(value, path);
  if (!value.is_string()) fail_field(path, fmt::format("must be a schema, it is {}", describe_type(value)));
  try {
    return json_of(parse_json(value.get_ref<const std::string&>(), {}), path);
  } catch (const Error& error) {
    fail_field(path, fmt::format("is no JSON: {}", error.message()));
  }
}

AnswerFormat read_source(const Json& value, AnswerFormat::Kind kind, const std::string& path) {
  if (!value.is_string()) fail_field(path, fmt::format("must be a string, it is {}", describe_type(value)));
  const auto& source = value.get_ref<const std::string&>();
  if (source.empty()) fail_field(path, "is empty; leave it out");
  if (source.size() > kMaxSourceBytes) {
    fail_field(path, fmt::format("has {} bytes, at most {} are taken", source.size(), kMaxSourceBytes));
  }
  return {.kind = kind, .source = source, .field = path};
}

AnswerFormat read_choices(const Json& value, const std::string& path) {
  if (!value.is_array() || value.empty() || value.size() > kMaxChoices) {
    fail_field(path, value.is_array() ? fmt::format("must have 1 to {} strings, it has {}", kMaxChoices, value.size())
                                      : fmt::format("must be an array of 1 to {} strings", kMaxChoices));
  }
  AnswerFormat format{.kind = AnswerFormat::Kind::kChoice, .field = path};
  for (const Json& choice : value) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      fail_field(path, "must hold strings that are not empty");
    }
    format.choices.push_back(choice.get<std::string>());
  }
  return format;
}

struct OtherName {
  const char* name;
  AnswerFormat (*read)(const Json& value, const std::string& path);
};

AnswerFormat read_regex(const Json& value, const std::string& path) {
  return read_source(value, AnswerFormat::Kind::kRegex, path);
}
AnswerFormat read_grammar(const Json& value, const std::string& path) {
  return read_source(value, AnswerFormat::Kind::kGrammar, path);
}
// llama.cpp's clients send "" for none.
AnswerFormat read_optional_grammar(const Json& value, const std::string& path) {
  return value == "" ? AnswerFormat{} : read_grammar(value, path);
}
AnswerFormat read_any_object(const Json& value, const std::string& path) {
  if (!value.is_boolean()) fail_field(path, "must be true or false");
  return value.get<bool>() ? json_of(any_object(), path) : AnswerFormat{};
}

bool say_the_same(const AnswerFormat& a, const AnswerFormat& b) {
  return a.kind == b.kind && a.schema == b.schema && a.source == b.source && a.choices == b.choices;
}

// What several APIs call it; two of them at once are refused, but where they say the same, as clients do that know
// servers of any age.
AnswerFormat read_others(const Fields& fields, std::initializer_list<OtherName> names, AnswerFormat format) {
  for (const auto& [name, read] : names) {
    const Json* value = fields.find(name);
    if (value == nullptr) continue;
    AnswerFormat found = read(*value, fields.path_of(name));
    if (found.is_text()) continue;
    if (!format.is_text() && !say_the_same(format, found))
      fields.fail(name, fmt::format("and {} both say what the answer is; send one of them", format.field));
    format = std::move(found);
  }
  return format;
}

// Chat has it within what is called as the type, Responses beside that.
std::string name_of(const Fields& tool) {
  const char* const kind = tool.has("custom") ? "custom" : "function";
  const Json* inner = tool.find(kind);
  const Fields fields = inner == nullptr ? tool : Fields(*inner, tool.path_of(kind));
  const std::string name = fields.string("name", kMaxNameBytes).value_or("");
  if (name.empty()) fields.fail("name", "is missing; send the tool's name");
  return name;
}

ToolChoice::Mode read_mode(const std::string& mode, const Fields& fields, const char* name) {
  if (mode == "auto") return ToolChoice::Mode::kAuto;
  if (mode == "required") return ToolChoice::Mode::kRequired;
  if (mode == "none") return ToolChoice::Mode::kNone;
  fields.fail(name,
              fmt::format("\"{}\" is not supported; send \"auto\", \"none\", \"required\", a function, a custom tool or allowed_tools",
                          shorten(mode)));
}

// Chat has its members within "allowed_tools", Responses beside "type".
ToolChoice read_allowed(const Fields& outer) {
  const Json* value = outer.find("allowed_tools");
  const Fields fields = value == nullptr ? outer : Fields(*value, outer.path_of("allowed_tools"));
  const std::string mode = fields.string("mode", kMaxNameBytes).value_or("auto");
  if (mode != "auto" && mode != "required") fields.fail("mode", "must be \"auto\" or \"required\"");
  ToolChoice choice{.mode = read_mode(mode, fields, "mode"), .is_restricted = true};
  const Json* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) fields.fail("tools", "must name at least one tool");
  require_few_tools(tools->size(), fields.path_of("tools"));
  for (std::size_t i = 0; i < tools->size(); ++i) {
    choice.names.insert(name_of(Fields((*tools)[i], fmt::format("{}[{}]", fields.path_of("tools"), i))));
  }
  return choice;
}

}  // namespace

void ToolChoice::take_custom(CustomTools tools) {
  custom = std::move(tools);
  for (const auto& [name, tool] : custom)
    if (tool.is_bound()) strict_names.insert(name);
}

AnswerFormat read_format(const Json& value, const std::string& path) {
  const Fields fields(value, path);
  const std::string type = fields.string("type", kMaxNameBytes).value_or("");
  if (type == "text") return {};
  if (type != "json_object" && type != "json_schema") {
    fields.fail("type",
                fmt::format("must be \"text\", \"json_object\" or \"json_schema\", it is \"{}\"", shorten(type)));
  }
  const Json* inner = fields.find("json_schema");
  const Fields within = inner == nullptr ? fields : Fields(*inner, fields.path_of("json_schema"));
  const Json* schema = within.find("schema");
  if (schema != nullptr) return read_schema(*schema, within.path_of("schema"));
  if (type == "json_schema" && inner == nullptr)
    fields.fail("schema", "is missing; send the schema, or the type \"json_object\"");
  return json_of(any_object(), path);
}

AnswerFormat read_answer_format(const Fields& fields) {
  AnswerFormat format;
  if (const Json* value = fields.find("response_format")) format = read_format(*value, "response_format");
  format = read_others(fields,
                       {{"json_schema", read_schema},
                        {"grammar", read_optional_grammar},
                        {"guided_json", read_schema},
                        {"guided_regex", read_regex},
                        {"guided_choice", read_choices},
                        {"guided_grammar", read_grammar}},
                       std::move(format));
  const Json* value = fields.find("structured_outputs");
  if (value == nullptr) return format;
  const Fields inner(*value, "structured_outputs");
  if (inner.has("structural_tag")) inner.fail("structural_tag", "is not supported; send tools");
  if (inner.has("whitespace_pattern")) inner.fail("whitespace_pattern", "is not supported; send disable_any_whitespace");
  format = read_others(inner,
                       {{"json", read_schema},
                        {"json_object", read_any_object},
                        {"regex", read_regex},
                        {"choice", read_choices},
                        {"grammar", read_grammar}},
                       std::move(format));
  format.is_compact = inner.boolean("disable_any_whitespace", false);
  return format;
}

ToolChoice read_tool_choice(const Fields& fields) {
  const Json* value = fields.find("tool_choice");
  if (value == nullptr) return {};
  if (value->is_string()) return {.mode = read_mode(value->get<std::string>(), fields, "tool_choice")};
  const Fields choice(*value, "tool_choice");
  const std::string type = choice.string("type", kMaxNameBytes).value_or("");
  if (type == "allowed_tools") return read_allowed(choice);
  if (type == "function" || type == "custom") {
    return {
        .mode = ToolChoice::Mode::kRequired, .is_restricted = true, .is_one_call = true, .names = {name_of(choice)}};
  }
  return {.mode = read_mode(type, choice, "type")};
}

void require_few_tools(std::size_t num_tools, const std::string& path) {
  if (num_tools > kMaxTools) fail_field(path, fmt::format("has {} tools, at most {} are taken; send fewer", num_tools, kMaxTools));
}

void check_tool_choice(const ToolChoice& choice, const Json& tools) {
  const bool has_tools = tools.is_array() && !tools.empty();
  if (!has_tools && choice.has_to_call())
    fail_field("tool_choice", "demands a call, and there are no tools; send tools");
  require_few_tools(tools.size(), "tools");
  std::set<std::string_view> known;
  for (const Json& tool : tools) known.insert(tool["function"]["name"].get_ref<const std::string&>());
  for (const std::string& name : choice.names)
    if (!known.contains(name)) fail_field("tool_choice", fmt::format("there is no tool \"{}\" among tools", shorten(name)));
}

}  // namespace larder
