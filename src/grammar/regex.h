// Regular expressions as parts of a grammar.
#pragma once

#include <string_view>

#include "grammar/character_paths.h"
#include "grammar/grammar_builder.h"

namespace larder {

enum class RegexDialect { kEcmaScript, kPython };

struct RegexFlags {
  bool ignores_case = false;  // of ASCII's letters
  bool dot_is_any = false;    // a . matches a line's end, too
  bool is_verbose = false;    // blanks and comments are left out
  bool is_within = false;     // other text stands around what it matches, of which ^ and $ could say nothing
};

// A part that matches what the expression matches: wholly where is_whole, as constrained output means it, else
// anywhere within the text, as a JSON schema's pattern does unless ^ and $ say otherwise.
// The syntax is ECMAScript's with the u flag, as far as it is regular: alternatives, groups (capturing or not, named
// too, also with flags (?i:...), (?s)), quantifiers (lazy ones match the same texts), classes with ranges and negation,
// . \d \w \s and their opposites, escapes of single characters (\n, \t, \xhh, \uhhhh, \u{...}), ^ at the beginning and $
// at the end of an outermost alternative. Throws Error{kInvalidArgument} that says what is wrong, and at which
// character, for all else: lookaround, back references, \b, ^ or $ elsewhere, \p, broken syntax; and Error{kTooLarge}
// as the builder does.
Fragment add_regex(GrammarBuilder& builder, std::string_view expression, TextForm form, bool is_whole);

// The same of Python's and Rust's, wholly: a . is all but \n, {,n} is from none on, and a bracket that nothing opens or
// is no quantifier is itself.
Fragment add_python_regex(GrammarBuilder& builder, std::string_view expression, TextForm form, RegexFlags flags = {});

}  // namespace larder
