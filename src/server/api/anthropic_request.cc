#include "server/api/anthropic_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "server/api/sampling_lists.h"
#include "server/chat/prompt.h"
#include "server/http_message.h"
#include "server/json_fields.h"
#include "server/server_limits.h"

namespace larder {
namespace {

constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kMaxBreakpoints = 4;

// A cache_control: how long to keep what lies before its end, and where in the request it stands.
struct Breakpoint {
  int ttl_s;
  std::string path;
};

std::optional<Breakpoint> read_cache_control(const Fields& owner) {
  const Json* value = owner.find("cache_control");
  if (value == nullptr) return std::nullopt;
  std::string path = owner.path_of("cache_control");
  const Fields fields(*value, path);
  if (fields.string("type", kMaxNameBytes) != "ephemeral") {
    fields.fail("type", "must be \"ephemeral\"");
  }
  const auto ttl = fields.string("ttl", kMaxNameBytes).value_or("5m");
  if (ttl != "5m" && ttl != "1h") {
    fields.fail("ttl", fmt::format("must be \"5m\" or \"1h\", it is \"{}\"", shorten(ttl)));
  }
  return Breakpoint{ttl == "1h" ? kLongCacheTtl_s : kShortCacheTtl_s, std::move(path)};
}

std::string required_string(const Fields& fields, const char* name) {
  auto value = fields.string(name, kAnyBytes);
  if (!value) fields.fail(name, "is missing; send a string");
  return std::move(*value);
}

std::string required_name(const Fields& fields) {
  std::string name = required_string(fields, "name");
  if (name.empty()) fields.fail("name", "must not be empty");
  return name;
}

// Builds the messages of a chat from blocks, and the marks at their ends.
class ChatBuilder {
 public:
  explicit ChatBuilder(ChatRequest& request) : request_(request) {}

  // What follows is of the client's message with this index; of the system prompt before.
  void begin_message(std::size_t index) {
    sent_as_ = static_cast<int>(index);
    has_block_ = false;
  }
  // Whether the client's message has anything that the model will read.
  bool has_block() const { return has_block_; }

  void add_text(std::string_view role, std::string_view text,
                const std::optional<Breakpoint>& end) {
    if (text.empty()) return;
    ChatMessage& message = turn_of(role);
    auto& content = message.json["content"].get_ref<std::string&>();
    auto& parts = message.parts;
    if (!parts.empty()) {
      content += '\n';
      shift_calls(static_cast<int>(parts.size()));
    }
    content += text;
    parts.push_back({.end = content.size()});
    mark(static_cast<int>(parts.size()) - 1, end);
  }

  void add_call(const Fields& block, const std::optional<Breakpoint>& end) {
    const Json* input = block.find("input");
    if (input == nullptr || !input->is_object()) block.fail("input", "must be an object");
    Json call = {{"id", required_string(block, "id")}, {"type", "function"}};
    call["function"] = {{"name", required_name(block)}, {"arguments", *input}};
    names_[call["id"].get<std::string>()] = call["function"]["name"].get<std::string>();
    ChatMessage& message = turn_of("assistant");
    Json& calls = message.json["tool_calls"];
    calls.push_back(std::move(call));
    const std::size_t num_parts = std::max<std::size_t>(message.parts.size(), 1);
    mark(static_cast<int>(num_parts + calls.size()) - 1, end);
  }

  void add_reasoning(std::string_view text) {
    Json& reasoning = turn_of("assistant").json["reasoning_content"];
    if (reasoning.is_null()) {
      reasoning = std::string(text);
    } else {
      reasoning.get_ref<std::string&>().append("\n").append(text);
    }
  }

  void begin_result(const Fields& block) {
    Json message = {{"role", "tool"}, {"content", ""}};
    const std::string id = required_string(block, "tool_use_id");
    message["tool_call_id"] = id;
    if (const auto name = names_.find(id); name != names_.end()) message["name"] = name->second;
    add_message(std::move(message));
  }
  // Marks the end of the result.
  void end_result(const std::optional<Breakpoint>& end) {
    mark(std::max(static_cast<int>(request_.messages.back().parts.size()) - 1, 0), end);
  }

  void add_tool_mark(std::size_t tool, const std::optional<Breakpoint>& end) {
    if (end) add_mark({-1, static_cast<int>(tool), end->ttl_s}, end->path);
  }
  void mark_end(const Breakpoint& end) {
    const bool is_marked =
        !request_.marks.empty() && request_.marks.back().message == last_.message &&
        request_.marks.back().part == last_.part;
    if (!is_marked) {
      add_mark({last_.message, last_.part, end.ttl_s}, end.path);
    } else if (request_.marks.back().ttl_s != end.ttl_s) {
      fail_field(end.path, fmt::format("the last block has one of another ttl, {}; send one of them",
                                       paths_.back()));
    }
  }

