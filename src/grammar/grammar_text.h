// Grammars in whichever notation they are written.
#pragma once

#include <string_view>

#include "grammar/grammar_builder.h"

namespace larder {

// GBNF where its first rule has a ::=, else Lark's notation. Throws as add_gbnf() and add_lark() do.
Fragment add_grammar(GrammarBuilder& builder, std::string_view text);

}  // namespace larder
