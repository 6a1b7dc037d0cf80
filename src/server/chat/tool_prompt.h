// What a model's chat template does not take as it is: tools, calls and their results, system prompts.
#pragma once

#include "server/chat/client_request.h"
#include "server/chat/template_abilities.h"

namespace larder {

// Where the template does not show tools, their calls and results, puts them into the request's texts: the
// definitions at the end of the system prompt, in the words that Hermes models are trained with, calls into the
// answer that made them, results into a message of the user. Where it shows them, but is particular about ids or about
// several calls in a turn, gives it those that it takes (tool_turns.h). Where it takes no system prompts, as Gemma 2's
// and the first of Mistral 7B's do, that text goes before the user's first message's. Marks keep the
// parts that they mark. Sets whether the answer's calls can be read, and whether it may make several
// (GenerationOptions::tool_calls).
void adapt_chat(ChatRequest& request, const TemplateAbilities& abilities);

}  // namespace larder
