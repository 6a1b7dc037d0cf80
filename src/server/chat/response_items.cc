#include "server/chat/response_items.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "server/answer/custom_tool.h"
#include "server/chat/client_request.h"
#include "server/chat/text_file.h"
#include "server/json_fields.h"
#include "server/chat/message_run.h"
#include "server/message_role.h"
#include "server/request_id.h"

namespace larder {
namespace {

constexpr std::size_t kMaxIdBytes = 512;  // of an item's id, type, status and role
constexpr std::string_view kOurMark = "{\"larder\":";  // what our compactions begin with

std::string require_string(const Fields& fields, const char* name) {
  const Json* value = fields.find(name);
  if (value == nullptr) fields.fail(name, "is missing; send a string");
  if (!value->is_string()) {
    fields.fail(name, fmt::format("must be a string, it is {}", describe_type(*value)));
  }
  return value->get<std::string>();
}

Json read_part(const Json& value, const std::string& path) {
  const Fields fields(value, path);
  const std::string type = fields.string("type", kMaxIdBytes).value_or("");
  if (type == "input_file") {
    // It is kept as what the model reads of it.
    Json text = {{"type", "input_text"}, {"text", text_of_file(fields)}};
    if (const Json* mark = fields.find("prompt_cache_breakpoint")) text["prompt_cache_breakpoint"] = *mark;
    return read_part(text, path);
  }
  if (!is_one_of(type, {"input_text", "output_text", "text", "refusal", "summary_text"})) {
    fields.fail("type", fmt::format("\"{}\" is not supported, this model reads text only; send "
                                    "input_text or output_text",
                                    shorten(type)));
  }
  if (type == "refusal") require_string(fields, "refusal");
  if (type != "refusal" || fields.has("text")) require_string(fields, "text");
  read_breakpoint(fields, 0);  // once it is stored, every answer would fail by it
  Json part = value;
  if (type == "output_text") {
    if (!fields.has("annotations")) part["annotations"] = Json::array();
    if (!fields.has("logprobs")) part["logprobs"] = Json::array();
  }
  return part;
}

// A string or a list of parts -> a list of parts.
Json read_content(const Json& value, const std::string& path, const char* type_of_text) {
  Json parts = Json::array();
  if (value.is_string()) {
    Json part = {{"type", type_of_text}, {"text", value}};
    parts.push_back(read_part(part, path));
    return parts;
  }
  if (!value.is_array()) {
    fail_field(path, fmt::format("must be a string or an array of parts, it is {}",
                                 describe_type(value)));
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    parts.push_back(read_part(value[i], fmt::format("{}[{}]", path, i)));
  }
  return parts;
}

Json begin_item(const Fields& fields, const char* type, std::string_view id_prefix) {
  const std::string id = fields.string("id", kMaxIdBytes).value_or("");
  return {{"id", id.empty() ? make_id(id_prefix) : id},
          {"type", type},
          {"status", fields.string("status", kMaxIdBytes).value_or("completed")}};
}

Json read_message(const Fields& fields) {
  Json item = begin_item(fields, "message", "msg_");
  const std::string role = fields.string("role", kMaxIdBytes).value_or("");
  if (!is_one_of(role, {"user", "assistant", "system", "developer"})) {
    fields.fail("role", fmt::format("must be user, assistant, system or developer, it is \"{}\"",
                                    shorten(role)));
  }
  item["role"] = role;
  const Json* content = fields.find("content");
  if (content == nullptr) fields.fail("content", "is missing; send a string or a list of parts");
  item["content"] = read_content(*content, fields.path_of("content"),
                                 role == "assistant" ? "output_text" : "input_text");
  return item;
}

// given: what the tool was called with, "arguments" or "input".
Json read_call(Json item, const Fields& fields, const char* given) {
  for (const char* name : {"call_id", "name", given}) {
    item[name] = require_string(fields, name);
  }
  if (fields.has("namespace")) item["namespace"] = require_string(fields, "namespace");
  // Once it is stored, every answer would fail by it.
  if (item["name"] == "") fields.fail("name", "must not be empty");
  return item;
}

Json read_call_output(Json item, const Fields& fields) {
  item["call_id"] = require_string(fields, "call_id");
  const Json* output = fields.find("output");
  if (output == nullptr) fields.fail("output", "is missing; send a string or a list of parts");
  item["output"] =
      output->is_string() ? *output : read_content(*output, fields.path_of("output"), "input_text");
  return item;
}

// Its summary is kept for whoever lists the items; the template sees what was thought, if anything.
Json read_reasoning(const Json& value, const Fields& fields) {
  Json item = value;
  if (fields.string("id", kMaxIdBytes).value_or("").empty()) item["id"] = make_id("rs_");
  if (!fields.has("summary")) item["summary"] = Json::array();
  return item;
}

Json read_compaction(const Fields& fields) {
  const std::string id = fields.string("id", kMaxIdBytes).value_or("");
  return {{"id", id.empty() ? make_id("cmp_") : id},
          {"type", "compaction"},
          {"encrypted_content", require_string(fields, "encrypted_content")}};
}

std::string_view type_of(const Json& item) { return item["type"].get_ref<const std::string&>(); }

// Null: a refusal, which may have a text as well.
const Json* text_in(const Json& part) {
  const auto text = part.find("text");
  return text != part.end() && text->is_string() ? &*text : nullptr;
}

// What a model of open weights thought, as it gave it out. A client may have written anything.
std::string thought_in(const Json& item) {
  std::string thought;
  const auto content = item.find("content");
  if (content == item.end() || !content->is_array()) return thought;
  for (const Json& part : *content)
    if (part.is_object() && part.value("type", Json()) == "reasoning_text" && text_in(part) != nullptr)
      thought += text_in(part)->get_ref<const std::string&>();
  return thought;
}

// The chat API's form of a list of parts: a string where there is nothing but one text.
Json chat_content(const Json& parts) {
  if (parts.is_string()) return parts;
  if (parts.size() == 1 && text_in(parts[0]) != nullptr &&
      !parts[0].contains("prompt_cache_breakpoint")) {
    return *text_in(parts[0]);
  }
  Json content = Json::array();
  for (const Json& part : parts) {
    const Json* own = text_in(part);
    Json text = {{"type", "text"}, {"text", own != nullptr ? *own : part["refusal"]}};
    if (part.contains("prompt_cache_breakpoint")) {
      text["prompt_cache_breakpoint"] = part["prompt_cache_breakpoint"];
    }
    content.push_back(std::move(text));
  }
  return content;
}

struct OurCompaction {
  std::string summary;
  Json messages;  // that it keeps
  SummedRun summed;
};

// As far as ChatBuilder builds upon it.
bool looks_like_message(const Json& value) {
  if (!value.is_object() || !value.contains("role") || !value["role"].is_string()) return false;
  const auto content = value.find("content"), calls = value.find("tool_calls");
  const auto is_list = [&](const auto& member) {
    return member == value.end() || member->is_null() || member->is_array();
  };
  return is_list(calls) && (is_list(content) || content->is_string());
}

// nullopt: another one's, a text.
std::optional<OurCompaction> read_ours(const std::string& content) {
  if (!content.starts_with(kOurMark)) return std::nullopt;
  try {
    const Json json = parse_json(content, {});
    const Json& messages = json.at("messages");
    if (messages.is_array() && std::ranges::all_of(messages, looks_like_message)) {
      SummedRun summed;  // none, as far as an older one tells
      if (json.contains("summed"))
        summed = {json["summed"].at(0).get<std::uint64_t>(), json["summed"].at(1).get<std::uint64_t>()};
      return OurCompaction{json.at("summary").get<std::string>(), messages, summed};
    }
  } catch (const std::exception&) {  // somebody changed it
  }
  return std::nullopt;
}

class ChatBuilder {
 public:
  explicit ChatBuilder(const ToolNames& tools) : tools_(tools) {}

