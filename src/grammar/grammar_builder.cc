#include "grammar/grammar_builder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "grammar/paths_to_ends.h"

namespace larder {
namespace {

constexpr std::size_t kMaxEdgesPerNode = 4;  // on an average

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> id{1};
  return id.fetch_add(1, std::memory_order_relaxed);
}

// How many calls within calls it takes from each node to its rule's end, at least: the nodes of the fewest first, each
// of which tells those that lead to it.
class LeastCalls {
 public:
  explicit LeastCalls(const Grammar& grammar)
      : grammar_(grammar), incoming_(grammar.num_nodes()), least_(grammar.num_nodes(), Grammar::kNoEnd) {
    for (GrammarNode node = 0; node < grammar.num_nodes(); ++node) {
      if (grammar.is_end(node)) nodes_of_[0].push_back(node);
      for (const GrammarEdge& edge : grammar.edges(node)) {
        incoming_[edge.target].push_back({node, &edge});
        if (edge.kind == GrammarEdge::Kind::kCall) incoming_[edge.callee].push_back({node, &edge});
      }
    }
  }

  std::vector<std::uint8_t> find() {
    for (std::size_t num_calls = 0; num_calls < nodes_of_.size(); ++num_calls) {
      std::vector<GrammarNode>& nodes = nodes_of_[num_calls];
      while (!nodes.empty()) {
        const GrammarNode node = nodes.back();
        nodes.pop_back();
        if (least_[node] != Grammar::kNoEnd) continue;
        least_[node] = static_cast<std::uint8_t>(num_calls);
        for (const auto& [from, edge] : incoming_[node])
          if (const std::size_t calls = calls_by(*edge); calls < nodes_of_.size()) nodes_of_[calls].push_back(from);
      }
    }
    return std::move(least_);
  }

 private:
  struct Incoming {
    GrammarNode from;
    const GrammarEdge* edge;
  };

  // As far as it is known. A call that is the last thing of its rule takes the place of the rule's own.
  std::size_t calls_by(const GrammarEdge& edge) const {
    const std::size_t behind = least_[edge.target];
    if (edge.kind != GrammarEdge::Kind::kCall) return behind;
    const std::size_t within = least_[edge.callee];
    return grammar_.is_end(edge.target) ? within : std::max(behind, within + 1);
  }

  const Grammar& grammar_;
  std::vector<std::vector<Incoming>> incoming_;
  std::vector<std::uint8_t> least_;
  std::array<std::vector<GrammarNode>, Grammar::kNoEnd> nodes_of_;  // that are to be looked at, by the number of calls
};

}  // namespace

GrammarNode GrammarBuilder::add_node() {
  if (nodes_.size() >= max_nodes_) {
    throw Error(
        ErrorKind::kTooLarge,
        fmt::format("takes an automaton of more than {} states; send a simpler one, or smaller bounds", max_nodes_));
  }
  nodes_.emplace_back();
  return static_cast<GrammarNode>(nodes_.size() - 1);
}

void GrammarBuilder::add_edge(GrammarNode from, const GrammarEdge& edge) {
  if (num_edges_ >= kMaxEdgesPerNode * max_nodes_) {
    throw Error(ErrorKind::kTooLarge,
                fmt::format("takes an automaton of more than {} transitions; send a simpler one, or "
                            "smaller bounds",
                            kMaxEdgesPerNode * max_nodes_));
  }
  ++num_edges_;
  nodes_[from].edges.push_back(edge);
}

void GrammarBuilder::add_bytes(GrammarNode from, ByteRange range, GrammarNode to) {
  CHECK(range.first <= range.last, range.first, range.last);
  add_edge(from, {.kind = GrammarEdge::Kind::kBytes, .first = range.first, .last = range.last, .target = to});
}

void GrammarBuilder::add_empty(GrammarNode from, GrammarNode to) { add_edge(from, {.target = to}); }

void GrammarBuilder::add_call(GrammarNode from, const GrammarRule& rule, GrammarNode to) {
  add_edge(from, {.kind = GrammarEdge::Kind::kCall, .target = to, .callee = rule.begin});
}

void GrammarBuilder::set_free_characters(GrammarNode node, std::uint16_t num_characters) {
  nodes_[node].num_free_characters = num_characters;
}

Fragment GrammarBuilder::nothing() {
  const GrammarNode node = add_node();
  return {node, node};
}

Fragment GrammarBuilder::text(std::string_view text) {
  Fragment part = nothing();
  for (const char byte : text) {
    const GrammarNode next = add_node();
    const auto value = static_cast<std::uint8_t>(byte);
    add_bytes(part.end, {value, value}, next);
    part.end = next;
  }
  return part;
}

Fragment GrammarBuilder::bytes(std::initializer_list<ByteRange> ranges) {
  const Fragment part{add_node(), add_node()};
  for (const ByteRange& range : ranges) add_bytes(part.begin, range, part.end);
  return part;
}

