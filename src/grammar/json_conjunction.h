// What JSON schemas say that hold at once: each word is read from all of them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/grammar_builder.h"
#include "grammar/json_document.h"
#include "grammar/json_formats.h"
#include "grammar/json_numbers.h"
#include "grammar/regex.h"

namespace larder {

// Sets of JSON's types.
enum JsonTypes : std::uint8_t {
  kNoType = 0,
  kNull = 1,
  kBoolean = 2,
  kObject = 4,
  kArray = 8,
  kString = 16,
  kInteger = 32,
  kNumber = 64 | kInteger,  // whatever is an integer is one
};

// All but the constructor throw SchemaFault. Thread: as the document's.
class JsonConjunction {
 public:
  // set: without lists. place: where they come together, for faults that are not of one of them.
  JsonConjunction(SchemaDocument& document, const SchemaSet& set, const nlohmann::ordered_json& place);

  SchemaDocument& document() const { return document_; }
  const nlohmann::ordered_json& place() const { return place_; }
  const std::vector<const SchemaWords*>& parts() const { return parts_; }
  // What any of them says by that word.
  std::vector<const nlohmann::ordered_json*> all(std::string_view word) const;

  // Nullopt: any, and nothing more is said of it.
  std::optional<JsonTypes> types() const;
  // By enum and const, those that all else permits. Nullopt: none are named.
  std::optional<std::vector<const nlohmann::ordered_json*>> values() const;
  NumberBounds bounds() const;
  Repetitions counts(std::string_view least, std::string_view most) const;
  // Null: none.
  const JsonFormat* format() const;
  // One that cannot be read does not count beside a format that can, and says the same.
  std::vector<const nlohmann::ordered_json*> patterns() const;
  // Of the strings that it matches, in no other grammar.
  Grammar grammar_of(const nlohmann::ordered_json& pattern, TextForm form) const;

 private:
  class ValueFilter;

  // Without a look at whether there is any number between.
  Repetitions read_counts(std::string_view least, std::string_view most) const;
  std::optional<JsonTypes> named_types() const;

  SchemaDocument& document_;
  const nlohmann::ordered_json& place_;
  std::vector<const SchemaWords*> parts_;
};

}  // namespace larder
