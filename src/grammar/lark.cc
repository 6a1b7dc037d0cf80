#include "grammar/lark.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/printable.h"
#include "grammar/code_points.h"
#include "grammar/json_parts.h"
#include "grammar/json_schema.h"
#include "grammar/lark_common.h"
#include "grammar/lark_lexer.h"
#include "grammar/named_rules.h"
#include "grammar/regex.h"
#include "tokenizer/utf8.h"

namespace larder {
namespace {

using Kind = LarkToken::Kind;

constexpr int kMaxGroups = 200;  // within each other: the parser calls itself for each

// By their first letter.
bool is_terminal(std::string_view name) {
  const std::size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

[[noreturn]] void fail_at_template(const std::string& name, std::size_t line) {
  throw_invalid("line {}: '{}' has parameters, and templates are not supported; write a rule of its own for each use", line,
                printable(name));
}

bool has_flag(const LarkToken& token, char flag) { return token.flags.find(flag) != std::string::npos; }

class LarkParser {
 public:
  LarkParser(GrammarBuilder& builder, std::string_view text, TextForm form)
      : builder_(builder), form_(form), tokens_(lark_tokens(text)), rules_(builder) {}

  Fragment parse();

 private:
  const LarkToken& token(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const LarkToken& take() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }
  bool take(std::string_view sign);
  void expect(std::string_view sign, std::string_view where);
  std::string expect_name(std::string_view where);
  std::uint32_t read_count();

  bool is_definition() const;
  bool goes_on() const { return num_groups_ > 0 || !token().is_first_of_line; }
  bool is_element() const;
  void parse_statement();
  void parse_definition();
  void parse_attributes();
  void parse_import();
  void import(const std::string& name, const std::string& alias, std::size_t line);
  void parse_ignore();
  [[noreturn]] void fail_between_definitions() const;

  Fragment parse_alternatives();
  Fragment parse_sequence();
  Fragment parse_repeated();
  std::optional<Repetitions> parse_times();
  Fragment parse_element();
  Fragment parse_group(std::string_view closing);
  Fragment parse_named();
  Fragment string(const LarkToken& token);
  Fragment range(const LarkToken& first, const LarkToken& last);
  Fragment regex(const LarkToken& token);
  Fragment json(const LarkToken& token);
  // What %ignore permits comes behind each terminal: before the next one, that is, and at the end.
  Fragment with_ignored(Fragment terminal);

  // To be defined in that line, and in no other.
  const NamedRule& begin_rule(const std::string& name, std::size_t line);

  GrammarBuilder& builder_;
  const TextForm form_;
  const std::vector<LarkToken> tokens_;
  std::size_t at_ = 0;
  NamedRules rules_;  // and terminals
  std::optional<GrammarRule> ignored_;  // any number of what is ignored; nullopt = nothing is
  std::vector<Fragment> ignored_parts_;
  bool is_in_terminal_ = false;  // what is read
  int num_groups_ = 0;           // open
};

Fragment LarkParser::parse() {
  const auto is_ignore = [](const LarkToken& each) { return each.kind == Kind::kDirective && each.text == "%ignore"; };
  if (std::ranges::any_of(tokens_, is_ignore)) ignored_ = builder_.declare();
  while (token().kind != Kind::kEnd) parse_statement();
  if (const NamedRule* missing = rules_.first_undefined()) {
    throw_invalid("line {}: there is no {} '{}'", missing->first_line, is_terminal(missing->name) ? "terminal" : "rule",
                  printable(missing->name));
  }
  const NamedRule* start = rules_.find("start");
  if (start == nullptr) {
    throw_invalid("there is no rule 'start' for the text to begin with; if this is no grammar in Lark's notation, write the "
                  "first rule as root ::= ...");
  }
  const Fragment whole = builder_.call(start->part);
  if (!ignored_) return whole;
  builder_.define(*ignored_, builder_.any_number(builder_.choice(ignored_parts_)), "what is ignored");
  return builder_.sequence({builder_.call(*ignored_), whole});
}

bool LarkParser::take(std::string_view sign) {
  if (!token().is(sign)) return false;
  ++at_;
  return true;
}

void LarkParser::expect(std::string_view sign, std::string_view where) {
  if (take(sign)) return;
  throw_invalid("line {}: {} a '{}' is expected, and not '{}'", token().line, where, sign, printable(token().text));
}

std::string LarkParser::expect_name(std::string_view where) {
  if (token().kind != Kind::kName)
    throw_invalid("line {}: {} a name is expected, and not '{}'", token().line, where, printable(token().text));
  return take().text;
}

std::uint32_t LarkParser::read_count() {
  const LarkToken& number = take();
  std::uint32_t count = 0;
  const char* const end = number.text.data() + number.text.size();
  const auto [rest, error] = std::from_chars(number.text.data(), end, count);
  if (number.kind != Kind::kNumber || (error == std::errc::invalid_argument || rest != end))
    throw_invalid("line {}: repetitions are written ~n, ~n..m or {{n,m}}", number.line);
  if (error == std::errc::result_out_of_range || count > GrammarBuilder::kMaxNodes) {
    throw Error(ErrorKind::kTooLarge,
                fmt::format("line {}: more than {} repetitions cannot be counted; send a smaller bound, or none", number.line,
                            GrammarBuilder::kMaxNodes));
  }
  return count;
}

// Up to its colon: what stands at the beginning of a line may also be what goes on there.
bool LarkParser::is_definition() const {
  std::size_t ahead = 0;
  while (token(ahead).is("?") || token(ahead).is("!")) ++ahead;
  if (token(ahead++).kind != Kind::kName) return false;
  for (const auto& [opening, closing] : {std::pair("[", "]"), std::pair("{", "}")}) {
    if (!token(ahead).is(opening)) continue;
    while (!token(ahead).is(closing) && token(ahead).kind != Kind::kEnd) ++ahead;
    ++ahead;
  }
  if (token(ahead).is(".") && token(ahead + 1).kind == Kind::kNumber) ahead += 2;
  return token(ahead).is(":");
}

void LarkParser::parse_statement() {
  const LarkToken& first = token();
  if (!first.is_first_of_line)
    throw_invalid("line {}: '{}' cannot stand behind what comes before it", first.line, printable(first.text));
  if (first.kind != Kind::kDirective) return is_definition() ? parse_definition() : fail_between_definitions();
  if (first.text == "%llguidance") {
    ++at_;
  } else if (first.text == "%import") {
    parse_import();
  } else if (first.text == "%ignore") {
    parse_ignore();
  } else {
    throw_invalid("line {}: '{}' is not supported; %import, %ignore, %json and %llguidance are", first.line, printable(first.text));
  }
}

void LarkParser::fail_between_definitions() const {
  throw_invalid("line {}: a rule is expected, as name: ..., and not '{}'; one goes on in the next line only with | or within "
                "parentheses", token().line, printable(token().text));
}

void LarkParser::parse_definition() {
  while (take("?") || take("!")) continue;
  const std::size_t line = token().line;
  const std::string name = take().text;
  if (token().is("{")) fail_at_template(name, line);
  parse_attributes();
  if (take(".")) ++at_;  // a priority
  expect(":", "behind a rule's name");
  is_in_terminal_ = is_terminal(name);
  const NamedRule& rule = begin_rule(name, line);
  rules_.define(rule, parse_alternatives());
}

// llguidance's: those that name what is matched change nothing.
void LarkParser::parse_attributes() {
  if (!take("[")) return;
  do {
    const std::size_t line = token().line;
    const std::string name = expect_name("as a rule's attribute");
    if (name != "capture" && name != "stop_capture") {
      throw_invalid("line {}: the attribute '{}' of a rule is not supported; say in its alternatives what may come, and in the "
                    "request's fields what holds for all of the answer", line, printable(name));
    }
    if (take("=")) ++at_;
  } while (take(","));
  expect("]", "behind a rule's attributes");
}

void LarkParser::parse_import() {
  const std::size_t line = take().line;
  if (token().is(".")) throw_invalid("line {}: there are no files to import from; only common's terminals can be", line);
  std::vector<std::string> path{expect_name("behind %import")};
  while (take(".")) path.push_back(expect_name("in a name that is imported"));
  const bool is_list = take("(");
  if (path.front() != "common" || path.size() != (is_list ? 1u : 2u)) {
    throw_invalid("line {}: '{}' cannot be imported; only common's terminals can be, as in %import common.WS", line,
                  printable(fmt::format("{}", fmt::join(path, "."))));
  }
  if (!is_list) {
    const std::string alias = take("->") ? expect_name("behind ->") : path[1];
    return import(path[1], alias, line);
  }
  do {
    const std::string name = expect_name("in a list of what is imported");
    import(name, name, line);
  } while (take(","));
  expect(")", "behind what is imported");
}

void LarkParser::import(const std::string& name, const std::string& alias, std::size_t line) {
  const std::string_view expression = lark_common_terminal(name);
  if (expression.empty()) throw_invalid("line {}: common has no terminal '{}'", line, printable(name));
  rules_.define(begin_rule(alias, line), add_python_regex(builder_, expression, form_));
}

void LarkParser::parse_ignore() {
  ++at_;
  is_in_terminal_ = true;
  ignored_parts_.push_back(parse_alternatives());
}

Fragment LarkParser::parse_alternatives() {
  std::vector<Fragment> parts;
  do {
    parts.push_back(parse_sequence());
    if (take("->")) expect_name("behind ->");  // what it is called in a tree
  } while (take("|"));
  return builder_.choice(parts);
}

Fragment LarkParser::parse_sequence() {
  std::vector<Fragment> parts;
  const auto is_next_definition = [this] { return num_groups_ == 0 && token().is_first_of_line && is_definition(); };
  while (is_element() && (parts.empty() ? !is_next_definition() : goes_on())) parts.push_back(parse_repeated());
  return builder_.sequence(parts);
}

// What no alternative has is told here, where it would be one.
bool LarkParser::is_element() const {
  const LarkToken& next = token();
  if (next.kind == Kind::kName || next.kind == Kind::kString || next.kind == Kind::kRegex) return true;
  if (next.kind == Kind::kDirective) return next.text == "%json";
  if (next.kind != Kind::kSign || !goes_on()) return next.is("(") || next.is("[");
  if (next.is("<"))
    throw_invalid("line {}: tokens in a grammar (as in <think>) are not supported; write their text in quotes", next.line);
  if (next.is("@") || next.is("&")) throw_invalid("line {}: '{}' is not supported in a grammar", next.line, next.text);
  if (next.is("*") || next.is("+") || next.is("?") || next.is("~") || next.is("{"))
    throw_invalid("line {}: there is nothing before '{}' that it would repeat", next.line, next.text);
  return next.is("(") || next.is("[");
}

Fragment LarkParser::parse_repeated() {
  Fragment part = parse_element();
  while (goes_on()) {
    const auto times = parse_times();
    if (!times) break;
    if (times->min == 0 && !times->max) {
      part = builder_.any_number(part);
    } else if (times->min == 1 && !times->max) {
      part = builder_.at_least_once(part);
    } else if (times->min == 0 && times->max == 1u) {
      part = builder_.optional(part);
    } else {
      part = builder_.repeat(builder_.rule(part), *times);
    }
  }
  return part;
}

std::optional<Repetitions> LarkParser::parse_times() {
  const std::size_t line = token().line;
  Repetitions times;
  if (take("*")) return times;
  if (take("+")) return Repetitions{1, std::nullopt};
  if (take("?")) return Repetitions{0, 1};
  if (take("~")) {
    times.min = read_count();
    times.max = take("..") ? read_count() : times.min;
  } else if (take("{")) {
    if (!token().is(",")) times.min = read_count();
    times.max = times.min;
    if (take(",")) times.max = token().is("}") ? std::nullopt : std::optional(read_count());
    expect("}", "behind repetitions");
  } else {
    return std::nullopt;
  }
  if (times.max && times.min > *times.max) throw_invalid("line {}: the repetitions have a least number above the greatest", line);
  return times;
}

Fragment LarkParser::parse_element() {
  if (token().is("(")) return parse_group(")");
  if (token().is("[")) return builder_.optional(parse_group("]"));
  if (token().kind == Kind::kName) return parse_named();
  const LarkToken& first = take();
  if (first.kind == Kind::kDirective) return with_ignored(json(first));
  if (first.kind == Kind::kRegex) return with_ignored(regex(first));
  if (take("..")) return with_ignored(range(first, take()));
  return first.text.empty() ? builder_.nothing() : with_ignored(string(first));
}

Fragment LarkParser::parse_group(std::string_view closing) {
  const std::size_t line = take().line;
  if (num_groups_ == kMaxGroups)
    throw_invalid("line {}: there are more than {} groups within each other; make rules of some", line, kMaxGroups);
  ++num_groups_;
  const Fragment part = parse_alternatives();
  if (!take(closing)) throw_invalid("line {}: the group that begins here has no {}", line, closing);
  --num_groups_;
  return part;
}

Fragment LarkParser::parse_named() {
  const LarkToken& name = take();
  const bool is_of_terminal = is_terminal(name.text);
  const bool has_parameters = token().is("{") && token(1).kind != Kind::kNumber && !token(1).is(",");
  if (has_parameters) fail_at_template(name.text, name.line);
  if (is_in_terminal_ && !is_of_terminal)
    throw_invalid("line {}: a terminal has no rules in it, and '{}' is one; names of terminals have large letters", name.line,
                  printable(name.text));
  const Fragment part = builder_.call(rules_.at(name.text, name.line).part);
  return is_of_terminal ? with_ignored(part) : part;
}

Fragment LarkParser::string(const LarkToken& token) {
  CharacterPaths paths(builder_, form_);
  Fragment part = builder_.nothing();
  for (std::size_t i = 0; i < token.text.size();) {
    const Utf8Char c = read_utf8(token.text, i);
    const CodePointSet set{{c.code_point, c.code_point}};
    part.end = paths.add(part.end, has_flag(token, 'i') ? in_both_cases(set) : set);
    i += c.length;
  }
  return part;
}

Fragment LarkParser::range(const LarkToken& first, const LarkToken& last) {
  const auto character = [&](const LarkToken& end) {
    const bool is_text = end.kind == Kind::kString && !end.text.empty();
    const Utf8Char c = is_text ? read_utf8(end.text, 0) : Utf8Char{};
    if (!is_text || c.length != end.text.size())
      throw_invalid("line {}: a range is written as \"a\"..\"z\", of one character each", end.line);
    return c.code_point;
  };
  CodePointSet set{{character(first), character(last)}};
  if (set.front().last < set.front().first)
    throw_invalid("line {}: the range ends before it begins", first.line);
  if (has_flag(first, 'i') || has_flag(last, 'i')) set = in_both_cases(std::move(set));
  CharacterPaths paths(builder_, form_);
  Fragment part = builder_.nothing();
  part.end = paths.add(part.begin, normal_form(std::move(set)));
  return part;
}

Fragment LarkParser::regex(const LarkToken& token) {
  const RegexFlags flags{.ignores_case = has_flag(token, 'i'),
                         .dot_is_any = has_flag(token, 's'),
                         .is_verbose = has_flag(token, 'x'),
                         .is_within = true};
  try {
    return add_python_regex(builder_, token.text, form_, flags);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kInvalidArgument) throw;
    throw_invalid("line {}: {}", token.line, error.message());
  }
}

Fragment LarkParser::json(const LarkToken& token) {
  if (form_ != TextForm::kPlain) throw_invalid("line {}: a schema (%json) in a tool's grammar is not supported", token.line);
  nlohmann::ordered_json schema;
  try {
    schema = nlohmann::ordered_json::parse(token.json);
  } catch (const nlohmann::json::exception&) {
    throw_invalid("line {}: what stands behind %json is no JSON", token.line);
  }
  // guidance says so of what it writes itself.
  const auto options = schema.value("x-guidance", nlohmann::ordered_json::object());
  const auto says = [&](const char* name, const nlohmann::ordered_json& value) {
    return options.is_object() && options.contains(name) && options[name] == value;
  };
  JsonSpacing spacing = JsonSpacing::kAny;
  if (says("whitespace_flexible", false)) spacing = says("key_separator", ": ") ? JsonSpacing::kOneBlank : JsonSpacing::kNone;
  JsonParts parts(builder_, spacing);
  return add_json_schema(parts, schema, fmt::format("line {}: %json", token.line));
}

Fragment LarkParser::with_ignored(Fragment terminal) {
  if (is_in_terminal_ || !ignored_) return terminal;
  return builder_.sequence({terminal, builder_.call(*ignored_)});
}

const NamedRule& LarkParser::begin_rule(const std::string& name, std::size_t line) {
  NamedRule& rule = rules_.at(name, line);
  if (rule.line != 0)
    throw_invalid("line {}: '{}' is defined a second time; the first is in line {}", line, printable(name), rule.line);
  rule.line = line;
  return rule;
}

}  // namespace

Fragment add_lark(GrammarBuilder& builder, std::string_view text, TextForm form) {
  return LarkParser(builder, text, form).parse();
}

}  // namespace larder
