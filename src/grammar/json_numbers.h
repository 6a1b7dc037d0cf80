// Numbers of JSON within bounds, as parts of a grammar.
#pragma once

#include <optional>
#include <string>

#include "grammar/grammar_builder.h"

namespace larder {

// Bounds as decimal digits, as JSON writes a number: "-12", "0.05", "1e3". What is absent is no bound.
struct NumberBounds {
  std::optional<std::string> least = {};  // minimum
  std::optional<std::string> above = {};  // exclusiveMinimum
  std::optional<std::string> most = {};   // maximum
  std::optional<std::string> below = {};  // exclusiveMaximum

  bool any() const { return least || above || most || below; }
};

// Of numbers as JSON writes them, exactly, however many digits they have. Throw Error{kInvalidArgument} for another
// text.
bool is_less(const std::string& one, const std::string& other);
bool is_within(const std::string& number, const NumberBounds& bounds);

// An integer of at most 18 digits, without a fraction or an exponent, no leading zeros, no -0.
// Throws Error{kInvalidArgument} where no such integer lies within the bounds, or a bound is no number or has more
// than 18 digits before its point (one beyond every integer of 18 digits is none).
Fragment add_json_integer(GrammarBuilder& builder, const NumberBounds& bounds);

// Any number: at most 16 digits before the point and 16 behind it, and an exponent of two digits where there are no
// bounds; with bounds none. Exact: what matches is within the bounds as decimals. The same errors.
Fragment add_json_number(GrammarBuilder& builder, const NumberBounds& bounds);

}  // namespace larder
