// Grammars in the notation of Lark (Python), as OpenAI's tools and guidance write them.
#pragma once

#include <string_view>

#include "grammar/character_paths.h"
#include "grammar/grammar_builder.h"

namespace larder {

// Rules `name: alternatives` and terminals `NAME: alternatives`, the text being matched by the rule "start". Strings (with
// the flag i), ranges "a".."z", /expressions/ with the flags i, m, s, u and x, groups, [optional] ones, ? * + ~n ~n..m
// {m,n}, priorities, aliases and modifiers of rules (which say nothing here), comments from // or # on, %import of
// common's terminals, %ignore (before, between and behind terminals of rules), %json with a schema, %llguidance (passed
// over). Terminals match what their characters say: none is preferred where several do, nor the longest text of one.
// Throws Error{kInvalidArgument} that says what is wrong and in which line: syntax, names that are not defined or twice, no
// start, what is not read (templates, %declare, %override, %extend, other modules, rules' attributes but capture); and
// Error{kTooLarge} as GrammarBuilder does. form: how the texts are written; none but kPlain has room for %json.
Fragment add_lark(GrammarBuilder& builder, std::string_view text, TextForm form);

}  // namespace larder
