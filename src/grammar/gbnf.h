// Grammars as llama.cpp's clients write them (GBNF), and as vLLM's do (EBNF).
#pragma once

#include <string_view>

#include "grammar/grammar_builder.h"

namespace larder {

// Rules `name ::= alternatives`, the first byte of the text being matched by the rule "root". Alternatives, sequences,
// groups, "literals" with escapes, [classes] with ranges and negation, . (any character), * + ? {m} {m,} {m,n},
// comments from # to the line's end; a rule goes on over lines within parentheses or where its line ends with |
// or the next one begins with it.
// Throws Error{kInvalidArgument} that says what is wrong and in which line: syntax, a rule that is not defined or
// twice, no root; Error{kTooLarge} as GrammarBuilder does.
Fragment add_gbnf(GrammarBuilder& builder, std::string_view text);

}  // namespace larder
