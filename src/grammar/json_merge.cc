#include "grammar/json_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

// Of which types a word speaks, and how two of them are put together.
enum class Rule { kLarger, kSmaller, kTypes, kUnion, kValues, kMembers, kBoth, kEqual };
struct Word {
  std::string_view name;
  std::string_view type;  // "" = of any
  Rule rule;
};
constexpr Word kWords[] = {
    {"type", "", Rule::kTypes},
    {"enum", "", Rule::kValues},
    {"const", "", Rule::kEqual},
    {"$ref", "", Rule::kEqual},
    {"allOf", "", Rule::kUnion},
    {"anyOf", "", Rule::kEqual},
    {"oneOf", "", Rule::kEqual},
    {"properties", "object", Rule::kMembers},
    {"required", "object", Rule::kUnion},
    {"additionalProperties", "object", Rule::kBoth},
    {"minProperties", "object", Rule::kLarger},
    {"maxProperties", "object", Rule::kSmaller},
    {"patternProperties", "object", Rule::kEqual},
    {"propertyNames", "object", Rule::kEqual},
    {"unevaluatedProperties", "object", Rule::kEqual},
    {"dependentRequired", "object", Rule::kEqual},
    {"dependentSchemas", "object", Rule::kEqual},
    {"dependencies", "object", Rule::kEqual},
    {"items", "array", Rule::kBoth},
    {"prefixItems", "array", Rule::kEqual},
    {"additionalItems", "array", Rule::kBoth},
    {"unevaluatedItems", "array", Rule::kEqual},
    {"minItems", "array", Rule::kLarger},
    {"maxItems", "array", Rule::kSmaller},
    {"uniqueItems", "array", Rule::kEqual},
    {"contains", "array", Rule::kEqual},
    {"minLength", "string", Rule::kLarger},
    {"maxLength", "string", Rule::kSmaller},
    {"pattern", "string", Rule::kEqual},
    {"format", "string", Rule::kEqual},
    {"minimum", "number", Rule::kLarger},
    {"maximum", "number", Rule::kSmaller},
    {"exclusiveMinimum", "number", Rule::kLarger},
    {"exclusiveMaximum", "number", Rule::kSmaller},
    {"multipleOf", "number", Rule::kEqual},
    {"not", "", Rule::kEqual},
    {"if", "", Rule::kEqual},
    {"then", "", Rule::kEqual},
    {"else", "", Rule::kEqual},
};

const Word* find_word(std::string_view name) {
  const auto found = std::ranges::find(kWords, name, &Word::name);
  return found == std::end(kWords) ? nullptr : found;
}

[[noreturn]] void fail(const std::string& path, std::string_view word, const char* reason) {
  throw Error(ErrorKind::kInvalidArgument, fmt::format("{}.{}: {}", path, word, reason),
              fmt::format("{}.{}", path, word));
}

Json as_list(const Json& value) { return value.is_array() ? value : Json::array({value}); }

bool holds(const Json& list, const Json& value) { return std::ranges::find(list, value) != list.end(); }

Json common_types(const Json& one, const Json& other) {
  const Json ours = as_list(one), theirs = as_list(other);
  Json common = Json::array();
  for (const Json& type : ours) {
    if (holds(theirs, type) || (type == "integer" && holds(theirs, "number"))) common.push_back(type);
  }
  if (holds(ours, "number") && !holds(ours, "integer") && holds(theirs, "integer")) common.push_back("integer");
  return common.size() == 1 ? common.front() : common;
}

Json put_together(const Word& word, const Json& one, const Json& other, const std::string& path);

Json both_of(const Json& one, const Json& other) {
  if (one == other || other == true) return one;
  if (one == true) return other;
  if (one == false || other == false) return false;
  return {{"allOf", Json::array({one, other})}};
}

Json union_of(const Json& one, const Json& other, bool are_different) {
  Json all = one;
  if (!one.is_array() || !other.is_array()) return all;
  for (const Json& value : other) {
    if (!are_different || !holds(one, value)) all.push_back(value);
  }
  return all;
}

Json put_together(const Word& word, const Json& one, const Json& other, const std::string& path) {
  if (one == other) return one;
  switch (word.rule) {
    case Rule::kLarger:
    case Rule::kSmaller:
      if (!one.is_number() || !other.is_number()) fail(path, word.name, "is no number");
      return (one < other) == (word.rule == Rule::kLarger) ? other : one;
    case Rule::kTypes: {
      Json types = common_types(one, other);
      if (types.is_array() && types.empty()) fail(path, word.name, "excludes what is said beside it");
      return types;
    }
    case Rule::kUnion:
      return union_of(one, other, word.name == "required");
    case Rule::kValues: {
      Json values = Json::array();
      for (const Json& value : as_list(one)) {
        if (holds(as_list(other), value)) values.push_back(value);
      }
      if (values.empty()) fail(path, word.name, "has nothing in common with what is said beside it");
      return values;
    }
    case Rule::kMembers: {
      if (!one.is_object() || !other.is_object()) fail(path, word.name, "must be an object");
      Json members = one;
      for (const auto& [name, schema] : other.items()) {
        members[name] = one.contains(name) ? both_of(one[name], schema) : schema;
      }
      return members;
    }
    case Rule::kBoth:
      return both_of(one, other);
    case Rule::kEqual:
      break;
  }
  fail(path, word.name, "differs from what is said beside it, which is not supported");
}

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

}  // namespace

bool has_any_constraint(const Json& schema) {
  if (!schema.is_object()) return schema != true;
  return std::ranges::any_of(schema.items(), [](const auto& item) { return find_word(item.key()) != nullptr; });
}

Json merge_schemas(const Json& one, const Json& other, const std::string& path) {
  if (!one.is_object() || !other.is_object()) return both_of(one, other);
  Json whole = one;
  for (const auto& [name, value] : other.items()) {
    const Word* word = find_word(name);
    const auto found = whole.find(name);
    if (found == whole.end()) {
      whole[name] = value;
    } else if (word != nullptr) {
      *found = put_together(*word, *found, value, path);
    }
  }
  return whole;
}

bool has_type_of(const Json& schema, const Json& value) {
  const auto found = schema.find("type");
  if (found == schema.end()) return true;
  return std::ranges::any_of(as_list(*found), [&](const Json& type) {
    return type.is_string() && is_of_type(value, type.get_ref<const std::string&>());
  });
}

std::string implied_type(const Json& schema) {
  for (const Word& word : kWords) {
    if (!word.type.empty() && schema.contains(word.name)) return std::string(word.type);
  }
  return {};
}

}  // namespace larder
