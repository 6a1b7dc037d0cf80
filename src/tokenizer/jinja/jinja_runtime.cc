#include "tokenizer/jinja/jinja_runtime.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tokenizer/jinja/jinja_unicode.h"

namespace larder::jinja {

std::vector<const Value*> Args::bind(std::string_view function,
                                     std::initializer_list<std::string_view> parameters,
                                     std::size_t num_required) const {
  if (positional.size() > parameters.size()) {
    fail("{} takes at most {} arguments, not {}", function, parameters.size(), positional.size());
  }
  std::vector<const Value*> bound(parameters.size(), nullptr);
  for (std::size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value, origin] : keyword) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) fail("{} takes no argument '{}'", function, name);
    auto& slot = bound[static_cast<std::size_t>(found - parameters.begin())];
    if (slot != nullptr) fail("{} has two values for '{}'", function, name);
    slot = &value;
  }
  for (std::size_t i = 0; i < num_required; ++i) {
    if (bound[i] == nullptr) fail("{} needs the argument '{}'", function, parameters.begin()[i]);
  }
  return bound;
}

void Args::copy(Budget& budget, const Value& value) {
  budget.step();
  charge.add(budget, sizeof(Value));
  positional.push_back(value);
}

void Args::copy(Budget& budget, std::string_view name, const Value& value, Origin origin) {
  budget.step();
  budget.scan(name.size());
  charge.add(budget, sizeof(Keyword) + name.size());
  keyword.push_back({std::string(name), value, origin});
}

ListBuilder::ListBuilder(Runtime& runtime) : runtime_(runtime) {
  list_.charge = Charge(runtime.budget());
  list_.charge.add(sizeof(List));
}

void ListBuilder::push(Value value) {
  runtime_.budget().step();
  list_.charge.add(sizeof(Value));
  list_.depth = std::max(list_.depth, 1 + depth_of(value));
  list_.items.push_back(std::move(value));
}

ListRef ListBuilder::take(ListKind kind) {
  const int max_depth = runtime_.budget().max_depth();
  if (list_.depth > max_depth) fail("a value is nested deeper than {}", max_depth);
  list_.kind = kind;
  return std::make_shared<const List>(std::move(list_));
}

Value ListBuilder::finish(ListKind kind, Origin origin) { return {take(kind), origin}; }

Value ListBuilder::finish_group() {
  list_.is_group = true;
  return finish(ListKind::kTuple);
}

Value Runtime::text(std::string_view bytes, Origin origin) {
  TextBuilder out(budget_);
  out.append(bytes, origin);
  return Value(out.finish());
}

Value Runtime::substring(const TextRef& text, std::size_t begin, std::size_t end) {
  if (begin == 0 && end == text->size()) return Value(text);
  TextBuilder out(budget_);
  out.set_markup(text->is_markup());
  out.append(*text, begin, end);
  return Value(out.finish());
}

Value Runtime::dict(Dict dict, Origin origin) {
  return {std::make_shared<const Dict>(std::move(dict)), origin};
}

Value Runtime::pair(Value first, Value second) {
  ListBuilder pair(*this);
  pair.push(std::move(first));
  pair.push(std::move(second));
  return pair.finish(ListKind::kTuple);
}

Value Runtime::generator(ListRef items) {
  return Value(std::make_shared<Generator>(Generator{std::move(items)}));
}

ListRef Runtime::elements(const Value& value) {
  if (const auto* list = value.get_if<ListRef>()) return *list;
  ListBuilder items(*this);
  if (const auto* text = value.get_if<TextRef>()) {
    const std::string_view bytes = (*text)->bytes();
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t next = at + character_at(bytes, at).num_bytes;
      TextBuilder one(budget_);  // never markup, even of markup
      one.append(**text, at, next);
      items.push(Value(one.finish()));
      at = next;
    }
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries()) items.push(entry.first);
  } else if (const auto* generator = value.get_if<GeneratorRef>()) {
    Generator& source = **generator;
    if (source.next == 0) {
      source.next = source.items->items.size();
      return source.items;
    }
    for (; source.next < source.items->items.size(); ++source.next) {
      items.push(source.items->items[source.next]);
    }
  } else if (!value.is_undefined()) {
    fail("'{}' object is not iterable", type_name(value));
  }
  return items.take();
}

