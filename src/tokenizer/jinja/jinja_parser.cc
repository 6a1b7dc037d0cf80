#include "tokenizer/jinja/jinja_parser.h"

#include <algorithm>

namespace larder::jinja {
namespace {

class Parser final : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  ParsedTemplate run() {
    Block body = statements({});
    return {std::move(body), std::move(unknown_names_)};
  }

 private:
  StmtPtr make_stmt(StmtKind kind, int line) const {
    auto made = std::make_unique<Stmt>();
    made->kind = kind;
    made->line = line;
    return made;
  }

  // Up to a tag that is one of ends_at, which stays the current token; to the end when there are
  // none.
  Block statements(Words ends_at) {
    const Nesting nesting(*this);
    Block body;
    for (;;) {
      const int line = current().line;
      switch (current().kind) {
        case TokenKind::kEnd:
          if (ends_at.size() > 0) {
            fail_at(line, fmt::format("unexpected end of the template: a '{}' is missing",
                                      *(ends_at.end() - 1)));
          }
          return body;
        case TokenKind::kData: {
          StmtPtr data = make_stmt(StmtKind::kData, line);
          data->text = std::make_shared<const Text>(next().text, Origin::kTrusted);
          body.push_back(std::move(data));
          break;
        }
        case TokenKind::kPrintBegin: {
          next();
          StmtPtr print = make_stmt(StmtKind::kPrint, line);
          print->expressions.push_back(tuple());
          expect(TokenKind::kPrintEnd, "end of print statement");
          body.push_back(std::move(print));
          break;
        }
        default:
          expect(TokenKind::kBlockBegin, "a tag");
          if (std::any_of(ends_at.begin(), ends_at.end(),
                          [this](std::string_view word) { return is_word(word); })) {
            return body;
          }
          body.push_back(statement());
          expect(TokenKind::kBlockEnd, "end of statement block");
      }
    }
  }

  // Behind an opening tag: its end, the body, and the closing word, which is returned.
  std::string body_of(Block& body, Words ends_at) {
    skip_op(":");
    expect(TokenKind::kBlockEnd, "end of statement block");
    body = statements(ends_at);
    return next().text;
  }

  StmtPtr statement() {
    const int line = current().line;
    if (current().kind != TokenKind::kName) fail_at(line, "tag name expected");
    const std::string tag = next().text;
    if (tag == "if") return if_statement(line);
    if (tag == "for") return for_statement(line);
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return macro_statement(line);
    if (tag == "call") return call_statement(line);
    if (tag == "filter") return filter_statement(line);
    if (tag == "with") return with_statement(line);
    if (tag == "print") return print_statement(line);
    if (tag == "break" || tag == "continue") {
      if (num_loops_ == 0) fail_at(line, fmt::format("'{}' outside loop", tag));
      return make_stmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line);
    }
    if (tag == "generation") {
      StmtPtr made = make_stmt(StmtKind::kScope, line);
      const int num_outer = std::exchange(num_loops_, 0);
      body_of(made->body, {"endgeneration"});
      num_loops_ = num_outer;
      return made;
    }
    for (const std::string_view other :
         {"extends", "include", "import", "from", "block", "autoescape"}) {
      if (tag == other) fail_at(line, fmt::format("'{}' is not supported in a chat template", tag));
    }
    fail_at(line, fmt::format("Encountered unknown tag '{}'.", tag.substr(0, 60)));
  }

  StmtPtr if_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kIf, line);
    for (;;) {
      made->branches.push_back({tuple(false), {}});
      const std::string word = body_of(made->branches.back().body, {"elif", "else", "endif"});
      if (word == "elif") continue;
      if (word == "else") {
        made->branches.push_back({nullptr, {}});
        body_of(made->branches.back().body, {"endif"});
      }
      return made;
    }
  }

  void forbid_loop(const Expr& target) const {
    if (target.kind == ExprKind::kName && target.name == "loop") {
      fail_at(target.line, "Can't assign to special loop variable");
    }
    if (target.kind != ExprKind::kTuple) return;
    for (const ExprPtr& child : target.children) forbid_loop(*child);
  }

  StmtPtr for_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kFor, line);
    made->target = target(false, {"in"});
    forbid_loop(*made->target);
    if (!skip_word("in")) fail_unexpected();
    made->expressions.push_back(tuple(false, {"recursive"}));
    made->expressions.push_back(skip_word("if") ? expression() : nullptr);
    made->is_recursive = skip_word("recursive");
    ++num_loops_;
    const std::string word = body_of(made->body, {"else", "endfor"});
    --num_loops_;
    if (word == "else") body_of(made->otherwise, {"endfor"});
    return made;
  }

  StmtPtr set_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kSet, line);
    made->target = target(true);
    if (num_loops_ > 0) forbid_loop(*made->target);
    if (skip_op("=")) {
      made->expressions.push_back(tuple());
      return made;
    }
    made->kind = StmtKind::kSetBlock;
    made->expressions.push_back(filters(nullptr, false));
    body_of(made->body, {"endset"});
    return made;
  }

  void signature(MacroDefinition& macro) {
    expect_op("(");
    while (!is_op(")")) {
      if (!macro.parameters.empty()) expect_op(",");
      const int line = current().line;
      macro.parameters.push_back(expect_name());
      if (skip_op("=")) {
        macro.defaults.push_back(expression());
      } else if (!macro.defaults.empty()) {
        fail_at(line, "non-default argument follows default argument");
      }
    }
    expect_op(")");
  }

  void macro_body(MacroDefinition& macro, std::string_view end) {
    const int num_outer = std::exchange(num_loops_, 0);
    open_macros_.push_back(&macro);
    body_of(macro.body, {end});
    open_macros_.pop_back();
    num_loops_ = num_outer;
  }

  StmtPtr macro_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kMacro, line);
    made->macro = std::make_unique<MacroDefinition>();
    made->macro->name = expect_name();
    signature(*made->macro);
    macro_body(*made->macro, "endmacro");
    return made;
  }

  StmtPtr call_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kCallBlock, line);
    made->macro = std::make_unique<MacroDefinition>();
    made->macro->name = "caller";
    if (is_op("(")) signature(*made->macro);
    made->expressions.push_back(expression());
    if (made->expressions[0]->kind != ExprKind::kCall) fail_at(line, "expected call");
    macro_body(*made->macro, "endcall");
    return made;
  }

  StmtPtr filter_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kFilterBlock, line);
    made->expressions.push_back(filters(nullptr, true));
    body_of(made->body, {"endfilter"});
    return made;
  }

  StmtPtr with_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kWith, line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!made->targets.empty()) expect_op(",");
      made->targets.push_back(target(false));
      expect_op("=");
      made->expressions.push_back(expression());
    }
    body_of(made->body, {"endwith"});
    return made;
  }

  StmtPtr print_statement(int line) {
    StmtPtr made = make_stmt(StmtKind::kPrint, line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!made->expressions.empty()) expect_op(",");
      made->expressions.push_back(expression());
    }
    return made;
  }

  int num_loops_ = 0;  // around the current statement, inside its macro
};

}  // namespace

ParsedTemplate parse_template(std::string_view source, int max_depth) {
  return Parser(tokenize(source), max_depth).run();
}

}  // namespace larder::jinja
