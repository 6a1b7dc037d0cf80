#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_test_support.h"
#include "grammar/json_schema_test_support.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

TEST(JsonSchema, AnyValue) {
  const std::vector<const char*> good = {"null",
                                         "true",
                                         "-1.5e+10",
                                         R"("a\"b\u00e9\ud83d\ude00é")",
                                         "[]",
                                         "{}",
                                         R"({"a": [1, {"b": null}], "c": "d"})",
                                         "{\n  \"a\": [\n    1,\n    2\n  ]\n}"};
  const std::vector<const char*> bad = {"",
                                        "nul",
                                        "01",
                                        "1.",
                                        "\"",
                                        "\"\n\"",
                                        R"("\x")",
                                        R"("\ud83d")",
                                        R"("\ude00")",
                                        "[1,]",
                                        "{\"a\"}",
                                        "{\"a\":1,}",
                                        "{a:1}",
                                        "[1 2]",
                                        "  1",
                                        "{\"a\":   1}",
                                        "1 ",
                                        "\"\xff\"",
                                        "\"\xed\xa0\x80\"",
                                        "\"\xc0\x80\""};
  check({{"true", good, bad}, {"{}", good, bad}, {R"({"description": "anything"})", good, bad}});
}

TEST(JsonSchema, ScalarTypes) {
  check({{R"({"type": "string"})", {R"("")", R"("abc")"}, {"abc", "1"}},
         {R"({"type": "integer"})", {"0", "-12", "123456789012345678"}, {"1.0", "1e3", "-0", "007"}},
         {R"({"type": "number"})", {"0", "1.5", "-2e-3"}, {"NaN", ".5", "+1"}},
         {R"({"type": "boolean"})", {"true", "false"}, {"True", "null"}},
         {R"({"type": "null"})", {"null"}, {"\"null\""}},
         {R"({"type": ["string", "null"]})", {R"("a")", "null"}, {"1", "true"}},
         {R"({"type": ["integer", "number"]})", {"1", "1.5"}, {"\"1\""}},
         {R"({"type": ["integer", "null"], "multipleOf": 1})", {"1", "null"}, {"1.5"}},
         {R"({"enum": ["red", "green", 3, null, "né", "a\"b"]})",
          {R"("red")", "3", "null", R"("né")", R"("a\"b")"},
          {R"("blue")", "33", "red"}},
         {R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"}},
         {R"({"const": {"a": 1}})", {R"({"a":1})"}, {R"({"a":2})"}}});
}

