// Chats by a template, as prompts are made of them.
#pragma once

#include "server/json_reader.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {

// A message of no more than that.
ChatMessage message_of(const char* role, Json content);

// Where the template refuses an answer of calls alone, whose content is null, as many that read any content as text do,
// that is taken for "". Throws as ChatTemplate::render().
RenderedPrompt render_chat(const ChatTemplate& chat_template, TemplateInput input);

}  // namespace larder
