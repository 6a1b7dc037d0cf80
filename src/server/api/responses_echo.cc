#include "server/api/responses_echo.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/json_fields.h"

namespace larder {
namespace {

constexpr std::size_t kMaxDescriptionBytes = std::size_t{64} << 10;  // of what the prompt does not show

Json echoed_callable(const Json& tool) {
  if (tool["type"] != "custom") return known_members(tool, {"type", "name", "description", "parameters", "strict"});
  Json echoed = known_members(tool, {"type", "name", "description"});
  const auto format = tool.find("format");
  if (format == tool.end() || !format->is_object()) return echoed;
  echoed["format"] = known_members(*format, {"type", "syntax", "definition"});
  const auto inner = format->find("grammar");  // chat's shape, which is taken, too
  if (inner != format->end() && inner->is_object()) echoed["format"].update(known_members(*inner, {"syntax", "definition"}));
  return echoed;
}

Json echoed_namespace(const Json& tool, const std::string& path) {
  (void)Fields(tool, path).string("description", kMaxDescriptionBytes);
  Json echoed = known_members(tool, {"type", "name", "description"});
  echoed["tools"] = Json::array();
  for (const Json& own : tool["tools"]) echoed["tools"].push_back(echoed_callable(own));
  return echoed;
}

}  // namespace

Json known_members(const Json& object, std::initializer_list<std::string_view> names) {
  Json known = Json::object();
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(names, std::string_view(name)) != names.end()) known[name] = value;
  }
  return known;
}

Json echoed_tools(const Json& tools) {
  Json echoed = Json::array();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i];
    if (tool["type"] == "namespace") {
      echoed.push_back(echoed_namespace(tool, fmt::format("tools[{}]", i)));
    } else if (tool["type"] == "function" || tool["type"] == "custom") {
      echoed.push_back(echoed_callable(tool));
    } else {
      // What it can reach from here, whatever was asked.
      echoed.push_back({{"type", tool["type"]}, {"external_web_access", false}});
    }
  }
  return echoed;
}

Json echoed_choice(const Json* asked, const ToolChoice& choice) {
  if (asked == nullptr) return "auto";
  if (!asked->is_object()) return *asked;
  Json echoed = {{"type", (*asked)["type"]}};
  if (!choice.is_restricted) return echoed;
  if (choice.is_one_call) {
    echoed["name"] = *choice.names.begin();
    return echoed;
  }
  echoed["mode"] = choice.has_to_call() ? "required" : "auto";
  echoed["tools"] = Json::array();
  for (const std::string& name : choice.names)
    echoed["tools"].push_back({{"type", choice.custom.contains(name) ? "custom" : "function"}, {"name", name}});
  return echoed;
}

Json echoed_format(const Json& format) {
  if (format["type"] == "text") return known_members(format, {"type"});
  const auto inner = format.find("json_schema");  // chat's shape, which is taken, too
  const bool is_flat = inner == format.end();
  const Fields fields(is_flat ? format : *inner, is_flat ? "text.format" : "text.format.json_schema");
  (void)fields.string("name", kMaxNameBytes);
  (void)fields.string("description", kMaxDescriptionBytes);
  Json echoed = {{"type", format["type"]}};
  echoed.update(known_members(is_flat ? format : *inner, {"name", "description", "schema", "strict"}));
  return echoed;
}

Json written_members(const Json& object) {
  Json written = Json::object();
  for (const auto& [name, value] : object.items()) {
    const std::string text = dump_json(value);
    written[name] = written_json({text.begin(), text.end()});
  }
  return written;
}

}  // namespace larder