TEST(JsonSchema, Strings) {
  check({{R"({"type": "string", "minLength": 2, "maxLength": 3})",
          {R"("ab")", R"("éé€")", R"("\n\u0041")"},
          {R"("a")", R"("abcd")", R"("éééé")"}},
         {R"({"type": "string", "maxLength": 0})", {R"("")"}, {R"("a")"}},
         {R"({"type": "string", "minLength": 1})", {R"("a")", R"("aaaaaaaaaaaaaa")"}, {R"("")"}},
         {R"({"type": "string", "pattern": "^[A-Z]{3}-\\d+$"})",
          {R"("ABC-1")", R"("XYZ-123")"},
          {R"("ABC-")", R"("xABC-1")", R"("ABC-1x")"}},
         {R"({"type": "string", "pattern": "b+"})", {R"("b")", R"("abbc")", R"("\"b")"}, {R"("ac")"}},
         {R"({"type": "string", "pattern": "^\"\\n$"})", {R"("\"\n")"}, {R"("n")"}},
         {R"({"type": "string", "format": "date"})",
          {R"("2026-11-29")"},
          {R"("2026-13-01")", R"("2026-11-31")", R"("29.11.2026")"}},
         {R"({"type": "string", "format": "date-time"})",
          {R"("2026-11-29T05:48:16Z")", R"("2026-11-29T05:48:16.5+02:00")"},
          {R"("2026-11-29")"}},
         {R"({"type": "string", "format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
         {R"({"type": "string", "format": "email"})", {R"("ada.l@example.org")"}, {R"("ada")", R"("a@b")"}},
         {R"({"type": "string", "format": "ipv4"})", {R"("192.168.0.255")"}, {R"("192.168.0.256")"}},
         {R"({"type": "string", "format": "uri"})", {R"("https://example.org:80/a?b=c")"}, {R"("example")"}},
         // A host whose last part is a number is an address, or none, to those who read it.
         {R"({"type": "string", "format": "uri"})",
          {R"("http://192.168.1.30/")", R"("http://localhost:8080")", R"("http://1.a-b.c3.d0/x")", R"("http://b-9c--d.e--f.x")"},
          {R"("http://192.168.1.300/")", R"("http://a.1")", R"("http://1.2.3.4.5")", R"("http://5")", R"("http://a.0x1")",
           R"("http://xn--a")", R"("http://ab--c.de")", R"("http://a.ab--c")"}},
         {R"({"type": "string", "format": "email"})", {R"("a@a-b.b--c.org")"}, {R"("a@xn--a.org")", R"("a@ab--c.org")"}},
         {R"({"type": "string", "format": "anything-else"})", {R"("x")"}, {"x"}}});
}

TEST(JsonSchema, Numbers) {
  check({{R"({"type": "integer", "minimum": 1, "maximum": 10})", {"1", "9", "10"}, {"0", "11", "-1", "1.0"}},
         {R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3})", {"1", "2"}, {"0", "3"}},
         {R"({"type": "number", "minimum": 0, "maximum": 1})", {"0", "1", "0.25", "1.0"}, {"1.01", "-0.1", "2"}},
         // Draft 4.
         {R"({"type": "integer", "minimum": 0, "exclusiveMinimum": true, "maximum": 2, "exclusiveMaximum": false})",
          {"1", "2"},
          {"0", "3"}}});
}

TEST(JsonSchema, Objects) {
  check(
      {{R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}}, "required": ["b"]})",
        {R"({"b":"x"})", R"({"a":1,"b":"x"})", R"({"a": 1, "b": "x", "c": null})", "{\n  \"b\": \"x\"\n}",
         R"({"b":"x","c":null})"},
        {"{}", R"({"a":1})", R"({"b":"x","a":1})", R"({"b":"x","d":1})", R"({"b":"x",})", R"({,"b":"x"})",
         R"({"b":"x" "c":null})"}},
       {R"({"type": "object", "properties": {"a": true, "b": true}})",
        {"{}", R"({"a":1})", R"({"b":1})", R"({"a":1,"b":[]})"},
        {R"({"c":1})"}},
       {R"({"type": "object"})", {"{}", R"({"x":1,"y":{}})"}, {"[]"}},
       {R"({"type": "object", "properties": {}})", {"{}"}, {R"({"a":1})"}},
       {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
        {"{}", R"({"a":1,"b":2})"},
        {R"({"a":"x"})"}},
       {R"({"type": "object", "properties": {"ab": {"type": "string"}}, "additionalProperties": {"type": "integer"}})",
        {R"({"ab":"x"})", R"({"ab":"x","abc":1})", R"({"a":1,"b":2,"":3,"é":4,"abé":5})", "{}"},
        {R"({"ab":1})", R"({"abc":"x"})", R"({"c":1,"ab":"x"})", R"({"ab":"x","ab":1})"}},
       {R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": true})",
        {R"({"a":1})", R"({"a":1,"z":[null]})"},
        {"{}", R"({"z":1})", R"({"a":"x"})"}},
       {R"({"type": "object", "required": ["x"]})", {R"({"x":5})"}, {"{}", R"({"y":1})"}},
       {R"({"properties": {"a": {"const": 1}}, "required": ["a"]})", {R"({"a":1})"}, {"1"}}});
}

TEST(JsonSchema, MembersThatAreNotNamed) {
  check({{R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["e"], "additionalProperties": {"type": "boolean"}})",
          {R"({"e":true})", R"({"a":null,"e":false,"f":true})"},
          {R"({"e":1})", R"({"a":null})"}},
         {R"({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["e"]})", {R"({"e":"x"})", R"({"a":null,"e":1})"}, {"{}"}},
         {R"({"properties": {"a": false, "b": true}, "additionalProperties": true})", {R"({"b":1,"c":2})"}, {R"({"a":1})"}},
         {R"({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}})", {R"({"x":1})"}, {R"({"x":""})"}},
         {R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}})",
          {"{}", R"({"b":1})", R"({"a":1,"b":2})"},
          {R"({"c":1})", R"({"a":""})", R"({"a":1,"a":2})"}},
         {R"({"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": {"type": "integer"}})", {"{}", R"({"ab":1,"c":2})"}, {R"({"d":1})"}},
         {R"({"type": "object", "propertyNames": {"format": "date"}, "additionalProperties": {"type": "integer"}})", {"{}", R"({"2026-11-29":1,"2026-11-30":2})"}, {R"({"d":1})", R"({"2026-11-299":1})", R"({"2026-11-29":""})"}},
         {R"({"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": {"type": "integer"}})", {"{}", R"({"a":1,"\n\"é":2})"}, {R"({"":1})", R"({"a":""})"}},
         {R"({"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}, "additionalProperties": {"type": "null"}})", {R"({"ab":null,"éé€":null})"}, {R"({"a":null})", R"({"abcd":null})"}},
         {R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "null"}}, "additionalProperties": false})",
          {"{}", R"({"xa":1,"y":null})"},
          {R"({"a":1})", R"({"x":null})"}}});
}

