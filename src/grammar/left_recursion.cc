// Rules that begin with themselves, made into ones that do not.
//
// Whatever such rules match begins with one of their ways that does not begin with any of them, and goes on with what may
// stand behind a rule that the text so far is a whole text of (the left-corner transform; Rosenkrantz and Lewis 1970). So
// `e: e "+" t | t` becomes a `t`, behind which "+" and a `t` may come any number of times. Of rules that begin with each
// other each gets its own copy of the others' ways.
#include <algorithm>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_builder.h"
#include "grammar/paths_to_ends.h"

namespace larder {

class GrammarBuilder::LeftCorners {
 public:
  explicit LeftCorners(GrammarBuilder& builder);

  void replace();

 private:
  using Kind = GrammarEdge::Kind;
  using Index = std::size_t;  // of a rule

  // What a rule begins with.
  struct Head {
    std::vector<GrammarEdge> edges;  // by bytes and calls, wherever they come before any byte
    bool may_be_empty = false;
  };
  // A rule as what another one of its group begins with.
  struct Visit {
    Index rule;
    std::size_t next_edge = 0;
  };
  // The rules of a group in the place of one of them.
  struct Corner {
    Index rule;
    std::map<Index, GrammarNode> done;  // where a text of that rule has been passed, and what follows it may come
    std::unordered_map<GrammarNode, GrammarNode> copies = {};  // of nodes of the others
    std::vector<GrammarNode> open = {};                        // copied, but for their edges
  };

  PathsToEnds paths(bool by_bytes) const;
  Head head_of(const GrammarRule& rule);
  std::vector<std::vector<Index>> groups();
  void visit(Index first, std::vector<std::vector<Index>>& groups);
  void check_ends(const std::vector<Index>& group, const PathsToEnds& all_paths) const;
  bool is_left_call(const GrammarEdge& edge, std::size_t group) const;
  void replace_begin(const std::vector<Index>& group, Index rule);
  GrammarNode copy(Corner& corner, Index of, GrammarNode node);
  void copy_edges(Corner& corner);
  GrammarEdge never_empty(GrammarEdge edge);
  void fill_never_empty();

