// Filters that apply another filter or a test to each element, and the table of them all.
#include "tokenizer/jinja/jinja_filters.h"
#include "tokenizer/jinja/jinja_filters_number.h"
#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {
namespace {

constexpr std::size_t kMaxName = 64;  // looking up a name costs one step

// The arguments behind the first count.
Args rest_of(Budget& budget, const Args& args, std::size_t count) {
  Args rest;
  for (std::size_t i = count; i < args.positional.size(); ++i) {
    rest.copy(budget, args.positional[i]);
  }
  for (const auto& [name, value, origin] : args.keyword) rest.copy(budget, name, value, origin);
  return rest;
}

Value map_attribute(Runtime& runtime, const ListRef& items, const Args& args) {
  const auto bound = args.bind("map", {"attribute", "default"});
  const bool has_default = bound[1] != nullptr && !bound[1]->is_none();
  ListBuilder mapped(runtime);
  for (const Value& item : items->items) {
    Value value = runtime.attribute_path(item, *bound[0]);
    mapped.push(value.is_undefined() && has_default ? *bound[1] : std::move(value));
  }
  return runtime.generator(mapped.take());
}

Value map(Runtime& runtime, const Value& value, const Args& args) {
  if (!is_true(value)) return runtime.generator(ListBuilder(runtime).take());
  const bool has_attribute =
      args.positional.empty() && !args.keyword.empty() &&
      (args.keyword[0].name == "attribute" || args.keyword.back().name == "attribute");
  const ListRef items = runtime.elements(value);
  if (has_attribute) return map_attribute(runtime, items, args);
  if (args.positional.empty()) fail("map requires a filter argument");
  const std::string_view name = text_argument(args.positional[0], "the filter's name").bytes();
  const Args rest = rest_of(runtime.budget(), args, 1);
  ListBuilder mapped(runtime);
  for (const Value& item : items->items) mapped.push(runtime.call_filter(name, item, rest));
  return runtime.generator(mapped.take());
}

template <bool kWanted, bool kByAttribute>
Value select(Runtime& runtime, const Value& value, const Args& args) {
  if (!is_true(value)) return runtime.generator(ListBuilder(runtime).take());
  const std::size_t offset = kByAttribute ? 1 : 0;
  if (args.positional.size() < offset) fail("Missing parameter for attribute name");
  const bool has_test = args.positional.size() > offset;
  const Args rest = rest_of(runtime.budget(), args, has_test ? offset + 1 : offset);
  ListBuilder selected(runtime);
  const ListRef items = runtime.elements(value);
  for (const Value& item : items->items) {
    runtime.budget().step();
    const Value subject = kByAttribute ? runtime.attribute_path(item, args.positional[0]) : item;
    bool is_match = false;
    if (has_test) {
      const Text& name = text_argument(args.positional[offset], "the test's name");
      is_match = runtime.call_test(name.bytes(), subject, rest);
    } else {
      is_match = is_true(subject);
    }
    if (is_match == kWanted) selected.push(item);
  }
  return runtime.generator(selected.take());
}

Value default_value(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("default", {"default_value", "boolean"});
  const bool counts_false = bound[1] != nullptr && is_true(*bound[1]);
  if (!value.is_undefined() && !(counts_false && !is_true(value))) return value;
  return bound[0] != nullptr ? *bound[0] : runtime.text("");
}

Value attribute(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("attr", {"name"}, 1);
  const std::string_view name = text_argument(*bound[0], "the attribute's name").bytes();
  // A key of a dict is no attribute of it.
  if (value.dict() != nullptr && find_method(value, name) == MethodStatus::kNone) {
    return Value::undefined(
        fmt::format("'dict object' has no attribute '{}'", name.substr(0, 100)));
  }
  return runtime.attribute(value, name);
}

const FilterTable& all_filters() {
  static const FilterTable kTable = [] {
    FilterTable all = selection_filters();
    for (const FilterTable* part : {&text_filters(), &list_filters(), &number_filters()}) {
      all.insert(part->begin(), part->end());
    }
    return all;
  }();
  return kTable;
}

}  // namespace

const FilterTable& selection_filters() {
  static const FilterTable kTable = {
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
      {"default", default_value},
      {"d", default_value},
      {"attr", attribute},
  };
  return kTable;
}

Filter find_filter(std::string_view name) {
  const auto found = all_filters().find(name);
  return found == all_filters().end() ? nullptr : found->second;
}

Value Runtime::call_filter(std::string_view name, const Value& value, const Args& args) {
  budget_.step();
  const Filter filter = name.size() <= kMaxName ? find_filter(name) : nullptr;
  if (filter == nullptr) fail("No filter named '{}'.", name.substr(0, 100));
  const DepthGuard guard(*this);
  return filter(*this, value, args);
}

bool Runtime::call_test(std::string_view name, const Value& value, const Args& args) {
  budget_.step();
  const auto found = name.size() <= kMaxName ? tests().find(name) : tests().end();
  if (found == tests().end()) fail("No test named '{}'.", name.substr(0, 100));
  return found->second(*this, value, args);
}

}  // namespace larder::jinja
