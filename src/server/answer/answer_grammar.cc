#include "server/answer/answer_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_state.h"
#include "grammar/grammar_text.h"
#include "grammar/json_parts.h"
#include "grammar/json_schema.h"
#include "grammar/lark.h"
#include "grammar/regex.h"
#include "server/answer/tool_calls.h"
#include "server/json_fields.h"

namespace larder {
namespace {

constexpr std::size_t kMaxRecent = 16;
constexpr std::uint32_t kMaxMoreCalls = 15;  // that are demanded: a small model may find no end

// Stands in no text: no character of UTF-8 has such a byte.
constexpr std::string_view kTokenMark = "\xFF";

// Harmony's special tokens, as grammars write them: within a string or a text the model is not to end its message.
std::map<TokenId, std::string> marked_tokens(const Tokenizer& tokenizer) {
  std::map<TokenId, std::string> marked;
  for (const std::string_view text : kHarmonyTokens) {
    const auto token = tokenizer.find(text);
    // One that is hidden is no part of any text.
    if (token && tokenizer.is_special(*token) && !tokenizer.token_bytes(*token, false).empty())
      marked.emplace(*token, std::string(kTokenMark) + std::string(text));
  }
  return marked;
}

bool has_tools(const AnswerRules& rules) { return rules.tools.is_array() && !rules.tools.empty(); }

bool may_call(const AnswerRules& rules) { return has_tools(rules) && rules.tool_choice.may_call(); }

// Which of the request's fields binds the answer.
std::string field_of(const AnswerRules& rules) { return rules.format.is_text() ? "tools" : rules.format.field; }

class AnswerGrammar {
 public:
  explicit AnswerGrammar(const AnswerRules& rules) : rules_(rules) {}

  Grammar make() {
    const std::string field = field_of(rules_);
    try {
      Grammar grammar = builder_.finish(rules_.is_harmony ? in_messages() : whole());
      const GrammarState state(grammar);
      if (state.is_over()) {
        fail_field(field, state.is_whole() ? "permits the empty text only; leave it out"
                                           : "has too many beginnings, or none; send a simpler one");
      }
      return grammar;
    } catch (const Error& error) {
      // One that is too large is the field's fault, too: it is not the prompt that is too long for this server.
      if (error.param().empty())
        throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: {}", field, error.message()), field);
      throw Error(ErrorKind::kInvalidArgument, error.message(), error.param());
    }
  }

 private:
  Fragment whole() {
    if (!may_call(rules_)) return format();
    if (rules_.tool_choice.has_to_call()) return some_calls();
    return rules_.format.is_text() ? text_with_calls() : builder_.choice({format(), some_calls()});
  }

  Fragment format() {
    const AnswerFormat& format = rules_.format;
    switch (format.kind) {
      case AnswerFormat::Kind::kRegex:
        return add_regex(builder_, format.source, TextForm::kPlain, true);
      case AnswerFormat::Kind::kChoice:
        return parts_.one_of(format.choices);
      case AnswerFormat::Kind::kGrammar:
        return add_grammar(builder_, format.source);
      default:
        return add_json_schema(parts_, format.schema, format.field);
    }
  }

  // What stands between the quotes.
  Fragment input_of(const CustomTool& tool) {
    try {
      return tool.syntax == CustomTool::Syntax::kLark ? add_lark(builder_, tool.definition, TextForm::kJsonString)
                                                      : add_python_regex(builder_, tool.definition, TextForm::kJsonString);
    } catch (const Error& error) {
      throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: {}", tool.field, error.message()), tool.field);
    }
  }

  Fragment arguments_of(const Json& function, const std::string& name) {
    const auto custom = rules_.tool_choice.custom.find(name);
    if (custom != rules_.tool_choice.custom.end() && custom->second.is_bound()) {
      return builder_.sequence({builder_.text("{"), call_parts_.space(), builder_.text("\"input\""), call_parts_.colon(),
                                call_parts_.quoted(input_of(custom->second)), call_parts_.space(), builder_.text("}")});
    }
    const bool is_strict = rules_.tool_choice.is_strict(name);
    const auto schema = function.find("parameters");
    const bool has_schema = schema != function.end() && schema->is_object() && !schema->empty();
    if (!has_schema || (!is_strict && !rules_.tool_choice.has_to_call())) return call_parts_.any_object();
    Json whole = *schema;
    whole["type"] = "object";
    // Of a tool that is not strict nobody has asked for more than a call.
    return add_json_schema(call_parts_, whole, fmt::format("tools.{}.parameters", name),
                           is_strict ? SchemaUse::kStrict : SchemaUse::kLenient);
  }

