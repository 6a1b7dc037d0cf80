// Breakpoints: which part of a request the cache is to keep a prompt up to, and where that is.
#pragma once

#include <compare>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "tokenizer/jinja/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace larder {

class Fields;

// The end of a part of the request. In order of what a prompt consists of: the tools, then the
// messages with their parts.
struct CacheMark {
  int message = -1;  // index; -1 = the tools
  int part = 0;      // TextSpan::part, or of the tools TextSpan::tool
  int ttl_s = 0;
};

// A content part's prompt_cache_breakpoint; its place is left to the caller. nullopt: it has none. Throws
// Error{kInvalidArgument} with the field as param.
std::optional<CacheMark> read_breakpoint(const Fields& part, int default_ttl_s);

// Where the marks lie in the prompt's tokens: a mark's place is the end of all that is printed of its
// part and those before, wherever the template puts them (tools often follow the system prompt). A
// token that also holds text beyond is not in it. Places in ascending order; marks of one place
// become one; a place within the first block is left out.
std::vector<PromptPin> place_marks(std::span<const CacheMark> marks, const RenderedPrompt& prompt,
                                   const Encoding& encoding);

}  // namespace larder
