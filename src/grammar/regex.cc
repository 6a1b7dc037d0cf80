#include "grammar/regex.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/character_paths.h"
#include "grammar/code_points.h"
#include "grammar/regex_reader.h"

namespace larder {
namespace {

// Below GrammarState::kMaxDepth, as each group may be called by what repeats it.
constexpr std::size_t kMaxNesting = 100;
constexpr std::string_view kMisplacedEnd = "a $ that is not at the end of an outermost alternative";
constexpr std::string_view kAnchorWithin = "a ^ or $ in a part of a text";
constexpr char32_t kNoCharacter = RegexReader::kNoCharacter;

// Adds what it reads behind the node where that begins. What may be repeated begins with a node of its own, so that
// nothing leads back to one that others begin with, too.
class RegexParser {
 public:
  RegexParser(GrammarBuilder& builder, const RegexReader& reader, TextForm form)
      : builder_(builder), reader_(reader), paths_(builder, form), closing_(reader_.characters().size()) {
    pair_brackets();
  }

  Fragment add(bool is_whole) {
    whole_ = {builder_.add_node(), builder_.add_node()};
    add_outermost({is_whole, is_whole});
    CHECK(reader_.is_over(), reader_.place());
    return whole_;
  }

 private:
  struct Anchors {
    bool begin, end;  // nothing comes before, or after
  };

  void pair_brackets();
  bool is_end_of_alternative(std::size_t place) const;
  bool is_group_alone() const;
  void add_outermost(Anchors anchors);
  void add_outermost_sequence(Anchors anchors);
  GrammarNode add_sequence(GrammarNode from);
  GrammarNode add_item(GrammarNode from);
  Fragment add_group();
  Fragment add_times(Fragment part, Repetitions times);
  bool take_end();
  GrammarNode add_any_characters();