bool Runtime::is_iterable(const Value& value) const {
  return value.is_undefined() || value.text() != nullptr || value.list() != nullptr ||
         value.dict() != nullptr || value.is<GeneratorRef>();
}

std::size_t Runtime::length(const Value& value) {
  if (const Text* text = value.text()) return count_characters(budget_, text->bytes());
  if (const List* list = value.list()) return list->items.size();
  if (const Dict* dict = value.dict()) return dict->size();
  if (value.is_undefined()) return 0;
  fail("object of type '{}' has no len()", type_name(value));
}

bool Runtime::contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    const Text* part = item.text();
    if (part == nullptr) {
      fail("'in <string>' requires string as left operand, not {}", type_name(item));
    }
    budget_.scan(text->size() + part->size());
    // Linear in both, unlike std::string_view::find.
    return memmem(text->bytes().data(), text->size(), part->bytes().data(), part->size()) !=
           nullptr;
  }
  if (const Dict* dict = container.dict()) return dict->find(budget_, item) != nullptr;
  if (const auto* object = container.get_if<Object*>()) {
    fail("argument of type '{}' is not iterable", (*object)->type_name());
  }
  const auto* generator = container.get_if<GeneratorRef>();
  if (generator != nullptr) {
    Generator& source = **generator;
    while (source.next < source.items->items.size()) {
      if (are_equal(budget_, source.items->items[source.next++], item)) return true;
    }
    return false;
  }
  const ListRef items = elements(container);
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& other) { return are_equal(budget_, other, item); });
}

Value Object::call(Runtime&, std::string_view, const Args&) {
  fail("'{}' object is not callable", type_name());
}

Value BoundMethod::call(Runtime& runtime, std::string_view method, const Args& args) {
  if (!method.empty()) return Object::call(runtime, method, args);
  if (const auto* object = self_.get_if<Object*>()) return (*object)->call(runtime, name_, args);
  return call_method(runtime, self_, name_, args);
}

Value Function::call(Runtime& runtime, std::string_view method, const Args& args) {
  if (!method.empty()) return Object::call(runtime, method, args);
  return body_(runtime, args);
}

Value Runtime::call(const Value& callee, const Args& args) {
  budget_.step();
  require_defined(callee);
  const auto* object = callee.get_if<Object*>();
  if (object == nullptr) fail("'{}' object is not callable", type_name(callee));
  return (*object)->call(*this, "", args);
}

void Namespace::append_repr(Budget& budget, TextBuilder& out, Origin origin) const {
  if (is_printing_) return out.append("<Namespace {...}>", origin);
  is_printing_ = true;
  bool is_first = true;
  out.append("<Namespace {", origin);
  for (const auto& [key, value] : attributes.entries()) {
    if (!is_first) out.append(", ", origin);
    is_first = false;
    jinja::append_repr(budget, out, key, merge(origin, key.origin()));
    out.append(": ", origin);
    jinja::append_repr(budget, out, value, merge(origin, deep_origin(budget, value)));
  }
  out.append("}>", origin);
  is_printing_ = false;
}

void fail_undefined(const Value& value) {
  const auto* undefined = value.get_if<Undefined>();
  if (undefined != nullptr && undefined->reason) fail("{}", *undefined->reason);
  fail("a value is undefined");
}

void require_defined(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
}

Int128 integer_argument(const Value& value, std::string_view what) {
  require_defined(value);
  if (!is_integral(value)) fail("{} must be an int, not {}", what, type_name(value));
  return to_integer(value);
}

std::ptrdiff_t index_argument(const Value& value, std::string_view what) {
  constexpr Int128 kMost = std::numeric_limits<std::ptrdiff_t>::max() / 4;
  return static_cast<std::ptrdiff_t>(std::clamp(integer_argument(value, what), -kMost, kMost));
}

}  // namespace larder::jinja
