// Jinja's tests: `value is name(arguments)`.
#include "tokenizer/jinja/jinja_filters.h"
#include "tokenizer/jinja/jinja_operators.h"

namespace larder::jinja {
namespace {

template <bool (*kPredicate)(const Value&)>
bool plain(Runtime&, const Value& value, const Args& args) {
  args.bind("the test", {});
  return kPredicate(value);
}

template <CompareOp kOp>
bool relation(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("the test", {"other"}, 1);
  return compares(runtime, kOp, value, *bound[0]);
}

bool is_true_itself(const Value& value) { return value.is<bool>() && *value.get_if<bool>(); }
bool is_false_itself(const Value& value) { return value.is<bool>() && !*value.get_if<bool>(); }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is<bool>(); }
bool is_int(const Value& value) { return value.is<Integer>(); }
bool is_float(const Value& value) { return value.is<double>(); }
bool is_string(const Value& value) { return value.text() != nullptr; }
bool is_mapping(const Value& value) { return value.dict() != nullptr; }
bool is_escaped(const Value& value) { return value.text() != nullptr && value.text()->is_markup(); }

// What has a length and can be indexed.
bool is_sequence(const Value& value) {
  const List* list = value.list();
  if (list != nullptr) return list->kind <= ListKind::kRange;
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr;
}

bool is_callable(const Value& value) {
  const auto* object = value.get_if<Object*>();
  return value.is_undefined() || (object != nullptr && (*object)->is_callable());
}

bool is_iterable(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("iterable", {});
  return runtime.is_iterable(value);
}

bool leaves(Runtime& runtime, const Value& value, Int128 divisor, Int128 rest) {
  if (!is_number(value)) require_defined(value);
  const Value left = binary(runtime, BinaryOp::kModulo, value, Value::integer(divisor));
  return are_equal(runtime.budget(), left, Value::integer(rest));
}

bool is_odd(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("odd", {});
  return leaves(runtime, value, 2, 1);
}

bool is_even(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("even", {});
  return leaves(runtime, value, 2, 0);
}

bool is_divisible(Runtime& runtime, const Value& value, const Args& args) {
  const auto bound = args.bind("divisibleby", {"num"}, 1);
  const Value left = binary(runtime, BinaryOp::kModulo, value, *bound[0]);
  return are_equal(runtime.budget(), left, Value::integer(0));
}

bool is_same_as(Runtime&, const Value& value, const Args& args) {
  return is_same(value, *args.bind("sameas", {"other"}, 1)[0]);
}

bool is_in(Runtime& runtime, const Value& value, const Args& args) {
  return runtime.contains(*args.bind("in", {"seq"}, 1)[0], value);
}

template <bool kLower>
bool is_in_case(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("the test", {});
  const Value text(to_str(runtime.budget(), value));
  return is_true(call_method(runtime, text, kLower ? "islower" : "isupper", {}));
}

bool is_filter(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("filter", {});
  if (value.text() != nullptr) runtime.budget().scan(value.text()->size());
  return value.text() != nullptr && find_filter(value.text()->bytes()) != nullptr;
}

bool is_test(Runtime& runtime, const Value& value, const Args& args) {
  args.bind("test", {});
  if (value.text() != nullptr) runtime.budget().scan(value.text()->size());
  return value.text() != nullptr && tests().count(value.text()->bytes()) > 0;
}

}  // namespace

const TestTable& tests() {
  static const TestTable kTable = {
      {"defined", plain<is_defined>},
      {"undefined", plain<is_undefined>},
      {"none", plain<is_none>},
      {"boolean", plain<is_boolean>},
      {"true", plain<is_true_itself>},
      {"false", plain<is_false_itself>},
      {"integer", plain<is_int>},
      {"float", plain<is_float>},
      {"number", plain<is_number>},
      {"string", plain<is_string>},
      {"mapping", plain<is_mapping>},
      {"sequence", plain<is_sequence>},
      {"callable", plain<is_callable>},
      {"escaped", plain<is_escaped>},
      {"iterable", is_iterable},
      {"odd", is_odd},
      {"even", is_even},
      {"divisibleby", is_divisible},
      {"sameas", is_same_as},
      {"in", is_in},
      {"lower", is_in_case<true>},
      {"upper", is_in_case<false>},
      {"filter", is_filter},
      {"test", is_test},
      {"==", relation<CompareOp::kEqual>},
      {"eq", relation<CompareOp::kEqual>},
      {"equalto", relation<CompareOp::kEqual>},
      {"!=", relation<CompareOp::kNotEqual>},
      {"ne", relation<CompareOp::kNotEqual>},
      {">", relation<CompareOp::kGreater>},
      {"gt", relation<CompareOp::kGreater>},
      {"greaterthan", relation<CompareOp::kGreater>},
      {">=", relation<CompareOp::kGreaterEqual>},
      {"ge", relation<CompareOp::kGreaterEqual>},
      {"<", relation<CompareOp::kLess>},
      {"lt", relation<CompareOp::kLess>},
      {"lessthan", relation<CompareOp::kLess>},
      {"<=", relation<CompareOp::kLessEqual>},
      {"le", relation<CompareOp::kLessEqual>},
  };
  return kTable;
}

}  // namespace larder::jinja
