// Statements.
#include "tokenizer/jinja/jinja_interpreter.h"

#include <algorithm>

#include "tokenizer/jinja/jinja_loop.h"

namespace larder::jinja {
namespace {

constexpr std::size_t kBytesPerName = 16;  // what passing it over takes, in bytes compared
constexpr std::size_t kBytesPerStep = 512;

// All may be as long as the one that is looked for, and begin with the same bytes.
void pay(Budget& budget, std::size_t num_names, std::string_view name) {
  budget.step(num_names * (kBytesPerName + name.size()) / kBytesPerStep);
}

}  // namespace

void Scope::set(Budget& budget, std::string_view name, Value value) {
  pay(budget, names.size(), name);
  for (auto& [own, held] : names) {
    if (own != name) continue;
    held = std::move(value);
    return;
  }
  names.emplace_back(name, std::move(value));
}

const Value* Scope::find(Budget& budget, std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    pay(budget, scope->names.size(), name);
    for (const auto& [own, held] : scope->names) {
      if (own == name) return &held;
    }
  }
  return nullptr;
}

// Output goes to a text of its own while it lives.
class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& interpreter)
      : interpreter_(interpreter), text_(interpreter.budget()), outer_(interpreter.out_) {
    interpreter.out_ = &text_;
  }
  ~Capture() { interpreter_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Value finish() { return Value(text_.finish()); }

 private:
  Interpreter& interpreter_;
  TextBuilder text_;
  TextBuilder* outer_;
};

class Interpreter::ScopeChange {
 public:
  ScopeChange(Interpreter& interpreter, ScopeRef scope)
      : interpreter_(interpreter), outer_(std::exchange(interpreter.scope_, std::move(scope))) {}
  ~ScopeChange() { interpreter_.scope_ = std::move(outer_); }
  ScopeChange(const ScopeChange&) = delete;
  ScopeChange& operator=(const ScopeChange&) = delete;

 private:
  Interpreter& interpreter_;
  ScopeRef outer_;
};

namespace {

ScopeRef inner_scope(const ScopeRef& outer) {
  auto scope = std::make_shared<Scope>();
  scope->parent = outer;
  return scope;
}

}  // namespace

// A macro, or the caller() of a call block: its body, and the names it saw where it was defined.
class Macro final : public Object {
 public:
  Macro(Interpreter& interpreter, const MacroDefinition& definition, ScopeRef closure)
      : interpreter_(interpreter), definition_(definition), closure_(std::move(closure)) {}
  std::string_view type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }

  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "name") return runtime.text(definition_.name);
    if (name == "catch_kwargs") return Value::boolean(definition_.uses_kwargs);
    if (name == "catch_varargs") return Value::boolean(definition_.uses_varargs);
    if (name == "caller") return Value::boolean(definition_.uses_caller);
    if (name != "arguments") return std::nullopt;
    ListBuilder names(runtime);
    for (const std::string& parameter : definition_.parameters) names.push(runtime.text(parameter));
    return names.finish(ListKind::kTuple);
  }

  void append_repr(Budget&, TextBuilder& out, Origin origin) const override {
    out.append(fmt::format("<Macro '{}'>", definition_.name), origin);
  }

  Value call(Runtime& runtime, std::string_view method, const Args& args) override {
    if (!method.empty()) return Object::call(runtime, method, args);
    return interpreter_.call_macro(definition_, closure_, args);
  }

 private:
  Interpreter& interpreter_;
  const MacroDefinition& definition_;
  ScopeRef closure_;
};

void Interpreter::define(std::string_view name, Value value) {
  keys_.push_back(std::make_unique<std::string>(name));
  scope_->set(budget(), *keys_.back(), std::move(value));
}

Text Interpreter::run(const Block& body) {
  TextBuilder out(budget());
  out_ = &out;
  // What the template sets at its top level hides what it was given.
  scope_ = inner_scope(scope_);
  execute(body);
  return out.take();
}

