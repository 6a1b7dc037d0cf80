// What a template's expressions are made of: Python's values, as far as Jinja shows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja/jinja_text.h"

namespace larder::jinja {

class Dict;
class Runtime;
struct Args;
class Value;
struct List;
struct Generator;
using ListRef = std::shared_ptr<const List>;
using DictRef = std::shared_ptr<const Dict>;
using GeneratorRef = std::shared_ptr<Generator>;

struct Undefined {
  std::shared_ptr<const std::string> reason;  // what to say when it is used
};
struct None {};

// Python's int, as far as 128 bits; beyond them a template fails. Split so that a Value stays
// small.
using Int128 = __int128;
class Integer {
 public:
  Integer(Int128 value)  // NOLINT: an integer is an integer
      : low_(static_cast<std::uint64_t>(value)), high_(static_cast<std::int64_t>(value >> 64)) {}
  operator Int128() const { return (static_cast<Int128>(high_) << 64) | low_; }

 private:
  std::uint64_t low_;
  std::int64_t high_;
};

// Things with identity: namespaces, macros, loops. The Runtime owns them until the rendering ends,
// so that those which refer to each other need no collector.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual bool is_callable() const { return false; }
  // method "" calls the object itself. Fails when there is no such method.
  virtual Value call(Runtime& runtime, std::string_view method, const Args& args);
  // nullopt: it has none of that name.
  virtual std::optional<Value> attribute(Runtime& runtime, std::string_view name);
  // As Python prints it; all of origin.
  virtual void append_repr(Budget& budget, TextBuilder& out, Origin origin) const;
};

class Value {
 public:
  using Data = std::variant<Undefined, None, bool, Integer, double, TextRef, ListRef, DictRef,
                            GeneratorRef, Object*>;

  Value() = default;                                  // undefined
  Value(Data data, Origin origin = Origin::kTrusted)  // NOLINT: every alternative is a value
      : data_(std::move(data)), origin_(origin) {}
  static Value integer(Int128 value, Origin origin = Origin::kTrusted) {
    return {Data(Integer(value)), origin};
  }
  static Value boolean(bool value, Origin origin = Origin::kTrusted) {
    return {Data(value), origin};
  }
  static Value real(double value, Origin origin = Origin::kTrusted) {
    return {Data(value), origin};
  }
  static Value none(Origin origin = Origin::kTrusted) { return {Data(None{}), origin}; }
  static Value undefined(std::string reason);

  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  const Text* text() const {
    const auto* ref = get_if<TextRef>();
    return ref != nullptr ? ref->get() : nullptr;
  }
  const List* list() const {
    const auto* ref = get_if<ListRef>();
    return ref != nullptr ? ref->get() : nullptr;
  }
  const Dict* dict() const {
    const auto* ref = get_if<DictRef>();
    return ref != nullptr ? ref->get() : nullptr;
  }
  template <class T>
  T* object() const {
    const auto* pointer = get_if<Object*>();
    return pointer != nullptr ? dynamic_cast<T*>(*pointer) : nullptr;
  }
  const Data& data() const { return data_; }

  // Of a container, where it was made; its elements know their own.
  Origin origin() const {
    const Text* own = text();
    return own != nullptr ? own->origin() : origin_;
  }

 private:
  Data data_;
  Origin origin_ = Origin::kTrusted;
};

enum class ListKind : std::uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems };

// Immutable once shared; so are dicts. depth = 1 + the deepest element's, bounded by the budget's.
struct List {
  ListKind kind = ListKind::kList;
  bool is_group = false;  // a tuple of groupby: its elements have the names grouper and list
  int depth = 1;
  std::vector<Value> items;
  Int128 range_start = 0, range_stop = 0, range_step = 1;  // kRange: as written
  Charge charge;
};

// Read once, from front to back.
struct Generator {
  ListRef items;
  std::size_t next = 0;
};

// In order of insertion. Keys are compared as Python does: 1 == 1.0 == True.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  Dict() = default;
  explicit Dict(Budget& budget) : charge_(budget) {}

  const Value* find(Budget& budget, std::string_view key) const;
  const Value* find(Budget& budget, const Value& key) const;
  // Fails when the key is a list or a dict.
  void set(Budget& budget, Value key, Value value);
  // Sets a key that is there already; false when it is not.
  bool replace(Budget& budget, std::string_view key, Value value);
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  static constexpr std::size_t kMaxUnindexed = 8;
  void index(std::size_t entry);

  std::vector<Entry> entries_;
  // Views of the keys' own bytes. Ordered: whoever sends a request can choose keys that share one hash.
  std::map<std::string_view, std::size_t> by_text_;
  int depth_ = 1;
  Charge charge_;
};

inline std::optional<Value> Object::attribute(Runtime&, std::string_view) { return std::nullopt; }

int depth_of(const Value& value);
std::string_view type_name(const Value& value);  // Python's: str, int, NoneType, ...
bool is_hashable(Budget& budget, const Value& value);
bool is_true(const Value& value);
// bool, int and float; bools count as 0 and 1.
bool is_number(const Value& value);
bool is_integral(const Value& value);   // int or bool
Int128 to_integer(const Value& value);  // is_integral only
double to_double(const Value& value);   // is_number only

bool are_equal(Budget& budget, const Value& a, const Value& b);
// < 0, 0, > 0. Fails for types that have no order.
int compare(Budget& budget, const Value& a, const Value& b, std::string_view op = "<");
bool is_same(const Value& a, const Value& b);  // Python's `is`
// str(value) and repr(value). What is built of parts is wholly untrusted when a part is.
void append_str(Budget& budget, TextBuilder& out, const Value& value);
void append_repr(Budget& budget, TextBuilder& out, const Value& value, Origin origin);
TextRef to_str(Budget& budget, const Value& value);
std::string integer_text(Int128 value);
std::string float_repr(double value);
// The first untrusted origin in it, looking into containers.
Origin deep_origin(Budget& budget, const Value& value);

}  // namespace larder::jinja
