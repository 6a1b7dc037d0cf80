#include "server/normalise.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/text_pattern.h"

namespace larder {
namespace {

constexpr std::size_t kMaxLineBytes = 200;  // a longer one says more than the time

bool is_system(const Json& message) {
  const std::string role = message.value("role", std::string());
  return role == "system" || role == "developer";
}

std::string* text_of(Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return nullptr;
  return content->get_ptr<std::string*>();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

// Takes the lines that the condition wants out of the system prompt.
template <class Condition>
std::vector<std::string> take_lines(Json& messages, Condition condition) {
  std::vector<std::string> taken;
  for (Json& message : messages) {
    std::string* text = is_system(message) ? text_of(message) : nullptr;
    if (text == nullptr) continue;
    std::string kept;
    bool has_kept = false, has_taken = false;
    for (std::string& line : lines_of(*text)) {
      if (condition(line)) {
        taken.push_back(std::move(line));
        has_taken = true;
        continue;
      }
      if (std::exchange(has_kept, true)) kept += '\n';
      kept += line;
    }
    if (has_taken) *text = std::move(kept);
  }
  return taken;
}

bool has_nonce_header(const std::string& line) {
  return line.starts_with("x-anthropic-billing-header:");
}

bool tells_the_time(const std::string& line) {
  static const TextPattern pattern(R"(
    \b \d{1,2} : \d{2} (?: : \d{2} )? \b | \b 1[5-9]\d{8} (?: \d{3} )? \b )");
  if (line.size() > kMaxLineBytes) return false;
  // A JSON document or code is not to be torn apart.
  if (line.find_first_of("{}[]<>\"`") != std::string::npos) return false;
  return pattern.replace_all(line, "") != line;
}

bool move_timestamps(Json& messages) {
  std::string* text = nullptr;
  for (Json& message : messages) {
    if (message.value("role", std::string()) == "user") text = text_of(message);
  }
  if (text == nullptr) return false;
  const std::vector<std::string> moved = take_lines(messages, tells_the_time);
  for (const std::string& line : moved) {
    *text += "\n\n";
    *text += line;
  }
  return !moved.empty();
}

// In the order of their names, but for those of a tool itself, which models know in this one.
Json with_sorted_keys(const Json& value, bool is_tool) {
  if (value.is_array()) {
    Json sorted = Json::array();
    for (const Json& item : value) sorted.push_back(with_sorted_keys(item, false));
    return sorted;
  }
  if (!value.is_object()) return value;
  constexpr std::array<std::string_view, 5> kFirst = {"type", "name", "description", "function",
                                                      "parameters"};
  const auto rank = [&](const std::string& key) {
    const auto found = std::ranges::find(kFirst, key);
    return is_tool ? static_cast<int>(found - kFirst.begin()) : 0;
  };
  std::vector<std::string> keys;
  for (const auto& item : value.items()) keys.push_back(item.key());
  std::ranges::sort(keys, [&](const std::string& left, const std::string& right) {
    return std::pair(rank(left), left) < std::pair(rank(right), right);
  });
  Json sorted = Json::object();
  for (const std::string& key : keys) {
    sorted[key] = with_sorted_keys(value[key], is_tool && key == "function");
  }
  return sorted;
}

bool sort_tools(Json& tools) {
  if (!tools.is_array()) return false;
  Json sorted = Json::array();
  for (const Json& tool : tools) sorted.push_back(with_sorted_keys(tool, true));
  if (sorted.dump(-1, ' ', false, Json::error_handler_t::replace) ==
      tools.dump(-1, ' ', false, Json::error_handler_t::replace))
    return false;
  tools = std::move(sorted);
  return true;
}

}  // namespace

bool add_normalisation(std::string_view name, Normalisation& normalisation) {
  const bool is_all = name == "all";
  const bool is_known = is_all || name == "nonce_headers" || name == "tool_keys" ||
                        name == "timestamps";
  normalisation.nonce_headers |= is_all || name == "nonce_headers";
  normalisation.tool_keys |= is_all || name == "tool_keys";
  normalisation.timestamps |= is_all || name == "timestamps";
  return is_known;
}

std::vector<std::string> normalise(const Normalisation& normalisation, Json& messages, Json& tools) {
  std::vector<std::string> done;
  if (normalisation.nonce_headers && !take_lines(messages, has_nonce_header).empty())
    done.emplace_back("nonce_headers");
  if (normalisation.tool_keys && sort_tools(tools)) done.emplace_back("tool_keys");
  if (normalisation.timestamps && move_timestamps(messages)) done.emplace_back("timestamps");
  return done;
}

}  // namespace larder
