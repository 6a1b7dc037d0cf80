#include "server/chat/tool_prompt.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/chat/render_chat.h"
#include "server/chat/tool_turns.h"

namespace larder {
namespace {

// As Python's json.dumps writes it, which is what models have seen.
void append_like_python(const Json& value, std::string& out) { append_json(value, ", ", ": ", out); }

// Of calls that are written into a message's text; has_blanks as append_like_python() puts them.
const CallSpelling kOwnSpelling{.begin = "\n", .end = "\n", .between = "\n"};

// A message's content, "" where there is none, with its parts: where it has none, it is one, as marks count them.
std::string& text_of(ChatMessage& message) {
  Json& content = message.json["content"];
  if (!content.is_string()) content = "";
  auto& text = content.get_ref<std::string&>();
  if (message.parts.empty()) message.parts.emplace_back();
  message.parts.back().end = text.size();
  return text;
}

// Returns where the other one's parts begin.
int join(ChatMessage& message, std::string_view separator, ChatMessage& more) {
  std::string& text = text_of(message);
  const std::string& added = text_of(more);
  const auto first_part = static_cast<int>(message.parts.size());
  text += separator;
  for (const ContentPart& part : more.parts) message.parts.push_back({.end = text.size() + part.end, .tool = part.tool});
  text += added;
  return first_part;
}

bool has_role(const ChatMessage& message, std::string_view role) {
  const auto found = message.json.find("role");
  return found != message.json.end() && found->is_string() && found->get_ref<const std::string&>() == role;
}

class Adapter {
 public:
  explicit Adapter(ChatRequest& request) : request_(request) {}

  void run() {
    const bool has_tools = request_.tools.is_array() && !request_.tools.empty();
    if (has_tools && !has_role(request_.messages.front(), "system")) messages_.push_back(message_of("system", ""));
    for (ChatMessage& message : request_.messages) move_message(message);
    if (has_tools) add_tools();
    for (CacheMark& mark : request_.marks) move_mark(mark);
    for (KnownTurn& turn : request_.known_turns) {
      turn.message = static_cast<std::size_t>(places_.at(turn.message).message);
    }
    request_.messages = std::move(messages_);
    request_.adapted_tools = std::move(request_.tools);
    request_.tools = nullptr;
  }

 private:
  // Where a message has gone to.
  struct Place {
    int message = 0;
    int first_part = 0;
  };

  void move_message(ChatMessage& message) {
    const bool is_result = has_role(message, "tool");
    if (is_result) {
      show_as_result(message);
    } else {
      write_calls(message);
    }
    const auto num_before = static_cast<int>(messages_.size());
    if (was_result_ && has_role(message, "user")) {
      // Behind the last message, which is of the user, too: many templates want roles to take turns.
      places_.push_back({num_before - 1, join(messages_.back(), "\n", message)});
    } else {
      places_.push_back({num_before, 0});
      messages_.push_back(std::move(message));
    }
    was_result_ = is_result;
  }

  static void show_as_result(ChatMessage& message) {
    constexpr std::string_view kBegin = "<tool_response>\n";
    std::string text = std::string(kBegin) + text_of(message) + "\n</tool_response>";
    for (ContentPart& part : message.parts) part.end += kBegin.size();
    message.parts.back().end = text.size();
    message.json = message_of("user", std::move(text)).json;
  }

  static void write_calls(ChatMessage& message) {
    Json calls;
    if (const auto found = message.json.find("tool_calls"); found != message.json.end()) {
      calls = std::move(*found);
      message.json.erase(found);
    }
    std::string& text = text_of(message);
    if (!calls.is_array()) return;
    for (const Json& call : calls) {
      const bool is_wrapped = call.is_object() && call.contains("function");
      const Json& function = is_wrapped ? call["function"] : call;
      Json shown = Json::object();
      for (const char* key : {"name", "arguments"}) {
        if (function.is_object() && function.contains(key)) shown[key] = function[key];
      }
      if (!text.empty()) text += kOwnSpelling.between;
      text.append(kToolCall).append(kOwnSpelling.begin);
      append_like_python(shown, text);
      text.append(kOwnSpelling.end).append(kToolCallEnd);
      message.parts.push_back({.end = text.size()});
    }
  }