  void add(const ItemPtr& item, std::size_t index) {
    const Json& json = item->json;
    const std::string_view type = type_of(json);
    const bool is_system = type == "message" && is_system_role(json["role"].get_ref<const std::string&>());
    has_system_ = has_system_ || is_system;
    num_turns_ += !is_system;
    if (type == "reasoning") {
      const std::string thought = thought_in(json);
      if (!thought_.empty() && !thought.empty()) thought_ += "\n\n";
      thought_ += thought;
    } else if (type == "message") {
      add_message(*item, index);
    } else if (type == "function_call") {
      add_call(json, json["arguments"], index);
    } else if (type == "custom_tool_call") {
      add_call(json, custom_arguments(json["input"]), index);
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      Json& message = begin("tool", index);
      message["tool_call_id"] = json["call_id"];
      message["content"] = chat_content(json["output"]);
    }
  }

  void add_compaction(const Json& json, std::size_t index) {
    const auto& content = json["encrypted_content"].get_ref<const std::string&>();
    const std::optional<OurCompaction> ours = read_ours(content);
    if (!ours) return add_summary(content);
    chat_.told_summary = ours->summary;
    chat_.told_first_kept = first_kept(ours->messages);
    if (num_turns_ > 0) {
      if (run().has(ours->summed)) return;
      if (run().ends_with(ours->messages)) {
        chat_.summary = ours->summary;
        return;
      }
    }
    add_summary(ours->summary);
    const Json& kept = ours->messages;
    const auto is_system = [](const Json& message) { return message["role"] == "system"; };
    std::size_t num_leading = 0;
    while (num_leading < kept.size() && is_system(kept[num_leading])) ++num_leading;
    const bool has_system = has_system_;
    if (!has_system && num_leading > 0) put_first(kept, num_leading, index);
    for (std::size_t i = num_leading; i < kept.size(); ++i) {
      if (has_system && is_system(kept[i])) continue;
      has_system_ = has_system_ || is_system(kept[i]);
      begin(kept[i]["role"], index, false) = kept[i];
      chat_.holds_compacted = true;
    }
    ++num_turns_;
  }

