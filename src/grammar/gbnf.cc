#include "grammar/gbnf.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "grammar/gbnf_lexer.h"
#include "grammar/grammar_builder.h"
#include "grammar/named_rules.h"
#include "grammar/utf8_ranges.h"

namespace larder {
namespace {

using Kind = GbnfToken::Kind;

constexpr int kMaxGroups = 200;  // within each other: the parser calls itself for each

class GbnfParser {
 public:
  GbnfParser(GrammarBuilder& builder, std::string_view text) : builder_(builder), lexer_(text), token_(lexer_.next()), rules_(builder) {}

  Fragment parse() {
    while (token_.kind != Kind::kEnd) parse_rule();
    if (const NamedRule* missing = rules_.first_undefined())
      throw_invalid("line {}: there is no rule '{}'", missing->first_line, printable(missing->name));
    const NamedRule* root = rules_.find("root");
    if (root == nullptr) throw_invalid("there is no rule 'root' for the text to begin with");
    return builder_.call(root->part);
  }

 private:
  void parse_rule() {
    if (token_.kind != Kind::kDefinition) fail_between_rules();
    if (!token_.is_first_of_line) {
      throw_invalid("line {}: the rule '{}' begins within the line of another", token_.line, printable(token_.text));
    }
    NamedRule& rule = rules_.at(token_.text, token_.line);
    if (rule.line != 0) {
      throw_invalid("line {}: the rule '{}' is defined a second time; the first is in line {}", token_.line,
                    printable(token_.text), rule.line);
    }
    rule.line = token_.line;
    advance();
    rules_.define(rule, parse_alternatives());
  }

  [[noreturn]] void fail_between_rules() {
    if (token_.kind == Kind::kName) lexer_.next();  // knows better what is wrong with a sign like := or =
    if (token_.kind == Kind::kClose) throw_invalid("line {}: the ) has no ( before it", token_.line);
    throw_invalid(
        "line {}: a rule is expected, as name ::= ..., and not '{}'; one goes on in the next line only behind | "
        "or within parentheses; this is GBNF, in Lark's notation all rules are name: ...",
        token_.line, printable(token_.text));
  }

  [[noreturn]] void fail_at_repetitions() const {
    throw_invalid("line {}: there is nothing before '{}' that it would repeat", token_.line, printable(token_.text));
  }

  Fragment parse_alternatives() {
    std::vector<Fragment> parts;
    do {
      if (!parts.empty()) advance();
      parts.push_back(parse_sequence());
    } while (token_.kind == Kind::kAlternative);
    return builder_.choice(parts);
  }

  Fragment parse_sequence() {
    std::vector<Fragment> parts;
    if (token_.kind == Kind::kRepetitions) fail_at_repetitions();
    while (is_element() && (parts.empty() || goes_on())) parts.push_back(parse_repeated());
    return builder_.sequence(parts);
  }

  bool is_element() const {
    return token_.kind == Kind::kName || token_.kind == Kind::kLiteral || token_.kind == Kind::kClass ||
           token_.kind == Kind::kOpen;
  }

  bool goes_on() const { return num_groups_ > 0 || !token_.is_first_of_line; }

  Fragment parse_repeated() {
    Fragment part = parse_element();
    for (; token_.kind == Kind::kRepetitions && goes_on(); advance()) part = repeated(part, token_.times);
    return part;
  }

  Fragment repeated(Fragment part, const Repetitions& times) {
    if (times.min == 0 && !times.max) return builder_.any_number(part);
    if (times.min == 0 && times.max == 1u) return builder_.optional(part);
    if (times.min == 1 && !times.max) return builder_.at_least_once(part);
    return builder_.repeat(builder_.rule(part), times);
  }

  Fragment parse_element() {
    if (token_.kind == Kind::kOpen) return parse_group();
    const GbnfToken token = std::exchange(token_, lexer_.next());
    if (token.kind == Kind::kLiteral) return builder_.text(token.text);
    if (token.kind == Kind::kClass) return one_of(token.ranges);
    return builder_.call(rules_.at(token.text, token.line).part);
  }

  Fragment parse_group() {
    const std::size_t line = token_.line;
    if (num_groups_ == kMaxGroups) {
      throw_invalid("line {}: there are more than {} groups within each other; make rules of some", line, kMaxGroups);
    }
    ++num_groups_;
    advance();
    const Fragment part = parse_alternatives();
    if (token_.kind != Kind::kClose) throw_invalid("line {}: the group that begins here has no )", line);
    --num_groups_;
    advance();
    return part;
  }

  Fragment one_of(const CodePointSet& ranges) {
    const Fragment part{builder_.add_node(), builder_.add_node()};
    CodePointPaths paths(builder_, part.begin, part.end);
    for (const CodePointRange& range : ranges) paths.add(range.first, range.last);
    return part;
  }

  void advance() { token_ = lexer_.next(); }

  GrammarBuilder& builder_;
  GbnfLexer lexer_;
  GbnfToken token_;  // the next one
  NamedRules rules_;
  int num_groups_ = 0;  // open
};

}  // namespace

Fragment add_gbnf(GrammarBuilder& builder, std::string_view text) { return GbnfParser(builder, text).parse(); }

}  // namespace larder