  // A special token of harmony, which no text can be taken for: see marked_tokens().
  Fragment tag(std::string_view token) { return builder_.text(std::string(kTokenMark) + std::string(token)); }

  // Any text but for such tokens.
  Fragment any_text() {
    const GrammarNode node = builder_.add_node(), end = builder_.add_node();
    builder_.add_bytes(node, {0, 0xFE}, node);
    builder_.add_empty(node, end);
    return {node, end};
  }

  Fragment header(std::string_view channel) {
    return builder_.sequence({tag("<|channel|>"), builder_.text(channel), tag("<|message|>")});
  }

  // A thought, or none, and what is wanted, each in a message of its own.
  Fragment in_messages() {
    const Fragment thought = builder_.sequence({header("analysis"), any_text(), tag("<|end|>"), tag("<|start|>"),
                                                builder_.text("assistant")});
    std::vector<Fragment> wanted;
    if (may_call(rules_)) {
      for (const Json& tool : rules_.tools) {
        const Json& function = tool["function"];
        const auto name = function["name"].get<std::string>();
        if (!rules_.tool_choice.permits(name)) continue;
        wanted.push_back(builder_.sequence({tag("<|channel|>"), builder_.text("commentary to=functions." + name + " "),
                                            tag("<|constrain|>"), builder_.text("json"), tag("<|message|>"),
                                            arguments_of(function, name)}));
      }
    }
    if (!may_call(rules_) || !rules_.tool_choice.has_to_call())
      wanted.push_back(builder_.sequence({header("final"), rules_.format.is_text() ? any_text() : format()}));
    return builder_.sequence({builder_.optional(thought), builder_.choice(wanted)});
  }

  bool has_spelling() const { return rules_.spelling && !rules_.format.is_compact; }

  JsonSpacing spacing_of_calls() const {
    if (has_spelling()) return rules_.spelling->has_blanks ? JsonSpacing::kOneBlank : JsonSpacing::kNone;
    return rules_.format.is_compact ? JsonSpacing::kNone : JsonSpacing::kAny;
  }

  // At one of a call's places.
  Fragment space(std::string CallSpelling::* place) {
    if (!has_spelling()) return call_parts_.space();
    const std::string& text = *rules_.spelling.*place;
    return text.empty() ? builder_.nothing() : builder_.text(text);
  }

  // Behind the tag's beginning, which text may have led to.
  Fragment rest_of_call() {
    std::vector<Fragment> calls;
    for (const Json& tool : rules_.tools) {
      const Json& function = tool["function"];
      const auto name = function["name"].get<std::string>();
      if (!rules_.tool_choice.permits(name)) continue;
      calls.push_back(builder_.sequence({builder_.text(dump_json(name)), call_parts_.comma(), builder_.text("\"arguments\""),
                                         call_parts_.colon(), arguments_of(function, name)}));
    }
    return builder_.sequence({space(&CallSpelling::begin), builder_.text("{"), call_parts_.space(), builder_.text("\"name\""),
                              call_parts_.colon(), builder_.choice(calls), call_parts_.space(), builder_.text("}"),
                              space(&CallSpelling::end), builder_.text(kToolCallEnd)});
  }

  // At least one.
  Fragment some_calls() {
    const GrammarRule call = builder_.rule(builder_.sequence({builder_.text(kToolCall), rest_of_call()}));
    if (!rules_.takes_many_calls || rules_.tool_choice.is_one_call) return builder_.call(call);
    const GrammarRule more = builder_.rule(builder_.sequence({space(&CallSpelling::between), builder_.call(call)}));
    return builder_.sequence({builder_.call(call), builder_.repeat(more, {0, kMaxMoreCalls})});
  }

  // Any text, in which each beginning of a call leads to a whole one. A node for each byte of the tag that the
  // text ends with (Knuth, Morris, Pratt 1977; no byte of it but the first comes twice in a way that matters: '<'
  // begins it anew, all else does not).
  Fragment text_with_calls() {
    std::vector<GrammarNode> nodes;
    for (std::size_t i = 0; i < kToolCall.size(); ++i) nodes.push_back(builder_.add_node());
    const GrammarNode end = builder_.add_node();
    const Fragment rest = rest_of_call();
    const auto first = static_cast<std::uint8_t>(kToolCall.front());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto next = static_cast<std::uint8_t>(kToolCall[i]);
      builder_.add_bytes(nodes[i], {next, next}, i + 1 < nodes.size() ? nodes[i + 1] : rest.begin);
      if (next != first) builder_.add_bytes(nodes[i], {first, first}, nodes[1]);
      int begin = 0;
      for (const int known : {std::min<int>(first, next), std::max<int>(first, next), 256}) {
        if (begin < known) {
          builder_.add_bytes(nodes[i], {static_cast<std::uint8_t>(begin), static_cast<std::uint8_t>(known - 1)},
                             nodes[0]);
        }
        begin = known + 1;
      }
      builder_.add_empty(nodes[i], end);
    }
    // What stands behind one call where a second one is not wanted is text all the same: the scanner drops it.
    builder_.add_empty(rest.end, nodes[0]);
    return {nodes[0], end};
  }