  void begin_with(std::string_view instructions) {
    begin("system", 0, false)["content"] = instructions;
    has_instructions_ = true;
  }

  ItemChat finish() { return std::move(chat_); }

 private:
  // is_item: else the item holds it, or there is none.
  Json& begin(const Json& role, std::size_t index, bool is_item = true) {
    chat_.item_of.push_back(index);
    chat_.sent_as.push_back(is_item ? static_cast<int>(index) : -1);
    chat_.messages.push_back({{"role", role}});
    Json& message = chat_.messages.back();
    if (role == "assistant") take_thought(message);
    thought_.clear();  // of an answer alone
    return message;
  }

  // Marks of the chat's messages, each made once: there may be many compactions.
  const MessageRun& run() {
    for (; num_marked_ < chat_.messages.size(); ++num_marked_) run_.add(chat_.messages[num_marked_]);
    return run_;
  }

  // The newest message, an answer, which gets more.
  Json& grow_last() {
    if (num_marked_ == chat_.messages.size()) {
      --num_marked_;
      run_.drop_last();
    }
    return chat_.messages.back();
  }

  // A compaction's system prompt, the first of what it keeps, in a chat that has none of its own. Instructions stay first.
  void put_first(const Json& kept, std::size_t num, std::size_t index) {
    has_system_ = chat_.holds_compacted = true;
    std::size_t begin = 0;
    const auto content = kept[0].find("content");
    if (has_instructions_ && content != kept[0].end() && content->is_string()) {
      join_instructions(kept[0]);
      begin = 1;
    }
    const auto offset = static_cast<std::ptrdiff_t>(has_instructions_ ? 1 : 0);
    const std::size_t num_more = num - begin;
    chat_.item_of.insert(chat_.item_of.begin() + offset, num_more, index);
    chat_.sent_as.insert(chat_.sent_as.begin() + offset, num_more, -1);
    chat_.messages.insert(chat_.messages.begin() + offset, kept.begin() + static_cast<std::ptrdiff_t>(begin),
                          kept.begin() + static_cast<std::ptrdiff_t>(num));
    if (num_marked_ > 0) num_marked_ += num_more;  // such messages have no mark
    for (KnownTurn& turn : chat_.known_turns) turn.message += num_more;
  }

  // An answer may have several.
  void take_thought(Json& message) {
    if (!thought_.empty()) append(message["reasoning_content"], std::exchange(thought_, ""), "\n\n");
  }

