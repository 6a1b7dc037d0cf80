// Tokens to a tree.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/jinja_ast.h"
#include "tokenizer/jinja/jinja_lexer.h"

namespace larder::jinja {

struct ParsedTemplate {
  Block body;
  // Of filters and tests that there are none of, "the filter x"; the first few. They fail where they
  // are reached, which a template may well avoid.
  std::vector<std::string> unknown_names;
};

// Throws Failure with the line. max_depth bounds nesting, of brackets and of blocks.
ParsedTemplate parse_template(std::string_view source, int max_depth);

// Expressions; the parser of statements builds on it.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, int max_depth)
      : tokens_(std::move(tokens)), max_depth_(max_depth) {}

 protected:
  using Words = std::initializer_list<std::string_view>;

  // One more level of nesting while it lives.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next();
  bool is_op(std::string_view op) const;
  bool is_word(std::string_view word) const;
  bool skip_op(std::string_view op);
  bool skip_word(std::string_view word);
  void expect_op(std::string_view op);
  std::string expect_name();
  void expect(TokenKind kind, std::string_view what);
  [[noreturn]] void fail_at(int line, std::string message) const;
  [[noreturn]] void fail_unexpected() const;

  ExprPtr make(ExprKind kind, int line) const;
  // Takes the child, and its height.
  void adopt(Expr& parent, ExprPtr child) const;
  void grow(Expr& parent, const Expr* child) const;

  ExprPtr expression(bool with_condition = true);
  // One expression, or several with commas between them: a tuple. ends_at: words that end it too.
  ExprPtr tuple(bool with_condition = true, Words ends_at = {}, bool is_in_parentheses = false);
  ExprPtr target(bool allows_attribute, Words ends_at = {});
  ExprPtr filters(ExprPtr value, bool starts_inline);
  void arguments(Expr& call);

  // what: "filter", "test".
  void note_unknown(const char* what, const std::string& name);

  std::vector<std::string> unknown_names_;
  std::vector<MacroDefinition*> open_macros_;  // those whose bodies are being read

 private:
  ExprPtr condition();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary();
  ExprPtr name();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr value);
  ExprPtr filters_and_tests(ExprPtr value);
  ExprPtr subscript(ExprPtr value);
  ExprPtr call(ExprPtr value);
  ExprPtr test(ExprPtr value);
  ExprPtr target_part(bool allows_attribute);
  ExprPtr binary_node(BinaryOp op, ExprPtr left, ExprPtr right, int line) const;
  bool is_tuple_end(Words ends_at) const;
  bool compare_op(CompareOp& op);
  Argument argument(const Expr& call);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int max_depth_;
  int depth_ = 0;
};

}  // namespace larder::jinja