  void check_order_of_ttls() const {
    for (std::size_t i = 1; i < request_.marks.size(); ++i) {
      if (request_.marks[i].ttl_s <= request_.marks[i - 1].ttl_s) continue;
      fail_field(paths_[i] + ".ttl",
                 fmt::format("\"1h\" must not come after \"5m\", which {} has; blocks are processed in "
                             "the order tools, system, messages",
                             paths_[i - 1]));
    }
  }

 private:
  // The message that a block of this role goes to.
  ChatMessage& turn_of(std::string_view role) {
    const bool goes_on = !request_.messages.empty() && request_.messages.back().json["role"] == std::string(role);
    if (!goes_on) add_message({{"role", std::string(role)}, {"content", ""}});
    return request_.messages.back();
  }

  void add_message(Json message) {
    request_.messages.push_back({.json = std::move(message), .sent_as = sent_as_});
  }

  // The calls of a turn are numbered behind its texts, whatever their order: one more comes.
  void shift_calls(int num_parts) {
    const int message = static_cast<int>(request_.messages.size()) - 1;
    for (auto mark = request_.marks.rbegin(); mark != request_.marks.rend(); ++mark) {
      if (mark->message != message) break;
      if (mark->part >= num_parts) ++mark->part;
    }
  }

  void mark(int part, const std::optional<Breakpoint>& end) {
    has_block_ = true;
    last_ = {static_cast<int>(request_.messages.size()) - 1, part, 0};
    if (!end) return;
    const bool is_same = !request_.marks.empty() && request_.marks.back().message == last_.message &&
                         request_.marks.back().part == last_.part;
    if (is_same) {  // the last text of a result, and the result
      if (end->ttl_s > request_.marks.back().ttl_s) {
        request_.marks.back().ttl_s = end->ttl_s;
        paths_.back() = end->path;
      }
    } else {
      add_mark({last_.message, last_.part, end->ttl_s}, end->path);
    }
  }

  // Refuses one too many at once: shift_calls() passes over them for each text.
  void add_mark(const CacheMark& mark, const std::string& path) {
    if (request_.marks.size() == kMaxBreakpoints) {
      fail_field(path, fmt::format("at most {} blocks may have a cache_control, this is one more; send "
                                   "the last ones only",
                                   kMaxBreakpoints));
    }
    request_.marks.push_back(mark);
    paths_.push_back(path);
  }

