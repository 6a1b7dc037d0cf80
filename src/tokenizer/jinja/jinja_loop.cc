#include "tokenizer/jinja/jinja_loop.h"

#include <limits>

namespace larder::jinja {

Loop::Loop(Interpreter& interpreter, const Stmt& stmt, ScopeRef scope, ListRef items, int depth0)
    : interpreter_(interpreter),
      stmt_(stmt),
      scope_(std::move(scope)),
      items_(std::move(items)),
      depth0_(depth0) {
  if (stmt.expressions[1] == nullptr) num_asked_ = num_wanted_ = items_->items.size();
}

bool Loop::has(std::size_t index0) const {
  while (num_wanted_ <= index0 && items_ != nullptr && num_asked_ < items_->items.size()) {
    // The condition may hold this loop in a namespace.
    if (is_asking_) fail("the condition of a loop needs the loop's next item");
    is_asking_ = true;
    if (interpreter_.is_wanted(stmt_, scope_, items_->items[num_asked_])) {
      wanted_.push_back(num_asked_);
      ++num_wanted_;
    }
    is_asking_ = false;
    ++num_asked_;
  }
  return index0 < num_wanted_;
}

const Value& Loop::item(std::size_t index0) const {
  return items_->items[stmt_.expressions[1] == nullptr ? index0 : wanted_[index0]];
}

std::size_t Loop::length() const {
  has(std::numeric_limits<std::size_t>::max());
  return num_wanted_;
}

void Loop::release() {
  items_.reset();
  scope_.reset();
  wanted_ = {};
  last_changed_ = Value();
}

std::optional<Value> Loop::attribute(Runtime& runtime, std::string_view name) {
  const auto number = [](std::size_t value) { return Value::integer(static_cast<Int128>(value)); };
  const auto neighbour = [&](bool exists, std::size_t index, std::string_view which) {
    if (exists && items_ != nullptr) return item(index);
    return Value::undefined(fmt::format("there is no {} item", which));
  };
  if (name == "index") return number(index0_ + 1);
  if (name == "index0") return number(index0_);
  if (name == "length") return number(length());
  if (name == "revindex") return number(length() - index0_);
  if (name == "revindex0") return number(length() - index0_ - 1);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!has(index0_ + 1));
  if (name == "depth") return Value::integer(depth0_ + 1);
  if (name == "depth0") return Value::integer(depth0_);
  if (name == "previtem") return neighbour(index0_ > 0, index0_ - 1, "previous");
  if (name == "nextitem") return neighbour(has(index0_ + 1), index0_ + 1, "next");
  if (name != "cycle" && name != "changed") return std::nullopt;
  return Value(
      static_cast<Object*>(runtime.make<BoundMethod>(Value(static_cast<Object*>(this)), name)));
}

void Loop::append_repr(Budget&, TextBuilder& out, Origin origin) const {
  out.append(fmt::format("<LoopContext {}/{}>", index0_ + 1, length()), origin);
}

Value Loop::call(Runtime& runtime, std::string_view method, const Args& args) {
  if (method == "cycle") {
    if (args.positional.empty()) fail("no items for cycling given");
    return args.positional[index0_ % args.positional.size()];
  }
  if (method == "changed") return changed(runtime, args);
  if (!stmt_.is_recursive || scope_ == nullptr) {
    fail("The loop must have the 'recursive' marker to be called recursively.");
  }
  const auto bound = args.bind("loop", {"iterable"}, 1);
  return interpreter_.recurse(stmt_, scope_, *bound[0], depth0_ + 1);
}

Value Loop::changed(Runtime& runtime, const Args& args) {
  ListBuilder values(runtime);
  for (const Value& value : args.positional) values.push(value);
  const Value now = values.finish(ListKind::kTuple);
  const bool is_same_again = are_equal(runtime.budget(), now, last_changed_);
  if (!is_same_again) last_changed_ = now;
  return Value::boolean(!is_same_again);
}

}  // namespace larder::jinja
