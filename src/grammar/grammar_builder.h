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
  // A node for each time where there is a bound. min must not be above max.
  Fragment repeat(const GrammarRule& rule, Repetitions times);

  // To be called before it is known; define() once.
  GrammarRule declare();
  // name: how errors call it; "" = not at all.
  void define(const GrammarRule& rule, Fragment part, std::string name = {});
  GrammarRule rule(Fragment part);

  // Takes out of a part, and of the rules that it calls, what leads to no end: choices that cannot be completed. All
  // that it calls must be defined. False: nothing is left of it.
  bool prune(Fragment whole);

  // The language of that part; the builder is empty then. Throws Error{kInvalidArgument} where a rule calls
  // itself before any byte, as nothing could ever follow.
  Grammar finish(Fragment whole);

 private:
  struct Draft {
    std::vector<GrammarEdge> edges;
    std::uint16_t num_free_characters = 0;
  };

  void add_edge(GrammarNode from, const GrammarEdge& edge);
  GrammarNode behind_empty(GrammarNode node) const;

  const std::size_t max_nodes_;
  std::size_t num_edges_ = 0;
  std::vector<Draft> nodes_;
  std::vector<GrammarRule> rules_;
  std::map<GrammarNode, std::string> names_;  // of rules, by begin
};

}  // namespace larder