  ChatRequest& request_;
  std::vector<std::string> paths_;  // of the marks
  CacheMark last_;                  // the last block's place
  int sent_as_ = -1;
  bool has_block_ = false;
  std::map<std::string, std::string> names_;  // of tools, by the call's id
};

[[noreturn]] void fail_block(const Fields& block, const std::string& type) {
  if (type == "tool_use") block.fail("type", "\"tool_use\" belongs into an assistant message");
  if (type == "tool_result") block.fail("type", "\"tool_result\" belongs into a user message");
  block.fail("type", fmt::format("\"{}\" is not supported here, this model reads text only",
                                 shorten(type)));
}

std::string type_of(const Fields& block) {
  const auto type = block.string("type", kMaxNameBytes);
  if (!type) block.fail("type", "is missing; send text, tool_use, tool_result");
  return *type;
}

void append_line(std::string& text, std::string_view line) {
  if (!text.empty() && !line.empty()) text += '\n';
  text += line;
}

// A field that is a text, or an array of blocks of it.
void append_texts(const Fields& owner, const char* name, std::string& text) {
  const Json* value = owner.find(name);
  if (value == nullptr) owner.fail(name, "is missing; send a string or an array of texts");
  if (value->is_string()) return append_line(text, value->get_ref<const std::string&>());
  if (!value->is_array()) owner.fail(name, "must be a string or an array of texts");
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Fields block((*value)[i], fmt::format("{}[{}]", owner.path_of(name), i));
    if (const std::string type = type_of(block); type != "text") fail_block(block, type);
    append_line(text, required_string(block, "text"));
  }
}

// What the model reads of a document or a search result: its title, what is said of it, its text.
std::string text_of_document(const Fields& block, const std::string& type) {
  if (const Json* value = block.find("citations")) {
    const Fields citations(*value, block.path_of("citations"));
    if (citations.boolean("enabled", false)) citations.fail("enabled", "is not supported; send false");
  }
  std::string text;
  for (const char* name : {"title", "context"})
    append_line(text, block.string(name, kAnyBytes).value_or(""));
  if (type == "search_result") {
    append_line(text, required_string(block, "source"));
    append_texts(block, "content", text);
    return text;
  }
  const Json* value = block.find("source");
  if (value == nullptr) block.fail("source", "is missing; send {\"type\": \"text\", \"data\": ...}");
  const Fields source(*value, block.path_of("source"));
  const auto kind = source.string("type", kMaxNameBytes).value_or("");
  if (kind != "text" && kind != "content") {
    source.fail("type", fmt::format("\"{}\" is not supported, this model reads text only; send \"text\" or "
                                    "\"content\"",
                                    shorten(kind)));
  }
  append_texts(source, kind == "text" ? "data" : "content", text);
  return text;
}

bool is_document(std::string_view type) { return type == "document" || type == "search_result"; }

// Text alone, or a list of blocks, each of which goes to read_block.
template <class ReadBlock>
void read_content(const Json& value, const std::string& path, std::string_view role,
                  ChatBuilder& builder, const ReadBlock& read_block) {
  if (value.is_string()) {
    return builder.add_text(role, value.get_ref<const std::string&>(), std::nullopt);
  }
  if (!value.is_array()) {
    fail_field(path, fmt::format("must be a string or an array of blocks, it is {}",
                                 describe_type(value)));
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    read_block(Fields(value[i], fmt::format("{}[{}]", path, i)));
  }
}

// Of system and of tool results: all blocks are text; results may have documents of it.
void read_texts(const Json& value, const std::string& path, std::string_view role,
                ChatBuilder& builder) {
  read_content(value, path, role, builder, [&](const Fields& block) {
    const std::string type = type_of(block);
    if (role == "tool" && is_document(type))
      return builder.add_text(role, text_of_document(block, type), read_cache_control(block));
    if (type != "text") fail_block(block, type);
    builder.add_text(role, required_string(block, "text"), read_cache_control(block));
  });
}

void read_result(const Fields& block, ChatBuilder& builder) {
  builder.begin_result(block);
  if (const Json* content = block.find("content")) {
    read_texts(*content, block.path_of("content"), "tool", builder);
  }
  builder.end_result(read_cache_control(block));
}

void read_block(const Fields& block, const std::string& role, ChatBuilder& builder) {
  const std::string type = type_of(block);
  const bool is_assistant = role == "assistant";
  if (type == "text") {
    const std::string text = required_string(block, "text");
    const auto end = read_cache_control(block);
    if (text.empty() && end) block.fail("cache_control", "cannot be set on an empty text");
    builder.add_text(role, text, end);
  } else if (type == "tool_use" && is_assistant) {
    builder.add_call(block, read_cache_control(block));
  } else if (type == "tool_result" && role == "user") {
    read_result(block, builder);
  } else if (is_document(type) && role == "user") {
    builder.add_text(role, text_of_document(block, type), read_cache_control(block));
  } else if ((type == "thinking" || type == "redacted_thinking") && is_assistant) {
    if (block.has("cache_control")) block.fail("cache_control", "cannot be set on thinking");
    // Nobody but its writer can read redacted thinking.
    if (type == "thinking") builder.add_reasoning(required_string(block, "thinking"));
  } else {
    fail_block(block, type);
  }
}

void read_message(const Json& value, const std::string& path, ChatBuilder& builder) {
  const Fields message(value, path);
  const auto role = message.string("role", kMaxNameBytes).value_or("");
  if (role != "user" && role != "assistant" && role != "system") {
    message.fail("role", "must be \"user\" or \"assistant\"");
  }
  const Json* content = message.find("content");
  if (content == nullptr) message.fail("content", "is missing; send a string or blocks");
  const std::string content_path = message.path_of("content");
  read_content(*content, content_path, role, builder,
               [&](const Fields& block) { read_block(block, role, builder); });
  // Left out, it would have the turn before it gone on with.
  if (role != "assistant" && !builder.has_block()) fail_field(content_path, "must not be empty");
}

void read_tool_choice(const Fields& fields, GenerationOptions& options) {
  const Json* value = fields.find("tool_choice");
  if (value == nullptr) return;
  const Fields choice(*value, "tool_choice");
  const auto type = choice.string("type", kMaxNameBytes).value_or("");
  ToolChoice& read = options.tool_choice;
  if (type == "none") {
    read.mode = ToolChoice::Mode::kNone;
  } else if (type == "any" || type == "tool") {
    read.mode = ToolChoice::Mode::kRequired;
    read.is_restricted = read.is_one_call = type == "tool";
    if (read.is_restricted) read.names = {required_name(choice)};
  } else if (type != "auto") {
    choice.fail("type", fmt::format("must be \"auto\", \"any\", \"tool\" or \"none\", it is \"{}\"", shorten(type)));
  }
  options.tool_calls.takes_many = !choice.boolean("disable_parallel_tool_use", false);
}

void read_tools(const Fields& fields, ChatRequest& request, ChatBuilder& builder) {
  ToolChoice& choice = request.options.tool_choice;
  read_tool_choice(fields, request.options);
  const Json* tools = fields.array("tools");
  if (tools == nullptr) return check_tool_choice(choice, Json());
  Json list = Json::array();
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const Fields tool((*tools)[i], fmt::format("tools[{}]", i));
    const auto type = tool.string("type", kMaxNameBytes).value_or("custom");
    if (type != "custom") {
      tool.fail("type", fmt::format("\"{}\" is a tool that this server does not know; send it as one of your own, with "
                                    "name, description and input_schema",
                                    shorten(type)));
    }
    Json function = {{"name", required_name(tool)}};
    if (auto text = tool.string("description", kAnyBytes)) function["description"] = *text;
    const Json* schema = tool.find("input_schema");
    if (schema == nullptr || !schema->is_object()) tool.fail("input_schema", "must be an object");
    function["parameters"] = *schema;
    list.push_back({{"type", "function"}, {"function", std::move(function)}});
    if (tool.boolean("strict", false))
      choice.strict_names.insert(list.back()["function"]["name"].get<std::string>());
    builder.add_tool_mark(i, read_cache_control(tool));
  }
  check_tool_choice(choice, list);
  if (!list.empty()) request.tools = std::move(list);
}

