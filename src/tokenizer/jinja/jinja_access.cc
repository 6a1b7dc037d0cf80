// Attributes, items and slices, with Jinja's fallbacks between the first two.
#include <algorithm>

#include "tokenizer/jinja/jinja_operators.h"
#include "tokenizer/jinja/jinja_unicode.h"

namespace larder::jinja {
namespace {

std::string quote(std::string_view name) { return fmt::format("'{}'", name); }

Value missing(const Value& value, std::string_view name) {
  // A key may be long and from outside; the reason is only read when the value is used.
  return Value::undefined(
      fmt::format("'{} object' has no attribute '{}'", type_name(value), name.substr(0, 100)));
}

// None, or an int with at most the length's size, as slice indices are.
std::optional<std::ptrdiff_t> slice_index(const Value& value) {
  if (value.is_none()) return std::nullopt;
  return index_argument(value, "slice indices");
}

}  // namespace

SliceRange resolve_slice(std::size_t length, const Value& start, const Value& stop,
                         const Value& step) {
  const auto size = static_cast<std::ptrdiff_t>(length);
  SliceRange range;
  range.step = slice_index(step).value_or(1);
  if (range.step == 0) fail("slice step cannot be zero");
  const bool is_forward = range.step > 0;
  const std::ptrdiff_t lowest = is_forward ? 0 : -1;
  const std::ptrdiff_t highest = is_forward ? size : size - 1;
  const auto resolve = [&](const Value& value, std::ptrdiff_t otherwise) {
    std::optional<std::ptrdiff_t> index = slice_index(value);
    if (!index) return otherwise;
    if (*index < 0) *index += size;
    return std::clamp(*index, lowest, highest);
  };
  range.start = resolve(start, is_forward ? lowest : highest);
  const std::ptrdiff_t end = resolve(stop, is_forward ? highest : lowest);
  const std::ptrdiff_t distance = is_forward ? end - range.start : range.start - end;
  const std::ptrdiff_t stride = is_forward ? range.step : -range.step;
  if (distance > 0) range.count = static_cast<std::size_t>((distance + stride - 1) / stride);
  return range;
}

Value Runtime::own_attribute(const Value& value, std::string_view name, bool& is_known) {
  is_known = true;
  budget_.scan(name.size());  // the filter attr takes any text for one
  if (const auto* space = value.object<Namespace>()) {
    if (const Value* found = space->attributes.find(budget_, name)) return *found;
    is_known = false;
    return missing(value, name);
  }
  switch (find_method(value, name)) {
    case MethodStatus::kAllowed:
      return Value(static_cast<Object*>(make<BoundMethod>(value, name)));
    case MethodStatus::kForbidden:
      return Value::undefined(fmt::format("access to attribute {} of '{}' object is unsafe.",
                                          quote(name), type_name(value)));
    case MethodStatus::kNone:
      break;
  }
  if (const List* list = value.list(); list != nullptr && list->kind == ListKind::kRange) {
    if (name == "start") return Value::integer(list->range_start);
    if (name == "stop") return Value::integer(list->range_stop);
    if (name == "step") return Value::integer(list->range_step);
  }
  if (const List* list = value.list(); list != nullptr && list->is_group) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  if (is_number(value)) {
    if (name == "real" || (name == "numerator" && is_integral(value))) return plus(value);
    if (name == "imag" && is_integral(value)) return Value::integer(0);
    if (name == "denominator" && is_integral(value)) return Value::integer(1);
  }
  if (const auto* object = value.get_if<Object*>()) {
    if (std::optional<Value> found = (*object)->attribute(*this, name)) return *std::move(found);
  }
  is_known = false;
  return missing(value, name);
}

Value Runtime::attribute(const Value& value, std::string_view name) {
  // The reference finds its host's own class there, and then hides it.
  if (value.is_undefined() && name == "__class__") return missing(value, name);
  require_defined(value);
  bool is_known = false;
  Value found = own_attribute(value, name, is_known);
  if (is_known) return found;
  if (const Dict* dict = value.dict()) {
    if (const Value* element = dict->find(budget_, name)) return *element;
  }
  return found;
}

Value Runtime::element_at(const Value& value, const Value& key, bool& is_found) {
  is_found = true;
  if (const Dict* dict = value.dict()) {
    if (is_hashable(budget_, key)) {
      if (const Value* found = dict->find(budget_, key)) return *found;
    }
  } else if (is_integral(key)) {
    const Int128 index = to_integer(key);
    const auto resolve = [index](std::size_t length) -> std::optional<std::size_t> {
      const auto size = static_cast<Int128>(length);
      const Int128 position = index < 0 ? index + size : index;
      if (position < 0 || position >= size) return std::nullopt;
      return static_cast<std::size_t>(position);
    };
    const List* list = value.list();
    if (list != nullptr && list->kind <= ListKind::kRange) {
      if (const auto position = resolve(list->items.size())) return list->items[*position];
    } else if (const auto* text = value.get_if<TextRef>()) {
      if (const auto position = resolve(length(value))) {
        const std::string_view bytes = (*text)->bytes();
        const std::size_t at = byte_offset(budget_, bytes, *position);
        return substring(*text, at, at + character_at(bytes, at).num_bytes);
      }
    }
  }
  is_found = false;
  return {};
}

Value Runtime::item(const Value& value, const Value& key) {
  require_defined(value);
  bool is_found = false;
  Value found = element_at(value, key, is_found);
  if (is_found) return found;
  if (const Text* name = key.text()) {
    found = own_attribute(value, name->bytes(), is_found);
    return found;
  }
  return Value::undefined(
      fmt::format("{} object has no element {}", type_name(value), to_str(budget_, key)->bytes()));
}

Value Runtime::slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  if (const List* list = value.list(); list != nullptr && list->kind <= ListKind::kRange) {
    const SliceRange range = resolve_slice(list->items.size(), start, stop, step);
    ListBuilder items(*this);
    for (std::size_t i = 0; i < range.count; ++i) {
      items.push(list->items[static_cast<std::size_t>(range.start) + i * range.step]);
    }
    if (list->kind == ListKind::kRange) return range_slice(*list, range, items);
    return items.finish(list->kind, value.origin());
  }
  const auto* text = value.get_if<TextRef>();
  if (text == nullptr) fail("'{}' object is not subscriptable", type_name(value));
  const std::string_view bytes = (*text)->bytes();
  const SliceRange range = resolve_slice(length(value), start, stop, step);
  if (range.count == 0) return this->text("");
  if (range.step == 1) {
    const std::size_t begin = byte_offset(budget_, bytes, static_cast<std::size_t>(range.start));
    return substring(*text, begin, begin + byte_offset(budget_, bytes.substr(begin), range.count));
  }
  TextBuilder out(budget_);
  budget_.step(length(value));
  const bool is_forward = range.step > 0;
  const auto stride = static_cast<std::size_t>(is_forward ? range.step : -range.step);
  std::size_t at = byte_offset(budget_, bytes, static_cast<std::size_t>(range.start));
  for (std::size_t taken = 0;;) {
    out.append(**text, at, at + character_at(bytes, at).num_bytes);
    if (++taken == range.count) break;
    for (std::size_t i = 0; i < stride; ++i) {
      if (is_forward) {
        at += character_at(bytes, at).num_bytes;
      } else {
        at -= character_before(bytes, at).num_bytes;
      }
    }
  }
  return Value(out.finish());
}

Value Runtime::range_slice(const List& list, const SliceRange& slice, ListBuilder& items) {
  const ListRef taken = items.take(ListKind::kRange);
  auto range = std::make_shared<List>();
  range->charge = Charge(budget_);
  range->kind = ListKind::kRange;
  range->items = taken->items;
  range->charge.add(range->items.size() * sizeof(Value));
  range->range_step = list.range_step * slice.step;
  range->range_start = list.range_start + slice.start * list.range_step;
  range->range_stop = range->range_start + static_cast<Int128>(slice.count) * range->range_step;
  return Value(ListRef(std::move(range)));
}

Value Runtime::attribute_path(Value value, const Value& path) {
  if (path.text() == nullptr) return path.is_none() ? value : item(value, path);
  std::string_view rest = path.text()->bytes();
  for (bool is_more = true; is_more;) {
    budget_.step();
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    is_more = dot != std::string_view::npos;
    if (is_more) rest.remove_prefix(dot + 1);
    const bool is_index = !part.empty() && part.size() < 10 &&
                          part.find_first_not_of("0123456789") == std::string_view::npos;
    value = item(value, is_index ? Value::integer(std::stoll(std::string(part))) : text(part));
  }
  return value;
}

}  // namespace larder::jinja
