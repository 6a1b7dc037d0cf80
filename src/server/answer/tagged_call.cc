#include "server/answer/tagged_call.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "server/answer/tool_calls.h"
#include "server/json_fields.h"
#include "server/white_space.h"

namespace larder {
namespace {

constexpr std::string_view kKeyEnd = "</arg_key>";
constexpr std::string_view kValue = "<arg_value>";
constexpr std::string_view kValueEnd = "</arg_value>";

constexpr std::pair<std::string_view, std::uint8_t> kTypeNames[] = {
    {"string", 1}, {"number", 2}, {"integer", 2}, {"boolean", 4}, {"null", 8}, {"array", 16}, {"object", 32}};
constexpr std::uint8_t kString = 1, kNumber = 2, kBoolean = 4, kNull = 8, kArray = 16, kObject = 32, kAny = 63;
constexpr std::size_t kBytesOfEntry = 64;  // of a map, beside its text

std::uint8_t type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return kString;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::null:
      return kNull;
    case Json::value_t::array:
      return kArray;
    case Json::value_t::object:
      return kObject;
    default:
      return kNumber;
  }
}

std::uint8_t type_named(const Json& name) {
  if (!name.is_string()) return kAny;
  const auto found = std::ranges::find(kTypeNames, std::string_view(name.get_ref<const std::string&>()),
                                       &std::pair<std::string_view, std::uint8_t>::first);
  return found == std::end(kTypeNames) ? kAny : found->second;
}

// Of all that the items allow.
template <typename OfItem>
std::uint8_t types_of_all(const Json& items, OfItem of_item) {
  if (!items.is_array() || items.empty()) return kAny;
  std::uint8_t types = 0;
  for (const Json& item : items) types = static_cast<std::uint8_t>(types | of_item(item));
  return types;
}

// What it does not tell it permits. Schemas come as deep as JSON may be.
std::uint8_t types_of_schema(const Json& schema) {
  if (!schema.is_object()) return kAny;
  if (const auto type = schema.find("type"); type != schema.end())
    return type->is_array() ? types_of_all(*type, type_named) : type_named(*type);
  if (const auto value = schema.find("const"); value != schema.end()) return type_of(*value);
  if (const auto values = schema.find("enum"); values != schema.end()) return types_of_all(*values, type_of);
  for (const char* key : {"anyOf", "oneOf"})
    if (const auto choices = schema.find(key); choices != schema.end()) return types_of_all(*choices, types_of_schema);
  return kAny;
}

bool may_become(std::string_view text, std::string_view tag) { return text.size() < tag.size() && tag.starts_with(text); }

}  // namespace

ArgumentTypes::ArgumentTypes(const Json& tools) {
  for (const Json& tool : tools) {
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) continue;
    const auto name = function->find("name");
    if (name == function->end() || !name->is_string()) continue;
    auto& arguments = tools_[name->get<std::string>()];
    size_bytes_ += kBytesOfEntry + name->get_ref<const std::string&>().size();
    const auto parameters = function->find("parameters");
    if (parameters == function->end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) {
      arguments.emplace(key, types_of_schema(schema));
      size_bytes_ += kBytesOfEntry + key.size();
    }
  }
}

ArgumentTypes::Types ArgumentTypes::types_of(std::string_view tool, std::string_view argument) const {
  const auto arguments = tools_.find(tool);
  if (arguments == tools_.end()) return kAny;
  const auto types = arguments->second.find(argument);
  return types == arguments->second.end() ? kAny : types->second;
}

Json ArgumentTypes::value_of(std::string_view tool, std::string_view argument, std::string_view text) const {
  const Types types = types_of(tool, argument);
  if (types == kString) return Json(std::string(text));
  try {
    Json value = parse_json(text, kLimitsOfAnswers);
    const bool is_of_type = (type_of(value) & types) != 0 || (types & kString) == 0;
    if (!value.is_string() && is_of_type) return value;
  } catch (const Error&) {
    // A model may write anything.
  }
  return Json(std::string(text));
}

void TaggedCallReader::begin(std::size_t at) {
  *this = TaggedCallReader();
  at_ = begin_ = at;
}

TaggedCallReader::State TaggedCallReader::read(std::string_view text) {
  for (;;) {
    const Step step = step_;
    const State state = read_step(text);
    if (state != State::kOpen || step_ == step) return state;
  }
}

// Nothing of it is left where the step stays.
TaggedCallReader::State TaggedCallReader::read_step(std::string_view text) {
  switch (step_) {
    case Step::kName:
      return read_name(text);
    case Step::kBeforeKey:
    case Step::kBeforeValue:
      return read_tag(text);
    case Step::kKey:
      return read_key(text);
    case Step::kValue:
      return read_value(text);
  }
  return State::kNone;
}

TaggedCallReader::State TaggedCallReader::read_name(std::string_view text) {
  const std::size_t end = std::min(text.find_first_of(" \t\r\n<", at_), text.size());
  if (end - begin_ > kMaxNameBytes) return State::kNone;
  at_ = end;
  if (end == text.size()) return State::kOpen;
  name_ = {begin_, end};
  step_ = Step::kBeforeKey;
  return State::kOpen;
}

TaggedCallReader::State TaggedCallReader::read_tag(std::string_view text) {
  at_ = std::min(text.find_first_not_of(kSpace, at_), text.size());
  const std::string_view next = text.substr(at_);
  const bool is_key = step_ == Step::kBeforeKey;
  const std::string_view tag = is_key ? kArgumentKey : kValue;
  if (next.starts_with(tag)) {
    begin_ = at_ += tag.size();
    step_ = is_key ? Step::kKey : Step::kValue;
    return State::kOpen;
  }
  if (is_key && next.starts_with(kToolCallEnd)) return State::kWhole;
  return may_become(next, tag) || (is_key && may_become(next, kToolCallEnd)) ? State::kOpen : State::kNone;
}

// No key has a '<', so that one that is never closed ends soon.
TaggedCallReader::State TaggedCallReader::read_key(std::string_view text) {
  at_ = std::min(text.find('<', at_), text.size());
  const std::string_view next = text.substr(at_);
  if (may_become(next, kKeyEnd)) return State::kOpen;
  if (!next.starts_with(kKeyEnd)) return State::kNone;
  arguments_.push_back({.key = {begin_, at_}, .value = {}});
  at_ += kKeyEnd.size();
  step_ = Step::kBeforeValue;
  return State::kOpen;
}

TaggedCallReader::State TaggedCallReader::read_value(std::string_view text) {
  const auto end = text.find(kValueEnd, at_);
  if (end == text.npos) {
    at_ = text.size() - size_of_possible_tag(text.substr(begin_), kValueEnd);
    return State::kOpen;
  }
  arguments_.back().value = {begin_, end};
  at_ = end + kValueEnd.size();
  step_ = Step::kBeforeKey;
  return State::kOpen;
}

std::optional<Json> TaggedCallReader::arguments(std::string_view text, const ArgumentTypes& types) const {
  const auto in = [&](const Range& range) { return text.substr(range.begin, range.end - range.begin); };
  Json all = Json::object();
  for (const Argument& argument : arguments_) {
    const std::string key(trimmed(in(argument.key)));
    if (all.contains(key)) return std::nullopt;
    all[key] = types.value_of(name(text), key, in(argument.value));
  }
  return all;
}

}  // namespace larder
