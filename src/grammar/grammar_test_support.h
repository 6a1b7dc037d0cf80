// Texts against grammars.
#pragma once

#include <functional>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/grammar_builder.h"
#include "grammar/grammar_state.h"

namespace larder {

inline Grammar grammar_of(const std::function<Fragment(GrammarBuilder&)>& make) {
  GrammarBuilder builder;
  const Fragment whole = make(builder);
  return builder.finish(whole);
}

// Whether the text is the beginning of one of the grammar's.
inline bool begins(const Grammar& grammar, std::string_view text, bool* is_whole = nullptr) {
  GrammarState state(grammar);
  for (const char byte : text) {
    if (!state.push(static_cast<std::uint8_t>(byte))) return false;
  }
  if (is_whole != nullptr) *is_whole = state.is_whole();
  return true;
}

inline bool matches(const Grammar& grammar, std::string_view text) {
  bool is_whole = false;
  return begins(grammar, text, &is_whole) && is_whole;
}

}  // namespace larder
