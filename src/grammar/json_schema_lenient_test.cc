// What remains of schemas of which not all can be obeyed.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "grammar/grammar_test_support.h"
#include "grammar/json_schema.h"
#include "grammar/json_schema_test_support.h"

namespace larder {
namespace {

// Of tools that are not strict: the least part goes that cannot be obeyed.
TEST(JsonSchema, LenientlyOnlyWhatCannotBeObeyedIsFree) {
  const Grammar grammar = grammar_of_schema(
      R"_({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 5}, "b": {"type": "string", "pattern": "(?=x)"},
          "c": {"$ref": "#/none"}, "d": {"enum": ["x"]}}, "required": ["d"], "not": {}})_",
      SchemaUse::kLenient);
  EXPECT_TRUE(matches(grammar, R"({"a":3,"b":"y","c":[],"d":"x"})"));
  EXPECT_FALSE(matches(grammar, R"({"a":"3","d":"x"})"));
  EXPECT_FALSE(matches(grammar, R"({"d":"y"})"));
  EXPECT_TRUE(matches(grammar_of_schema(R"({"type": "object", "allOf": [{"$ref": "#/none"}]})", SchemaUse::kLenient), R"({"x":1})"));
}

// What nothing satisfies takes nothing else with it: of the members and items that have to be there, the least is free.
TEST(JsonSchema, LenientlyWhatNothingSatisfiesIsFreeAlone) {
  check({{R"({"type": "object", "properties": {"y": {"type": "boolean"}, "p": {"type": "integer", "enum": ["1", "2"]}}, "required": ["y", "p"], "additionalProperties": false})",
          {R"({"y":true,"p":7})"},
          {R"({"y":1,"p":7})", R"({"p":7})", R"({"y":true})", R"({"y":true,"p":"1"})", R"({"y":true,"p":7,"z":1})"}},
         {R"({"type": "object", "properties": {"y": {"type": "boolean"}, "p": {"type": "integer", "enum": ["1", "2"]}}, "required": ["y"]})",
          {R"({"y":true,"p":7})", R"({"y":true})"},
          {R"({"y":1,"p":7})", R"({"y":true,"p":"1"})"}},
         {R"({"properties": {"p": {"allOf": [{"properties": {"a": true}, "required": ["a"], "additionalProperties": false},
                                             {"properties": {"b": true}, "required": ["b"], "additionalProperties": false}]},
                             "y": {"type": "boolean"}}, "required": ["p", "y"]})",
          {R"({"p":{"c":1},"y":true})"},
          {R"({"p":1,"y":true})", R"({"p":{},"y":1})"}},
         {R"({"type": "object", "properties": {"p": {"type": "null", "enum": [1]}, "q": {"type": "string", "enum": [1]}}, "required": ["p", "q"]})",
          {R"({"p":null,"q":"x"})"},
          {R"({"p":1,"q":""})", R"({"p":null,"q":1})"}},
         // Whatever follows.
         {R"({"type": "object", "properties": {"u": {"anyOf": [{"type": "string", "enum": [1]}, {"type": "null"}]}, "q": {"type": "string", "enum": [1]}}, "required": ["u", "q"]})",
          {R"({"u":null,"q":"x"})"},
          {R"({"u":"x","q":"x"})"}},
         // The innermost goes, also of what is called.
         {R"({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"properties": {"a": {"allOf": [{"type": "string"}, {"type": "null"}]}, "b": {"type": "null"}}, "required": ["a", "b"]}}})",
          {R"([{"a":1,"b":null}])"},
          {"[]", R"([{"a":1,"b":2}])", "[1]"}},
         // A choice that cannot be is none where there is another; where there is none, all of them are.
         {R"({"properties": {"kind": {"enum": ["a", "c"]}}, "required": ["kind"],
              "anyOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "null"}}}, {"properties": {"kind": {"const": "b"}, "y": true}}]})",
          {R"({"kind":"a","x":null})"},
          {R"({"kind":"b"})", R"({"kind":"a","y":1})"}},
         {R"({"properties": {"y": {"type": "null"}, "p": {"anyOf": [{"type": "string", "enum": [1]}, {"type": "null", "const": 2}]}}, "required": ["y", "p"]})",
          {R"({"y":null,"p":[]})"},
          {R"({"y":1,"p":1})"}},
         // What would go on for ever goes on by one.
         {R"({"type": "object", "properties": {"v": {"type": "null"}, "next": {"$ref": "#"}}, "required": ["v", "next"]})",
          {R"({"v":null,"next":{"v":null,"next":{"v":1}}})"},
          {R"({"v":null,"next":{"v":null,"next":1}})", R"({"v":1,"next":{}})"}},
         {R"({"type": "string", "minLength": 3, "maxLength": 2})", {R"("x")"}, {"1"}}},
        SchemaUse::kLenient);
}

TEST(JsonSchema, LenientlyTheTypeRemainsOfWhatIsBehindAReference) {
  check({{R"({"properties": {"p": {"$ref": "#/$defs/X"}}, "required": ["p"], "$defs": {"X": {"type": "object", "propertyNames": {"minItems": 1}, "additionalProperties": {"type": "integer"}}}})",
          {R"({"p":{"a":"b"}})"},
          {R"({"p":1})", R"({"p":[]})"}},
         {R"({"type": "object", "anyOf": [{"propertyNames": {"minItems": 1}}, {"propertyNames": {"maxItems": 2}}, {"$ref": "#/none"}]})",
          {R"({"a":"b"})"},
          {"1", "null"}},
         {R"_({"type": ["string", "array"], "pattern": "(?=x)", "items": {"allOf": [{"$ref": "#/none"}], "type": "integer"}})_",
          {R"("y")", "[1]"},
          {"1", "{}", R"([""])"}}},
        SchemaUse::kLenient);
}

TEST(JsonSchema, LenientlyManyAreFreeEachForItself) {
  nlohmann::ordered_json schema = {{"type", "object"}};
  std::string text;
  for (int i = 0; i < 400; ++i) {
    const std::string number = std::to_string(i), reference = "#/$defs/n" + number;
    schema["$defs"]["n" + number] = {
        {"type", "object"}, {"properties", {{"next", {{"$ref", reference}}}}}, {"required", {"next"}}};
    schema["properties"]["a" + number] = {{"type", "integer"}, {"enum", {"1"}}};
    schema["properties"]["b" + number] = {{"$ref", reference}};
    for (const char* letter : {"a", "b"}) schema["required"].push_back(letter + number);
    text += (i == 0 ? "{" : ",") + ("\"a" + number + "\":1,\"b" + number + "\":{\"next\":{}}");
  }
  const Grammar grammar = grammar_of_schema(schema.dump(), SchemaUse::kLenient);
  EXPECT_TRUE(matches(grammar, text + "}"));
  for (const char* wrong : {R"({"a0":"1")", R"({"a0":1,"b0":1)", R"({"a0":1,"b0":{})", R"({"b0")"})
    EXPECT_FALSE(begins(grammar, wrong)) << wrong;
}

}  // namespace
}  // namespace larder
