#include "grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_state.h"
#include "grammar/json_formats.h"
#include "grammar/json_members.h"
#include "grammar/json_merge.h"
#include "grammar/json_numbers.h"
#include "grammar/regex.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 200;  // of schemas within schemas, those that are put together counted
constexpr std::uint32_t kMaxCount = 1'000'000;
constexpr std::size_t kMaxValues = 10'000;  // of JSON, since what is put together is compared with each other

// Of JSON Schema, and not obeyed here.
constexpr std::string_view kUnsupported[] = {
    "not",          "if",           "then",        "else",        "dependentSchemas", "dependentRequired",
    "dependencies", "contains",     "minContains", "maxContains", "maxProperties",    "unevaluatedItems",
    "$dynamicRef",  "$recursiveRef"};

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: {}", path, reason), path);
}

std::string within(const std::string& path, std::string_view key) { return fmt::format("{}.{}", path, key); }

std::size_t count_values(const Json& value) {
  std::size_t count = 1;
  if (value.is_structured()) {
    for (const Json& item : value) count += count_values(item);
  }
  return count;
}

class Compiler {
 public:
  Compiler(JsonParts& parts, const Json& root, const std::string& path, SchemaUse use)
      : parts_(parts), builder_(parts.builder()), root_(root), root_path_(path), use_(use) {}

  Fragment run() {
    const Fragment whole = any(root_, root_path_, 0);
    // Rules that are referred to may refer to more.
    while (!pending_.empty()) {
      const Pending next = std::move(pending_.back());
      pending_.pop_back();
      builder_.define(next.rule, any(*next.schema, next.path, 0));
    }
    return whole;
  }

 private:
  struct Pending {
    GrammarRule rule;
    const Json* schema;
    std::string path;
  };
  struct Referred {
    const Json* schema;
    std::string path;
  };