  void add_message(const StoredItem& item, std::size_t index) {
    const Json& role = item.json["role"];
    if (is_system_role(role.get_ref<const std::string&>()) && follows_instructions()) {
      return join_instructions(item.json);
    }
    Json content = chat_content(item.json["content"]);
    if (role == "assistant" && follows_call()) {
      // Text behind a call is of the same answer, as in a chat completion: many templates want the
      // call's result right behind it, and roles to take turns.
      std::erase_if(chat_.known_turns, [&](const KnownTurn& turn) {
        return turn.message + 1 == chat_.messages.size();
      });
      Json& answer = grow_last();
      take_thought(answer);
      return append(answer["content"], std::move(content), "");
    }
    begin(role, index)["content"] = std::move(content);
    if (item.tokens) {
      chat_.known_turns.push_back({.message = chat_.messages.size() - 1, .tokens = item.tokens});
    }
  }

  bool follows_instructions() const { return has_instructions_ && chat_.messages.size() == 1; }
  bool follows_call() const {
    return !chat_.messages.empty() && chat_.messages.back().contains("tool_calls");
  }

  // Many templates take one system message.
  void join_instructions(const Json& item) {
    append(chat_.messages[0]["content"], chat_content(item["content"]), "\n\n");
    if (!chat_.system_items.empty()) chat_.system_items += "\n\n";
    chat_.system_items += text_of(item);
  }

  // A text, or parts where there are several or one has a mark.
  static void append(Json& content, Json more, std::string_view separator) {
    if (more.empty() || more == "") return;
    if (content.empty() || content == "") {
      content = std::move(more);
      return;
    }
    if (content.is_string() && more.is_string()) {
      auto& text = content.get_ref<std::string&>();
      text.append(separator).append(more.get_ref<const std::string&>());
      return;
    }
    content = parts_of(std::move(content));
    more = parts_of(std::move(more));
    // The chat API puts an end of line between parts.
    if (!separator.empty()) more[0]["text"].get_ref<std::string&>().insert(0, separator.substr(1));
    content.insert(content.end(), more.begin(), more.end());
  }

  static Json parts_of(Json content) {
    if (content.is_array()) return content;
    Json parts = Json::array();
    parts.push_back({{"type", "text"}, {"text", std::move(content)}});
    return parts;
  }

  // Calls belong to the answer that they end.
  void add_call(const Json& json, Json arguments, std::size_t index) {
    const bool is_new = chat_.messages.empty() || chat_.messages.back()["role"] != "assistant";
    Json& message = is_new ? begin("assistant", index) : grow_last();
    if (!message.contains("content")) message["content"] = "";
    take_thought(message);
    Json function = {{"name", name_for_model(json)}};
    function["arguments"] = std::move(arguments);
    message["tool_calls"].push_back(
        {{"id", json["call_id"]}, {"type", "function"}, {"function", std::move(function)}});
  }

  Json name_for_model(const Json& call) const {
    const auto space = call.find("namespace");
    if (space == call.end()) return call["name"];
    const ToolName called{space->get<std::string>(), call["name"].get<std::string>()};
    const auto known = tools_.find(whole_name(called));
    return known != tools_.end() && known->second == called ? Json(known->first) : call["name"];
  }

  void add_summary(const std::string& text) {
    if (!chat_.summary.empty()) chat_.summary += "\n\n";
    chat_.summary += text;
  }

  const ToolNames& tools_;
  ItemChat chat_;
  std::string thought_;  // before the next message
  bool has_instructions_ = false;
  bool has_system_ = false;  // a message of the system among the items, or in a compaction
  int num_turns_ = 0;        // items that are none
  MessageRun run_;                // of the first num_marked_ messages
  std::size_t num_marked_ = 0;
};

}  // namespace

std::string make_id(std::string_view prefix) { return std::string(prefix) + make_request_id(); }

bool is_reference(const Json& item) { return type_of(item) == "item_reference"; }

Json normalize_item(const Json& value, const std::string& path) {
  const Fields fields(value, path);
  const char* otherwise = fields.has("role") ? "message" : "item_reference";
  const std::string type = fields.string("type", kMaxIdBytes).value_or(otherwise);
  if (type == "message") return read_message(fields);
  if (type == "function_call") return read_call(begin_item(fields, "function_call", "fc_"), fields, "arguments");
  if (type == "custom_tool_call") return read_call(begin_item(fields, "custom_tool_call", "ctc_"), fields, "input");
  if (type == "function_call_output") return read_call_output(begin_item(fields, "function_call_output", "fco_"), fields);
  if (type == "custom_tool_call_output")
    return read_call_output(begin_item(fields, "custom_tool_call_output", "ctco_"), fields);
  if (type == "reasoning") return read_reasoning(value, fields);
  if (type == "compaction") return read_compaction(fields);
  if (type == "item_reference") {
    return {{"id", require_string(fields, "id")}, {"type", "item_reference"}};
  }
  fields.fail("type", fmt::format("\"{}\" is not supported; there are message, function_call, "
                                  "function_call_output, custom_tool_call, custom_tool_call_output, reasoning, "
                                  "compaction, item_reference",
                                  shorten(type)));
}

std::vector<Json> normalize_items(const Json& value, const std::string& path) {
  if (value.is_string()) {
    return {normalize_item({{"role", "user"}, {"content", value}}, path)};
  }
  if (!value.is_array()) {
    fail_field(path, fmt::format("must be a string or an array of items, it is {}",
                                 describe_type(value)));
  }
  std::vector<Json> items;
  items.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    items.push_back(normalize_item(value[i], fmt::format("{}[{}]", path, i)));
  }
  return items;
}

