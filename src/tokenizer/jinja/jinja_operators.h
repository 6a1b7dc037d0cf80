// Arithmetic, as Python does it.
#pragma once

#include "tokenizer/jinja/jinja_runtime.h"

namespace larder::jinja {

enum class BinaryOp : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower
};
enum class CompareOp : std::uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

Value binary(Runtime& runtime, BinaryOp op, const Value& a, const Value& b);
Value negate(const Value& value);
Value plus(const Value& value);
bool compares(Runtime& runtime, CompareOp op, const Value& a, const Value& b);

}  // namespace larder::jinja
