// Regular expressions as parts of a grammar.
#pragma once

#include <string_view>

#include "grammar/grammar_builder.h"

namespace larder {

// How the characters that an expression matches are written.
enum class RegexText {
  kPlain,       // as UTF-8
  kJsonString,  // as within a JSON string's quotes: " and \ and control characters escaped, the shortest way
};

// A part that matches what the expression matches: wholly where is_whole, as constrained output means it, else
// anywhere within the text, as a JSON schema's pattern does unless ^ and $ say otherwise.
// The syntax is ECMAScript's with the u flag, as far as it is regular: alternatives, groups (capturing or not, named
// too), quantifiers (lazy ones match the same texts), classes with ranges and negation, . \d \w \s and their
// opposites, escapes of single characters (\n, \t, \xhh, \uhhhh, \u{...}), ^ at the beginning and $ at the end of an
// outermost alternative. Throws Error{kInvalidArgument} that says what is wrong, and at which character, for all
// else: lookaround, back references, \b, ^ or $ elsewhere, \p, broken syntax; and Error{kTooLarge} as the builder does.
Fragment add_regex(GrammarBuilder& builder, std::string_view expression, RegexText text, bool is_whole);

}  // namespace larder