Fragment GrammarBuilder::call(const GrammarRule& rule) {
  const Fragment part{add_node(), add_node()};
  add_call(part.begin, rule, part.end);
  return part;
}

Fragment GrammarBuilder::sequence(std::span<const Fragment> parts) {
  if (parts.empty()) return nothing();
  for (std::size_t i = 1; i < parts.size(); ++i) add_empty(parts[i - 1].end, parts[i].begin);
  return {parts.front().begin, parts.back().end};
}

Fragment GrammarBuilder::choice(std::span<const Fragment> parts) {
  CHECK(!parts.empty());
  if (parts.size() == 1) return parts.front();
  const Fragment whole{add_node(), add_node()};
  for (const Fragment& part : parts) {
    add_empty(whole.begin, part.begin);
    add_empty(part.end, whole.end);
  }
  return whole;
}

Fragment GrammarBuilder::optional(Fragment part) {
  const Fragment whole{add_node(), add_node()};
  add_empty(whole.begin, part.begin);
  add_empty(whole.begin, whole.end);
  add_empty(part.end, whole.end);
  return whole;
}

Fragment GrammarBuilder::any_number(Fragment part) {
  const Fragment whole = optional(part);
  add_empty(part.end, part.begin);
  return whole;
}

Fragment GrammarBuilder::at_least_once(Fragment part) {
  const Fragment whole{add_node(), add_node()};
  add_empty(whole.begin, part.begin);
  add_empty(part.end, part.begin);
  add_empty(part.end, whole.end);
  return whole;
}

Fragment GrammarBuilder::repeat(const GrammarRule& rule, Repetitions times) {
  CHECK(!times.max || times.min <= *times.max, times.min);
  const Fragment whole{add_node(), add_node()};
  GrammarNode last = whole.begin;
  for (std::uint32_t i = 0; i < times.max.value_or(times.min); ++i) {
    if (i >= times.min) add_empty(last, whole.end);
    const GrammarNode next = add_node();
    add_call(last, rule, next);
    last = next;
  }
  if (!times.max) {
    const GrammarNode loop = add_node();
    add_empty(last, loop);
    add_call(loop, rule, loop);
    last = loop;
  }
  add_empty(last, whole.end);
  return whole;
}

GrammarRule GrammarBuilder::declare() {
  const GrammarRule declared{add_node(), add_node()};
  rules_.push_back(declared);
  nodes_[declared.end].is_rule_end = true;
  return declared;
}

void GrammarBuilder::define(const GrammarRule& rule, Fragment part, std::string name) {
  if (!name.empty()) names_.emplace(rule.begin, std::move(name));
  add_empty(rule.begin, part.begin);
  add_empty(part.end, rule.end);
}

GrammarRule GrammarBuilder::rule(Fragment part) {
  const GrammarRule declared = declare();
  define(declared, part);
  return declared;
}

// Where a node leads that does nothing else: a call from there leaves nothing to come back to.
GrammarNode GrammarBuilder::behind_empty(GrammarNode node) const {
  constexpr int kMostSteps = 64;  // there may be a circle
  for (int i = 0; i < kMostSteps; ++i) {
    const std::vector<GrammarEdge>& edges = nodes_[node].edges;
    const bool only_leads_on = edges.size() == 1 && edges.front().kind == GrammarEdge::Kind::kEmpty;
    if (!only_leads_on) break;
    node = edges.front().target;
  }
  return node;
}

// Of all that is come to from its beginning.
PathsToEnds GrammarBuilder::paths_to_ends(Fragment whole, std::span<const Replaceable> parts,
                                          std::vector<GrammarNode>* come_to) const {
  PathsToEnds paths(nodes_.size());
  std::vector<bool> is_seen(nodes_.size());
  std::vector<GrammarNode> seen;
  const auto see = [&](GrammarNode node) {
    if (!is_seen[node]) seen.push_back(node);
    is_seen[node] = true;
  };
  // As if they were called: what is behind one does not count for it.
  std::unordered_map<GrammarNode, const Replaceable*> by_begin;
  std::unordered_set<GrammarNode> inner_ends;
  for (const Replaceable& part : parts) {
    by_begin.emplace(part.outer.begin, &part);
    inner_ends.insert(part.inner.end);
  }
  const auto add = [&](GrammarNode from, const GrammarEdge& edge) {
    paths.add_edge(from, edge);
    see(edge.target);
    if (edge.kind == GrammarEdge::Kind::kCall) see(edge.callee);
  };
  see(whole.begin);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const Draft& node = nodes_[seen[i]];
    if (node.is_rule_end || inner_ends.contains(seen[i])) paths.add_end(seen[i]);
    if (inner_ends.contains(seen[i])) continue;
    if (const auto part = by_begin.find(seen[i]); part != by_begin.end()) {
      const auto& [outer, inner] = *part->second;
      add(seen[i], {.kind = GrammarEdge::Kind::kCall, .target = outer.end, .callee = inner.begin});
      continue;
    }
    for (const GrammarEdge& edge : node.edges) add(seen[i], edge);
  }
  paths.add_end(whole.end);
  paths.follow();
  if (come_to != nullptr) *come_to = std::move(seen);
  return paths;
}

