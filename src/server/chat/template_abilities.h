// What a model's chat template does with a chat, as it shows when it is given some.
#pragma once

#include <optional>

#include "server/answer/tool_calls.h"
#include "tokenizer/jinja/chat_template.h"

namespace larder {

// What a template says of itself is no guide: some have the word "tools" in them and read another variable. Where one
// is false that adapt_chat() needs, it does that work itself.
struct TemplateAbilities {
  bool prints_tools = false;    // their definitions,
  bool prints_calls = false;    // an answer's calls of them
  bool prints_results = false;  // and what came of those
  bool takes_several_calls = false;  // in one turn
  bool wants_short_ids = false;      // of calls: nine letters or digits
  bool writes_call_tags = false;     // <tool_call>, in what it tells of tools or prints of calls
  bool writes_tagged_calls = false;  // with arguments in tags, see TaggedCallReader
  std::optional<CallSpelling> call_spelling = {};  // where it prints calls as ToolCallScanner reads them
  bool takes_system_prompts = true;
  bool is_harmony = false;           // see HarmonyScanner
  bool may_reprint_answers = true;   // otherwise than they are generated, see next_turn.h

  // Else they are shown as texts, all of them, so that what a model reads of them is of one kind.
  bool shows_tools() const { return prints_tools && prints_calls && prints_results; }
};

// Renders a dozen small chats at most, each of which may take some ten milliseconds; published templates take less
// than one. What it refuses is no ability; one that refuses all of them has those of a template without tools.
TemplateAbilities probe_template(const ChatTemplate& chat_template);

}  // namespace larder
