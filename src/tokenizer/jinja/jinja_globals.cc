// The functions that every template sees.
#include <chrono>
#include <ctime>

#include "tokenizer/jinja/jinja_runtime.h"
#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {
namespace {

constexpr Int128 kMaxRange = 100'000;  // as Jinja's sandbox has it

// dict(mapping or pairs, **named).
Dict make_dict(Runtime& runtime, const Args& args) {
  if (args.positional.size() > 1) fail("dict expected at most 1 argument");
  Dict made(runtime.budget());
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (const Dict* dict = source.dict()) {
      for (const auto& [key, value] : dict->entries()) made.set(runtime.budget(), key, value);
    } else {
      const ListRef pairs = runtime.elements(source);
      for (const Value& pair : pairs->items) {
        const ListRef parts = runtime.elements(pair);
        if (parts->items.size() != 2) fail("dict update sequence elements must be pairs");
        made.set(runtime.budget(), parts->items[0], parts->items[1]);
      }
    }
  }
  for (const auto& [name, value, origin] : args.keyword) {
    made.set(runtime.budget(), runtime.text(name, origin), value);
  }
  return made;
}

Value dict(Runtime& runtime, const Args& args) { return runtime.dict(make_dict(runtime, args)); }

Value make_namespace(Runtime& runtime, const Args& args) {
  Dict attributes = make_dict(runtime, args);
  for (const auto& entry : attributes.entries()) {
    const Text* name = entry.first.text();
    if (name != nullptr && name->bytes().starts_with('_')) {
      fail("a namespace cannot have an attribute that begins with '_'");
    }
  }
  auto* made = runtime.make<Namespace>(runtime.budget());
  made->attributes = std::move(attributes);
  return Value(static_cast<Object*>(made));
}

Value range(Runtime& runtime, const Args& args) {
  const auto bound = args.bind("range", {"start", "stop", "step"}, 1);
  const bool has_stop = bound[1] != nullptr;
  const Int128 start = has_stop ? integer_argument(*bound[0], "start") : 0;
  const Int128 stop = integer_argument(has_stop ? *bound[1] : *bound[0], "stop");
  const Int128 step = bound[2] != nullptr ? integer_argument(*bound[2], "step") : 1;
  if (step == 0) fail("range() arg 3 must not be zero");
  constexpr Int128 kFar = Int128{1} << 100;
  if (start > kFar || start < -kFar || stop > kFar || stop < -kFar || step > kFar || step < -kFar) {
    fail("Range too big.");
  }
  const Int128 distance = step > 0 ? stop - start : start - stop;
  const Int128 stride = step > 0 ? step : -step;
  const Int128 count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (count > kMaxRange) fail("Range too big. A template may not have more than 100000 elements.");
  runtime.budget().step(static_cast<std::size_t>(count));
  auto list = std::make_shared<List>();
  list->charge = Charge(runtime.budget());
  list->charge.add(static_cast<std::size_t>(count) * sizeof(Value));
  list->kind = ListKind::kRange;
  list->range_start = start;
  list->range_stop = stop;
  list->range_step = step;
  list->items.reserve(static_cast<std::size_t>(count));
  for (Int128 i = 0; i < count; ++i) list->items.push_back(Value::integer(start + i * step));
  return Value(ListRef(std::move(list)));
}

class Cycler final : public Object {
 public:
  explicit Cycler(ListRef items) : items_(std::move(items)) {}
  std::string_view type_name() const override { return "Cycler"; }

  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "current") return items_->items[next_];
    if (name != "next" && name != "reset") return std::nullopt;
    return Value(
        static_cast<Object*>(runtime.make<BoundMethod>(Value(static_cast<Object*>(this)), name)));
  }

  Value call(Runtime& runtime, std::string_view method, const Args& args) override {
    if (method.empty()) return Object::call(runtime, method, args);
    args.bind(method, {});
    if (method == "reset") {
      next_ = 0;
      return Value::none();
    }
    const Value& item = items_->items[next_];
    next_ = (next_ + 1) % items_->items.size();
    return item;
  }

 private:
  ListRef items_;
  std::size_t next_ = 0;
};

Value cycler(Runtime& runtime, const Args& args) {
  if (args.positional.empty()) fail("at least one item has to be provided");
  ListBuilder items(runtime);
  for (const Value& item : args.positional) items.push(item);
  return Value(static_cast<Object*>(runtime.make<Cycler>(items.take())));
}

class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }

  Value call(Runtime& runtime, std::string_view method, const Args& args) override {
    if (!method.empty()) return Object::call(runtime, method, args);
    args.bind("joiner", {});
    if (std::exchange(is_used_, true)) return separator_;
    return runtime.text("");
  }

 private:
  Value separator_;
  bool is_used_ = false;
};

Value joiner(Runtime& runtime, const Args& args) {
  const auto bound = args.bind("joiner", {"sep"});
  const Value separator = bound[0] != nullptr ? *bound[0] : runtime.text(", ");
  return Value(static_cast<Object*>(runtime.make<Joiner>(separator)));
}

Value raise_exception(Runtime& runtime, const Args& args) {
  const auto bound = args.bind("raise_exception", {"message"}, 1);
  const TextRef message = to_str(runtime.budget(), *bound[0]);
  fail("{}", message->bytes().substr(0, 1000));
}

Value strftime_now(Runtime& runtime, const Args& args) {
  const auto bound = args.bind("strftime_now", {"format"}, 1);
  const std::string format(text_argument(*bound[0], "format").bytes());
  if (format.size() > 1000) fail("a date format is too long");
  runtime.budget().step(100 + 4 * format.size());
  const std::time_t now =
      runtime.now_s != 0 ? static_cast<std::time_t>(runtime.now_s)
                         : std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  if (localtime_r(&now, &parts) == nullptr) fail("the date cannot be represented");
  // A blank ends the format, because a size of 0 could otherwise mean "" as well as "does not fit".
  std::string text(8192, '\0');
  text.resize(std::strftime(text.data(), text.size(), (format + " ").c_str(), &parts));
  if (text.empty()) fail("a date is too long");
  text.pop_back();
  return runtime.text(text, bound[0]->origin());
}

}  // namespace

std::vector<std::pair<std::string_view, Value>> make_globals(Runtime& runtime) {
  std::vector<std::pair<std::string_view, Value>> globals;
  const auto add = [&](std::string_view name, Function::Body body) {
    globals.emplace_back(name, Value(static_cast<Object*>(runtime.make<Function>(name, body))));
  };
  add("range", range);
  add("dict", dict);
  add("namespace", make_namespace);
  add("cycler", cycler);
  add("joiner", joiner);
  add("raise_exception", raise_exception);
  add("strftime_now", strftime_now);
  return globals;
}

}  // namespace larder::jinja