  Fragment any(const Json& schema, const std::string& path, int depth) {
    if (use_ == SchemaUse::kStrict) return strictly(schema, path, depth);
    try {
      return strictly(schema, path, depth);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInvalidArgument) throw;
      const bool is_object = schema.is_object() && schema.contains("type") && schema["type"] == "object";
      return is_object ? parts_.any_object() : parts_.any_value();
    }
  }

  Fragment strictly(const Json& schema, const std::string& path, int depth) {
    if (depth > kMaxDepth)
      fail(path, fmt::format("schemas are nested deeper than {} levels; send a simpler one", kMaxDepth));
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) fail(path, "is false, which nothing satisfies; leave it out");
      return parts_.any_value();
    }
    if (!schema.is_object()) fail(path, fmt::format("must be an object, it is {}", schema.type_name()));
    if (use_ == SchemaUse::kStrict) refuse_unsupported(schema, path);
    if (schema.contains("$ref")) return reference(schema, path, depth);
    if (schema.contains("allOf")) return all_of(schema, path, depth);
    for (const char* key : {"anyOf", "oneOf"}) {
      if (schema.contains(key)) return any_of(schema, key, path, depth);
    }
    if (schema.contains("enum") || schema.contains("const")) return values(schema, path);
    return typed(schema, path, depth);
  }

  static void refuse_unsupported(const Json& schema, const std::string& path) {
    for (const std::string_view key : kUnsupported) {
      if (schema.contains(key)) fail(within(path, key), "is not supported; leave it out, or say it in the prompt");
    }
    const auto refuse_unless = [&](const char* key, const Json& neutral) {
      const auto found = schema.find(key);
      if (found == schema.end() || *found == neutral) return;
      fail(within(path, key), fmt::format("is not supported, but for {}; leave it out", neutral.dump()));
    };
    refuse_unless("uniqueItems", false);
    const auto type = schema.find("type");
    refuse_unless("multipleOf", type != schema.end() && *type == "integer" ? 1 : 0);
    refuse_unless("minProperties", 0);
    refuse_unless("unevaluatedProperties", false);
  }

  // #, #/a/b: within the whole document.
  Referred resolve(const Json& schema, const std::string& path) const {
    const Json& value = schema["$ref"];
    const std::string where = within(path, "$ref");
    if (!value.is_string()) fail(where, "must be a string");
    const auto& text = value.get_ref<const std::string&>();
    if (!text.starts_with('#')) fail(where, "leads out of the schema; only \"#/...\" is supported");
    try {
      const Json::json_pointer pointer(text.substr(1));
      return {&root_.at(pointer), root_path_ + text};
    } catch (const Json::exception&) {
      fail(where, "leads nowhere in the schema");
    }
  }

  Fragment reference(const Json& schema, const std::string& path, int depth) {
    const Referred referred = resolve(schema, path);
    Json rest = schema;
    rest.erase("$ref");
    if (!has_any_constraint(rest)) return builder_.call(rule_of(referred));
    return any(merge_schemas(*referred.schema, rest, path), path, depth + 1);
  }

  const GrammarRule& rule_of(const Referred& referred) {
    const auto found = rules_.find(referred.schema);
    if (found != rules_.end()) return found->second;
    const GrammarRule rule = builder_.declare();
    pending_.push_back({rule, referred.schema, referred.path});
    return rules_.emplace(referred.schema, rule).first->second;
  }

  Fragment all_of(const Json& schema, const std::string& path, int depth) {
    const Json& parts = array_at(schema, "allOf", path);
    Json rest = schema;
    rest.erase("allOf");
    Json whole = Json::object();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      whole = merge_schemas(whole, resolved(parts[i], fmt::format("{}.allOf[{}]", path, i)), path);
    }
    return any(merge_schemas(whole, rest, path), path, depth + 1);
  }

  // Without a reference at its top, where something is to be put together with it.
  Json resolved(const Json& schema, const std::string& path) const {
    Json whole = schema;
    for (int i = 0; whole.is_object() && whole.contains("$ref"); ++i) {
      if (i > kMaxDepth) fail(path, "refers to itself");
      const Referred referred = resolve(whole, path);
      whole.erase("$ref");
      whole = merge_schemas(*referred.schema, whole, path);
    }
    return whole;
  }

  Fragment any_of(const Json& schema, const char* key, const std::string& path, int depth) {
    const Json& parts = array_at(schema, key, path);
    Json rest = schema;
    rest.erase(key);
    const bool is_alone = !has_any_constraint(rest);
    std::vector<Fragment> choices;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::string where = fmt::format("{}.{}[{}]", path, key, i);
      if (parts[i] == false) continue;
      choices.push_back(is_alone ? any(parts[i], where, depth + 1)
                                 : any(merge_schemas(resolved(parts[i], where), rest, where), where, depth + 1));
    }
    if (choices.empty()) fail(within(path, key), "holds nothing that a value could be");
    return builder_.choice(choices);
  }

  const Json& array_at(const Json& schema, const char* key, const std::string& path) const {
    const Json& value = schema[key];
    if (!value.is_array() || value.empty()) fail(within(path, key), "must be an array that is not empty");
    return value;
  }

  Fragment values(const Json& schema, const std::string& path) {
    std::vector<std::string> texts;
    const auto add = [&](const Json& value) {
      if (has_type_of(schema, value)) texts.push_back(value.dump(-1, ' ', false, Json::error_handler_t::replace));
    };
    if (schema.contains("const")) {
      add(schema["const"]);
    } else {
      const Json& all = array_at(schema, "enum", path);
      for (const Json& value : all) add(value);
    }
    if (texts.empty()) fail(path, "has no value of its own type");
    return parts_.one_of(std::move(texts));
  }

  Fragment typed(const Json& schema, const std::string& path, int depth) {
    const auto found = schema.find("type");
    if (found == schema.end()) return of_type(implied_type(schema), schema, path, depth);
    if (found->is_string()) return of_type(found->get<std::string>(), schema, path, depth);
    const Json& names = array_at(schema, "type", path);
    std::vector<Fragment> choices;
    for (const Json& name : names) {
      if (!name.is_string()) fail(within(path, "type"), "must hold strings");
      // Whatever is an integer is a number.
      if (name == "integer" && std::ranges::find(names, Json("number")) != names.end()) continue;
      choices.push_back(of_type(name.get<std::string>(), schema, path, depth));
    }
    return builder_.choice(choices);
  }

  Fragment of_type(const std::string& type, const Json& schema, const std::string& path, int depth) {
    if (type.empty()) return parts_.any_value();
    if (type == "object") return object(schema, path, depth);
    if (type == "array") return array(schema, path, depth);
    if (type == "string") return string(schema, path);
    if (type == "boolean") return parts_.one_of({"true", "false"});
    if (type == "null") return builder_.text("null");
    if (type != "number" && type != "integer") {
      fail(within(path, "type"), fmt::format("\"{}\" is no type of JSON", type));
    }
    try {
      const NumberBounds bounds = read_bounds(schema, path);
      return type == "integer" ? add_json_integer(builder_, bounds) : add_json_number(builder_, bounds);
    } catch (const Error& error) {
      rethrow_at(error, path);
    }
  }

  // The parts that know nothing of the schema do not know the place.
  [[noreturn]] static void rethrow_at(const Error& error, const std::string& path) {
    if (!error.param().empty()) throw error;
    throw Error(error.kind(), fmt::format("{}: {}", path, error.message()), path);
  }

  static NumberBounds read_bounds(const Json& schema, const std::string& path) {
    NumberBounds bounds;
    const auto read = [&](const char* key, std::optional<std::string>& bound) {
      const auto found = schema.find(key);
      if (found == schema.end()) return;
      if (!found->is_number()) fail(within(path, key), "must be a number");
      bound = found->dump();
    };
    // Of draft 4, a flag of the bound beside it.
    const auto is_flag = [&](const char* key) { return schema.contains(key) && schema[key].is_boolean(); };
    const auto is_set = [&](const char* key) { return is_flag(key) && schema[key].get<bool>(); };
    read("minimum", is_set("exclusiveMinimum") ? bounds.above : bounds.least);
    read("maximum", is_set("exclusiveMaximum") ? bounds.below : bounds.most);
    if (!is_flag("exclusiveMinimum")) read("exclusiveMinimum", bounds.above);
    if (!is_flag("exclusiveMaximum")) read("exclusiveMaximum", bounds.below);
    return bounds;
  }

  std::optional<std::uint32_t> count_at(const Json& schema, const char* key, const std::string& path) const {
    const auto found = schema.find(key);
    if (found == schema.end()) return std::nullopt;
    const bool is_count =
        found->is_number() && found->get<double>() >= 0 &&
        found->get<double>() == static_cast<double>(static_cast<std::int64_t>(std::min(found->get<double>(), 1e15)));
    if (!is_count) fail(within(path, key), "must be a whole number that is not negative");
    // More than any answer has is no bound.
    return static_cast<std::uint32_t>(std::min<double>(found->get<double>(), kMaxCount));
  }

  Repetitions counts(const Json& schema, const char* least, const char* most, const std::string& path) const {
    Repetitions times{count_at(schema, least, path).value_or(0), count_at(schema, most, path)};
    if (times.max && times.min > *times.max) {
      fail(within(path, least), fmt::format("is {}, above {}, which is {}", times.min, most, *times.max));
    }
    return times;
  }

  Fragment regex(const std::string& expression, const std::string& path) {
    try {
      return add_regex(builder_, expression, RegexText::kJsonString, false);
    } catch (const Error& error) {
      rethrow_at(error, path);
    }
  }

  Fragment string(const Json& schema, const std::string& path) {
    const Repetitions length = counts(schema, "minLength", "maxLength", path);
    const std::string* expression = text_at(schema, "pattern", path);
    const std::string* name = text_at(schema, "format", path);
    const JsonFormat* format = name == nullptr ? nullptr : find_format(*name);
    // One that says the same as its format, but cannot be read, does not count.
    if (expression != nullptr && (format == nullptr || read_alone(*expression))) {
      if (!has_every_length(*expression, length))
        fail(within(path, "pattern"), "beside minLength or maxLength is not supported; say the length in the pattern");
      return parts_.quoted(regex(*expression, within(path, "pattern")));
    }
    try {
      if (format != nullptr) {
        if (length.min > format->shortest || (length.max && *length.max < format->longest)) {
          fail(within(path, "format"),
               fmt::format("is written with {} to {} characters here, which minLength and maxLength "
                           "have to permit",
                           format->shortest, format->longest));
        }
        return parts_.quoted(add_regex(builder_, format->expression, RegexText::kJsonString, true));
      }
      return length.min > 0 || length.max ? parts_.string_of_length(length) : parts_.any_string();
    } catch (const Error& error) {
      rethrow_at(error, path);
    }
  }

  // Nullopt: it cannot be read here, as lookahead.
  static std::optional<Grammar> read_alone(const std::string& expression) {
    try {
      GrammarBuilder builder;
      const Fragment whole = add_regex(builder, expression, RegexText::kJsonString, false);
      return builder.finish(whole);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // That a string is not empty, the pattern may say by itself.
  static bool has_every_length(const std::string& expression, const Repetitions& length) {
    if (length.max) return false;
    if (length.min == 0) return true;
    const std::optional<Grammar> alone = length.min == 1 ? read_alone(expression) : std::nullopt;
    return alone && !GrammarState(*alone).is_whole();
  }

  static const std::string* text_at(const Json& schema, const char* key, const std::string& path) {
    const auto found = schema.find(key);
    if (found == schema.end()) return nullptr;
    if (!found->is_string()) fail(within(path, key), "must be a string");
    return found->get_ptr<const std::string*>();
  }

  Fragment array(const Json& schema, const std::string& path, int depth) {
    JsonParts::Items items;
    items.count = counts(schema, "minItems", "maxItems", path);
    // Before 2020 a list of items was what prefixItems is now.
    const bool is_old = schema.contains("items") && schema["items"].is_array();
    const char* first_key = is_old ? "items" : "prefixItems";
    const char* others_key = is_old ? "additionalItems" : "items";
    if (schema.contains(first_key)) {
      const Json& first = array_at(schema, first_key, path);
      for (std::size_t i = 0; i < first.size(); ++i) {
        items.first.push_back(builder_.rule(any(first[i], fmt::format("{}.{}[{}]", path, first_key, i), depth + 1)));
      }
    }
    const bool are_closed = schema.contains(others_key) && schema[others_key] == false;
    if (!are_closed) {
      static const Json kAnything = true;
      const Json& others = schema.contains(others_key) ? schema[others_key] : kAnything;
      items.others = builder_.rule(any(others, within(path, others_key), depth + 1));
    } else if (items.count.min > items.first.size()) {
      fail(within(path, "minItems"), fmt::format("is {}, and there are {} items", items.count.min, items.first.size()));
    }
    try {
      return parts_.array_of(items);
    } catch (const Error& error) {
      rethrow_at(error, path);
    }
  }

  static std::string written(const std::string& name) {
    return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // Nullopt: there are none beside those that are named.
  std::optional<GrammarRule> other_members(const JsonMembers& members, const std::string& path, int depth) {
    if (!members.has_others()) return std::nullopt;
    std::vector<Fragment> kinds;
    for (const auto& [expression, schema] : members.by_pattern) {
      const Fragment name = parts_.quoted(regex(expression, within(path, "patternProperties")));
      const Fragment value = any(*schema, fmt::format("{}.patternProperties.{}", path, expression), depth + 1);
      kinds.push_back(builder_.sequence({name, parts_.colon(), value}));
    }
    if (members.others != nullptr) {
      std::vector<std::string> names;
      for (const JsonMembers::Named& member : members.named) names.push_back(written(member.name));
      for (const std::string& name : members.barred) names.push_back(written(name));
      for (std::string& name : names) name = name.substr(1, name.size() - 2);
      const Fragment value = any(*members.others, within(path, "additionalProperties"), depth + 1);
      kinds.push_back(builder_.sequence({parts_.other_string(names), parts_.colon(), value}));
    }
    return builder_.rule(builder_.choice(kinds));
  }

  Fragment object(const Json& schema, const std::string& path, int depth) {
    const JsonMembers all = read_members(schema, path);
    const std::vector<JsonMembers::Named>& members = all.named;
    const std::optional<GrammarRule> others = other_members(all, path, depth);
    // Before each member, whoever follows may be the next one; behind it, the end or a comma.
    const Fragment begin = builder_.sequence({builder_.text("{"), parts_.space()});
    const GrammarNode end = builder_.add_node();
    const auto add_end = [&](GrammarNode from) {
      const Fragment blank = parts_.space();
      builder_.add_empty(from, blank.begin);
      builder_.add_bytes(blank.end, {'}', '}'}, end);
    };
    const auto add_comma = [&](GrammarNode from, GrammarNode to) {
      const Fragment comma = parts_.comma();
      builder_.add_empty(from, comma.begin);
      builder_.add_empty(comma.end, to);
    };
    std::size_t num_needed = 0;  // members up to the last required one
    for (std::size_t i = 0; i < members.size(); ++i) num_needed = members[i].is_required ? i + 1 : num_needed;
    GrammarNode next = builder_.add_node();
    builder_.add_empty(begin.end, next);
    if (num_needed == 0) builder_.add_bytes(begin.end, {'}', '}'}, end);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const GrammarNode after = builder_.add_node();
      const Fragment value = any(*members[i].schema, fmt::format("{}.properties.{}", path, members[i].name), depth + 1);
      const Fragment member = builder_.sequence({builder_.text(written(members[i].name)), parts_.colon(), value});
      builder_.add_empty(next, member.begin);
      if (!members[i].is_required) builder_.add_empty(next, after);
      if (i + 1 >= num_needed) add_end(member.end);
      if (i + 1 < members.size() || others) add_comma(member.end, after);
      next = after;
    }
    if (others) {
      const Fragment member = builder_.call(*others);
      builder_.add_empty(next, member.begin);
      add_end(member.end);
      add_comma(member.end, next);
    }
    return {begin.begin, end};
  }

  JsonParts& parts_;
  GrammarBuilder& builder_;
  const Json& root_;
  const std::string& root_path_;
  const SchemaUse use_;
  std::map<const Json*, GrammarRule> rules_;  // of what is referred to
  std::vector<Pending> pending_;
};

}  // namespace

Fragment add_json_schema(JsonParts& parts, const nlohmann::ordered_json& schema, const std::string& path,
                         SchemaUse use) {
  if (const std::size_t count = count_values(schema); count > kMaxValues) {
    throw Error(
        ErrorKind::kTooLarge,
        fmt::format("{}: has {} values of JSON, at most {} are taken; send a simpler one", path, count, kMaxValues),
        path);
  }
  return Compiler(parts, schema, path, use).run();
}

}  // namespace larder
