// From where in an automaton that is being built its rules' ends can be reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "grammar/grammar.h"

namespace larder {

// Which nodes reach their rule's end by the edges that are added. Linear: every edge is looked at once, from its target
// back.
class PathsToEnds {
 public:
  explicit PathsToEnds(std::size_t num_nodes) : places_(num_nodes, kNone) {}

  void add_edge(GrammarNode from, const GrammarEdge& edge) { at(edge.target).incoming.push_back({from, edge}); }
  void add_end(GrammarNode node) { mark(node); }

  void follow() {
    while (!marked_.empty()) {
      const GrammarNode node = marked_.back();
      marked_.pop_back();
      const State state = std::exchange(at(node), {.reaches = true});  // nobody asks again for what leads there
      for (const auto& [from, edge] : state.incoming) {
        const bool waits = edge.kind == GrammarEdge::Kind::kCall && !this->from(edge.callee);
        waits ? at(edge.callee).waiting.push_back(from) : mark(from);
      }
      for (const GrammarNode caller : state.waiting) mark(caller);
    }
  }

  bool from(GrammarNode node) const { return places_[node] != kNone && states_[places_[node]].reaches; }
  bool by(const GrammarEdge& edge) const {
    return from(edge.target) && (edge.kind != GrammarEdge::Kind::kCall || from(edge.callee));
  }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Incoming {
    GrammarNode from;
    GrammarEdge edge;
  };
  struct State {
    std::vector<Incoming> incoming = {};
    std::vector<GrammarNode> waiting = {};  // callers of the rule that begins here
    bool reaches = false;
  };

  // Those of one schema may be few of many.
  State& at(GrammarNode node) {
    if (places_[node] == kNone) {
      places_[node] = static_cast<std::uint32_t>(states_.size());
      states_.emplace_back();
    }
    return states_[places_[node]];
  }

  void mark(GrammarNode node) {
    if (at(node).reaches) return;
    at(node).reaches = true;
    marked_.push_back(node);
  }

  std::vector<std::uint32_t> places_;  // in states_
  std::vector<State> states_;
  std::vector<GrammarNode> marked_;  // and not followed yet
};

}  // namespace larder