void require_new_ids(const std::vector<Json>& added, const std::vector<ItemPtr>& present,
                     References references, const std::string& param) {
  std::map<std::string_view, std::size_t> places;  // not by hashes: clients choose them
  std::size_t wrong = added.size();
  for (std::size_t i = 0; i < added.size() && wrong == added.size(); ++i) {
    if (references == References::kArePassedOver && is_reference(added[i])) continue;
    if (!places.emplace(added[i]["id"].get_ref<const std::string&>(), i).second) wrong = i;
  }
  // Few are added to many.
  for (const ItemPtr& item : present) {
    const auto found = places.find(item->id());
    if (found != places.end()) wrong = std::min(wrong, found->second);
  }
  if (wrong == added.size()) return;
  const auto& id = added[wrong]["id"].get_ref<const std::string&>();
  fail_field(fmt::format("{}[{}].id", param, wrong),
             fmt::format("there is an item \"{}\" already; leave this one out", shorten(id)));
}

Json make_output_message(const std::string& id, const std::string& text, bool is_complete,
                         Json logprobs) {
  Json part = {{"type", "output_text"}, {"annotations", Json::array()}};
  part["logprobs"] = std::move(logprobs);
  part["text"] = text;
  Json item = {{"id", id},
               {"type", "message"},
               {"status", is_complete ? "completed" : "incomplete"},
               {"role", "assistant"}};
  item["content"] = Json::array();
  item["content"].push_back(std::move(part));
  return item;
}

std::string text_of(const Json& item) {
  const char* names[] = {"content", "output", "arguments", "input"};
  for (const char* name : names) {
    const auto found = item.find(name);
    if (found == item.end()) continue;
    if (found->is_string()) return *found;
    std::string text;
    for (const Json& part : *found) {
      const auto inner = part.find(text_in(part) != nullptr ? "text" : "refusal");
      if (inner == part.end() || !inner->is_string()) continue;
      if (!text.empty()) text += '\n';
      text += inner->get_ref<const std::string&>();
    }
    return text;
  }
  return {};
}

Json make_compaction(const std::string& summary, const Json& kept, const SummedRun& summed) {
  Json content = {{"larder", 1}, {"summary", summary}, {"messages", kept}};
  content["summed"] = {summed.num_messages, summed.digest};
  return {{"id", make_id("cmp_")},
          {"type", "compaction"},
          {"encrypted_content", dump_json(content)},
          {"created_by", "larder"}};
}

Json first_kept(const Json& kept) {
  const auto found = std::ranges::find_if(kept, [](const Json& message) { return message.value("role", "") != "system"; });
  return found == kept.end() ? Json() : *found;
}

std::string whole_name(const ToolName& tool) { return tool.space + "." + tool.name; }

ItemChat to_chat(std::string_view instructions, const std::vector<ItemPtr>& items, const ToolNames& tools) {
  ChatBuilder builder(tools);
  if (!instructions.empty()) builder.begin_with(instructions);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (type_of(items[i]->json) == "compaction") {
      builder.add_compaction(items[i]->json, i);
    } else {
      builder.add(items[i], i);
    }
  }
  return builder.finish();
}

}  // namespace larder
