// Filters over sequences and mappings.
#include <algorithm>
#include <numeric>

#include "tokenizer/jinja/jinja_filters.h"
#include "tokenizer/jinja/jinja_operators.h"
#include "tokenizer/jinja/jinja_sort.h"
#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {
namespace {

bool is_set(const Value* value) { return value != nullptr && !value->is_none(); }

// Text in lower case, so that order and uniqueness ignore case; other values as they are.
Value without_case(Runtime& runtime, const Value& value) {
  const auto* text = value.get_if<TextRef>();
  return text != nullptr ? Value(in_case(runtime, *text, Case::kLower)) : value;
}

// How sort, unique, min, max and groupby look at an element.
struct KeyOf {
  Runtime& runtime;
  const Value* attribute;  // nullptr or none: the element itself
  bool is_case_sensitive;

  Value operator()(const Value& item) const {
    runtime.budget().step();
    Value key = is_set(attribute) ? runtime.attribute_path(item, *attribute) : item;
    return is_case_sensitive ? key : without_case(runtime, key);
  }
};

// The positions of keys in stable order.
std::vector<std::size_t> sorted_positions(Runtime& runtime, const std::vector<Value>& keys,
                                          bool is_reversed) {
  std::vector<std::size_t> positions(keys.size());
  std::iota(positions.begin(), positions.end(), std::size_t{0});
  merge_sort(positions, [&](std::size_t a, std::size_t b) {
    if (is_reversed) std::swap(a, b);
    return compares(runtime, CompareOp::kLess, keys[a], keys[b]);
  });
  return positions;
}

Value length(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("length", {});
  const std::size_t count = runtime.length(value);
  return Value::integer(static_cast<Int128>(count), value.origin());
}

Value first(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("first", {});
  if (const auto* generator = value.get_if<GeneratorRef>()) {
    Generator& source = **generator;
    if (source.next < source.items->items.size()) return source.items->items[source.next++];
    return Value::undefined("No first item, sequence was empty.");
  }
  if (value.text() != nullptr && !value.text()->empty()) {
    return runtime.item(value, Value::integer(0));
  }
  const ListRef items = runtime.elements(value);
  if (items->items.empty()) return Value::undefined("No first item, sequence was empty.");
  return items->items.front();
}

Value last(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("last", {});
  if (value.is<GeneratorRef>()) fail("'generator' object is not reversible");
  if (value.text() != nullptr && !value.text()->empty()) {
    return runtime.item(value, Value::integer(-1));
  }
  const ListRef items = runtime.elements(value);
  if (items->items.empty()) return Value::undefined("No last item, sequence was empty.");
  return items->items.back();
}

Value list(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("list", {});
  const ListRef items = runtime.elements(value);
  const bool is_list = items->kind == ListKind::kList && !value.is<GeneratorRef>();
  if (is_list) return {items, value.origin()};
  ListBuilder copy(runtime);
  for (const Value& item : items->items) copy.push(item);
  return copy.finish(ListKind::kList, value.origin());
}

Value reverse(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("reverse", {});
  const Value all = Value::none(), back = Value::integer(-1);
  if (value.text() != nullptr) return runtime.slice(value, all, all, back);
  const ListRef items = runtime.elements(value);
  ListBuilder reversed(runtime);
  for (auto item = items->items.rbegin(); item != items->items.rend(); ++item) reversed.push(*item);
  if (value.is<GeneratorRef>()) return reversed.finish();
  return runtime.generator(reversed.take());
}

Value join(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("join", {"d", "attribute"});
  const TextRef separator =
      bound[0] != nullptr ? to_str(runtime.budget(), *bound[0]) : std::make_shared<const Text>();
  ListRef items = runtime.elements(value);
  if (is_set(bound[1])) {
    ListBuilder parts(runtime);
    for (const Value& item : items->items) parts.push(runtime.attribute_path(item, *bound[1]));
    items = parts.take();
  }
  return Value(joined(runtime, *separator, items->items, true));
}

Value items(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("items", {});
  if (value.is_undefined()) return runtime.generator(ListBuilder(runtime).take());
  if (value.dict() == nullptr) fail("Can only get item pairs from a mapping.");
  const Value pairs = call_method(runtime, value, "items", {});
  return runtime.generator(*pairs.get_if<ListRef>());
}

Value dict_sort(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("dictsort", {"case_sensitive", "by", "reverse"});
  const bool is_case_sensitive = bound[0] != nullptr && is_true(*bound[0]);
  const std::string_view by = bound[1] != nullptr ? text_argument(*bound[1], "by").bytes() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  require_defined(value);
  if (value.dict() == nullptr) fail("'{}' object has no attribute 'items'", type_name(value));
  const auto& entries = value.dict()->entries();
  ListBuilder keys(runtime);
  for (const auto& [key, item] : entries) {
    const Value& shown = by == "key" ? key : item;
    keys.push(is_case_sensitive ? shown : without_case(runtime, shown));
  }
  const ListRef sort_keys = keys.take();
  const bool is_reversed = bound[2] != nullptr && is_true(*bound[2]);
  ListBuilder sorted(runtime);
  for (const std::size_t at : sorted_positions(runtime, sort_keys->items, is_reversed)) {
    sorted.push(runtime.pair(entries[at].first, entries[at].second));
  }
  return sorted.finish(ListKind::kList, value.origin());
}

Value sort(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("sort", {"reverse", "case_sensitive", "attribute"});
  const bool is_case_sensitive = bound[1] != nullptr && is_true(*bound[1]);
  // "age,name" sorts by both.
  std::vector<Value> attributes;
  if (is_set(bound[2]) && bound[2]->text() != nullptr) {
    const Text comma(",", Origin::kTrusted);
    attributes = split(runtime, *bound[2]->get_if<TextRef>(), &comma, -1).list()->items;
  } else {
    attributes.push_back(is_set(bound[2]) ? *bound[2] : Value::none());
  }
  const ListRef items = runtime.elements(value);
  ListBuilder keys(runtime);
  for (const Value& item : items->items) {
    ListBuilder key(runtime);
    for (const Value& attribute : attributes) {
      key.push(KeyOf{runtime, &attribute, is_case_sensitive}(item));
    }
    keys.push(key.finish());
  }
  const ListRef sort_keys = keys.take();
  const bool is_reversed = bound[0] != nullptr && is_true(*bound[0]);
  ListBuilder sorted(runtime);
  for (const std::size_t at : sorted_positions(runtime, sort_keys->items, is_reversed)) {
    sorted.push(items->items[at]);
  }
  return sorted.finish(ListKind::kList, value.origin());
}

Value unique(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("unique", {"case_sensitive", "attribute"});
  const KeyOf key_of{runtime, bound[1], bound[0] != nullptr && is_true(*bound[0])};
  Dict seen(runtime.budget());
  ListBuilder kept(runtime);
  const ListRef items = runtime.elements(value);
  for (const Value& item : items->items) {
    const Value key = key_of(item);
    if (seen.find(runtime.budget(), key) != nullptr) continue;
    seen.set(runtime.budget(), key, Value::none());
    kept.push(item);
  }
  return runtime.generator(kept.take());
}

template <CompareOp kOp>
Value extreme(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("min or max", {"case_sensitive", "attribute"});
  const KeyOf key_of{runtime, bound[1], bound[0] != nullptr && is_true(*bound[0])};
  const ListRef items = runtime.elements(value);
  if (items->items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  Value best_key = key_of(items->items[0]);
  for (std::size_t i = 1; i < items->items.size(); ++i) {
    Value key = key_of(items->items[i]);
    if (!compares(runtime, kOp, key, best_key)) continue;
    best = i;
    best_key = std::move(key);
  }
  return items->items[best];
}

Value sum(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("sum", {"attribute", "start"});
  Value total = bound[1] != nullptr ? *bound[1] : Value::integer(0);
  if (total.text() != nullptr) fail("sum() can't sum strings [use ''.join(seq) instead]");
  const ListRef items = runtime.elements(value);
  for (const Value& item : items->items) {
    runtime.budget().step();
    total = binary(runtime, BinaryOp::kAdd, total,
                   is_set(bound[0]) ? runtime.attribute_path(item, *bound[0]) : item);
  }
  return total;
}

Value batch(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("batch", {"linecount", "fill_with"}, 1);
  const std::ptrdiff_t size = index_argument(*bound[0], "linecount");
  const ListRef items = runtime.elements(value);
  ListBuilder batches(runtime);
  for (std::size_t at = 0; at < items->items.size();) {
    ListBuilder part(runtime);
    // Python compares the size before each element, so 0 never ends a batch but the empty first
    // one.
    do {
      part.push(items->items[at++]);
    } while (at < items->items.size() && static_cast<std::ptrdiff_t>(part.size()) != size);
    while (is_set(bound[1]) && static_cast<std::ptrdiff_t>(part.size()) < size)
      part.push(*bound[1]);
    batches.push(part.finish());
  }
  return runtime.generator(batches.take());
}

Value slice(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("slice", {"slices", "fill_with"}, 1);
  const ListRef items = runtime.elements(value);
  const std::ptrdiff_t count = index_argument(*bound[0], "slices");
  if (count == 0) fail("integer division or modulo by zero");
  ListBuilder slices(runtime);
  const auto size = static_cast<std::ptrdiff_t>(items->items.size());
  std::ptrdiff_t begin = 0;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const bool has_extra = i < size % count;
    const std::ptrdiff_t end = begin + size / count + (has_extra ? 1 : 0);
    ListBuilder part(runtime);
    for (; begin < end; ++begin) part.push(items->items[static_cast<std::size_t>(begin)]);
    if (is_set(bound[1]) && !has_extra) part.push(*bound[1]);
    slices.push(part.finish());
  }
  return runtime.generator(slices.take());
}

Value group_by(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("groupby", {"attribute", "default", "case_sensitive"}, 1);
  const KeyOf exact{runtime, bound[0], true};
  const bool is_case_sensitive = bound[2] != nullptr && is_true(*bound[2]);
  const ListRef items = runtime.elements(value);
  const auto shown_key = [&](const Value& item) {
    Value key = exact(item);
    return key.is_undefined() && is_set(bound[1]) ? *bound[1] : key;
  };
  ListBuilder keys(runtime);
  for (const Value& item : items->items) {
    const Value key = shown_key(item);
    keys.push(is_case_sensitive ? key : without_case(runtime, key));
  }
  const ListRef sort_keys = keys.take();
  const auto positions = sorted_positions(runtime, sort_keys->items, false);
  ListBuilder groups(runtime);
  for (std::size_t i = 0; i < positions.size();) {
    const Value& key = sort_keys->items[positions[i]];
    const Value shown = shown_key(items->items[positions[i]]);
    ListBuilder group(runtime);
    for (; i < positions.size() && are_equal(runtime.budget(), key, sort_keys->items[positions[i]]);
         ++i) {
      group.push(items->items[positions[i]]);
    }
    if (group.size() == 0)
      group.push(items->items[positions[i++]]);  // a key unequal to itself: nan
    ListBuilder pair(runtime);
    pair.push(shown);
    pair.push(group.finish());
    groups.push(pair.finish_group());
  }
  return groups.finish();
}

}  // namespace

const FilterTable& list_filters() {
  static const FilterTable kTable = {
      {"length", length}, {"count", length},     {"first", first},
      {"last", last},     {"list", list},        {"reverse", reverse},
      {"join", join},     {"items", items},      {"dictsort", dict_sort},
      {"sort", sort},     {"unique", unique},    {"min", extreme<CompareOp::kLess>},
      {"sum", sum},       {"batch", batch},      {"max", extreme<CompareOp::kGreater>},
      {"slice", slice},   {"groupby", group_by},
  };
  return kTable;
}

}  // namespace larder::jinja