TEST(JsonSchema, FormatsBesideOtherWords) {
  check({{R"({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083})", {R"("https://a.org/b")"}, {R"("u")"}},
         {R"({"type": "string", "format": "uuid4", "minLength": 1})", {R"("123e4567-e89b-42d3-a456-426614174000")"}, {R"("123e4567-e89b-12d3-a456-426614174000")"}},
         {R"({"type": "string", "format": "hostname"})", {R"("a-b.example.org")"}, {R"("-a")", R"("a b")"}},
         {R"({"type": "string", "format": "email", "pattern": "^(?!\\.).+@.+$"})", {R"("a@b.org")"}, {R"("a")"}},
         {R"({"type": "string", "format": "date", "pattern": "^2026"})", {R"("2026")"}, {R"("2025-01-01")"}},
         {R"({"type": "string", "pattern": "^[a-z]+$", "minLength": 1})", {R"("ab")"}, {R"("")"}}});
}

// A name that begins with the same byte as another one's character has all of its own.
TEST(JsonSchema, NamesOfLongCharacters) {
  const char* schema =
      R"({"type": "object", "properties": {"名称": {"type": "integer"}, "é😀": {"type": "null"}}, "additionalProperties": {"type": "integer"}})";
  check({{schema,
          {R"({"年龄":1})", R"({"名称":1,"名":2,"吁":3})", R"({"è":1})", R"({"é":1})", R"({"é😁":1})", R"({"é😀":null,"é😀x":1})", R"({"名称x":3,"x名称":4})",
           R"({"":1,"ab":2,"名a":3})"},
          {R"({"é😀":1})", R"({"名称":1.5})", R"({"é😁":null})"}}});
  for (const char* text : {"{\"\xE5\"", "{\"\xE5:", "{\"\xC3z", "{\"\xE5\x90\"", "{\"é\xF0\x9F\"", "{\"\xE5\xE5", "{\"\xED\xA0"})
    EXPECT_FALSE(begins(grammar_of_schema(schema), text)) << text;
}

TEST(JsonSchema, NamesOfEscapes) {
  const Grammar grammar = grammar_of_schema(
      R"({"type": "object", "properties": {"\n": {"type": "null"}, "a\tb": {"type": "null"}, "a\"": {"type": "null"}, "\u0001": {"type": "null"}, "\u0012x": {"type": "null"}, "\\": {"type": "null"}},
          "additionalProperties": {"type": "integer"}})");
  for (const char* text : {R"({"\n":null,"\\":null})", R"({"a\"":null})", R"({"\u0001":null,"\u0012x":null})",
                           R"({"a":1,"ab":2,"":3,"n":4,"a\t":5,"\u0012":6,"\u0012y":7,"\\a":8})"})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {R"({"\":)", R"({"\x)", R"({"\é)", R"({"a\c)", R"({"\u")", R"({"\u00x)", R"({"\u000")", R"({"\u001x)",
                           R"({"\u0001":1)", R"({"\n":1)", R"({"\\":1)"})
    EXPECT_FALSE(begins(grammar, text)) << text;
}

TEST(JsonSchema, CompactlyThereIsNoWhiteSpace) {
  const Grammar grammar = grammar_of_schema(R"({"type": "object", "properties": {"a": {"type": "array"}, "b": {}}})", SchemaUse::kStrict, JsonSpacing::kNone);
  EXPECT_TRUE(matches(grammar, R"({"a":[1,{"c":2}],"b":"x y"})"));
  for (const char* text : {R"({ "a":[]})", R"({"a": []})", R"({"a":[1, 2]})", R"({"a":[]} )"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

TEST(JsonSchema, OneBlankBehindColonsAndCommas) {
  const Grammar grammar = grammar_of_schema(R"({"type": "object", "properties": {"a": {"type": "array"}, "b": {}}})",
                                            SchemaUse::kStrict, JsonSpacing::kOneBlank);
  for (const char* text : {"{}", R"({"a": [], "b": {}})", R"({"a": [1, "x"], "b": {"c": {"d": null}, "e": [2, 3]}})"})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {"{ }", R"({"a":[]})", R"({"a": [],"b": {}})", R"({"a": [ ]})", R"({"a": [1,2]})",
                           "{\n\"a\": []}", R"({"a":  []})", R"({"b": {"c":1}})"})
    EXPECT_FALSE(matches(grammar, text)) << text;
}

TEST(JsonSchema, Arrays) {
  check({{R"({"type": "array", "items": {"type": "integer"}})",
          {"[]", "[1]", "[1, 2,3]", "[\n  1,\n  2\n]"},
          {"[1,]", "[\"a\"]", "1"}},
         {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
          {"[1,2]", "[1,2,3]"},
          {"[1]", "[1,2,3,4]", "[]"}},
         {R"({"type": "array", "items": {"type": "integer"}, "minItems": 2})", {"[1,2]", "[1,2,3,4,5]"}, {"[1]"}},
         {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
         {R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false})",
          {"[]", R"(["a"])", R"(["a", 1])"},
          {R"(["a", 1, 2])", "[1]"}},
         {R"({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "null"}, "minItems": 2})",
          {R"(["a",null])", R"(["a",null,null])"},
          {R"(["a"])", R"(["a",1])"}},
         {R"({"type": "array", "items": [{"type": "string"}], "additionalItems": false})",
          {R"(["a"])"},
          {R"(["a",1])"}}});
}

TEST(JsonSchema, Together) {
  check(
      {{R"({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null})", {"5", "null"}, {"\"\""}},
       {R"({"oneOf": [{"const": "a"}, {"const": "b"}]})", {R"("a")", R"("b")"}, {R"("c")"}},
       {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                        {"properties": {"b": {"type": "string"}}, "required": ["b"]}]})",
        {R"({"a":1,"b":"x"})"},
        {R"({"a":1})", R"({"b":"x"})"}},
       {R"({"type": "object", "properties": {"a": true, "b": true}, "additionalProperties": false, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
        {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
        {"{}"}},
       {R"({"type": "integer", "minimum": 3, "allOf": [{"minimum": 5}, {"maximum": 7}]})", {"5", "7"}, {"4", "8"}}});
}

