// Texts against grammars.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
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

// What is read of a grammar's text, in the notation of one test.
using ReadRules = Grammar (*)(std::string_view rules);

inline void expect_texts_of(const Grammar& grammar, std::string_view rules, const std::vector<std::string_view>& of_it,
                            const std::vector<std::string_view>& not_of_it) {
  for (const std::string_view text : of_it) EXPECT_TRUE(matches(grammar, text)) << rules << "\n" << text;
  for (const std::string_view text : not_of_it) EXPECT_FALSE(matches(grammar, text)) << rules << "\n" << text;
}

inline std::string message_of(ReadRules read, std::string_view rules, ErrorKind kind) {
  try {
    read(rules);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.message();
    return error.message();
  }
  return "no error";
}

inline void expect_error_of(ReadRules read, std::string_view rules, std::string_view part) {
  const std::string message = message_of(read, rules, ErrorKind::kInvalidArgument);
  EXPECT_NE(message.find(part), std::string::npos) << rules << "\n" << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

}  // namespace larder
