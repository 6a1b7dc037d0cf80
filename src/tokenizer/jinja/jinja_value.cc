#include "tokenizer/jinja/jinja_value.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace larder::jinja {
namespace {

constexpr std::size_t kLongKey = 128;  // bytes, which are compared in one step

}  // namespace

Value Value::undefined(std::string reason) {
  return Value(Data(Undefined{std::make_shared<const std::string>(std::move(reason))}));
}

const Value* Dict::find(Budget& budget, std::string_view key) const {
  const bool is_indexed = entries_.size() > kMaxUnindexed;
  // Each of those that it is compared with may differ in its last byte only. A name of a template's is short.
  const std::size_t num_compared = is_indexed ? std::bit_width(entries_.size()) : entries_.size();
  budget.step(key.size() / kLongKey * num_compared);
  if (is_indexed) {
    const auto found = by_text_.find(key);
    return found == by_text_.end() ? nullptr : &entries_[found->second].second;
  }
  for (const auto& [name, value] : entries_) {
    const Text* text = name.text();
    if (text != nullptr && text->bytes() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(Budget& budget, const Value& key) const {
  if (const Text* text = key.text()) return find(budget, text->bytes());
  if (!is_hashable(budget, key)) fail("unhashable type: '{}'", type_name(key));
  for (const auto& [name, value] : entries_) {
    budget.step();
    if (name.text() == nullptr && are_equal(budget, name, key)) return &value;
  }
  return nullptr;
}

void Dict::set(Budget& budget, Value key, Value value) {
  budget.step();
  depth_ = std::max({depth_, 1 + depth_of(value), 1 + depth_of(key)});
  if (depth_ > budget.max_depth()) fail("a value is nested deeper than {}", budget.max_depth());
  if (const Value* found = find(budget, key)) {
    const_cast<Value&>(*found) = std::move(value);  // our own entry: find is const for readers
    return;
  }
  charge_.add(sizeof(Entry) + sizeof(void*) * 8);
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() == kMaxUnindexed + 1) {
    for (std::size_t i = 0; i < entries_.size(); ++i) index(i);
  } else if (entries_.size() > kMaxUnindexed) {
    index(entries_.size() - 1);
  }
}

bool Dict::replace(Budget& budget, std::string_view key, Value value) {
  const Value* found = find(budget, key);
  if (found == nullptr) return false;
  const_cast<Value&>(*found) = std::move(value);  // our own entry
  return true;
}

void Dict::index(std::size_t entry) {
  if (const Text* text = entries_[entry].first.text()) by_text_.emplace(text->bytes(), entry);
}

int depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth();
  if (const auto* generator = value.get_if<GeneratorRef>()) return (*generator)->items->depth;
  return 0;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is<bool>()) return "bool";
  if (value.is<Integer>()) return "int";
  if (value.is<double>()) return "float";
  if (value.text() != nullptr) return "str";
  if (value.dict() != nullptr) return "dict";
  if (value.is<GeneratorRef>()) return "generator";
  if (const List* list = value.list()) {
    switch (list->kind) {
      case ListKind::kList:
        return "list";
      case ListKind::kTuple:
        return "tuple";
      case ListKind::kRange:
        return "range";
      case ListKind::kKeys:
        return "dict_keys";
      case ListKind::kValues:
        return "dict_values";
      case ListKind::kItems:
        return "dict_items";
    }
  }
  return (*value.get_if<Object*>())->type_name();
}

bool is_hashable(Budget& budget, const Value& value) {
  budget.step();
  if (value.dict() != nullptr) return false;
  const List* list = value.list();
  if (list == nullptr || list->kind == ListKind::kRange) return true;
  return list->kind == ListKind::kTuple &&
         std::all_of(list->items.begin(), list->items.end(),
                     [&](const Value& item) { return is_hashable(budget, item); });
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto* boolean = value.get_if<bool>()) return *boolean;
  if (const auto* integer = value.get_if<Integer>()) return *integer != 0;
  if (const auto* real = value.get_if<double>()) return *real != 0;
  if (const Text* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return !list->items.empty();
  if (const Dict* dict = value.dict()) return dict->size() > 0;
  return true;
}

bool is_number(const Value& value) { return is_integral(value) || value.is<double>(); }
bool is_integral(const Value& value) { return value.is<bool>() || value.is<Integer>(); }