// What the parts say of one thing, all of it holds.
TEST(JsonSchema, PartsBindEachOther) {
  check(
      {// Others than those that one part names are others though another one names them.
       {R"({"properties": {"a": {"type": "boolean"}}, "allOf": [{"properties": {"b": {"type": "boolean"}}, "additionalProperties": false}]})",
        {"{}", R"({"b":true})"},
        {R"({"a":true})", R"({"b":true,"a":true})"}},
       {R"({"allOf": [{"properties": {"a": {"minimum": 3}}, "additionalProperties": {"type": "integer"}}, {"properties": {"b": {"maximum": 5}, "a": {"type": "integer"}}}]})",
        {R"({"a":3,"b":5})", R"({"b":4,"c":9})"},
        {R"({"a":2})", R"({"b":6})", R"({"b":1.5})", R"({"c":1.5})"}},
       {R"({"allOf": [{"prefixItems": [{"minimum": 3}, true]}, {"type": "array", "items": {"type": "integer"}, "maxItems": 3}]})",
        {"[]", "[3]", "[3, 1, 1]"},
        {"[2]", "[3.5]", "[3, 1.5]", "[3, 1, \"\"]", "[3, 1, 1, 1]"}},
       {R"({"allOf": [{"prefixItems": [true], "items": false}, {"prefixItems": [true, true]}], "type": "array"})", {"[1]"}, {"[1,2]"}},
       {R"({"allOf": [{"required": ["a"]}, {"required": ["b"]}, {"additionalProperties": {"type": "null"}}]})",
        {R"({"a":null,"b":null})"},
        {R"({"a":null})", R"({"a":1,"b":null})"}},
       {R"({"allOf": [{"minLength": 2}, {"type": "string", "minLength": 1, "maxLength": 4}, {"maxLength": 3}]})",
        {R"("ab")", R"("abc")"},
        {R"("a")", R"("abcd")"}},
       {R"({"allOf": [{"minimum": 0}, {"type": ["integer", "null"]}, {"exclusiveMinimum": 1e0, "maximum": 30}, {"exclusiveMaximum": 4.5}, {"maximum": 5}]})",
        {"2", "4", "null"},
        {"0", "1", "5", "2.5"}},
       {R"({"allOf": [{"type": "string", "format": "date"}, {"format": "none-such"}, {"format": "date"}]})", {R"("2026-11-29")"}, {R"("x")"}},
       {R"({"type": "object", "properties": {"a": true, "z": true}, "propertyNames": {"$ref": "#/$defs/N"}, "$defs": {"N": {"enum": ["a", "b", "cc"], "maxLength": 1}}, "additionalProperties": {"type": "null"}})",
        {"{}", R"({"a":1,"b":null})"},
        {R"({"z":1})", R"({"b":1})", R"({"cc":null})"}}});
}

TEST(JsonSchema, ValuesThatAreNamedAreBoundByAllElse) {
  check({{R"({"allOf": [{"enum": [1, 2, 3, 4, "a", null]}, {"minimum": 3, "maxLength": 0}]})", {"3", "4", "null"}, {"1", "2", R"("a")"}},
         {R"({"type": "string", "enum": ["a", "né", "ab-1", "abcd", "xy-2"], "minLength": 2, "maxLength": 4, "pattern": "^n|-"})",
          {R"("né")", R"("ab-1")", R"("xy-2")"},
          {R"("a")", R"("abcd")"}},
         {R"({"enum": [1, 2, {"a": 1, "b": [1.0]}], "allOf": [{"enum": [{"b": [1], "a": 1.0}, 2.0, 3]}]})",
          {"2.0", R"({"b":[1],"a":1.0})"},
          {"1", "3"}},
         {R"({"type": "integer", "enum": [1.0, 2.5, 1e3]})", {"1.0", "1000.0"}, {"2.5"}},
         {R"({"enum": ["a", "b"], "const": "b"})", {R"("b")"}, {R"("a")"}},
         {R"({"enum": [0.1, 1e20, 5, -7], "exclusiveMinimum": 0.1, "exclusiveMaximum": 1e20})", {"5"}, {"0.1", "1e+20", "-7"}},
         {R"({"properties": {"kind": {"type": "null"}}, "enum": ["x", 1]})", {R"("x")", "1"}, {"{}"}},
         {R"_({"enum": ["2026-11-29", 5], "format": "date", "pattern": "(?=2)"})_", {R"("2026-11-29")", "5"}, {"\"\""}}});
}

