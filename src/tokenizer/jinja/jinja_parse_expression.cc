#include <algorithm>

#include "tokenizer/jinja/jinja_filters.h"
#include "tokenizer/jinja/jinja_filters_number.h"
#include "tokenizer/jinja/jinja_parser.h"

namespace larder::jinja {

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser.depth_ >= parser.max_depth_) {
    parser.fail_at(parser.current().line,
                   fmt::format("it is nested deeper than {}", parser.max_depth_));
  }
  ++parser_.depth_;
}

Token ExpressionParser::next() {
  Token token = current();
  if (token.kind != TokenKind::kEnd) ++at_;
  return token;
}

bool ExpressionParser::is_op(std::string_view op) const {
  return current().kind == TokenKind::kOperator && current().text == op;
}
bool ExpressionParser::is_word(std::string_view word) const {
  return current().kind == TokenKind::kName && current().text == word;
}
bool ExpressionParser::skip_op(std::string_view op) { return is_op(op) && (next(), true); }
bool ExpressionParser::skip_word(std::string_view word) { return is_word(word) && (next(), true); }

void ExpressionParser::fail_at(int line, std::string message) const {
  throw Failure{std::move(message), line};
}

void ExpressionParser::fail_unexpected() const {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kEnd:
      fail_at(token.line, "unexpected end of the template");
    case TokenKind::kPrintEnd:
      fail_at(token.line, "unexpected end of print statement");
    case TokenKind::kBlockEnd:
      fail_at(token.line, "unexpected end of statement block");
    default:
      fail_at(token.line, fmt::format("unexpected '{}'", token.text.substr(0, 60)));
  }
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!is_op(op)) {
    if (current().kind == TokenKind::kEnd) fail_unexpected();
    fail_at(current().line,
            fmt::format("expected '{}', got '{}'", op, current().text.substr(0, 60)));
  }
  next();
}

std::string ExpressionParser::expect_name() {
  if (current().kind != TokenKind::kName) fail_unexpected();
  return next().text;
}

void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) {
    if (current().kind == TokenKind::kEnd) fail_unexpected();
    fail_at(current().line,
            fmt::format("expected {}, got '{}'", what, current().text.substr(0, 60)));
  }
  next();
}

ExprPtr ExpressionParser::make(ExprKind kind, int line) const {
  auto made = std::make_unique<Expr>();
  made->kind = kind;
  made->line = line;
  return made;
}

void ExpressionParser::grow(Expr& parent, const Expr* child) const {
  if (child == nullptr) return;
  parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > 2 * max_depth_) fail_at(parent.line, "an expression is too long");
}

void ExpressionParser::adopt(Expr& parent, ExprPtr child) const {
  grow(parent, child.get());
  parent.children.push_back(std::move(child));
}

ExprPtr ExpressionParser::binary_node(BinaryOp op, ExprPtr left, ExprPtr right, int line) const {
  ExprPtr node = make(ExprKind::kBinary, line);
  node->op = op;
  adopt(*node, std::move(left));
  adopt(*node, std::move(right));
  return node;
}

ExprPtr ExpressionParser::expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? condition() : disjunction();
}

ExprPtr ExpressionParser::condition() {
  const Nesting nesting(*this);
  int line = current().line;
  ExprPtr value = disjunction();
  while (skip_word("if")) {
    ExprPtr node = make(ExprKind::kConditional, line);
    adopt(*node, disjunction());
    adopt(*node, std::move(value));
    adopt(*node, skip_word("else") ? condition() : nullptr);
    value = std::move(node);
    line = current().line;
  }
  return value;
}

