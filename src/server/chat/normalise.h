// Changes to a chat that leave its meaning alone and let more of it be reused; all of them opt-in, but for the first in
// Anthropic's API.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/json_reader.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {

struct Normalisation {
  // Lines of the system prompt that are known to carry a nonce and nothing for the model
  // (x-anthropic-billing-header) are left out.
  bool nonce_headers = false;
  // The keys of tools' JSON schemas are put in order, so that a client's order does not count.
  bool tool_keys = false;
  // A line of the system prompt with a time of day is moved to the end of the last user message.
  bool timestamps = false;

  bool any() const { return nonce_headers || tool_keys || timestamps; }
};

inline constexpr const char* kNormalisations =
    "\"nonce_headers\", \"tool_keys\", \"timestamps\" or \"all\"";
// Switches on what the name says; false = there is no such name.
[[nodiscard]] bool add_normalisation(std::string_view name, Normalisation& normalisation);

// messages: contents are strings, roles are OpenAI's; parts keep their text. tools: null or an array.
// Returns the names of what it did, in order; none = nothing was changed. Thread: any.
std::vector<std::string> normalise(const Normalisation& normalisation, std::vector<ChatMessage>& messages, Json& tools);

}  // namespace larder