// What cannot be told of them does not count: they are named, which says more.
TEST(JsonSchema, ValuesThatAreNamedAreKeptBesideWhatCannotBeTold) {
  const std::vector<SchemaCase> cases = {
      {R"_({"type": "string", "enum": ["alpha", "beta", "b"], "pattern": "^(?!x)[a-z]+$", "minLength": 2})_", {R"("alpha")", R"("beta")"}, {R"("x")", R"("b")"}},
      {R"({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1, "enum": [["a"], ["b"], [], ["a", "b"]]})",
       {R"(["a"])", R"(["b"])"},
       {"[]", R"(["c"])", R"(["a","b"])"}},
      {R"({"enum": [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {}, 5], "properties": {"a": {"type": "integer"}, "b": false, "c": true}, "required": ["a"]})",
       {R"({"a":1})", R"({"a":1,"c":3})", "5"},
       {R"({"a":1,"b":2})", "{}", R"({"a":2})"}},
      {R"({"type": "object", "enum": [{"a": 1}, {"a": 1, "b": 2}, {}], "properties": {"a": true}, "additionalProperties": false})",
       {R"({"a":1})", "{}"},
       {R"({"a":1,"b":2})"}}};
  check(cases);
  check(cases, SchemaUse::kLenient);
  check({{R"({"enum": [{"a": 1}], "patternProperties": {"a": {"type": "integer"}}, "required": 5})", {R"({"a":1})"}, {"1", "{}"}},
         {R"({"enum": ["a", 2], "minLength": "x", "pattern": 5, "minimum": null})", {R"("a")", "2"}, {"1", "{}"}}},
        SchemaUse::kLenient);
}

// Which a request's reader holds as their digits.
TEST(JsonSchema, IntegersBeyond64Bits) {
  const std::string digits = "123456789012345678901234567890", more = "123456789012345678901234567891";
  const auto integer = [](const std::string& text) { return Json::binary({text.begin(), text.end()}); };
  const auto grammar = [](const Json& schema) {
    return grammar_of([&](GrammarBuilder& builder) {
      JsonParts parts(builder);
      return add_json_schema(parts, schema, "schema");
    });
  };
  EXPECT_TRUE(matches(grammar({{"const", integer(digits)}}), digits));
  EXPECT_TRUE(matches(grammar({{"const", {{"a", Json::array({integer(digits), 1})}}}}), "{\"a\":[" + digits + ",1]}"));
  const Json some = Json::array({integer(digits), integer(more), integer("-" + digits), 5, 0.5});
  const Grammar bound = grammar({{"type", "integer"}, {"enum", some}, {"maximum", integer(digits)}, {"minimum", 0}});
  EXPECT_TRUE(matches(bound, digits));
  EXPECT_TRUE(matches(bound, "5"));
  for (const std::string& text : {more, "-" + digits, std::string("0.5")}) EXPECT_FALSE(matches(bound, text)) << text;
  EXPECT_TRUE(matches(grammar({{"type", "number"}, {"maximum", integer(digits)}, {"exclusiveMinimum", 7}}), "8"));
  EXPECT_THROW(grammar({{"type", "array"}, {"minItems", integer("-" + digits)}}), Error);
}

// As is one that is false: what remains of the schema is what a text can come to the end of.
TEST(JsonSchema, ChoicesThatNothingSatisfiesAreNone) {
  check(
      {{R"({"type": "string", "anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]})", {R"("ab")"}, {"null", R"("abc")"}},
       {R"({"anyOf": [{"type": "integer", "minimum": 5, "maximum": 2}, {"minLength": 3, "maxLength": 2}, {"type": "null"}]})", {"null"}, {"5", "\""}},
       {R"({"type": ["string", "integer", "null"], "minLength": 3, "maxLength": 2, "minimum": 5, "maximum": 5})", {"5", "null"}, {"\""}},
       // By a member that has to be there.
       {R"({"properties": {"kind": {"enum": ["a", "c"]}}, "required": ["kind"],
            "anyOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "null"}}}, {"properties": {"kind": {"const": "b"}, "y": true}}]})",
        {R"({"kind":"a"})", R"({"kind":"a","x":null})"},
        {R"({"kind":"b"})", R"({"kind":"a","y":1})"}},
       {R"({"type": "object", "properties": {"a": {"type": "string"}, "b": true}, "allOf": [{"properties": {"a": {"type": "null"}}}]})",
        {"{}", R"({"b":1})"},
        {R"({"a":null})", R"({"a":"x"})"}},
       {R"({"type": "array", "items": {"allOf": [{"type": "string"}, {"type": "null"}]}})", {"[]"}, {"[null", "[\""}},
       // What would go on for ever.
       {R"({"$defs": {"n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1}, {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}]}}, "$ref": "#/$defs/n"})",
        {"{}", R"([{"n":{}}])"},
        {"[]"}}});
  for (const char* text : {"{\"a\"", "{\"k", "["}) {
    EXPECT_FALSE(begins(grammar_of_schema(R"({"anyOf": [{"type": "object", "properties": {"a": false, "k": {"enum": ["x"], "type": "null"}}, "required": ["k"]}, {"const": 1}]})"), text)) << text;
  }
}

