// One rendering's world: its budget, the objects it made, and the operations that filters, methods
// and the interpreter share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/jinja_value.h"

namespace larder::jinja {

class Runtime;

// name=value in a call.
struct Keyword {
  std::string name;
  Value value;
  Origin origin = Origin::kTrusted;  // of the name, which ** takes from a dict
};

// The arguments of one call.
struct Args {
  std::vector<Value> positional;
  std::vector<Keyword> keyword;
  Charge charge;  // for those that were copied: * and ** give as many as a list or dict has

  // Copies one more argument; the budget pays for it, by the step and the byte.
  void copy(Budget& budget, const Value& value);
  void copy(Budget& budget, std::string_view name, const Value& value, Origin origin);
  // Lays the arguments out by parameter; nullptr where none was given. Fails on one too many, on an
  // unknown keyword, and when one of the first num_required is missing. Valid while this lives.
  std::vector<const Value*> bind(std::string_view function,
                                 std::initializer_list<std::string_view> parameters,
                                 std::size_t num_required = 0) const;
};

// Indices of a Python slice over a sequence of `length`.
struct SliceRange {
  std::ptrdiff_t start = 0, step = 1;
  std::size_t count = 0;
};
SliceRange resolve_slice(std::size_t length, const Value& start, const Value& stop,
                         const Value& step);

// A list as it grows: each element is charged before it is kept.
class ListBuilder {
 public:
  explicit ListBuilder(Runtime& runtime);
  void push(Value value);
  std::size_t size() const { return list_.items.size(); }
  ListRef take(ListKind kind = ListKind::kList);
  Value finish(ListKind kind = ListKind::kList, Origin origin = Origin::kTrusted);
  Value finish_group();  // of two elements, see List::is_group

 private:
  Runtime& runtime_;
  List list_;
};

// Thread: one.
class Runtime {
 public:
  Runtime(std::int64_t max_steps, std::size_t max_bytes, int max_depth)
      : budget_(max_steps, max_bytes, max_depth) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Budget& budget() { return budget_; }
  // Unix time for strftime_now; 0 = the system's clock.
  std::int64_t now_s = 0;

  template <class T, class... Arguments>
  T* make(Arguments&&... arguments) {
    budget_.take(sizeof(T) + kObjectOverhead);
    auto object = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    T* pointer = object.get();
    objects_.push_back(std::move(object));
    return pointer;
  }
  Value text(std::string_view bytes, Origin origin = Origin::kTrusted);
  Value substring(const TextRef& text, std::size_t begin, std::size_t end);  // bytes
  Value dict(Dict dict, Origin origin = Origin::kTrusted);
  Value pair(Value first, Value second);
  Value generator(ListRef items);

  // Python's iter(): the elements, the keys of a dict, the characters of a string; what is left of
  // a generator, which is then spent. Fails for what cannot be iterated.
  ListRef elements(const Value& value);
  bool is_iterable(const Value& value) const;
  // len(); fails for what has none.
  std::size_t length(const Value& value);
  bool contains(const Value& container, const Value& item);

  // `value.name` and `value[key]`: undefined when there is none.
  Value attribute(const Value& value, std::string_view name);
  Value item(const Value& value, const Value& key);
  // value[start:stop:step]; each may be none.
  Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
  // A path like "function.name" or "items.0", as filters take it.
  Value attribute_path(Value value, const Value& path);

  Value call(const Value& callee, const Args& args);
  Value call_filter(std::string_view name, const Value& value, const Args& args);
  bool call_test(std::string_view name, const Value& value, const Args& args);

 private:
  static constexpr std::size_t kObjectOverhead = 64;

  Value own_attribute(const Value& value, std::string_view name, bool& is_known);
  Value element_at(const Value& value, const Value& key, bool& is_found);
  Value range_slice(const List& list, const SliceRange& slice, ListBuilder& items);

  friend class DepthGuard;

  int nesting_ = 0;  // of evaluations, each of which uses some of the machine's stack
  Budget budget_;    // first, because everything else is charged to it
  std::vector<std::unique_ptr<Object>> objects_;
};

// One more level of evaluation; fails before the machine's stack could end.
class DepthGuard {
 public:
  explicit DepthGuard(Runtime& runtime) : nesting_(runtime.nesting_) {
    if (nesting_ >= runtime.budget_.max_depth() * kLevelsPerDepth) {
      fail("it is nested or recurses too deeply");
    }
    ++nesting_;
  }
  ~DepthGuard() { --nesting_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  // A call of a macro takes about eight: call, body, branch, output, expression.
  static constexpr int kLevelsPerDepth = 10;
  int& nesting_;
};

// value.method(...) without calling it.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string_view name) : self_(std::move(self)), name_(name) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool is_callable() const override { return true; }
  Value call(Runtime& runtime, std::string_view method, const Args& args) override;

 private:
  Value self_;
  std::string name_;
};

// What a template may call by name: range, namespace, raise_exception, ...
class Function final : public Object {
 public:
  using Body = Value (*)(Runtime& runtime, const Args& args);
  Function(std::string_view name, Body body) : name_(name), body_(body) {}
  std::string_view type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Runtime& runtime, std::string_view method, const Args& args) override;

 private:
  std::string_view name_;
  Body body_;
};

// The only values that a template can change.
class Namespace final : public Object {
 public:
  explicit Namespace(Budget& budget) : attributes(budget) {}
  std::string_view type_name() const override { return "Namespace"; }
  void append_repr(Budget& budget, TextBuilder& out, Origin origin) const override;

  Dict attributes;

 private:
  mutable bool is_printing_ = false;  // it may hold itself
};

enum class MethodStatus { kNone, kAllowed, kForbidden };
// Whether Python's type has that method, and whether the sandbox lets a template have it (a method
// that changes its object is forbidden).
MethodStatus find_method(const Value& self, std::string_view name);
Value call_method(Runtime& runtime, const Value& self, std::string_view name, const Args& args);
Value call_text_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Args& args);

// The functions that every template sees. Names are literals.
std::vector<std::pair<std::string_view, Value>> make_globals(Runtime& runtime);

[[noreturn]] void fail_undefined(const Value& value);
// Fails with the undefined value's own reason when it is one.
void require_defined(const Value& value);
Int128 integer_argument(const Value& value, std::string_view what);
// Clamped to what a length can be; fails when it is not an int.
std::ptrdiff_t index_argument(const Value& value, std::string_view what);

}  // namespace larder::jinja
