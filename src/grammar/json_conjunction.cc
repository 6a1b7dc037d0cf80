#include "grammar/json_conjunction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "grammar/grammar_state.h"
#include "grammar/regex.h"

namespace larder {
namespace {

using Json = nlohmann::ordered_json;

JsonTypes both(JsonTypes one, JsonTypes other) { return static_cast<JsonTypes>(one & other); }

JsonTypes type_named(const Json& value) {
  constexpr std::pair<std::string_view, JsonTypes> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"object", kObject}, {"array", kArray},
      {"string", kString}, {"integer", kInteger}, {"number", kNumber}};
  const std::string& name = string_at(value);
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  fail_at(value, fmt::format("\"{}\" is no type of JSON", printable(name)));
}

JsonTypes type_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  if (value.is_string()) return kString;
  if (value.is_number_integer() || value.is_binary()) return kInteger;
  const auto number = value.get<double>();  // 1.0 is an integer, too
  return std::trunc(number) == number ? kInteger : kNumber;
}

std::string number_at(const Json& value) {
  if (!value.is_number() && !value.is_binary()) fail_at(value, "must be a number");
  return written(value);
}

std::uint32_t count_at(const Json& value) {
  constexpr double kMost = 1'000'000;  // more than any answer has is no bound
  const bool is_long = value.is_binary() && !written(value).starts_with('-');
  const double count = value.is_number() ? std::min(value.get<double>(), kMost) : is_long ? kMost : -1;
  if (count < 0 || count != static_cast<double>(static_cast<std::uint32_t>(count)))
    fail_at(value, "must be a whole number that is not negative");
  return static_cast<std::uint32_t>(count);
}

// Equal with its members in any order, and 1 to 1.0.
using SameValue = nlohmann::json;

std::size_t num_characters(std::string_view text) {
  const auto begins_one = [](unsigned char byte) { return (byte & 0xC0) != 0x80; };
  return static_cast<std::size_t>(std::ranges::count_if(text, begins_one));
}

}  // namespace

// What is said beside enum and const, which say more than all of it: a pattern that cannot be read is passed over, and
// what members and items are.
class JsonConjunction::ValueFilter {
 public:
  explicit ValueFilter(const JsonConjunction& said)
      : said_(said),
        types_(obeyed([&] { return said.named_types(); })),
        bounds_(obeyed([&] { return said.bounds(); })),
        length_(obeyed([&] { return said.read_counts("minLength", "maxLength"); })),
        num_items_(obeyed([&] { return said.read_counts("minItems", "maxItems"); })) {
    for (const Json* pattern : obeyed([&] { return said.patterns(); })) {
      (void)obeyed([&] { return string_at(*pattern); });
      try {
        patterns_.push_back(said.grammar_of(*pattern, TextForm::kPlain));
      } catch (const SchemaFault&) {
      }
    }
  }

  bool permits(const Json& value) const {
    const JsonTypes type = type_of(value);
    if (types_ && both(*types_, type) != type) return false;
    if (both(type, kNumber) != kNoType) return is_within(number_at(value), bounds_);
    if (type == kString) return permits_text(string_at(value));
    if (type == kArray) return value.size() >= num_items_.min && value.size() <= num_items_.max.value_or(value.size());
    return type != kObject || std::ranges::all_of(said_.parts_, [&](const SchemaWords* part) {
             return permits_names(*part, value);
           });
  }

 private:
  // In lenient use nothing, where it cannot be read.
  template <class Read>
  std::invoke_result_t<Read> obeyed(Read read) const {
    try {
      return read();
    } catch (const SchemaFault&) {
      if (said_.document_.is_strict()) throw;
      return {};
    }
  }

  bool permits_text(const std::string& text) const {
    const std::size_t length = num_characters(text);
    if (length < length_.min || (length_.max && length > *length_.max)) return false;
    return std::ranges::all_of(patterns_, [&](const Grammar& pattern) {
      GrammarState state(pattern);
      return std::ranges::all_of(text, [&](char byte) {
               said_.document_.take_steps(state.num_passed());
               return state.push(static_cast<std::uint8_t>(byte));
             }) &&
             state.is_whole();
    });
  }

  bool permits_names(const SchemaWords& part, const Json& value) const {
    const Json* patterns = part.find("patternProperties");
    for (const Json* place : {patterns, part.find("propertyNames")}) {
      if (place != nullptr && said_.document_.is_strict())
        fail_at(*place, "beside objects that enum or const names is not supported; leave it out");
    }
    const auto take_steps = [&](std::size_t num_names) {  // each is looked for among the others
      said_.document_.take_steps(1 + num_names + num_names * value.size() / 16);
    };
    const Json* required = part.find("required");
    if (required != nullptr && required->is_array()) {
      take_steps(required->size());
      for (const Json& name : *required)
        if (name.is_string() && !value.contains(string_at(name))) return false;
    }
    const Json* named = part.find("properties");
    const Json* others = part.find("additionalProperties");
    take_steps(named == nullptr ? 0 : named->size());
    const bool is_closed = others != nullptr && *others == false && patterns == nullptr;
    return std::ranges::all_of(value.items(), [&](const auto& member) {
      if (named == nullptr || !named->is_object() || !named->contains(member.key())) return !is_closed;
      return (*named)[member.key()] != false;
    });
  }