void read_prompt(const Fields& fields, ChatRequest& request) {
  ChatBuilder builder(request);
  read_tools(fields, request, builder);
  if (const Json* system = fields.find("system")) read_texts(*system, "system", "system", builder);
  const Json* messages = fields.find("messages");
  if (messages == nullptr) fields.fail("messages", "is missing; send an array of messages");
  if (!messages->is_array() || messages->empty()) {
    fields.fail("messages", "must be an array with at least one message");
  }
  const std::size_t num_before = request.messages.size();
  for (std::size_t i = 0; i < messages->size(); ++i) {
    builder.begin_message(i);
    read_message((*messages)[i], fmt::format("messages[{}]", i), builder);
  }
  if (request.messages.size() == num_before) fields.fail("messages", "are all empty");
  if (const auto end = read_cache_control(fields)) builder.mark_end(*end);
  builder.check_order_of_ttls();
  // A turn of thinking alone, or of blanks, has nothing that could be gone on with.
  const Json& last = request.messages.back().json;
  request.continue_final_message = last["role"] == "assistant" && can_be_continued(last);
  request.add_generation_prompt = !request.continue_final_message;
}

void read_sampling(const Fields& fields, const RequestRules& rules, GenerationOptions& options) {
  SamplingParams& sampling = options.sampling;
  if (const auto given = fields.number("temperature", {0, 1})) {
    sampling.temperature = static_cast<float>(*given);
  }
  if (const auto given = fields.number("top_p", {0, 1})) {
    sampling.top_p = static_cast<float>(*given);
  }
  sampling.top_k = static_cast<int>(fields.integer("top_k", {0, kMaxInt32}).value_or(0));
  settle_top_p(sampling);
  const Json* stop = fields.find("stop_sequences");
  if (stop == nullptr) return;
  const ServerLimits& limits = rules.limits;
  if (!stop->is_array() || stop->size() > static_cast<std::size_t>(limits.max_stop_strings)) {
    fields.fail("stop_sequences",
                fmt::format("must be an array of at most {} strings", limits.max_stop_strings));
  }
  for (const Json& item : *stop) {
    const bool fits = item.is_string() && !item.get_ref<const std::string&>().empty() &&
                      item.get_ref<const std::string&>().size() <= limits.max_stop_bytes;
    if (!fits) {
      fields.fail("stop_sequences",
                  fmt::format("each must be a string of 1 to {} bytes", limits.max_stop_bytes));
    }
    options.stop.push_back(item.get<std::string>());
  }
  require_few_stop_bytes(options.stop, fields, "stop_sequences", limits);
}