  const AnswerRules& rules_;
  GrammarBuilder builder_;
  JsonParts parts_{builder_, rules_.format.is_compact ? JsonSpacing::kNone : JsonSpacing::kAny};
  JsonParts call_parts_{builder_, spacing_of_calls()};
};

// Of all that it goes by: the text may be megabytes, of which a grammar keeps little.
Digest key_of(const AnswerRules& rules) {
  const AnswerFormat& format = rules.format;
  const ToolChoice& choice = rules.tool_choice;
  const bool calls = may_call(rules);
  Json custom = Json::array();
  for (const auto& [name, tool] : choice.custom)
    custom.push_back({name, static_cast<int>(tool.syntax), tool.definition, tool.field});
  Json spelling;
  if (calls && rules.spelling)
    spelling = {rules.spelling->begin, rules.spelling->end, rules.spelling->between, rules.spelling->has_blanks};
  const std::string text = dump_json(
      Json::array({static_cast<int>(format.kind), format.schema, format.source, format.choices, format.field, format.is_compact,
                   calls ? rules.tools : Json(), static_cast<int>(choice.mode), choice.is_restricted, choice.names,
                   choice.strict_names, choice.is_one_call, rules.takes_many_calls, rules.is_harmony, spelling,
                   calls ? std::move(custom) : Json()}));
  return sha256(std::as_bytes(std::span(text)));
}

}  // namespace

bool has_harmony_tokens(const Tokenizer& tokenizer) { return marked_tokens(tokenizer).size() == std::size(kHarmonyTokens); }

bool are_constrained(const AnswerRules& rules) {
  if (!rules.format.is_text()) return true;
  if (!may_call(rules)) return false;
  const ToolChoice& choice = rules.tool_choice;
  return choice.has_to_call() || choice.is_restricted || !choice.strict_names.empty();
}

Grammar make_answer_grammar(const AnswerRules& rules) { return AnswerGrammar(rules).make(); }

std::shared_ptr<const TokenTrie> ConstraintTable::trie() {
  std::call_once(made_trie_, [this] {
    trie_ = std::make_shared<const TokenTrie>(
        tokenizer_.vocab_size(), [this, marked = marked_tokens(tokenizer_)](TokenId token) -> std::string_view {
          const auto ends = tokenizer_.end_tokens();
          if (std::ranges::find(ends, token) != ends.end()) return {};
          const auto found = marked.find(token);
          return found != marked.end() ? std::string_view(found->second) : tokenizer_.token_bytes(token, false);
        });
    num_trie_bytes_ = trie_->size_bytes();
  });
  return trie_;
}

std::shared_ptr<const Constraint> ConstraintTable::make(const AnswerRules& rules) {
  auto constraint = std::make_unique<Constraint>(make_answer_grammar(rules), trie());
  const std::size_t num_bytes = constraint->grammar.size_bytes();
  bool has_room = budget_->take(num_bytes);
  if (!has_room) {  // those that nobody uses go
    const std::lock_guard lock(mutex_);
    recent_.clear();
    has_room = budget_->take(num_bytes);
  }
  if (!has_room) {
    const std::string field = field_of(rules);
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{}: the formats of other requests take all the room that there is for them; try again later",
                            field),
                field);
  }
  return {constraint.release(), [budget = budget_, num_bytes](const Constraint* old) {
            delete old;
            budget->give_back(num_bytes);
          }};
}

std::shared_ptr<const Constraint> ConstraintTable::find(const AnswerRules& rules) {
  if (!are_constrained(rules)) return nullptr;
  const Digest key = key_of(rules);
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(recent_, key, &Entry::key);
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      return recent_.front().constraint;
    }
  }
  const std::shared_ptr<const Constraint> made = make(rules);
  const std::lock_guard lock(mutex_);
  recent_.push_front({key, made});
  if (recent_.size() > kMaxRecent) recent_.pop_back();
  return made;
}

}  // namespace larder