TEST(JsonSchema, ReferencesBesideConstraintsComeToAnEnd) {
  // As pydantic 1 and OpenAPI 3.0 write them.
  const Grammar list = grammar_of_schema(
      R"({"$defs": {"Node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"description": "x", "allOf": [{"$ref": "#/$defs/Node"}]}}, "required": ["v"]}},
          "allOf": [{"$ref": "#/$defs/Node"}], "title": "List"})");
  EXPECT_TRUE(matches(list, R"({"v":1,"next":{"v":2,"next":{"v":3}}})"));
  EXPECT_FALSE(matches(list, R"({"v":1,"next":{"next":{"v":3}}})"));
  const char* tree =
      R"({"$defs": {"Base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
                    "Tree": {"allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree", "minProperties": 0}}}}]}},
          "type": "object", "properties": {"root": {"allOf": [{"$ref": "#/$defs/Tree"}], "default": null}}, "required": ["root"]})";
  for (const SchemaUse use : {SchemaUse::kStrict, SchemaUse::kLenient}) {
    const Grammar grammar = grammar_of_schema(tree, use);
    EXPECT_TRUE(matches(grammar, R"({"root":{"id":1,"kids":[{"id":2},{"id":3,"kids":[{"id":4,"kids":[]}]}]}})"));
    EXPECT_FALSE(matches(grammar, R"({"root":{"id":1,"kids":[{"kids":[]}]}})"));
  }
  // The same set of schemas in another order is the same.
  const Grammar both = grammar_of_schema(
      R"({"$defs": {"a": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]}}}, "b": {"properties": {"y": {"$ref": "#/$defs/a", "allOf": [{"$ref": "#/$defs/b"}]}}, "required": ["y"]}},
          "anyOf": [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}]})",
      SchemaUse::kLenient);
  EXPECT_TRUE(matches(both, "{}"));
}

// What a choice comes back to by nothing but choices adds nothing to it.
TEST(JsonSchema, ChoicesThatLeadBackToThemselvesComeToAnEnd) {
  // As OpenAPI writes what is one of several kinds, each of which is one of it.
  const char* pets =
      R"({"$defs": {"Pet": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"],
                            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}, {"properties": {"kind": {"const": "x"}}}]},
                    "Cat": {"allOf": [{"$ref": "#/$defs/Pet"}, {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["lives"]}]},
                    "Dog": {"allOf": [{"$ref": "#/$defs/Pet"}, {"properties": {"kind": {"const": "dog"}, "bark": {"type": "null"}}}]}},
          "$ref": "#/$defs/Pet"})";
  for (const SchemaUse use : {SchemaUse::kStrict, SchemaUse::kLenient}) {
    check({{pets,
            {R"({"kind":"cat","lives":9})", R"({"kind":"dog","bark":null})", R"({"kind":"x"})"},
            {R"({"kind":"cat"})", R"({"kind":"dog","bark":1})", R"({"kind":"x","lives":9})", R"({"kind":"bird"})", "1"}},
           {R"({"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}, "$ref": "#/$defs/A"})", {"null"}, {"1", "{}"}},
           {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", {"null"}, {"1", "{}"}},
           {R"({"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "null"}]}, "B": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "integer"}]}},
                "type": "array", "prefixItems": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "items": false})",
            {"[null,1]", "[1,null]"},
            {"[true]", "[1,[]]"}}},
          use);
  }
  EXPECT_THROW(grammar_of_schema(R"({"anyOf": [{"$ref": "#"}]})"), Error);
  EXPECT_TRUE(matches(grammar_of_schema(R"({"anyOf": [{"$ref": "#"}]})", SchemaUse::kLenient), "[1]"));
}

TEST(JsonSchema, ReferencesArePartsOfUris) {
  check({{R"({"$defs": {"Partial<Foo>": {"const": 1}, "a b/~%é": {"const": 2}, "%4": {"const": 3}},
              "anyOf": [{"$ref": "#/$defs/Partial%3CFoo%3E"}, {"$ref": "#/%24defs/a%20b~1~0%25%C3%a9"}, {"$ref": "#/$defs/%4"}]})",
          {"1", "2", "3"},
          {"4"}}});
}

TEST(JsonSchema, References) {
  check(
      {{R"({"$defs": {"P": {"type": "object", "properties": {"name": {"type": "string"}, "friends": {"type": "array", "items": {"$ref": "#/$defs/P"}}},
                             "required": ["name"]}}, "$ref": "#/$defs/P"})",
        {R"({"name":"a"})", R"({"name":"a","friends":[{"name":"b","friends":[]},{"name":"c"}]})"},
        {R"({"name":"a","friends":[1]})"}},
       {R"({"type": "object", "properties": {"next": {"$ref": "#"}}})",
        {"{}", R"({"next":{"next":{}}})"},
        {R"({"next":1})"}},
       {R"({"definitions": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/definitions/n", "minimum": 5}})",
        {"[5,6]"},
        {"[4]"}},
       {R"({"$defs": {"s": {"type": "string"}}, "properties": {"a": {"allOf": [{"$ref": "#/$defs/s"}], "description": "d"}}})",
        {R"({"a":"x"})"},
        {R"({"a":1})"}}});
}