Int128 to_integer(const Value& value) {
  if (const auto* boolean = value.get_if<bool>()) return *boolean ? 1 : 0;
  return *value.get_if<Integer>();
}

double to_double(const Value& value) {
  if (const auto* real = value.get_if<double>()) return *real;
  return static_cast<double>(to_integer(value));
}

namespace {

// Exact for every 64-bit integer: the x87 format has 64 bits of mantissa.
int compare_numbers(const Value& a, const Value& b) {
  if (is_integral(a) && is_integral(b)) {
    const Int128 x = to_integer(a), y = to_integer(b);
    return x < y ? -1 : x > y;
  }
  const auto widen = [](const Value& v) -> long double {
    return is_integral(v) ? static_cast<long double>(to_integer(v)) : *v.get_if<double>();
  };
  const long double x = widen(a), y = widen(b);
  return x < y ? -1 : x > y;
}

bool is_nan(const Value& value) {
  const auto* real = value.get_if<double>();
  return real != nullptr && std::isnan(*real);
}

bool are_equal_lists(Budget& budget, const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(),
                    [&](const Value& x, const Value& y) { return are_equal(budget, x, y); });
}

bool are_equal_dicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&](const Dict::Entry& entry) {
    const Value* other = b.find(budget, entry.first);
    return other != nullptr && are_equal(budget, entry.second, *other);
  });
}

}  // namespace

bool are_equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (is_number(a) && is_number(b)) {
    return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
  }
  if (a.data().index() != b.data().index()) return false;
  if (const Text* text = a.text()) {
    budget.scan(text->size());
    return text->bytes() == b.text()->bytes();
  }
  if (const List* list = a.list())
    return list == b.list() || are_equal_lists(budget, *list, *b.list());
  if (const Dict* dict = a.dict())
    return dict == b.dict() || are_equal_dicts(budget, *dict, *b.dict());
  return is_same(a, b) || a.is_undefined();
}

int compare(Budget& budget, const Value& a, const Value& b, std::string_view op) {
  budget.step();
  if (is_number(a) && is_number(b)) return compare_numbers(a, b);
  if (a.text() != nullptr && b.text() != nullptr) {
    // Bytes of UTF-8 are in the order of their code points.
    budget.scan(std::min(a.text()->size(), b.text()->size()));
    const int order = a.text()->bytes().compare(b.text()->bytes());
    return order < 0 ? -1 : order > 0;
  }
  const List *x = a.list(), *y = b.list();
  if (x != nullptr && y != nullptr && x->kind == y->kind && x->kind <= ListKind::kTuple) {
    const std::size_t shared = std::min(x->items.size(), y->items.size());
    for (std::size_t i = 0; i < shared; ++i) {
      if (are_equal(budget, x->items[i], y->items[i])) continue;
      return compare(budget, x->items[i], y->items[i], op);
    }
    return x->items.size() < y->items.size() ? -1 : x->items.size() > y->items.size();
  }
  for (const Value* value : {&a, &b}) {
    const auto* undefined = value->get_if<Undefined>();
    if (undefined != nullptr && undefined->reason) fail("{}", *undefined->reason);
  }
  fail("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

bool is_same(const Value& a, const Value& b) {
  if (a.data().index() != b.data().index()) return false;
  if (a.is_none()) return true;
  if (const auto* boolean = a.get_if<bool>()) return *boolean == *b.get_if<bool>();
  if (const auto* integer = a.get_if<Integer>()) return *integer == *b.get_if<Integer>();
  if (a.text() != nullptr) return a.text() == b.text();
  if (a.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr) return a.dict() == b.dict();
  if (const auto* generator = a.get_if<GeneratorRef>()) {
    return *generator == *b.get_if<GeneratorRef>();
  }
  if (const auto* object = a.get_if<Object*>()) return *object == *b.get_if<Object*>();
  return false;
}

Origin deep_origin(Budget& budget, const Value& value) {
  budget.step();
  Origin origin = value.origin();
  if (const List* list = value.list()) {
    for (const Value& item : list->items) {
      if (origin != Origin::kTrusted) break;
      origin = deep_origin(budget, item);
    }
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, item] : dict->entries()) {
      if (origin != Origin::kTrusted) break;
      origin = merge(deep_origin(budget, key), deep_origin(budget, item));
    }
  }
  return origin;
}

}  // namespace larder::jinja
