// Walks a parsed template and writes its text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/jinja_ast.h"
#include "tokenizer/jinja/jinja_runtime.h"

namespace larder::jinja {

// The names set in one block. A name that a block sets hides the one outside, and ends with the
// block.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>>
      names;  // views of the tree or of Interpreter::keys_

  // The budget pays for the names looked through.
  void set(Budget& budget, std::string_view name, Value value);
  const Value* find(Budget& budget, std::string_view name) const;
};
using ScopeRef = std::shared_ptr<Scope>;

// Thread: one. Used once.
class Interpreter final : public Runtime {
 public:
  using Runtime::Runtime;

  // Sets a variable that the template sees.
  void define(std::string_view name, Value value);
  // Throws Failure; line() says where.
  Text run(const Block& body);
  int line() const { return line_; }
  // loop(iterable): the body of a recursive loop once more, as text.
  Value recurse(const Stmt& stmt, const ScopeRef& scope, const Value& iterable, int depth0);
  // Whether a for block in the scope is to run with the item: its condition.
  bool is_wanted(const Stmt& stmt, const ScopeRef& scope, const Value& item);

 private:
  friend class Macro;
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };
  class Capture;
  class ScopeChange;

  Flow execute(const Block& body);
  Flow execute(const Stmt& stmt);
  Flow execute_if(const Stmt& stmt);
  Flow execute_set_block(const Stmt& stmt);
  Flow execute_filter_block(const Stmt& stmt);
  Flow execute_with(const Stmt& stmt);
  Flow execute_for(const Stmt& stmt);
  Flow in_new_scope(const Block& body);
  void print(const Stmt& stmt);
  void run_loop(const Stmt& stmt, const Value& iterable, int depth0);
  void assign(const Expr& target, Value value);
  void assign_attribute(const Expr& target, Value value);
  Value make_macro(const MacroDefinition& definition);
  void call_block(const Stmt& stmt);
  Value call_macro(const MacroDefinition& macro, const ScopeRef& closure, const Args& args);
  void bind_parameters(const MacroDefinition& macro, const Args& args, Scope& scope);

  Value eval(const Expr& expr);
  Value eval_composite(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_sequence(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_call(const Expr& expr, const Value* caller = nullptr);
  Value eval_filter(const Expr& expr, const Value* input);
  Value eval_conditional(const Expr& expr);
  Args eval_arguments(const Expr& expr);

  int line_ = 1;
  ScopeRef scope_ = std::make_shared<Scope>();
  TextBuilder* out_ = nullptr;
  std::vector<std::unique_ptr<std::string>> keys_;
};

}  // namespace larder::jinja