// As pydantic writes a decimal: a number, or a string that looks like one.
TEST(JsonSchema, AStringThatCannotBeReadIsLeftOutBesideANumber) {
  check({{R"_({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}, {"type": "null"}]})_",
          {"1", "-2.5", "null"},
          {R"("1")", R"("")"}},
         {R"({"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^[0-9]$"}]})", {"1", R"("1")"}, {R"("a")"}}});
}

TEST(JsonSchema, SaysWhatItDoesNotTake) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "object", "properties": {"a": {"not": {}}}})", "schema.properties.a.not"},
      {R"({"if": {}})", "schema.if"},
      {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems"},
      {R"({"type": "number", "multipleOf": 5})", "schema.multipleOf"},
      {R"({"type": "number", "multipleOf": 0})", "schema.multipleOf"},
      {R"({"type": ["integer", "number"], "multipleOf": 1})", "schema.multipleOf"},
      {R"({"properties": {"a": {}}, "patternProperties": {"b": {}}})", "schema.patternProperties"},
      {R"({"patternProperties": {"b": {}}, "additionalProperties": true})", "schema.patternProperties"},
      {R"_({"type": "object", "patternProperties": {"(?=a)": {}}})_", "schema.patternProperties"},
      {R"({"type": "object", "propertyNames": {"pattern": "a", "minLength": 3}})", "schema.propertyNames.pattern"},
      {R"({"type": "object", "propertyNames": {"format": "date", "minLength": 3}})", "schema.propertyNames.format"},
      {R"({"type": "object", "propertyNames": {"minItems": 3}})", "schema.propertyNames.minItems"},
      {R"({"properties": {"a": {}}, "required": ["b"], "additionalProperties": false})", "schema.required"},
      {R"({"properties": {"a": false}, "required": ["a"]})", "schema.required"},
      {R"({"type": "string", "format": "email", "maxLength": 20})", "schema.format"},
      {R"({"type": "string", "pattern": "a*", "minLength": 1})", "schema.pattern"},
      {R"({"type": "string", "pattern": "a", "maxLength": 5})", "schema.pattern"},
      {R"({"type": "date"})", "schema.type"},
      {R"({"type": 5})", "schema.type"},
      {R"({"$ref": "https://example.org/schema"})", "schema.$ref"},
      {R"({"$ref": "#/$defs/none"})", "schema.$ref"},
      {R"_({"type": "string", "pattern": "(?=a)"})_", "schema.pattern"},
      {R"({"type": "string", "pattern": 5})", "schema.pattern"},
      {R"_({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(?=a)"}]})_", "schema.anyOf[1].pattern"},
      {R"({"type": "string", "minLength": 5, "maxLength": 2})", "schema.minLength"},
      {R"({"type": "string", "maxLength": 1000000})", "schema"},
      {R"({"type": "integer", "minimum": 5, "maximum": 2})", "schema"},
      {R"({"type": "integer", "minimum": "5"})", "schema.minimum"},
      {R"({"enum": []})", "schema.enum"},
      {R"({"anyOf": []})", "schema.anyOf"},
      {R"({"anyOf": [false]})", "schema.anyOf"},
      {R"({"properties": []})", "schema.properties"},
      {R"({"required": "a"})", "schema.required"},
      {R"({"type": "array", "prefixItems": [{}], "items": false, "minItems": 2})", "schema.minItems"},
      {"false", "schema"},
      {"5", "schema"},
      {R"({"allOf": [{"type": "string"}, {"type": "integer"}]})", "schema.type"},
      {R"({"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}], "type": "boolean"})", "schema.anyOf[0].type"},
      {R"({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "allOf": [{"properties": {"b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false}]})",
       "schema.required"},
      {R"({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]})", "schema"},
      {R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "properties": {"p": {"$ref": "#/$defs/a"}}})", "schema.$defs.a"},
      {R"({"type": "string", "enum": ["a"], "minLength": 5})", "schema"},
      {R"({"enum": [{"a": 1}], "patternProperties": {"a": {"type": "integer"}}})", "schema.patternProperties"},
      {R"({"enum": ["a"], "pattern": 5})", "schema.pattern"},
      {R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}]})", "schema.allOf[1].pattern"},
      {R"({"allOf": [{"format": "date"}, {"format": "time"}]})", "schema.allOf[1].format"},
      {R"({"allOf": [{"patternProperties": {"b": {}}}, {"additionalProperties": false}]})", "schema.allOf[0].patternProperties"},
      {R"({"propertyNames": {"anyOf": [{"const": "a"}]}})", "schema.propertyNames.anyOf"},
  };
  for (const auto& [schema, param] : cases) {
    try {
      (void)grammar_of_schema(schema);
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), param) << schema << ": " << error.message();
      EXPECT_TRUE(error.message().starts_with("schema")) << error.message();
    }
  }
}

