// The rules of a grammar's text, by name, in whatever order they are spoken of and defined.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <unordered_map>

#include "base/printable.h"
#include "grammar/grammar_builder.h"

namespace larder {

struct NamedRule {
  std::string name;
  GrammarRule part;
  std::size_t first_line = 0;  // where it is spoken of
  std::size_t line = 0;        // of its definition; 0 = there is none
};

// Thread: one at a time.
class NamedRules {
 public:
  explicit NamedRules(GrammarBuilder& builder) : builder_(builder) {}

  // Declared where it is spoken of first, in that line; stays where it is.
  NamedRule& at(const std::string& name, std::size_t line) {
    const auto [place, is_new] = indices_.try_emplace(name, rules_.size());
    if (is_new) rules_.push_back({name, builder_.declare(), line, 0});
    return rules_[place->second];
  }
  // nullptr: nobody has spoken of it.
  const NamedRule* find(const std::string& name) const {
    const auto found = indices_.find(name);
    return found == indices_.end() ? nullptr : &rules_[found->second];
  }
  // The first of which somebody has spoken, and that has no definition; nullptr: all have one.
  const NamedRule* first_undefined() const {
    const auto found = std::ranges::find(rules_, std::size_t{0}, &NamedRule::line);
    return found == rules_.end() ? nullptr : &*found;
  }
  // rule: its line is set.
  void define(const NamedRule& rule, Fragment part) {
    builder_.define(rule.part, part, fmt::format("line {}: the rule '{}'", rule.line, printable(rule.name)));
  }

 private:
  GrammarBuilder& builder_;
  std::deque<NamedRule> rules_;  // by when they are first spoken of
  std::unordered_map<std::string, std::size_t> indices_;
};

}  // namespace larder
