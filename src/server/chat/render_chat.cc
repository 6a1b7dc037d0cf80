#include "server/chat/render_chat.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace larder {
namespace {

// Whether there was one that has only calls. Templates can tell null from "".
bool fill_missing_contents(std::vector<ChatMessage>& messages) {
  bool has_filled = false;
  for (ChatMessage& message : messages) {
    if (message.json.value("role", std::string()) != "assistant") continue;
    Json& content = message.json["content"];
    if (!content.is_null()) continue;
    content = "";
    has_filled = true;
  }
  return has_filled;
}

}  // namespace

ChatMessage message_of(const char* role, Json content) {
  return {.json = {{"role", role}, {"content", std::move(content)}}};
}

RenderedPrompt render_chat(const ChatTemplate& chat_template, TemplateInput input) {
  try {
    return chat_template.render(input);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kPromptTooLong || !fill_missing_contents(input.messages)) throw;
    return chat_template.render(input);
  }
}

}  // namespace larder
