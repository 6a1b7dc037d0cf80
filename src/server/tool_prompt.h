// Tools, calls and their results as text, for models whose chat template knows none of them.
#pragma once

#include "server/openai_request.h"
#include "tokenizer/chat_template.h"

namespace larder {

// Where the template never speaks of tools, puts them into the request's texts: the definitions at
// the end of the system prompt, in the words that Hermes models are trained with, calls into the
// answer that made them, results into a message of the user. Marks keep the parts that they mark.
// Sets whether the answer's calls can be read (GenerationOptions::reads_tool_calls).
void adapt_tools(ChatRequest& request, const ChatTemplate& chat_template);

}  // namespace larder
