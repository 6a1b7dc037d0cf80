#include "grammar/json_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

enum class Use {
  kObeyed,
  kLeading,  // to other schemas: it says nothing by itself
  kRefused,
};

struct Word {
  std::string_view name;
  std::string_view type;  // of which it speaks; "" = of any
  Use use = Use::kObeyed;
};

// Of two that imply a type the first one counts.
constexpr Word kWords[] = {
    {"type", ""},
    {"enum", ""},
    {"const", ""},
    {"$ref", "", Use::kLeading},
    {"allOf", "", Use::kLeading},
    {"anyOf", "", Use::kLeading},
    {"oneOf", "", Use::kLeading},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"patternProperties", "object"},
    {"propertyNames", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object", Use::kRefused},
    {"unevaluatedProperties", "object"},
    {"dependentRequired", "object", Use::kRefused},
    {"dependentSchemas", "object", Use::kRefused},
    {"dependencies", "object", Use::kRefused},
    {"items", "array"},
    {"prefixItems", "array"},
    {"additionalItems", "array"},
    {"unevaluatedItems", "array", Use::kRefused},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"uniqueItems", "array"},
    {"contains", "array", Use::kRefused},
    {"minContains", "", Use::kRefused},
    {"maxContains", "", Use::kRefused},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
    {"not", "", Use::kRefused},
    {"if", "", Use::kRefused},
    {"then", "", Use::kRefused},
    {"else", "", Use::kRefused},
    {"$dynamicRef", "", Use::kRefused},
    {"$recursiveRef", "", Use::kRefused},
};

// Of names in a path, and of all of it.
constexpr std::size_t kMaxNameBytes = 60, kMaxPathBytes = 240;

// Cut between characters.
std::string_view shortened(std::string_view name) {
  if (name.size() <= kMaxNameBytes) return name;
  std::size_t end = kMaxNameBytes;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return name.substr(0, end);
}

// Of a fragment of a URI; what is no byte so written stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint8_t byte = 0;
    const std::string_view digits = text[i] == '%' ? text.substr(i + 1, 2) : std::string_view();
    const auto read = std::from_chars(digits.begin(), digits.end(), byte, 16);
    const bool is_byte = digits.size() == 2 && read.ptr == digits.end();
    decoded += is_byte ? static_cast<char>(byte) : text[i];
    i += is_byte ? digits.size() : 0;
  }
  return decoded;
}

// The names and numbers that lead from a value to one within it, innermost first.
bool find_names(const Json& value, const Json* wanted, std::vector<std::string>& names) {
  if (&value == wanted) return true;
  if (!value.is_structured()) return false;
  for (const auto& [key, item] : value.items()) {
    if (!find_names(item, wanted, names)) continue;
    const std::string_view name = shortened(key);
    names.push_back(value.is_array() ? fmt::format("[{}]", key)
                                     : fmt::format(".{}{}", name, name.size() < key.size() ? "..." : ""));
    return true;
  }
  return false;
}

// type: of a schema, or null. Whether its numbers are all integers.
bool has_only_integers(const Json* type) {
  if (type == nullptr) return false;
  if (!type->is_array()) return *type == "integer";
  const auto has = [&](const char* name) { return std::ranges::find(*type, name) != type->end(); };
  return has("integer") && !has("number");
}

}  // namespace

void fail_at(const Json& place, std::string reason) { throw SchemaFault{.place = &place, .reason = std::move(reason)}; }

void fail_impossible(const Json& place, std::string reason, std::string_view word) {
  throw SchemaFault{.place = &place, .reason = std::move(reason), .is_impossible = true, .word = word};
}

const std::string& string_at(const Json& value) {
  if (!value.is_string()) fail_at(value, "must be a string");
  return value.get_ref<const std::string&>();
}

const Json& list_at(const Json& value) {
  if (!value.is_array() || value.empty()) fail_at(value, "must be an array that is not empty");
  return value;
}

const Json& object_at(const Json& value) {
  if (!value.is_object()) fail_at(value, fmt::format("must be an object, it is {}", value.type_name()));
  return value;
}

std::size_t steps_of(const Json& value) {
  constexpr std::size_t kBytesPerStep = 16;
  std::size_t num_steps = 1;
  if (value.is_string()) num_steps += value.get_ref<const std::string&>().size() / kBytesPerStep;
  if (value.is_binary()) num_steps += value.get_binary().size() / kBytesPerStep;
  if (value.is_structured()) {
    for (const auto& [key, item] : value.items()) num_steps += key.size() / kBytesPerStep + steps_of(item);
  }
  return num_steps;
}

