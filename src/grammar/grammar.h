// What a text may be: a context-free language of bytes, as an automaton that calls itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace larder {

using GrammarNode = std::uint32_t;

// From one node to another: by one byte of a range, by none, or by whatever a rule matches.
struct GrammarEdge {
  enum class Kind : std::uint8_t { kBytes, kEmpty, kCall };

  Kind kind = Kind::kEmpty;
  std::uint8_t first = 0, last = 0;  // of kBytes
  GrammarNode target = 0;
  GrammarNode callee = 0;  // of kCall: where the rule begins
};

// A pushdown automaton. A rule begins at a node and returns at any end node that it reaches; the text is whole
// where the first rule returns. Made by GrammarBuilder; immutable. Thread: any, concurrently.
class Grammar {
 public:
  static constexpr std::uint16_t kAnyNumber = std::numeric_limits<std::uint16_t>::max();
  static constexpr std::uint8_t kNoEnd = std::numeric_limits<std::uint8_t>::max();

  std::span<const GrammarEdge> edges(GrammarNode node) const {
    return std::span(edges_).subspan(first_edges_[node], first_edges_[node + 1] - first_edges_[node]);
  }
  GrammarNode start() const { return start_; }
  bool is_end(GrammarNode node) const { return nodes_[node].is_end; }
  // That many characters of a JSON string that need no escape, whichever they are, lead on from this node:
  // what lets most of a vocabulary be taken without a look at each token. kAnyNumber = without bound.
  std::uint16_t num_free_characters(GrammarNode node) const { return nodes_[node].num_free_characters; }
  // Calls within calls without which nothing leads from this node to its rule's end; kNoEnd = nothing does.
  std::uint8_t least_calls(GrammarNode node) const { return nodes_[node].least_calls; }
  // Unlike that of any other grammar in this process, for caches of what was found out about it.
  std::uint64_t id() const { return id_; }
  std::size_t num_nodes() const { return nodes_.size(); }
  std::size_t size_bytes() const {
    return nodes_.size() * (sizeof(Node) + sizeof(std::uint32_t)) + edges_.size() * sizeof(GrammarEdge);
  }

 private:
  friend class GrammarBuilder;

  struct Node {
    std::uint16_t num_free_characters = 0;
    bool is_end = false;
    std::uint8_t least_calls = kNoEnd;
  };

  GrammarNode start_ = 0;
  std::uint64_t id_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> first_edges_;  // [num_nodes + 1]
  std::vector<GrammarEdge> edges_;          // by node
};

}  // namespace larder