void read_thinking(const Fields& fields, ChatRequest& request) {
  if (const Json* value = fields.find("thinking")) {
    const Fields thinking(*value, "thinking");
    const auto type = thinking.string("type", kMaxNameBytes).value_or("");
    constexpr std::string_view kTypes[] = {"enabled", "adaptive", "between_tools", "disabled"};
    if (std::ranges::find(kTypes, type) == std::end(kTypes)) {
      thinking.fail("type", fmt::format("must be \"enabled\", \"adaptive\", \"between_tools\" or "
                                        "\"disabled\", it is \"{}\"",
                                        shorten(type)));
    }
    request.template_kwargs["enable_thinking"] = type != "disabled";
  }
}

// The later of the format's two names counts.
void read_output_config(const Fields& fields, ChatRequest& request) {
  AnswerFormat& answer = request.options.format;
  if (const Json* value = fields.find("output_format")) answer = read_format(*value, "output_format");
  const Json* value = fields.find("output_config");
  if (value == nullptr) return;
  const Fields config(*value, "output_config");
  if (const Json* format = config.find("format")) answer = read_format(*format, "output_config.format");
  // Under the name that templates know.
  if (const auto effort = config.string("effort", kMaxNameBytes)) request.template_kwargs["reasoning_effort"] = *effort;
  if (config.has("task_budget")) config.fail("task_budget", "is not supported; leave it out");
}

// What would have the prompt be another one than was sent, or tools be run here.
void refuse_missing_features(const Fields& fields) {
  const Json* servers = fields.find("mcp_servers");
  if (servers != nullptr && *servers != Json::array()) fields.fail("mcp_servers", "are not supported; leave them out");
  for (const char* name : {"compaction", "container"}) {
    if (fields.has(name)) fields.fail(name, "is not supported; leave it out");
  }
  // Its client sends a conversation's new messages alone.
  if (fields.has("thread")) fields.fail(kThreadField, "is not supported; send all messages without it");
  const Json* management = fields.find("context_management");
  if (management == nullptr) return;
  const Json* edits = Fields(*management, "context_management").array("edits");
  for (std::size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    const Fields edit((*edits)[i], fmt::format("context_management.edits[{}]", i));
    const Json* keep = edit.find("keep");
    const bool keeps_all = keep != nullptr && (*keep == "all" || *keep == Json{{"type", "all"}});
    if (edit.string("type", kMaxNameBytes) != "clear_thinking_20251015" || !keeps_all)
      edit.fail("type", "only clear_thinking_20251015 that keeps \"all\" is supported; leave it out, and leave out of "
                        "messages what shall not be seen");
  }
}

void read_diagnostics(const Fields& fields, GenerationOptions& options) {
  const Json* value = fields.find("diagnostics");
  if (value == nullptr) return;
  const Fields diagnostics(*value, "diagnostics");
  options.wants_diagnostics = true;
  options.comparison_id = diagnostics.string("previous_message_id", kMaxNameBytes);
}

ChatRequest read_request(const Fields& fields, const RequestRules& rules) {
  refuse_missing_features(fields);
  ChatRequest request;
  GenerationOptions& options = request.options;
  options.model = fields.string("model", kMaxNameBytes).value_or("");
  options.cache_salt = fields.string("cache_salt", kMaxNameBytes).value_or("");
  options.attention = rules.attention;
  // The vendor's agents begin each session's system prompt with another line for its billing, which its server shows no
  // model: no prompt would share anything with the sessions before.
  RequestRules own_rules = rules;
  own_rules.normalisation.nonce_headers = true;
  read_larder_options(fields, own_rules, options);
  options.marks_whole_prompt = false;
  options.truncation = "";
  // 0 fills the cache and answers nothing.
  const auto max_tokens = fields.integer("max_tokens", {0, kMaxInt32});
  options.has_max_tokens = max_tokens.has_value();
  if (max_tokens) options.sampling.max_tokens = static_cast<int>(*max_tokens);
  if (max_tokens == 0) options.prepared_answer_tokens = -1;
  read_prompt(fields, request);
  read_thinking(fields, request);
  read_output_config(fields, request);
  return request;
}

}  // namespace

ChatRequest parse_messages_request(const Json& body, const RequestRules& rules) {
  const Fields fields(body, "");
  ChatRequest request = read_request(fields, rules);
  GenerationOptions& options = request.options;
  if (!options.has_max_tokens) fields.fail("max_tokens", "is missing; send a number of at least 0");
  options.stream = fields.boolean("stream", false);
  read_sampling(fields, rules, options);
  read_diagnostics(fields, options);
  if (const Json* metadata = fields.find("metadata")) Fields(*metadata, "metadata");
  return request;
}

ChatRequest parse_count_tokens_request(const Json& body, const RequestRules& rules) {
  return read_request(Fields(body, ""), rules);
}

}  // namespace larder