Interpreter::Flow Interpreter::execute(const Block& body) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = execute(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt) {
  budget().step();
  line_ = stmt.line;
  const DepthGuard guard(*this);
  switch (stmt.kind) {
    case StmtKind::kData:
      out_->append(*stmt.text);
      break;
    case StmtKind::kPrint:
      print(stmt);
      break;
    case StmtKind::kIf:
      return execute_if(stmt);
    case StmtKind::kFor:
      return execute_for(stmt);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.expressions[0]));
      break;
    case StmtKind::kSetBlock:
      return execute_set_block(stmt);
    case StmtKind::kMacro:
      scope_->set(budget(), stmt.macro->name, make_macro(*stmt.macro));
      break;
    case StmtKind::kCallBlock:
      call_block(stmt);
      break;
    case StmtKind::kFilterBlock:
      return execute_filter_block(stmt);
    case StmtKind::kWith:
      return execute_with(stmt);
    case StmtKind::kScope:
      return in_new_scope(stmt.body);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::print(const Stmt& stmt) {
  for (const ExprPtr& expr : stmt.expressions) append_str(budget(), *out_, eval(*expr));
}

Interpreter::Flow Interpreter::execute_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (branch.condition != nullptr && !is_true(eval(*branch.condition))) continue;
    return execute(branch.body);
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::in_new_scope(const Block& body) {
  const ScopeChange change(*this, inner_scope(scope_));
  return execute(body);
}

Interpreter::Flow Interpreter::execute_set_block(const Stmt& stmt) {
  Value text;
  {
    Capture capture(*this);
    const Flow flow = in_new_scope(stmt.body);
    if (flow != Flow::kNormal) return flow;
    text = capture.finish();
  }
  const Expr* filter = stmt.expressions[0].get();
  assign(*stmt.target, filter != nullptr ? eval_filter(*filter, &text) : text);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_filter_block(const Stmt& stmt) {
  Value text;
  {
    Capture capture(*this);
    const Flow flow = in_new_scope(stmt.body);
    if (flow != Flow::kNormal) return flow;
    text = capture.finish();
  }
  append_str(budget(), *out_, eval_filter(*stmt.expressions[0], &text));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.expressions) values.push_back(eval(*expr));
  const ScopeChange change(*this, inner_scope(scope_));
  for (std::size_t i = 0; i < values.size(); ++i) assign(*stmt.targets[i], std::move(values[i]));
  return execute(stmt.body);
}

Interpreter::Flow Interpreter::execute_for(const Stmt& stmt) {
  run_loop(stmt, eval(*stmt.expressions[0]), 0);
  return Flow::kNormal;
}

bool Interpreter::is_wanted(const Stmt& stmt, const ScopeRef& scope, const Value& item) {
  const int line = std::exchange(line_, stmt.line);
  const ScopeChange change(*this, inner_scope(scope));
  scope_->set(budget(), "loop",
              Value::undefined("'loop' is undefined in the condition of a loop"));
  assign(*stmt.target, item);
  const bool is_kept = is_true(eval(*stmt.expressions[1]));
  line_ = line;
  return is_kept;
}

void Interpreter::run_loop(const Stmt& stmt, const Value& iterable, int depth0) {
  const ScopeRef outer = scope_;
  auto* loop = make<Loop>(*this, stmt, outer, elements(iterable), depth0);
  const Loop::Release release(*loop);
  bool has_completed = false;  // a body: Jinja runs the else block when none did
  ScopeRef inner;
  for (std::size_t i = 0; loop->has(i); ++i) {
    budget().step();
    if (inner == nullptr || inner.use_count() > 1) {
      inner = inner_scope(outer);  // a macro has kept the last one
    } else {
      inner->names.clear();
    }
    const ScopeChange change(*this, inner);
    loop->go_to(i);
    inner->set(budget(), "loop", Value(static_cast<Object*>(loop)));
    assign(*stmt.target, loop->item(i));
    const Flow flow = execute(stmt.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) has_completed = true;
  }
  if (!has_completed && !stmt.otherwise.empty()) in_new_scope(stmt.otherwise);
}

