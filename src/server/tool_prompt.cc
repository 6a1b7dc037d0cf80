#include "server/tool_prompt.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/history_summary.h"
#include "server/tool_turns.h"

namespace larder {
namespace {

// As Python's json.dumps writes it, which is what models have seen.
void append_like_python(const Json& value, std::string& out) { append_json(value, ", ", ": ", out); }

// A message's content and where its parts end.
struct Content {
  std::string text;
  std::vector<ContentPart> parts;

  // Message parts keep their numbers: content without parts is one.
  Content(const Json& message, std::vector<ContentPart> ends) : parts(std::move(ends)) {
    const auto found = message.find("content");
    if (found != message.end() && found->is_string()) text = found->get<std::string>();
    if (parts.empty()) parts.push_back({.end = text.size()});
    parts.back().end = text.size();
  }
  void append(std::string_view more, int tool = -1) {
    text += more;
    parts.push_back({.end = text.size(), .tool = tool});
  }
  // Returns where the other one's parts begin.
  int join(const Content& more) {
    const auto first_part = static_cast<int>(parts.size());
    for (const ContentPart& part : more.parts) {
      parts.push_back({.end = text.size() + part.end, .tool = part.tool});
    }
    text += more.text;
    return first_part;
  }
};

bool has_role(const Json& message, std::string_view role) {
  const auto found = message.find("role");
  return found != message.end() && found->is_string() &&
         found->get_ref<const std::string&>() == role;
}

class Adapter {
 public:
  explicit Adapter(ChatRequest& request) : request_(request) {}

  void run() {
    request_.parts.resize(request_.messages.size());
    if (request_.tools.is_array() && !request_.tools.empty() &&
        !has_role(request_.messages.front(), "system")) {
      add({{"role", "system"}}, Content(Json::object(), {}), -1);
    }
    for (std::size_t i = 0; i < request_.messages.size(); ++i) move_message(i);
    if (request_.tools.is_array() && !request_.tools.empty()) add_tools();
    for (CacheMark& mark : request_.marks) move_mark(mark);
    for (KnownTurn& turn : request_.known_turns) {
      turn.message = static_cast<std::size_t>(places_.at(turn.message).message);
    }
    request_.messages = Json::array();
    request_.parts.clear();
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      messages_[i]["content"] = std::move(contents_[i].text);
      request_.messages.push_back(std::move(messages_[i]));
      request_.parts.push_back(std::move(contents_[i].parts));
    }
    request_.adapted_tools = std::move(request_.tools);
    request_.tools = nullptr;
    request_.sent_as = std::move(sent_as_);
  }

 private:
  // Where a message has gone to.
  struct Place {
    int message = 0;
    int first_part = 0;
  };

  void add(Json message, Content content, int sent_as) {
    messages_.push_back(std::move(message));
    contents_.push_back(std::move(content));
    sent_as_.push_back(sent_as);
  }

  void move_message(std::size_t index) {
    Json message = request_.messages[index];
    Content content(message, std::move(request_.parts[index]));
    const bool is_result = has_role(message, "tool");
    if (is_result) {
      message = {{"role", "user"}};
      content = as_result(content);
    } else {
      write_calls(message, content);
    }
    const bool goes_on = was_result_ && (is_result || has_role(message, "user"));
    if (goes_on) {
      places_.push_back(join(content));
    } else {
      places_.push_back({static_cast<int>(messages_.size()), 0});
      const std::vector<int>& sent_as = request_.sent_as;
      add(std::move(message), std::move(content),
          sent_as.empty() ? static_cast<int>(index) : sent_as.at(index));
    }
    was_result_ = is_result;
  }

  static Content as_result(const Content& content) {
    constexpr std::string_view kBegin = "<tool_response>\n";
    Content result(Json::object(), {});
    result.text = kBegin;
    result.text += content.text;
    result.parts = content.parts;
    for (ContentPart& part : result.parts) part.end += kBegin.size();
    result.text += "\n</tool_response>";
    result.parts.back().end = result.text.size();
    return result;
  }

  static void write_calls(Json& message, Content& content) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) return;
    if (calls->is_array()) {
      for (const Json& call : *calls) {
        const bool is_wrapped = call.is_object() && call.contains("function");
        const Json& function = is_wrapped ? call["function"] : call;
        std::string text = content.text.empty() ? "<tool_call>\n" : "\n<tool_call>\n";
        Json shown = Json::object();
        for (const char* key : {"name", "arguments"}) {
          if (function.is_object() && function.contains(key)) shown[key] = function[key];
        }
        append_like_python(shown, text);
        content.append(text + "\n</tool_call>");
      }
    }
    message.erase("tool_calls");
  }

  // Behind the last message, which is of the user, too: many templates want roles to take turns.
  Place join(const Content& more) {
    Content& content = contents_.back();
    content.text += '\n';
    return {static_cast<int>(contents_.size()) - 1, content.join(more)};
  }

  void add_tools() {
    Content& content = contents_.front();
    std::string text = content.text.empty() ? "" : "\n\n";
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
      content.append(text, static_cast<int>(i));
      text.clear();
    }
  }

  void move_mark(CacheMark& mark) const {
    if (mark.message < 0) return;
    const Place& place = places_.at(static_cast<std::size_t>(mark.message));
    mark.message = place.message;
    mark.part += place.first_part;
  }

  ChatRequest& request_;
  std::vector<Json> messages_;
  std::vector<Content> contents_;  // theirs
  std::vector<int> sent_as_;       // ChatRequest::sent_as of them
  std::vector<Place> places_;      // of the request's messages
  bool was_result_ = false;        // the last one
};

// The system prompt becomes the beginning of the user's first message.
void fold_system_prompt(ChatRequest& request) {
  auto& messages = request.messages.get_ref<Json::array_t&>();
  if (messages.size() == 1 || !has_role(messages[1], "user")) {
    messages[0]["role"] = "user";
    return;
  }
  number_messages(request);
  request.parts.resize(messages.size());
  Content whole(messages[0], std::move(request.parts[0]));
  const Content more(messages[1], std::move(request.parts[1]));
  if (!whole.text.empty()) whole.text += "\n\n";
  const int first_part = whole.join(more);
  messages[1]["content"] = std::move(whole.text);
  request.parts[1] = std::move(whole.parts);
  messages.erase(messages.begin());
  request.parts.erase(request.parts.begin());
  request.sent_as.erase(request.sent_as.begin() + (request.sent_as[0] < 0 ? 0 : 1));
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
  const auto text_of = [](Json& message, const char* name) {
    const auto found = message.find(name);
    return found != message.end() && found->is_string() ? found->get_ref<std::string&>() : std::string();
  };
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    Json& message = request.messages[i];
    if (!has_role(message, "assistant") || !message.contains("tool_calls")) continue;
    const std::string said = text_of(message, "content");
    if (said.empty()) message["content"] = "";  // it looks into what clients leave null
    for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
      if (said.empty()) break;
      const std::string thought = text_of(message, name);
      if (thought.empty()) continue;
      message[name] = thought + "\n\n" + said;
      message["content"] = "";
      if (i < request.parts.size())
        for (ContentPart& part : request.parts[i]) part.end = 0;
      break;
    }
  }
}

bool speaks_of_tools(const ChatRequest& request) {
  if (request.tools.is_array() && !request.tools.empty()) return true;
  return std::ranges::any_of(request.messages, [](const Json& message) {
    return has_role(message, "tool") || message.contains("tool_calls");
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
