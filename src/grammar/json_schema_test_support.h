// Texts against JSON schemas.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "grammar/grammar_test_support.h"
#include "grammar/json_schema.h"

namespace larder {

inline Grammar grammar_of_schema(std::string_view schema, SchemaUse use = SchemaUse::kStrict,
                                 JsonSpacing spacing = JsonSpacing::kAny) {
  GrammarBuilder builder;
  JsonParts parts(builder, spacing);
  const Fragment whole = add_json_schema(parts, nlohmann::ordered_json::parse(schema), "schema", use);
  return builder.finish(whole);
}

struct SchemaCase {
  const char* schema;
  std::vector<const char*> good;
  std::vector<const char*> bad;
};

inline void check(const std::vector<SchemaCase>& cases, SchemaUse use = SchemaUse::kStrict) {
  for (const SchemaCase& one : cases) {
    SCOPED_TRACE(one.schema);
    const Grammar grammar = grammar_of_schema(one.schema, use);
    for (const char* text : one.good) EXPECT_TRUE(matches(grammar, text)) << text;
    for (const char* text : one.bad) EXPECT_FALSE(matches(grammar, text)) << text;
  }
}

}  // namespace larder
