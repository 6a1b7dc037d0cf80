#include "tokenizer/jinja/jinja_operators.h"

#include <cmath>
#include <limits>

#include "tokenizer/jinja/jinja_text_methods.h"

namespace larder::jinja {
namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_operands(BinaryOp op, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  fail("unsupported operand type(s) for {}: '{}' and '{}'", kSymbols[static_cast<int>(op)],
       type_name(a), type_name(b));
}

[[noreturn]] void fail_overflow() { fail("an integer is larger than 128 bits"); }

Int128 floor_divide(Int128 a, Int128 b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) {
    Int128 negated = 0;
    if (__builtin_sub_overflow(Int128{0}, a, &negated)) fail_overflow();
    return negated;
  }
  const Int128 quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Int128 floor_modulo(Int128 a, Int128 b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) return 0;
  const Int128 rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  if (b == 0) fail("float modulo by zero");
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_divide(double a, double b) {
  if (b == 0) fail("float floor division by zero");
  const double quotient = (a - floor_modulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double real_power(double base, double exponent) {
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  if (base < 0 && exponent != std::floor(exponent)) fail("complex numbers are not supported");
  const double power = std::pow(base, exponent);
  if (std::isinf(power) && !std::isinf(base) && !std::isinf(exponent)) fail("Result too large");
  return power;
}

Value integer_power(Int128 base, Int128 exponent, Origin origin) {
  if (exponent < 0) {
    return Value::real(real_power(static_cast<double>(base), static_cast<double>(exponent)),
                       origin);
  }
  Int128 power = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(power, base, &power)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return Value::integer(power, origin);
}

Value integer_result(BinaryOp op, Int128 a, Int128 b, Origin origin) {
  Int128 result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      break;
    case BinaryOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      break;
    case BinaryOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      break;
    case BinaryOp::kDivide:
      if (b == 0) fail("division by zero");
      return Value::real(
          static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)), origin);
    case BinaryOp::kFloorDivide:
      result = floor_divide(a, b);
      break;
    case BinaryOp::kModulo:
      result = floor_modulo(a, b);
      break;
    case BinaryOp::kPower:
      return integer_power(a, b, origin);
  }
  return Value::integer(result, origin);
}

double real_result(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSubtract:
      return a - b;
    case BinaryOp::kMultiply:
      return a * b;
    case BinaryOp::kDivide:
      if (b == 0) fail("float division by zero");
      return a / b;
    case BinaryOp::kFloorDivide:
      return floor_divide(a, b);
    case BinaryOp::kModulo:
      return floor_modulo(a, b);
    case BinaryOp::kPower:
      return real_power(a, b);
  }
  return 0;
}

Value numeric(BinaryOp op, const Value& a, const Value& b) {
  const Origin origin = merge(a.origin(), b.origin());
  if (is_integral(a) && is_integral(b)) {
    return integer_result(op, to_integer(a), to_integer(b), origin);
  }
  return Value::real(real_result(op, to_double(a), to_double(b)), origin);
}

bool is_plain_sequence(const Value& value) {
  return value.list() != nullptr && value.list()->kind <= ListKind::kTuple;
}

Value add_sequences(Runtime& runtime, const Value& a, const Value& b) {
  if (a.text() != nullptr) {
    TextBuilder out(runtime.budget());
    const bool is_markup = a.text()->is_markup() || b.text()->is_markup();
    out.set_markup(is_markup);
    for (const Value* part : {&a, &b}) {
      const auto& text = *part->get_if<TextRef>();
      out.append(is_markup ? *escaped(runtime, text) : *text);
    }
    return Value(out.finish());
  }
  ListBuilder items(runtime);
  for (const Value* part : {&a, &b}) {
    for (const Value& item : part->list()->items) items.push(item);
  }
  return items.finish(a.list()->kind, merge(a.origin(), b.origin()));
}

Value repeat(Runtime& runtime, const Value& sequence, const Value& times) {
  const Int128 count = to_integer(times);
  const auto bounded = static_cast<std::uint64_t>(
      count < 0 ? 0 : std::min<Int128>(count, std::numeric_limits<std::int64_t>::max()));
  if (sequence.text() != nullptr) {
    TextBuilder out(runtime.budget());
    out.set_markup(sequence.text()->is_markup());
    out.append_repeated(*sequence.text(), bounded);
    return Value(out.finish());
  }
  ListBuilder items(runtime);
  const List& list = *sequence.list();
  for (std::uint64_t i = 0; i < bounded && !list.items.empty(); ++i) {
    for (const Value& item : list.items) items.push(item);
  }
  return items.finish(list.kind, sequence.origin());
}

}  // namespace

Value binary(Runtime& runtime, BinaryOp op, const Value& a, const Value& b) {
  if (is_number(a) && is_number(b)) return numeric(op, a, b);
  if (op == BinaryOp::kAdd) {
    const bool are_lists =
        is_plain_sequence(a) && is_plain_sequence(b) && a.list()->kind == b.list()->kind;
    if (are_lists || (a.text() != nullptr && b.text() != nullptr))
      return add_sequences(runtime, a, b);
  }
  if (op == BinaryOp::kMultiply) {
    if (is_integral(b) && (a.text() != nullptr || is_plain_sequence(a)))
      return repeat(runtime, a, b);
    if (is_integral(a) && (b.text() != nullptr || is_plain_sequence(b)))
      return repeat(runtime, b, a);
  }
  if (op == BinaryOp::kModulo && a.text() != nullptr) {
    return percent_format(runtime, *a.get_if<TextRef>(), b);
  }
  fail_operands(op, a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (is_integral(value)) {
    return integer_result(BinaryOp::kSubtract, 0, to_integer(value), value.origin());
  }
  if (!is_number(value)) fail("bad operand type for unary -: '{}'", type_name(value));
  return Value::real(-to_double(value), value.origin());
}

Value plus(const Value& value) {
  require_defined(value);
  if (is_integral(value)) return Value::integer(to_integer(value), value.origin());
  if (!is_number(value)) fail("bad operand type for unary +: '{}'", type_name(value));
  return value;
}

bool compares(Runtime& runtime, CompareOp op, const Value& a, const Value& b) {
  Budget& budget = runtime.budget();
  const auto is_unordered = [&] {
    const auto is_nan = [](const Value& v) {
      return v.is<double>() && std::isnan(*v.get_if<double>());
    };
    return is_number(a) && is_number(b) && (is_nan(a) || is_nan(b));
  };
  switch (op) {
    case CompareOp::kEqual:
      return are_equal(budget, a, b);
    case CompareOp::kNotEqual:
      return !are_equal(budget, a, b);
    case CompareOp::kLess:
      return !is_unordered() && compare(budget, a, b, "<") < 0;
    case CompareOp::kLessEqual:
      return !is_unordered() && compare(budget, a, b, "<=") <= 0;
    case CompareOp::kGreater:
      return !is_unordered() && compare(budget, a, b, ">") > 0;
    case CompareOp::kGreaterEqual:
      return !is_unordered() && compare(budget, a, b, ">=") >= 0;
    case CompareOp::kIn:
      return runtime.contains(b, a);
    case CompareOp::kNotIn:
      return !runtime.contains(b, a);
  }
  return false;
}

}  // namespace larder::jinja