  void add_tools() {
    ChatMessage& system = messages_.front();
    std::string& text = text_of(system);
    if (!text.empty()) text += "\n\n";
    text +=
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
        "provided with function signatures within <tools></tools> XML tags:\n<tools>";
    for (std::size_t i = 0; i < request_.tools.size(); ++i) {
      text += '\n';
      append_like_python(request_.tools[i], text);
      if (i + 1 == request_.tools.size()) {
        text +=
            "\n</tools>\n\nFor each function call, return a json object with function name and "
            "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
            "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
      }
      system.parts.push_back({.end = text.size(), .tool = static_cast<int>(i)});
    }
  }

  void move_mark(CacheMark& mark) const {
    if (mark.message < 0) return;
    const Place& place = places_.at(static_cast<std::size_t>(mark.message));
    mark.message = place.message;
    mark.part += place.first_part;
  }

  ChatRequest& request_;
  std::vector<ChatMessage> messages_;
  std::vector<Place> places_;  // of the request's messages
  bool was_result_ = false;    // the last one
};

// The system prompt becomes the beginning of the user's first message.
void fold_system_prompt(ChatRequest& request) {
  std::vector<ChatMessage>& messages = request.messages;
  if (messages.size() == 1 || !has_role(messages[1], "user")) {
    messages[0].json["role"] = "user";
    return;
  }
  ChatMessage system = std::move(messages[0]);
  messages.erase(messages.begin());
  const int first_part = join(system, text_of(system).empty() ? "" : "\n\n", messages[0]);
  messages[0].json["content"] = std::move(system.json["content"]);
  messages[0].parts = std::move(system.parts);
  if (system.sent_as >= 0) messages[0].sent_as = system.sent_as;
  for (CacheMark& mark : request.marks) {
    if (mark.message == 1) mark.part += first_part;
    if (mark.message > 0) --mark.message;
  }
  for (KnownTurn& turn : request.known_turns) turn.message -= turn.message > 0;
}

// gpt-oss' template raises an error where a tool has none.
void describe_tools(Json& tools) {
  if (!tools.is_array()) return;
  for (Json& tool : tools) {
    const auto function = tool.find("function");
    if (function != tool.end() && function->is_object() && !function->contains("description")) (*function)["description"] = "";
  }
}

// It takes one text before calls, what was thought or what was said.
void join_thoughts(ChatRequest& request) {
  for (ChatMessage& message : request.messages) {
    if (!has_role(message, "assistant") || !message.json.contains("tool_calls")) continue;
    const std::string said(find_text(message.json, "content"));
    if (said.empty()) message.json["content"] = "";  // it looks into what clients leave null
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (said.empty()) break;
      const std::string thought(find_text(message.json, name));
      if (thought.empty()) continue;
      message.json[name] = thought + "\n\n" + said;
      message.json["content"] = "";
      for (ContentPart& part : message.parts) part.end = 0;
      break;
    }
  }
}

bool speaks_of_tools(const ChatRequest& request) {
  if (request.tools.is_array() && !request.tools.empty()) return true;
  return std::ranges::any_of(request.messages, [](const ChatMessage& message) {
    return has_role(message, "tool") || message.json.contains("tool_calls");
  });
}

}  // namespace

void adapt_chat(ChatRequest& request, const TemplateAbilities& abilities) {
  const bool has_tools = request.tools.is_array() && !request.tools.empty();
  const bool shows_tools = abilities.shows_tools();
  ToolCallRules& calls = request.options.tool_calls;
  calls.is_harmony = abilities.is_harmony;
  calls.begins_in_text = request.continue_final_message;
  calls.are_read = has_tools && request.options.tool_choice.may_call() &&
                   (!shows_tools || abilities.is_harmony || abilities.writes_call_tags);
  // Where a demanded call is JSON all the same, it is read, too.
  if (has_tools && shows_tools && abilities.writes_tagged_calls)
    calls.tagged = std::make_shared<const ArgumentTypes>(request.tools);
  calls.spelling = shows_tools ? abilities.call_spelling : kOwnSpelling;
  if (!shows_tools) {
    if (speaks_of_tools(request)) Adapter(request).run();
  } else {
    if (abilities.wants_short_ids) shorten_call_ids(request.messages);
    if (!abilities.takes_several_calls) {
      split_turns(request);
      // What a model never saw it is not to write. Harmony's calls are messages of their own anyway.
      if (!abilities.is_harmony) calls.takes_many = false;
    }
  }
  if (abilities.is_harmony) {
    describe_tools(request.tools);
    join_thoughts(request);
  }
  const bool has_system = !request.messages.empty() && has_role(request.messages[0], "system");
  if (has_system && !abilities.takes_system_prompts) fold_system_prompt(request);
}

}  // namespace larder