  GrammarBuilder& builder_;
  const std::size_t num_rules_;
  const PathsToEnds empty_paths_;
  std::unordered_map<GrammarNode, Index> indices_;  // of rules, by begin
  std::vector<Head> heads_;
  std::vector<GrammarNode> ends_;      // as they were
  std::vector<std::size_t> group_of_;  // from 1 on; 0 = not known yet
  std::vector<bool> is_seen_;
  // Of rules that may be empty, by index, where they begin if they are not; and those of which that is all there is yet.
  std::unordered_map<Index, GrammarNode> never_empty_;
  std::vector<Index> bare_;
  // Of groups(): Tarjan 1972.
  std::vector<std::size_t> order_, lowest_;
  std::vector<Index> pending_;
  std::unordered_map<GrammarNode, Index> owners_;  // of copied nodes, the rule that they are of
};

GrammarBuilder::LeftCorners::LeftCorners(GrammarBuilder& builder)
    : builder_(builder),
      num_rules_(builder.rules_.size()),
      empty_paths_(paths(false)),
      group_of_(num_rules_),
      is_seen_(builder.nodes_.size()),
      order_(num_rules_),
      lowest_(num_rules_) {
  for (Index i = 0; i < num_rules_; ++i) indices_.emplace(builder.rules_[i].begin, i);
  for (const GrammarRule& rule : builder.rules_) {
    heads_.push_back(head_of(rule));
    ends_.push_back(rule.end);
  }
}

PathsToEnds GrammarBuilder::LeftCorners::paths(bool by_bytes) const {
  PathsToEnds paths(builder_.nodes_.size());
  for (GrammarNode node = 0; node < builder_.nodes_.size(); ++node) {
    for (const GrammarEdge& edge : builder_.nodes_[node].edges)
      if (by_bytes || edge.kind != Kind::kBytes) paths.add_edge(node, edge);
    if (builder_.nodes_[node].is_rule_end) paths.add_end(node);
  }
  paths.follow();
  return paths;
}

// No other rule has its nodes.
GrammarBuilder::LeftCorners::Head GrammarBuilder::LeftCorners::head_of(const GrammarRule& rule) {
  Head head;
  head.may_be_empty = empty_paths_.from(rule.begin);
  std::vector<GrammarNode> open{rule.begin};
  while (!open.empty()) {
    const GrammarNode node = open.back();
    open.pop_back();
    if (is_seen_[node]) continue;
    is_seen_[node] = true;
    for (const GrammarEdge& edge : builder_.nodes_[node].edges) {
      if (edge.kind != Kind::kEmpty) head.edges.push_back(edge);
      const bool takes_nothing = edge.kind == Kind::kEmpty || (edge.kind == Kind::kCall && empty_paths_.from(edge.callee));
      if (takes_nothing) open.push_back(edge.target);
    }
  }
  return head;
}

// Of rules that begin with each other, those that others begin with first.
std::vector<std::vector<std::size_t>> GrammarBuilder::LeftCorners::groups() {
  std::vector<std::vector<Index>> groups;
  for (Index i = 0; i < num_rules_; ++i)
    if (order_[i] == 0) visit(i, groups);
  return groups;
}

void GrammarBuilder::LeftCorners::visit(Index first, std::vector<std::vector<Index>>& groups) {
  std::vector<Visit> path;
  const auto open = [&](Index rule) {
    order_[rule] = lowest_[rule] = pending_.size() + 1;
    pending_.push_back(rule);
    path.push_back({rule});
  };
  open(first);
  while (!path.empty()) {
    const Index rule = path.back().rule;
    if (path.back().next_edge < heads_[rule].edges.size()) {
      const GrammarEdge& edge = heads_[rule].edges[path.back().next_edge++];
      if (edge.kind != Kind::kCall) continue;
      const Index callee = indices_.at(edge.callee);
      if (order_[callee] == 0) {
        open(callee);
      } else if (group_of_[callee] == 0) {
        lowest_[rule] = std::min(lowest_[rule], order_[callee]);
      }
      continue;
    }
    path.pop_back();
    if (!path.empty()) lowest_[path.back().rule] = std::min(lowest_[path.back().rule], lowest_[rule]);
    if (lowest_[rule] != order_[rule]) continue;
    const auto begin = pending_.begin() + static_cast<std::ptrdiff_t>(order_[rule] - 1);
    groups.emplace_back(begin, pending_.end());
    for (const Index member : groups.back()) group_of_[member] = groups.size();
    pending_.erase(begin, pending_.end());
  }
}

bool GrammarBuilder::LeftCorners::is_left_call(const GrammarEdge& edge, std::size_t group) const {
  if (edge.kind != Kind::kCall) return false;
  const auto callee = indices_.find(edge.callee);
  return callee != indices_.end() && group_of_[callee->second] == group;
}

void GrammarBuilder::LeftCorners::replace() {
  std::vector<std::vector<Index>> recursive;
  for (std::vector<Index>& group : groups()) {
    const auto begins_so = [&](Index rule) {
      return std::ranges::any_of(heads_[rule].edges,
                                 [&](const GrammarEdge& edge) { return is_left_call(edge, group_of_[rule]); });
    };
    if (std::ranges::any_of(group, begins_so)) recursive.push_back(std::move(group));
  }
  if (recursive.empty()) return;
  const PathsToEnds all_paths = paths(true);
  for (const std::vector<Index>& group : recursive) check_ends(group, all_paths);
  for (const std::vector<Index>& group : recursive) {
    // What they began with is asked for until the last of them is replaced.
    std::vector<std::vector<GrammarEdge>> begins;
    for (const Index rule : group) {
      replace_begin(group, rule);
      begins.push_back(builder_.nodes_[builder_.rules_[rule].begin].edges);
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      std::erase_if(begins[i], [](const GrammarEdge& edge) { return edge.kind == Kind::kEmpty; });
      heads_[group[i]].edges = std::move(begins[i]);
    }
  }
  fill_never_empty();
}

void GrammarBuilder::LeftCorners::check_ends(const std::vector<Index>& group, const PathsToEnds& all_paths) const {
  constexpr const char* kReason = "begins with itself (left recursion) in all of its ways, so that it would never end";
  bool has_end = true;
  for (const Index rule : group) {
    const GrammarNode begin = builder_.rules_[rule].begin;
    if (all_paths.from(begin)) continue;
    has_end = false;
    const auto name = builder_.names_.find(begin);
    if (name != builder_.names_.end()) throw_invalid("{} {}", name->second, kReason);
  }
  if (!has_end) throw_invalid("{}", kReason);
}

void GrammarBuilder::LeftCorners::replace_begin(const std::vector<Index>& group, Index rule) {
  const GrammarNode begin = builder_.rules_[rule].begin, end = builder_.add_node();
  builder_.nodes_[ends_[rule]].is_rule_end = false;
  builder_.nodes_[end].is_rule_end = true;
  builder_.rules_[rule].end = end;
  std::vector<GrammarEdge>& old = builder_.nodes_[begin].edges;
  builder_.num_edges_ -= old.size();
  old.clear();

  Corner corner{.rule = rule, .done = {{rule, ends_[rule]}}};
  for (const Index other : group)
    if (other != rule) corner.done.emplace(other, builder_.add_node());
  if (heads_[rule].may_be_empty) builder_.add_empty(begin, end);
  builder_.add_empty(ends_[rule], end);
  for (const Index other : group) {
    for (GrammarEdge edge : heads_[other].edges) {
      edge.target = copy(corner, other, edge.target);
      if (is_left_call(edge, group_of_[rule])) {
        builder_.add_empty(corner.done.at(indices_.at(edge.callee)), edge.target);
      } else {
        builder_.add_edge(begin, never_empty(edge));
      }
    }
  }
  copy_edges(corner);
}

// The node itself where it is of the rule whose corner it is.
GrammarNode GrammarBuilder::LeftCorners::copy(Corner& corner, Index of, GrammarNode node) {
  if (of == corner.rule) return node;
  if (node == ends_[of]) return corner.done.at(of);
  if (const auto known = corner.copies.find(node); known != corner.copies.end()) return known->second;
  const GrammarNode made = builder_.add_node();
  builder_.nodes_[made].num_free_characters = builder_.nodes_[node].num_free_characters;
  corner.copies.emplace(node, made);
  corner.open.push_back(node);
  owners_[node] = of;
  return made;
}

void GrammarBuilder::LeftCorners::copy_edges(Corner& corner) {
  while (!corner.open.empty()) {
    const GrammarNode node = corner.open.back(), made = corner.copies.at(node);
    corner.open.pop_back();
    for (std::size_t i = 0; i < builder_.nodes_[node].edges.size(); ++i) {
      GrammarEdge edge = builder_.nodes_[node].edges[i];
      edge.target = copy(corner, owners_.at(node), edge.target);
      builder_.add_edge(made, edge);
    }
  }
}

// A rule that a text may begin with without a byte would lead to the one that it begins, which begins with it.
GrammarEdge GrammarBuilder::LeftCorners::never_empty(GrammarEdge edge) {
  if (edge.kind != Kind::kCall) return edge;
  const auto callee = indices_.find(edge.callee);
  if (callee == indices_.end() || !heads_[callee->second].may_be_empty) return edge;
  const auto [place, is_new] = never_empty_.try_emplace(callee->second);
  if (is_new) {
    place->second = builder_.add_node();
    bare_.push_back(callee->second);
  }
  edge.callee = place->second;
  return edge;
}

void GrammarBuilder::LeftCorners::fill_never_empty() {
  while (!bare_.empty()) {
    const Index rule = bare_.back();
    const GrammarNode begin = never_empty_.at(rule);
    bare_.pop_back();
    for (const GrammarEdge& edge : heads_[rule].edges) builder_.add_edge(begin, never_empty(edge));
  }
}

void GrammarBuilder::replace_left_recursion() { LeftCorners(*this).replace(); }

}  // namespace larder
