// Puts a Grammar together, from the smallest part to the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace larder {

struct ByteRange {
  std::uint8_t first, last;  // both of them, too
};

// A part of the automaton, between two nodes: nothing leads into its beginning or out of its end yet, so
// that it can be used once.
struct Fragment {
  GrammarNode begin, end;
};

// A part that is used by being called, as often as wanted, by itself, too.
struct GrammarRule {
  GrammarNode begin, end;
};

// How often something comes; nullopt = without bound.
struct Repetitions {
  std::uint32_t min = 0;
  std::optional<std::uint32_t> max;
};

class PathsToEnds;

// Thread: one at a time. All that make nodes throw Error{kTooLarge} where the automaton would have more than
// max_nodes of them, or four times as many edges.
class GrammarBuilder {
 public:
  static constexpr std::size_t kMaxNodes = std::size_t{1} << 16;

  explicit GrammarBuilder(std::size_t max_nodes = kMaxNodes) : max_nodes_(max_nodes) {}

  GrammarNode add_node();
  std::size_t num_nodes() const { return nodes_.size(); }
  void add_bytes(GrammarNode from, ByteRange range, GrammarNode to);
  void add_empty(GrammarNode from, GrammarNode to);
  void add_call(GrammarNode from, const GrammarRule& rule, GrammarNode to);
  void set_free_characters(GrammarNode node, std::uint16_t num_characters);

  Fragment nothing();
  Fragment text(std::string_view text);
  Fragment bytes(std::initializer_list<ByteRange> ranges);
  Fragment call(const GrammarRule& rule);
  // One behind the other; parts of none are nothing.
  Fragment sequence(std::span<const Fragment> parts);
  Fragment sequence(std::initializer_list<Fragment> parts) { return sequence(std::span(parts.begin(), parts.size())); }
  // Any one of them; at least one.
  Fragment choice(std::span<const Fragment> parts);
  Fragment choice(std::initializer_list<Fragment> parts) { return choice(std::span(parts.begin(), parts.size())); }
  Fragment optional(Fragment part);
  Fragment any_number(Fragment part);
  Fragment at_least_once(Fragment part);
  // A node for each time where there is a bound. min must not be above max.
  Fragment repeat(const GrammarRule& rule, Repetitions times);

  // To be called before it is known; define() once.
  GrammarRule declare();
  // name: how errors call it; "" = not at all.
  void define(const GrammarRule& rule, Fragment part, std::string name = {});
  GrammarRule rule(Fragment part);

  // A part that another one can take the place of, until it is pruned.
  struct Replaceable {
    Fragment outer;  // what stands in the whole
    Fragment inner;
  };
  Replaceable replaceable(Fragment part);
  void replace(const Replaceable& part, Fragment by);
  // Which of these have to be replaced for all of them that the whole has to do with to have an end. Those go first from
  // which nothing leads to their end even where all others do; of parts that only wait for each other, the last one
  // goes. choices: nodes that need one live way only, at the end of a part or a rule; their other ways count only where
  // all of them are dead.
  std::vector<std::size_t> find_dead_parts(Fragment whole, std::span<const Replaceable> parts,
                                           std::span<const GrammarNode> choices) const;

  // The first of these, all of which are dead, with which the whole has an end if they and those before it had one.
  std::optional<std::size_t> find_cause(Fragment whole, std::span<const Replaceable> dead) const;

  // Takes out of a part, and of the rules that it calls, what leads to no end: choices that cannot be completed. All
  // that it calls must be defined. False: nothing would be left of it, and it stays as it is.
  bool prune(Fragment whole);

  // The language of that part; the builder is empty then. Rules may begin with themselves (left recursion), but
  // one of those that has no end throws Error{kInvalidArgument}.
  Grammar finish(Fragment whole);

 private:
  struct Draft {
    std::vector<GrammarEdge> edges;
    std::uint16_t num_free_characters = 0;
    bool is_rule_end = false;
  };

  class LeftCorners;

  void add_edge(GrammarNode from, const GrammarEdge& edge);
  void replace_left_recursion();
  GrammarNode behind_empty(GrammarNode node) const;
  PathsToEnds paths_to_ends(Fragment whole, std::span<const Replaceable> parts,
                            std::vector<GrammarNode>* come_to = nullptr) const;

  const std::size_t max_nodes_;
  std::size_t num_edges_ = 0;
  std::vector<Draft> nodes_;
  std::vector<GrammarRule> rules_;
  std::map<GrammarNode, std::string> names_;  // of rules, by begin
};

}  // namespace larder