Value Interpreter::recurse(const Stmt& stmt, const ScopeRef& scope, const Value& iterable,
                           int depth0) {
  const DepthGuard guard(*this);
  Capture capture(*this);
  {
    const ScopeChange change(*this, scope);
    run_loop(stmt, iterable, depth0);
  }
  return capture.finish();
}

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == ExprKind::kName) return scope_->set(budget(), target.name, std::move(value));
  if (target.kind == ExprKind::kAttribute) return assign_attribute(target, std::move(value));
  const ListRef items = elements(value);
  if (items->items.size() != target.children.size()) {
    fail("{} values to unpack (expected {}, got {})",
         items->items.size() < target.children.size() ? "not enough" : "too many",
         target.children.size(), items->items.size());
  }
  for (std::size_t i = 0; i < items->items.size(); ++i)
    assign(*target.children[i], items->items[i]);
}

void Interpreter::assign_attribute(const Expr& target, Value value) {
  const Value owner = eval_name(*target.children[0]);
  auto* space = owner.object<Namespace>();
  if (space == nullptr) fail("cannot assign attribute on non-namespace object");
  if (target.name.starts_with('_')) {
    fail("a namespace cannot have an attribute that begins with '_'");
  }
  if (space->attributes.replace(budget(), target.name, value)) return;
  space->attributes.set(budget(), text(target.name), std::move(value));
}

Value Interpreter::make_macro(const MacroDefinition& definition) {
  return Value(static_cast<Object*>(make<Macro>(*this, definition, scope_)));
}

void Interpreter::call_block(const Stmt& stmt) {
  const Value caller = make_macro(*stmt.macro);
  const Value result = eval_call(*stmt.expressions[0], &caller);
  append_str(budget(), *out_, result);
}

Value Interpreter::call_macro(const MacroDefinition& macro, const ScopeRef& closure,
                              const Args& args) {
  const DepthGuard guard(*this);
  const int line = line_;
  Capture capture(*this);
  {
    const ScopeChange change(*this, inner_scope(closure));
    bind_parameters(macro, args, *scope_);
    execute(macro.body);
  }
  line_ = line;
  return capture.finish();
}

void Interpreter::bind_parameters(const MacroDefinition& macro, const Args& args, Scope& scope) {
  std::vector<bool> is_used(args.keyword.size(), false);
  const auto keyword = [&](std::string_view name) -> const Value* {
    pay(budget(), args.keyword.size(), name);
    for (std::size_t i = 0; i < args.keyword.size(); ++i) {
      if (args.keyword[i].name != name) continue;
      is_used[i] = true;
      return &args.keyword[i].value;
    }
    return nullptr;
  };
  const std::size_t num_parameters = macro.parameters.size();
  const std::size_t first_default = num_parameters - macro.defaults.size();
  bool has_caller_parameter = false;
  for (std::size_t i = 0; i < num_parameters; ++i) {
    const std::string& name = macro.parameters[i];
    has_caller_parameter = has_caller_parameter || name == "caller";
    const Value* given = i < args.positional.size() ? &args.positional[i] : keyword(name);
    if (given != nullptr) {
      scope.set(budget(), name, *given);
    } else if (i >= first_default) {
      scope.set(budget(), name, eval(*macro.defaults[i - first_default]));
    } else {
      scope.set(budget(), name,
                Value::undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  if (macro.uses_caller && !has_caller_parameter) {
    const Value* caller = keyword("caller");
    scope.set(budget(), "caller",
              caller != nullptr ? *caller : Value::undefined("No caller defined"));
  }
  Dict others(budget());
  for (std::size_t i = 0; i < args.keyword.size(); ++i) {
    if (is_used[i]) continue;
    const auto& [name, value, origin] = args.keyword[i];
    if (!macro.uses_kwargs)
      fail("macro '{}' takes no keyword argument '{}'", macro.name, name.substr(0, 60));
    others.set(budget(), text(name, origin), value);
  }
  if (macro.uses_kwargs) scope.set(budget(), "kwargs", dict(std::move(others)));
  if (args.positional.size() > num_parameters && !macro.uses_varargs) {
    fail("macro '{}' takes not more than {} argument(s)", macro.name, num_parameters);
  }
  if (!macro.uses_varargs) return;
  ListBuilder rest(*this);
  for (std::size_t i = num_parameters; i < args.positional.size(); ++i)
    rest.push(args.positional[i]);
  scope.set(budget(), "varargs", rest.finish(ListKind::kTuple));
}

}  // namespace larder::jinja
