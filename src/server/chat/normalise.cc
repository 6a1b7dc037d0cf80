#include "server/chat/normalise.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <utility>

#include "server/message_role.h"
#include "server/text_pattern.h"

namespace larder {
namespace {

constexpr std::size_t kMaxLineBytes = 200;  // a longer one says more than the time

bool is_system(const Json& message) {
  return is_system_role(message.value("role", std::string()));
}

std::string* text_of(Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return nullptr;
  return content->get_ptr<std::string*>();
}

// The lines of a text that are to stay, and what becomes of places in it.
struct SplitText {
  std::string kept;
  std::vector<std::string> taken;
  std::vector<std::pair<std::size_t, std::size_t>> gaps;  // [begin, end) of what is taken, ascending

  // The ends of parts ascend as the gaps do, and both can be many: one pass over the two.
  void move_parts(std::vector<ContentPart>& parts) const {
    auto gap = gaps.begin();
    std::size_t num_taken = 0;  // bytes of the gaps passed
    for (ContentPart& part : parts) {
      for (; gap != gaps.end() && gap->second <= part.end; ++gap) {
        num_taken += gap->second - gap->first;
      }
      const bool is_inside = gap != gaps.end() && gap->first < part.end;
      part.end -= num_taken + (is_inside ? part.end - gap->first : 0);
      part.end = std::min(part.end, kept.size());
    }
  }
};

template <class Condition>
SplitText split_text(const std::string& text, Condition condition) {
  SplitText result;
  bool has_kept = false;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (condition(line)) {
      result.taken.push_back(std::move(line));
      result.gaps.emplace_back(begin, std::min(end + 1, text.size()));
    } else {
      if (std::exchange(has_kept, true)) result.kept += '\n';
      result.kept += line;
    }
    begin = end + 1;
  }
  return result;
}

// Takes the lines that the condition wants out of the system prompt.
template <class Condition>
std::vector<std::string> take_lines(std::vector<ChatMessage>& messages, Condition condition) {
  std::vector<std::string> taken;
  for (ChatMessage& message : messages) {
    std::string* text = is_system(message.json) ? text_of(message.json) : nullptr;
    if (text == nullptr) continue;
    SplitText split = split_text(*text, condition);
    if (split.taken.empty()) continue;
    split.move_parts(message.parts);
    std::ranges::move(split.taken, std::back_inserter(taken));
    *text = std::move(split.kept);
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

bool move_timestamps(std::vector<ChatMessage>& messages) {
  std::string* text = nullptr;
  for (ChatMessage& message : messages) {
    if (message.json.value("role", std::string()) == "user") text = text_of(message.json);
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
  // An ordered object is a list, so that each look-up by name would pass over all of its members.
  const auto& members = value.get_ref<const Json::object_t&>();
  std::vector<const Json::object_t::value_type*> order;
  order.reserve(members.size());
  for (const auto& member : members) order.push_back(&member);
  std::ranges::sort(order, {}, [&](const auto* member) {
    return std::pair(rank(member->first), std::string_view(member->first));
  });
  Json sorted = Json::object();
  auto& sorted_members = sorted.get_ref<Json::object_t&>();
  sorted_members.reserve(members.size());
  for (const auto* member : order) {
    sorted_members.emplace_back(
        member->first, with_sorted_keys(member->second, is_tool && member->first == "function"));
  }
  return sorted;
}

bool sort_tools(Json& tools) {
  if (!tools.is_array()) return false;
  Json sorted = Json::array();
  for (const Json& tool : tools) sorted.push_back(with_sorted_keys(tool, true));
  if (dump_json(sorted) == dump_json(tools)) return false;
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

std::vector<std::string> normalise(const Normalisation& normalisation, std::vector<ChatMessage>& messages, Json& tools) {
  std::vector<std::string> done;
  if (normalisation.nonce_headers && !take_lines(messages, has_nonce_header).empty())
    done.emplace_back("nonce_headers");
  if (normalisation.tool_keys && sort_tools(tools)) done.emplace_back("tool_keys");
  if (normalisation.timestamps && move_timestamps(messages)) done.emplace_back("timestamps");
  return done;
}

}  // namespace larder