ExprPtr ExpressionParser::disjunction() {
  int line = current().line;
  ExprPtr left = conjunction();
  while (skip_word("or")) {
    ExprPtr node = make(ExprKind::kOr, line);
    adopt(*node, std::move(left));
    adopt(*node, conjunction());
    left = std::move(node);
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  int line = current().line;
  ExprPtr left = negation();
  while (skip_word("and")) {
    ExprPtr node = make(ExprKind::kAnd, line);
    adopt(*node, std::move(left));
    adopt(*node, negation());
    left = std::move(node);
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  const int line = current().line;
  if (!skip_word("not")) return comparison();
  const Nesting nesting(*this);
  ExprPtr node = make(ExprKind::kNot, line);
  adopt(*node, negation());
  return node;
}

bool ExpressionParser::compare_op(CompareOp& op) {
  struct Symbol {
    std::string_view text;
    CompareOp op;
  };
  constexpr Symbol kSymbols[] = {{"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
                                 {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
                                 {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual}};
  for (const Symbol& symbol : kSymbols) {
    if (!skip_op(symbol.text)) continue;
    op = symbol.op;
    return true;
  }
  if (skip_word("in")) {
    op = CompareOp::kIn;
    return true;
  }
  if (is_word("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
    next();
    next();
    op = CompareOp::kNotIn;
    return true;
  }
  return false;
}

ExprPtr ExpressionParser::comparison() {
  const int line = current().line;
  ExprPtr first = sum();
  CompareOp op;
  if (!compare_op(op)) return first;
  ExprPtr node = make(ExprKind::kCompare, line);
  adopt(*node, std::move(first));
  do {
    node->compares.push_back(op);
    adopt(*node, sum());
  } while (compare_op(op));
  return node;
}

ExprPtr ExpressionParser::sum() {
  int line = current().line;
  ExprPtr left = concatenation();
  while (is_op("+") || is_op("-")) {
    const BinaryOp op = next().text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract;
    left = binary_node(op, std::move(left), concatenation(), line);
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  const int line = current().line;
  ExprPtr first = product();
  if (!is_op("~")) return first;
  ExprPtr node = make(ExprKind::kConcat, line);
  adopt(*node, std::move(first));
  while (skip_op("~")) adopt(*node, product());
  return node;
}

ExprPtr ExpressionParser::product() {
  int line = current().line;
  ExprPtr left = power();
  for (;;) {
    BinaryOp op;
    if (is_op("*"))
      op = BinaryOp::kMultiply;
    else if (is_op("/"))
      op = BinaryOp::kDivide;
    else if (is_op("//"))
      op = BinaryOp::kFloorDivide;
    else if (is_op("%"))
      op = BinaryOp::kModulo;
    else
      return left;
    next();
    left = binary_node(op, std::move(left), power(), line);
    line = current().line;
  }
}

ExprPtr ExpressionParser::power() {
  int line = current().line;
  ExprPtr left = unary();
  while (skip_op("**")) {
    left = binary_node(BinaryOp::kPower, std::move(left), unary(), line);
    line = current().line;
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const int line = current().line;
  ExprPtr value;
  if (is_op("-") || is_op("+")) {
    const Nesting nesting(*this);
    value = make(next().text == "-" ? ExprKind::kNegate : ExprKind::kPlus, line);
    adopt(*value, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::name() {
  const Token token = next();
  ExprPtr node = make(ExprKind::kConstant, token.line);
  if (token.text == "true" || token.text == "True") {
    node->constant = Value::boolean(true);
  } else if (token.text == "false" || token.text == "False") {
    node->constant = Value::boolean(false);
  } else if (token.text == "none" || token.text == "None") {
    node->constant = Value::none();
  } else {
    node->kind = ExprKind::kName;
    node->name = token.text;
    for (MacroDefinition* macro : open_macros_) {
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
      macro->uses_caller |= token.text == "caller";
    }
  }
  return node;
}

ExprPtr ExpressionParser::primary() {
  const Token& token = current();
  if (token.kind == TokenKind::kName) return name();
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  if (skip_op("(")) {
    ExprPtr value = tuple(true, {}, true);
    expect_op(")");
    return value;
  }
  ExprPtr node = make(ExprKind::kConstant, token.line);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += next().text;
    node->constant = Value(std::make_shared<const Text>(std::move(text), Origin::kTrusted));
  } else if (token.kind == TokenKind::kInteger) {
    try {
      node->constant = Value::integer(parse_integer(token.text, 0).value_or(0));
    } catch (const Failure& failure) {
      fail_at(token.line, failure.message);
    }
    next();
  } else if (token.kind == TokenKind::kFloat) {
    node->constant = Value::real(parse_real(token.text).value_or(0));
    next();
  } else {
    fail_unexpected();
  }
  return node;
}

bool ExpressionParser::is_tuple_end(Words ends_at) const {
  const TokenKind kind = current().kind;
  if (kind == TokenKind::kPrintEnd || kind == TokenKind::kBlockEnd || is_op(")")) return true;
  return std::any_of(ends_at.begin(), ends_at.end(),
                     [this](std::string_view word) { return is_word(word); });
}

ExprPtr ExpressionParser::tuple(bool with_condition, Words ends_at, bool is_in_parentheses) {
  ExprPtr node = make(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  for (;;) {
    if (!node->children.empty()) expect_op(",");
    if (is_tuple_end(ends_at)) break;
    adopt(*node, expression(with_condition));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !node->children.empty()) return std::move(node->children[0]);
  if (!is_tuple && !is_in_parentheses) fail_unexpected();
  return node;
}

ExprPtr ExpressionParser::list() {
  ExprPtr node = make(ExprKind::kList, current().line);
  expect_op("[");
  while (!is_op("]")) {
    if (!node->children.empty()) expect_op(",");
    if (is_op("]")) break;
    adopt(*node, expression());
  }
  expect_op("]");
  return node;
}

ExprPtr ExpressionParser::dict() {
  ExprPtr node = make(ExprKind::kDict, current().line);
  expect_op("{");
  while (!is_op("}")) {
    if (!node->children.empty()) expect_op(",");
    if (is_op("}")) break;
    adopt(*node, expression());
    expect_op(":");
    adopt(*node, expression());
  }
  expect_op("}");
  return node;
}

ExprPtr ExpressionParser::postfix(ExprPtr value) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      value = subscript(std::move(value));
    } else if (is_op("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr value) {
  for (;;) {
    if (is_op("|")) {
      value = filters(std::move(value), false);
    } else if (is_word("is")) {
      value = test(std::move(value));
    } else if (is_op("(")) {
      value = call(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr value) {
  const int line = current().line;
  if (skip_op(".")) {
    const Token token = next();
    ExprPtr node = make(ExprKind::kAttribute, line);
    if (token.kind == TokenKind::kInteger) {
      node->kind = ExprKind::kItem;
      adopt(*node, std::move(value));
      ExprPtr index = make(ExprKind::kConstant, token.line);
      index->constant = Value::integer(parse_integer(token.text, 0).value_or(0));
      adopt(*node, std::move(index));
      return node;
    }
    if (token.kind != TokenKind::kName) fail_at(token.line, "expected name or number behind '.'");
    node->name = token.text;
    adopt(*node, std::move(value));
    return node;
  }
  expect_op("[");
  if (is_op("]")) fail_at(line, "expected a subscript");
  ExprPtr parts[3];
  bool is_slice = false;
  for (int part = 0;;) {
    if (!is_op(":") && !is_op("]")) parts[part] = expression();
    if (part == 2 || !skip_op(":")) break;
    is_slice = true;
    ++part;
  }
  expect_op("]");
  ExprPtr node = make(is_slice ? ExprKind::kSlice : ExprKind::kItem, line);
  adopt(*node, std::move(value));
  for (int part = 0; part < (is_slice ? 3 : 1); ++part) adopt(*node, std::move(parts[part]));
  return node;
}

Argument ExpressionParser::argument(const Expr& call) {
  Argument made;
  const ArgumentKind last =
      call.arguments.empty() ? ArgumentKind::kPositional : call.arguments.back().kind;
  if (skip_op("*")) {
    made.kind = ArgumentKind::kStar;
  } else if (skip_op("**")) {
    made.kind = ArgumentKind::kDoubleStar;
  } else if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator &&
             ahead().text == "=") {
    made.kind = ArgumentKind::kKeyword;
    made.name = next().text;
    next();
  }
  const bool is_star_late = made.kind == ArgumentKind::kStar && last >= ArgumentKind::kStar;
  if (last == ArgumentKind::kDoubleStar || is_star_late ||
      (made.kind == ArgumentKind::kPositional && last != ArgumentKind::kPositional)) {
    fail_at(call.line, "invalid syntax for function call expression");
  }
  made.value = expression();
  return made;
}

void ExpressionParser::arguments(Expr& call) {
  expect_op("(");
  while (!is_op(")")) {
    if (!call.arguments.empty()) {
      expect_op(",");
      if (is_op(")")) break;
    }
    Argument made = argument(call);
    grow(call, made.value.get());
    call.arguments.push_back(std::move(made));
  }
  expect_op(")");
}

ExprPtr ExpressionParser::call(ExprPtr value) {
  ExprPtr node = make(ExprKind::kCall, current().line);
  adopt(*node, std::move(value));
  arguments(*node);
  return node;
}

void ExpressionParser::note_unknown(const char* what, const std::string& name) {
  constexpr std::size_t kMost = 5, kMaxBytes = 100;
  std::string text = fmt::format("the {} {}", what, std::string_view(name).substr(0, kMaxBytes));
  if (unknown_names_.size() < kMost &&
      std::ranges::find(unknown_names_, text) == unknown_names_.end())
    unknown_names_.push_back(std::move(text));
}

ExprPtr ExpressionParser::filters(ExprPtr value, bool starts_inline) {
  while (is_op("|") || starts_inline) {
    if (!starts_inline) next();
    starts_inline = false;
    ExprPtr node = make(ExprKind::kFilter, current().line);
    node->name = expect_name();
    while (skip_op(".")) {
      node->name += '.';
      node->name += expect_name();
    }
    if (find_filter(node->name) == nullptr) note_unknown("filter", node->name);
    adopt(*node, std::move(value));
    if (is_op("(")) arguments(*node);
    value = std::move(node);
  }
  return value;
}

ExprPtr ExpressionParser::test(ExprPtr value) {
  const int line = next().line;
  const bool is_negated = skip_word("not");
  ExprPtr node = make(ExprKind::kTest, line);
  node->name = expect_name();
  while (skip_op(".")) {
    node->name += '.';
    node->name += expect_name();
  }
  if (!tests().contains(node->name)) note_unknown("test", node->name);
  adopt(*node, std::move(value));
  const TokenKind kind = current().kind;
  if (is_op("(")) {
    arguments(*node);
  } else if (is_op("[") || is_op("{") || kind == TokenKind::kString ||
             kind == TokenKind::kInteger || kind == TokenKind::kFloat ||
             (kind == TokenKind::kName && !is_word("else") && !is_word("or") && !is_word("and"))) {
    if (is_word("is")) fail_at(line, "You cannot chain multiple tests with is");
    const Nesting nesting(*this);
    Argument only;
    only.value = postfix(primary());
    grow(*node, only.value.get());
    node->arguments.push_back(std::move(only));
  }
  if (!is_negated) return node;
  ExprPtr negated = make(ExprKind::kNot, line);
  adopt(*negated, std::move(node));
  return negated;
}

ExprPtr ExpressionParser::target_part(bool allows_attribute) {
  const Nesting nesting(*this);
  const int line = current().line;
  if (skip_op("(")) {
    ExprPtr node = make(ExprKind::kTuple, line);
    while (!is_op(")")) {
      if (!node->children.empty()) expect_op(",");
      if (is_op(")")) break;
      adopt(*node, target_part(false));
    }
    expect_op(")");
    return node;
  }
  if (current().kind != TokenKind::kName) fail_unexpected();
  ExprPtr node = name();
  if (node->kind != ExprKind::kName) fail_at(line, "can't assign to a constant");
  if (!allows_attribute || !skip_op(".")) return node;
  ExprPtr attribute = make(ExprKind::kAttribute, line);
  attribute->name = expect_name();
  adopt(*attribute, std::move(node));
  return attribute;
}

ExprPtr ExpressionParser::target(bool allows_attribute, Words ends_at) {
  ExprPtr node = make(ExprKind::kTuple, current().line);
  bool is_tuple = false;
  for (;;) {
    if (!node->children.empty()) expect_op(",");
    if (is_tuple_end(ends_at) || is_op("=")) break;
    adopt(*node, target_part(allows_attribute));
    if (!is_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (node->children.empty()) fail_unexpected();
  return std::move(node->children[0]);
}

}  // namespace larder::jinja
