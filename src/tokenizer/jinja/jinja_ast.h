// A parsed template. Immutable after parsing; heights are bounded, so that walking and freeing it
// cannot exhaust the stack.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/jinja/jinja_operators.h"

namespace larder::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : std::uint8_t {
  kConstant,   // constant
  kName,       // name
  kTuple,      // children
  kList,       // children
  kDict,       // children: key, value, key, value, ...
  kAttribute,  // children[0].name; as a target, name is the namespace's attribute
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1]:children[2]:children[3]], each but the first may be null
  kCall,       // children[0](arguments)
  kFilter,     // children[0] | name(arguments); null in a filter block
  kTest,       // children[0] is name(arguments)
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kCompare,      // children[0] compares[0] children[1] compares[1] ...
  kConcat,       // children, joined as text
  kBinary,       // children[0] op children[1]
  kConditional,  // children[1] if children[0] else children[2], which may be null
};

enum class ArgumentKind : std::uint8_t { kPositional, kKeyword, kStar, kDoubleStar };

struct Argument {
  ArgumentKind kind = ArgumentKind::kPositional;
  std::string name;  // kKeyword
  ExprPtr value;
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  BinaryOp op = BinaryOp::kAdd;
  int line = 1;
  int height = 1;
  Value constant;
  std::string name;
  std::vector<ExprPtr> children;
  std::vector<Argument> arguments;
  std::vector<CompareOp> compares;
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

// A macro, or the body of a call block.
struct MacroDefinition {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Branch {
  ExprPtr condition;  // null: else
  Block body;
};

enum class StmtKind : std::uint8_t {
  kData,         // text
  kPrint,        // expressions
  kIf,           // branches
  kFor,          // target in expressions[0] if expressions[1], which may be null; body; otherwise
  kSet,          // target = expressions[0]
  kSetBlock,     // target = body | expressions[0], which may be null
  kMacro,        // macro
  kCallBlock,    // macro is its body; expressions[0] the call
  kFilterBlock,  // expressions[0] the filter
  kWith,         // targets = expressions; body
  kScope,        // body, in a scope of its own
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind = StmtKind::kData;
  int line = 1;
  bool is_recursive = false;  // kFor
  TextRef text;
  ExprPtr target;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> expressions;
  std::vector<Branch> branches;
  Block body, otherwise;
  std::unique_ptr<MacroDefinition> macro;
};

}  // namespace larder::jinja