GrammarBuilder::Replaceable GrammarBuilder::replaceable(Fragment part) {
  const Fragment outer{add_node(), add_node()};
  add_empty(outer.begin, part.begin);
  add_empty(part.end, outer.end);
  return {outer, part};
}

void GrammarBuilder::replace(const Replaceable& part, Fragment by) {
  std::vector<GrammarEdge>& edges = nodes_[part.outer.begin].edges;
  num_edges_ -= edges.size();
  edges.clear();
  add_empty(part.outer.begin, by.begin);
  add_empty(by.end, part.outer.end);
}

std::vector<std::size_t> GrammarBuilder::find_dead_parts(Fragment whole, std::span<const Replaceable> parts,
                                                         std::span<const GrammarNode> choices) const {
  PathsToEnds paths = paths_to_ends(whole, parts);
  std::vector<bool> is_choice(nodes_.size()), is_needed(nodes_.size());
  for (const GrammarNode node : choices) is_choice[node] = true;
  std::unordered_map<GrammarNode, GrammarNode> ends;
  for (const Replaceable& part : parts) ends.emplace(part.outer.begin, part.outer.end);
  std::vector<GrammarNode> needed;
  const auto need = [&](GrammarNode node) {
    if (!is_needed[node]) needed.push_back(node);
    is_needed[node] = true;
  };
  need(whole.begin);
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (const auto end = ends.find(needed[i]); end != ends.end()) need(end->second);
    const bool takes_live = is_choice[needed[i]] && paths.from(needed[i]);
    for (const GrammarEdge& edge : nodes_[needed[i]].edges) {
      if (takes_live && !paths.by(edge)) continue;
      need(edge.target);
      if (edge.kind == GrammarEdge::Kind::kCall) need(edge.callee);
    }
  }
  PathsToEnds best = paths;  // if all parts had an end
  for (const Replaceable& part : parts)
    if (is_needed[part.outer.begin]) best.add_end(part.outer.begin);
  best.follow();
  std::vector<std::size_t> dead;
  const auto free = [&](std::size_t index) {
    dead.push_back(index);
    paths.add_end(parts[index].inner.begin);
  };
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (is_needed[parts[i].outer.begin] && !best.from(parts[i].inner.begin)) free(i);
  paths.follow();
  for (std::size_t i = parts.size(); i-- > 0;) {
    if (!is_needed[parts[i].outer.begin] || paths.from(parts[i].inner.begin)) continue;
    free(i);
    paths.follow();
  }
  return dead;
}

std::optional<std::size_t> GrammarBuilder::find_cause(Fragment whole, std::span<const Replaceable> dead) const {
  PathsToEnds paths = paths_to_ends(whole, dead);
  for (std::size_t i = 0; i < dead.size(); ++i) {
    paths.add_end(dead[i].inner.begin);
    paths.follow();
    if (paths.from(whole.begin)) return i;
  }
  return std::nullopt;
}

bool GrammarBuilder::prune(Fragment whole) {
  std::vector<GrammarNode> seen;
  const PathsToEnds paths = paths_to_ends(whole, {}, &seen);
  if (!paths.from(whole.begin)) return false;
  for (const GrammarNode node : seen) {
    num_edges_ -= std::erase_if(nodes_[node].edges, [&](const GrammarEdge& edge) { return !paths.by(edge); });
  }
  return true;
}

Grammar GrammarBuilder::finish(Fragment whole) {
  const GrammarRule first = rule(whole);
  replace_left_recursion();
  Grammar grammar;
  grammar.start_ = first.begin;
  grammar.id_ = next_id();
  grammar.nodes_.resize(nodes_.size());
  grammar.first_edges_.reserve(nodes_.size() + 1);
  grammar.edges_.reserve(num_edges_);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    grammar.nodes_[i].num_free_characters = nodes_[i].num_free_characters;
    grammar.first_edges_.push_back(static_cast<std::uint32_t>(grammar.edges_.size()));
    for (GrammarEdge edge : nodes_[i].edges) {
      edge.target = behind_empty(edge.target);
      grammar.edges_.push_back(edge);
    }
  }
  grammar.first_edges_.push_back(static_cast<std::uint32_t>(grammar.edges_.size()));
  for (const GrammarRule& each : rules_) grammar.nodes_[each.end].is_end = true;
  const std::vector<std::uint8_t> least_calls = LeastCalls(grammar).find();
  for (std::size_t i = 0; i < least_calls.size(); ++i) grammar.nodes_[i].least_calls = least_calls[i];
  nodes_.clear();
  rules_.clear();
  names_.clear();
  num_edges_ = 0;
  return grammar;
}

}  // namespace larder