std::string written(const Json& value) {
  if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : ",";
    text += value.is_object() ? written(Json(key)) + ":" + written(item) : written(item);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

SchemaWords::SchemaWords(const Json& schema, bool is_strict) {
  const Word* implying = std::end(kWords);
  for (const auto& [key, value] : object_at(schema).items()) {
    const Word* word = std::ranges::find(kWords, key, &Word::name);
    if (word == std::end(kWords)) continue;
    if (is_strict && word->use == Use::kRefused)
      fail_at(value, "is not supported; leave it out, or say it in the prompt");
    if (!word->type.empty()) implying = std::min(implying, word);
    says_anything_ |= word->use == Use::kObeyed;
    words_.emplace(word->name, &value);
  }
  if (implying != std::end(kWords)) implied_type_ = implying->type;
  if (!is_strict) return;
  const auto refuse_unless = [&](const char* word, const Json& neutral) {
    const Json* value = find(word);
    if (value == nullptr || *value == neutral) return;
    fail_at(*value, fmt::format("is not supported, but for {}; leave it out", neutral.dump()));
  };
  const Json* multiple = find("multipleOf");
  if (multiple != nullptr && !(*multiple == 1 && has_only_integers(find("type"))))
    fail_at(*multiple, "is not supported, but for 1 of integers; leave it out");
  refuse_unless("uniqueItems", false);
  refuse_unless("minProperties", 0);
  refuse_unless("unevaluatedProperties", false);
}

const Json* SchemaWords::find(std::string_view word) const {
  const auto found = words_.find(word);
  return found == words_.end() ? nullptr : found->second;
}

void SchemaDocument::take_steps(std::size_t num_steps) {
  num_steps_ += num_steps;
  if (num_steps_ <= kMaxSteps) return;
  throw Error(ErrorKind::kTooLarge,
              fmt::format("{}: takes more than {} steps to read; send a simpler one, with fewer choices beside others",
                          path_, kMaxSteps),
              path_);
}

const SchemaWords& SchemaDocument::words(const Json& schema) {
  const auto known = words_.find(&schema);
  if (known != words_.end()) return known->second;
  return words_.emplace(&schema, SchemaWords(schema, is_strict_)).first->second;
}

// #, #/a/b: within the whole document.
const Json& SchemaDocument::referred(const Json& reference) const {
  const std::string& text = string_at(reference);
  if (!text.starts_with('#')) fail_at(reference, "leads out of the schema; only \"#/...\" is supported");
  try {
    return root_.at(Json::json_pointer(percent_decoded(std::string_view(text).substr(1))));
  } catch (const Json::exception&) {
    fail_at(reference, "leads nowhere in the schema");
  }
}

void SchemaDocument::follow(const Json& schema, int depth, Visits& visits, SchemaSet& set) {
  take_steps(1 + set.size() / 16);
  if (schema == true) return;
  if (schema == false) fail_impossible(schema, "is false, which nothing satisfies; leave it out");
  const auto [visit, is_new] = visits.emplace(&schema, Visit::kOpen);
  if (!is_new && visit->second == Visit::kOpen) fail_at(schema, "refers to itself, which says nothing; leave it out");
  if (!is_new) return;
  if (depth > kMaxDepth)
    fail_at(schema, fmt::format("is behind more than {} references; send a simpler one", kMaxDepth));
  const SchemaWords& said = words(schema);
  if (const Json* reference = said.find("$ref")) follow(referred(*reference), depth + 1, visits, set);
  if (const Json* parts = said.find("allOf")) {
    for (const Json& part : list_at(*parts)) follow(part, depth + 1, visits, set);
  }
  const auto add_once = [&](const Json* place) {
    if (std::ranges::find(set, place) == set.end()) set.push_back(place);
  };
  if (said.says_anything()) add_once(&schema);
  for (const char* word : {"anyOf", "oneOf"}) {
    if (const Json* choices = said.find(word)) add_once(&list_at(*choices));
  }
  visit->second = Visit::kClosed;
}

void SchemaDocument::add(const Json& schema, SchemaSet& set) {
  Visits visits;
  follow(schema, 0, visits, set);
}

SchemaSet SchemaDocument::together(const SchemaSet& schemas) {
  SchemaSet set;
  for (const Json* schema : schemas) add(*schema, set);
  return set;
}

std::string SchemaDocument::path_of(const SchemaFault& fault) const {
  std::vector<std::string> names;
  find_names(root_, fault.place, names);
  if (!fault.word.empty()) names.insert(names.begin(), fmt::format(".{}", fault.word));
  std::string end;  // what is nearest to the place says most
  for (const std::string& name : names) {
    if (end.size() + name.size() > kMaxPathBytes) return path_ + "..." + end;
    end.insert(0, name);
  }
  return path_ + end;
}

}  // namespace larder