std::string message_of(const char* schema) {
  try {
    (void)grammar_of_schema(schema);
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(JsonSchema, SaysWhatForbidsAMember) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"allOf": [{"properties": {"a": true}, "required": ["a"], "additionalProperties": false}, {"properties": {"b": true}, "additionalProperties": false}]})",
       "schema.allOf[0].required: \"a\" is forbidden by schema.allOf[1].additionalProperties; leave that out, or say "
       "unevaluatedProperties beside allOf"},
      {R"({"properties": {"a": false}, "required": ["a"]})",
       "schema.required: \"a\" is forbidden by schema.properties.a; leave one of them out"},
      {R"({"properties": {"b": true}, "required": ["a"], "additionalProperties": false})",
       "schema.required: \"a\" is forbidden by schema.additionalProperties; leave one of them out"},
      {R"({"propertyNames": {"enum": ["b"]}, "required": ["a"]})",
       "schema.required: \"a\" is forbidden by schema.propertyNames; leave one of them out"},
  };
  for (const auto& [schema, message] : cases) EXPECT_EQ(message_of(schema), message) << schema;
}

// And not of what may be left out.
TEST(JsonSchema, SaysWhyNothingRemains) {
  EXPECT_TRUE(message_of(R"({"type": "object", "properties": {"opt": {"type": "string", "enum": [1]}, "next": {"$ref": "#"}}, "required": ["next"]})")
                  .starts_with("schema: is satisfied by nothing that has an end"));
  EXPECT_TRUE(message_of(R"({"type": "object", "properties": {"opt": {"type": "string", "enum": [1]}, "must": {"type": "null", "enum": [1]}}, "required": ["must"]})")
                  .starts_with("schema.properties.must: names no value"));
}

TEST(JsonSchema, HostileSchemasEnd) {
  std::string deep = "true";  // as text: what prints JSON goes a stack's frames deep
  for (int i = 0; i < 3000; ++i) deep = R"({"items":)" + deep + '}';
  EXPECT_THROW(grammar_of_schema(deep), Error);
  EXPECT_THROW(grammar_of_schema(R"({"$ref": "#"})"), Error);
  EXPECT_THROW(grammar_of_schema(R"({"$ref": "#", "minimum": 5})"), Error);
  const std::string long_text(4'000'000, 'x');
  EXPECT_THROW(grammar_of_schema(R"({"$defs": {"a": {"description": ")" + long_text +
                                 R"(", "$ref": "#/$defs/a", "minLength": 1}}, "$ref": "#/$defs/a", "minLength": 1})"),
               Error);
  // Each level would double what holds at once, with much beside it that says nothing.
  Json levels = {{"$ref", "#/$defs/d0"}};
  for (int i = 0; i < 40; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}, {"minLength", 1}};
    levels["$defs"]["d" + std::to_string(i)] = {{"anyOf", Json::array({next, next})}};
  }
  Json& last = levels["$defs"]["d40"] = {{"type", "null"}};
  for (int i = 0; i < 8000; ++i) last["x"].push_back("a member");
  EXPECT_THROW(grammar_of_schema(levels.dump()), Error);
  // And here nothing comes of any of it.
  Json parts = Json::array();
  for (int i = 0; i < 300; ++i) parts.push_back(Json::parse(R"({"anyOf": [{"minLength": 1}, {"minimum": 1}]})"));
  try {
    grammar_of_schema(Json({{"allOf", parts}, {"type", "null"}, {"const", 1}}).dump());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTooLarge);
    EXPECT_TRUE(error.message().starts_with("schema: takes more than")) << error.message();
  }
  // Each level would double what is put together.
  Json doubling = {{"type", "object"}};
  for (int i = 0; i < 25; ++i) {
    Json choices = Json::array();
    for (const char* name : {"a", "b"}) {
      Json choice = doubling;
      choice["properties"][name + std::to_string(i)] = true;
      choices.push_back(std::move(choice));
    }
    doubling = {{"anyOf", std::move(choices)}};
    if (doubling.dump().size() > 200'000) break;
  }
  EXPECT_THROW(grammar_of_schema(doubling.dump()), Error);
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 900; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  const Grammar grammar = grammar_of_schema(wide.dump());
  EXPECT_TRUE(matches(grammar, R"({"p0":"a","p899":"b"})"));
  EXPECT_FALSE(matches(grammar, R"({"p899":"a","p0":"b"})"));
}

TEST(JsonSchema, MessagesAreBriefHoweverLongTheNames) {
  const std::string name(10'000, 'n');
  Json deep = {{"not", Json::object()}};
  for (int i = 0; i < 50; ++i) deep = {{"properties", {{name, std::move(deep)}}}};
  const Json named = {{"required", Json::array({name})}, {"additionalProperties", false}}, typed = {{"type", name}};
  for (const Json& schema : {deep, named, typed}) {
    try {
      grammar_of_schema(schema.dump());
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_LT(error.message().size(), 600u);
      EXPECT_TRUE(error.param().starts_with("schema")) << error.param();
    }
  }
}

}  // namespace
}  // namespace larder
