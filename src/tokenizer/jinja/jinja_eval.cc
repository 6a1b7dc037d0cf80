// Expressions.
#include "tokenizer/jinja/jinja_filters.h"
#include "tokenizer/jinja/jinja_interpreter.h"

namespace larder::jinja {

Value Interpreter::eval(const Expr& expr) {
  budget().step();
  line_ = expr.line;
  if (expr.kind == ExprKind::kConstant) return expr.constant;
  if (expr.kind == ExprKind::kName) return eval_name(expr);
  const DepthGuard guard(*this);
  return eval_composite(expr);
}

Value Interpreter::eval_composite(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kTuple:
    case ExprKind::kList:
      return eval_sequence(expr);
    case ExprKind::kDict:
      return eval_dict(expr);
    case ExprKind::kAttribute:
      return attribute(eval(*expr.children[0]), expr.name);
    case ExprKind::kItem: {
      const Value container = eval(*expr.children[0]);
      return item(container, eval(*expr.children[1]));
    }
    case ExprKind::kSlice:
      return eval_slice(expr);
    case ExprKind::kCall:
      return eval_call(expr);
    case ExprKind::kFilter:
      return eval_filter(expr, nullptr);
    case ExprKind::kTest: {
      const Value value = eval(*expr.children[0]);
      const Args args = eval_arguments(expr);
      line_ = expr.line;
      return Value::boolean(call_test(expr.name, value, args));
    }
    case ExprKind::kNot:
      return Value::boolean(!is_true(eval(*expr.children[0])));
    case ExprKind::kNegate:
      return negate(eval(*expr.children[0]));
    case ExprKind::kPlus:
      return plus(eval(*expr.children[0]));
    case ExprKind::kAnd: {
      Value left = eval(*expr.children[0]);
      return is_true(left) ? eval(*expr.children[1]) : left;
    }
    case ExprKind::kOr: {
      Value left = eval(*expr.children[0]);
      return is_true(left) ? left : eval(*expr.children[1]);
    }
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kConcat:
      return eval_concat(expr);
    case ExprKind::kBinary: {
      const Value left = eval(*expr.children[0]);
      const Value right = eval(*expr.children[1]);
      line_ = expr.line;
      return binary(*this, expr.op, left, right);
    }
    case ExprKind::kConditional:
      return eval_conditional(expr);
    default:
      return eval_name(expr);
  }
}

Value Interpreter::eval_name(const Expr& expr) {
  if (const Value* found = scope_->find(budget(), expr.name)) return *found;
  return Value::undefined(
      fmt::format("'{}' is undefined", std::string_view(expr.name).substr(0, 100)));
}

Value Interpreter::eval_sequence(const Expr& expr) {
  ListBuilder items(*this);
  for (const ExprPtr& child : expr.children) items.push(eval(*child));
  return items.finish(expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

Value Interpreter::eval_dict(const Expr& expr) {
  Dict made(budget());
  for (std::size_t i = 0; i < expr.children.size(); i += 2) {
    Value key = eval(*expr.children[i]);
    made.set(budget(), std::move(key), eval(*expr.children[i + 1]));
  }
  return dict(std::move(made));
}

Value Interpreter::eval_slice(const Expr& expr) {
  const Value container = eval(*expr.children[0]);
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (std::size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1] != nullptr) bounds[i] = eval(*expr.children[i + 1]);
  }
  return slice(container, bounds[0], bounds[1], bounds[2]);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.children[0]);
  for (std::size_t i = 0; i < expr.compares.size(); ++i) {
    Value right = eval(*expr.children[i + 1]);
    line_ = expr.line;
    if (!compares(*this, expr.compares[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_concat(const Expr& expr) {
  TextBuilder out(budget());
  for (const ExprPtr& child : expr.children) append_str(budget(), out, eval(*child));
  return Value(out.finish());
}

Value Interpreter::eval_conditional(const Expr& expr) {
  if (is_true(eval(*expr.children[0]))) return eval(*expr.children[1]);
  if (expr.children[2] != nullptr) return eval(*expr.children[2]);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

Args Interpreter::eval_arguments(const Expr& expr) {
  Args args;
  for (const Argument& argument : expr.arguments) {
    Value value = eval(*argument.value);
    switch (argument.kind) {
      case ArgumentKind::kPositional:
        args.positional.push_back(std::move(value));
        break;
      case ArgumentKind::kKeyword:
        args.keyword.push_back({argument.name, std::move(value)});
        break;
      case ArgumentKind::kStar: {
        const ListRef items = elements(value);
        for (const Value& item : items->items) args.copy(budget(), item);
        break;
      }
      case ArgumentKind::kDoubleStar: {
        require_defined(value);
        if (value.dict() == nullptr)
          fail("argument after ** must be a mapping, not {}", type_name(value));
        for (const auto& [key, item] : value.dict()->entries()) {
          if (key.text() == nullptr) fail("keywords must be strings");
          args.copy(budget(), key.text()->bytes(), item, key.origin());
        }
      }
    }
  }
  return args;
}

Value Interpreter::eval_call(const Expr& expr, const Value* caller) {
  const Expr& callee = *expr.children[0];
  Value self, function;
  bool is_method = false;
  if (callee.kind == ExprKind::kAttribute) {
    // The usual value.method(...) needs no object for the method itself.
    self = eval(*callee.children[0]);
    is_method = find_method(self, callee.name) == MethodStatus::kAllowed;
    if (!is_method) function = attribute(self, callee.name);
  } else {
    function = eval(callee);
  }
  Args args = eval_arguments(expr);
  if (caller != nullptr) args.keyword.push_back({"caller", *caller});
  line_ = expr.line;
  return is_method ? call_method(*this, self, callee.name, args) : call(function, args);
}

Value Interpreter::eval_filter(const Expr& expr, const Value* input) {
  Value value;
  if (expr.children[0] == nullptr) {
    value = *input;
  } else if (input != nullptr) {
    value = eval_filter(*expr.children[0], input);  // a chain of filters on a block
  } else {
    value = eval(*expr.children[0]);
  }
  const Args args = eval_arguments(expr);
  line_ = expr.line;
  return call_filter(expr.name, value, args);
}

}  // namespace larder::jinja