  GrammarBuilder& builder_;
  RegexReader reader_;
  CharacterPaths paths_;
  std::vector<std::size_t> closing_;  // by the place of a ( that of its )
  Fragment whole_{};
  std::optional<GrammarNode> before_, after_;  // any characters there, made when needed
};

// Also bounds how deep the functions below call themselves.
void RegexParser::pair_brackets() {
  const std::u32string& characters = reader_.characters();
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const char32_t c = characters[i];
    if (c == '\\') {
      ++i;
    } else if (c == '[') {
      i = reader_.end_of_class(i) - 1;
    } else if (c == '(') {
      if (open.size() == kMaxNesting) {
        reader_.fail(i, fmt::format("more than {} groups within each other", kMaxNesting));
      }
      open.push_back(i);
    } else if (c == ')') {
      if (open.empty()) reader_.fail(i, "a ) without its (");
      closing_[open.back()] = i;
      open.pop_back();
    }
  }
  if (!open.empty()) reader_.fail(open.back(), "a ( without its )");
}

bool RegexParser::is_end_of_alternative(std::size_t place) const {
  const char32_t c = reader_.at(place);
  return c == kNoCharacter || c == '|' || c == ')';
}

// A group that is all there is of an alternative, but for a $.
bool RegexParser::is_group_alone() const {
  if (reader_.peek() != '(') return false;
  std::size_t behind = closing_[reader_.place()] + 1;
  while (reader_.at(behind) == '$') ++behind;
  return is_end_of_alternative(behind);
}

// Alternatives of the whole expression, which may stand in a group.
void RegexParser::add_outermost(Anchors anchors) {
  do {
    Anchors here = anchors;
    while (reader_.take_flags()) continue;
    const std::size_t begin = reader_.place();
    while (reader_.take('^')) here.begin = true;
    if (reader_.flags().is_within && reader_.place() != begin) reader_.fail(begin, kAnchorWithin);
    if (!is_group_alone()) {
      add_outermost_sequence(here);
      continue;
    }
    here.end |= reader_.at(closing_[reader_.place()] + 1) == '$';
    const RegexFlags flags = reader_.flags();
    reader_.read_group_head();
    add_outermost(here);
    reader_.set_flags(flags);
    reader_.next();
    while (take_end()) continue;
  } while (reader_.take('|'));
}

void RegexParser::add_outermost_sequence(Anchors anchors) {
  if (!anchors.begin && !before_) {
    before_ = add_any_characters();
    builder_.add_empty(whole_.begin, *before_);
  }
  const GrammarNode last = add_sequence(anchors.begin ? whole_.begin : *before_);
  const std::size_t behind = reader_.place();
  while (take_end()) anchors.end = true;
  if (!is_end_of_alternative(reader_.place())) {
    reader_.fail(behind, kMisplacedEnd);
  }
  if (!anchors.end && !after_) {
    after_ = add_any_characters();
    builder_.add_empty(*after_, whole_.end);
  }
  builder_.add_empty(last, anchors.end ? whole_.end : *after_);
}

bool RegexParser::take_end() {
  if (reader_.peek() == '$' && reader_.flags().is_within) reader_.fail(reader_.place(), kAnchorWithin);
  return reader_.take('$');
}

GrammarNode RegexParser::add_any_characters() {
  const GrammarNode node = builder_.add_node();
  paths_.add_between(node, complement({}), node);
  if (paths_.is_json()) builder_.set_free_characters(node, Grammar::kAnyNumber);
  return node;
}

GrammarNode RegexParser::add_sequence(GrammarNode from) {
  while (!is_end_of_alternative(reader_.place()) && reader_.peek() != '$') from = add_item(from);
  return from;
}

GrammarNode RegexParser::add_item(GrammarNode from) {
  if (reader_.take_flags()) return from;
  Fragment part{};
  std::optional<Repetitions> times;
  if (reader_.peek() == '(') {
    part = add_group();
    times = reader_.read_quantifier();
  } else {
    const CodePointSet set = reader_.read_set();
    times = reader_.read_quantifier();
    if (!times) return paths_.add(from, set);
    part.begin = builder_.add_node();
    part.end = paths_.add(part.begin, set);
    const bool is_loop = times->min <= 1 && !times->max;
    if (is_loop && paths_.is_json() && has_all_unescaped(set)) {
      builder_.set_free_characters(part.begin, Grammar::kAnyNumber);
    }
  }
  if (times) part = add_times(part, *times);
  builder_.add_empty(from, part.begin);
  return part.end;
}

Fragment RegexParser::add_group() {
  const RegexFlags flags = reader_.flags();
  reader_.read_group_head();
  const Fragment group{builder_.add_node(), builder_.add_node()};
  do {
    builder_.add_empty(add_sequence(group.begin), group.end);
    if (reader_.peek() == '$') reader_.fail(reader_.place(), kMisplacedEnd);
  } while (reader_.take('|'));
  reader_.set_flags(flags);
  reader_.next();
  return group;
}

Fragment RegexParser::add_times(Fragment part, Repetitions times) {
  if (times.max == 0) return builder_.nothing();
  if (times.min == 1 && times.max == 1) return part;
  if (times.min == 0 && times.max == 1) return builder_.optional(part);
  if (times.min == 0 && !times.max) return builder_.any_number(part);
  if (times.min == 1 && !times.max) {
    builder_.add_empty(part.end, part.begin);
    return part;
  }
  return builder_.repeat(builder_.rule(part), times);
}

}  // namespace

Fragment add_regex(GrammarBuilder& builder, std::string_view expression, TextForm form, bool is_whole) {
  return RegexParser(builder, RegexReader(expression, RegexDialect::kEcmaScript, {}), form).add(is_whole);
}

Fragment add_python_regex(GrammarBuilder& builder, std::string_view expression, TextForm form, RegexFlags flags) {
  return RegexParser(builder, RegexReader(expression, RegexDialect::kPython, flags), form).add(true);
}

}  // namespace larder