  const JsonConjunction& said_;
  const std::optional<JsonTypes> types_;
  const NumberBounds bounds_;
  const Repetitions length_, num_items_;
  std::vector<Grammar> patterns_;
};

JsonConjunction::JsonConjunction(SchemaDocument& document, const SchemaSet& set, const Json& place)
    : document_(document), place_(place) {
  document.take_steps(set.size());
  for (const Json* schema : set) parts_.push_back(&document.words(*schema));
}

std::vector<const Json*> JsonConjunction::all(std::string_view word) const {
  std::vector<const Json*> values;
  for (const SchemaWords* part : parts_) {
    if (const Json* value = part->find(word)) values.push_back(value);
  }
  return values;
}

std::optional<JsonTypes> JsonConjunction::named_types() const {
  std::optional<JsonTypes> common;
  for (const Json* value : all("type")) {
    int types = kNoType;
    if (value->is_string()) {
      types = type_named(*value);
    } else {
      for (const Json& name : list_at(*value)) types |= type_named(name);
    }
    common = both(common.value_or(static_cast<JsonTypes>(types)), static_cast<JsonTypes>(types));
  }
  return common;
}

std::optional<JsonTypes> JsonConjunction::types() const {
  if (const std::optional<JsonTypes> named = named_types()) {
    if (*named == kNoType) fail_impossible(place_, "excludes what is said beside it", "type");
    return named;
  }
  for (const SchemaWords* part : parts_) {
    const std::string_view implied = part->implied_type();
    if (!implied.empty()) return type_named(Json(implied));
  }
  return std::nullopt;
}

std::optional<std::vector<const Json*>> JsonConjunction::values() const {
  std::optional<std::vector<const Json*>> values;
  const auto keep_common = [&](const std::vector<const Json*>& others) {
    for (const Json* value : others) document_.take_steps(steps_of(*value));
    if (!values) {
      values = others;
      return;
    }
    document_.take_steps(values->size());
    std::set<SameValue> common;
    for (const Json* value : others) common.insert(SameValue(*value));
    std::erase_if(*values, [&](const Json* value) { return !common.contains(SameValue(*value)); });
  };
  for (const Json* only : all("const")) keep_common({only});
  for (const Json* list : all("enum")) {
    std::vector<const Json*> items;
    for (const Json& item : list_at(*list)) items.push_back(&item);
    keep_common(items);
  }
  if (!values) return std::nullopt;
  const ValueFilter filter(*this);
  std::erase_if(*values, [&](const Json* value) { return !filter.permits(*value); });
  if (values->empty()) fail_impossible(place_, "names no value that all else permits which is said of it");
  return values;
}

NumberBounds JsonConjunction::bounds() const {
  NumberBounds bounds;
  const auto narrow = [](std::optional<std::string>& bound, const Json* value, bool is_least) {
    if (value == nullptr) return;
    std::string number = number_at(*value);
    if (!bound || is_less(*bound, number) == is_least) bound = std::move(number);
  };
  for (const SchemaWords* part : parts_) {
    // Of draft 4, a flag of the bound beside it.
    const auto read = [&](const char* word, const char* exclusive, auto& bound, auto& excluded, bool is_least) {
      const Json* other = part->find(exclusive);
      const bool is_flag = other != nullptr && other->is_boolean();
      narrow(is_flag && *other == true ? excluded : bound, part->find(word), is_least);
      if (!is_flag) narrow(excluded, other, is_least);
    };
    read("minimum", "exclusiveMinimum", bounds.least, bounds.above, true);
    read("maximum", "exclusiveMaximum", bounds.most, bounds.below, false);
  }
  return bounds;
}

Repetitions JsonConjunction::read_counts(std::string_view least, std::string_view most) const {
  Repetitions times;
  for (const Json* value : all(least)) times.min = std::max(times.min, count_at(*value));
  for (const Json* value : all(most)) times.max = std::min(times.max.value_or(count_at(*value)), count_at(*value));
  return times;
}

Repetitions JsonConjunction::counts(std::string_view least, std::string_view most) const {
  const Repetitions times = read_counts(least, most);
  if (times.max && times.min > *times.max) {
    fail_impossible(place_, fmt::format("is {}, above {}, which is {}", times.min, most, *times.max), least);
  }
  return times;
}

const JsonFormat* JsonConjunction::format() const {
  const JsonFormat* format = nullptr;
  for (const Json* name : all("format")) {
    const JsonFormat* found = find_format(string_at(*name));
    if (found != nullptr && format != nullptr && found != format)
      fail_at(*name, "differs from the format that is said beside it, which is not supported");
    format = found != nullptr ? found : format;
  }
  return format;
}

std::vector<const Json*> JsonConjunction::patterns() const {
  std::vector<const Json*> patterns = all("pattern");
  const bool has_format = !patterns.empty() && format() != nullptr;
  std::erase_if(patterns, [&](const Json* pattern) {
    try {
      if (has_format) (void)grammar_of(*pattern, TextForm::kJsonString);
      return false;
    } catch (const SchemaFault&) {
      return true;
    }
  });
  return patterns;
}

Grammar JsonConjunction::grammar_of(const Json& pattern, TextForm form) const {
  GrammarBuilder builder;
  try {
    const Fragment whole = add_regex(builder, string_at(pattern), form, false);
    document_.take_steps(builder.num_nodes());
    return builder.finish(whole);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    document_.take_steps(builder.num_nodes());
    fail_at(pattern, error.message());
  }
}

}  // namespace larder
