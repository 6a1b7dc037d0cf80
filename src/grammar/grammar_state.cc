#include "grammar/grammar_state.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <map>
#include <utility>

namespace larder {

// Where calls return to, outermost first, then the place. Each is a node on top of another one, so that what they have
// in common is there once.
class GrammarState::Stacks {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNone = 0xFFFFFFFF;  // below the outermost node

  // num_nodes: how many there will be, at a guess.
  explicit Stacks(std::size_t num_nodes) : slots_(std::bit_ceil(4 * num_nodes + 64), kNone) {}

  // The same one for the same nodes.
  Id on_top(Id below, GrammarNode node) {
    if (2 * stacks_.size() >= slots_.size()) grow();
    const std::size_t slot = slot_of(below, node);
    if (slots_[slot] == kNone) {
      slots_[slot] = static_cast<Id>(stacks_.size());
      stacks_.push_back({below, node, below == kNone ? 1 : stacks_[below].size + 1});
    }
    return slots_[slot];
  }

  GrammarNode top(Id stack) const { return stacks_[stack].node; }
  Id below(Id stack) const { return stacks_[stack].below; }
  std::size_t size(Id stack) const { return stacks_[stack].size; }
  // True the first time.
  bool pass(Id stack) { return !std::exchange(stacks_[stack].is_passed, true); }

  // nodes: as many as its size.
  void write(Id stack, std::span<GrammarNode> nodes) const {
    for (std::size_t i = nodes.size(); i > 0; stack = stacks_[stack].below) nodes[--i] = stacks_[stack].node;
  }

 private:
  struct Stack {
    Id below;
    GrammarNode node;
    std::uint32_t size;
    bool is_passed = false;
  };

  // Where it is, or where it would be.
  std::size_t slot_of(Id below, GrammarNode node) const {
    std::uint64_t hash = (std::uint64_t{below} << 32 | node) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    std::size_t slot = hash & (slots_.size() - 1);
    const auto is_other = [&](const Stack& stack) { return stack.below != below || stack.node != node; };
    while (slots_[slot] != kNone && is_other(stacks_[slots_[slot]])) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void grow() {
    slots_.assign(2 * slots_.size(), kNone);
    for (std::size_t i = 0; i < stacks_.size(); ++i)
      slots_[slot_of(stacks_[i].below, stacks_[i].node)] = static_cast<Id>(i);
  }

  std::vector<Stack> stacks_;
  std::vector<Id> slots_;
};

GrammarState::GrammarState(const Grammar& grammar) : grammar_(&grammar) {
  Stacks stacks(0);
  const Stacks::Id begin = stacks.on_top(Stacks::kNone, grammar.start());
  settle(stacks, {&begin, 1});
}

bool GrammarState::push(std::uint8_t byte) {
  Stacks stacks(key_.size());
  std::vector<Stacks::Id> next;
  for (std::size_t begin = 0; begin < key_.size(); begin += key_[begin] + 1) {
    const auto stack = std::span(key_).subspan(begin + 1, key_[begin]);
    std::optional<Stacks::Id> below;
    for (const GrammarEdge& edge : grammar_->edges(stack.back())) {
      if (edge.kind != GrammarEdge::Kind::kBytes || byte < edge.first || byte > edge.last) continue;
      if (!below) {
        below = Stacks::kNone;
        for (const GrammarNode node : stack.first(stack.size() - 1)) below = stacks.on_top(*below, node);
      }
      next.push_back(stacks.on_top(*below, edge.target));
    }
  }
  return settle(stacks, next);
}

std::optional<std::uint8_t> GrammarState::only_byte() const {
  std::optional<std::uint8_t> only;
  if (is_whole_) return only;
  for (std::size_t begin = 0; begin < key_.size(); begin += key_[begin] + 1) {
    for (const GrammarEdge& edge : grammar_->edges(key_[begin + key_[begin]])) {
      if (edge.kind != GrammarEdge::Kind::kBytes) continue;
      if (edge.first != edge.last || only.value_or(edge.first) != edge.first) return std::nullopt;
      only = edge.first;
    }
  }
  return only;
}

GrammarState::ByteClasses GrammarState::byte_classes() const {
  constexpr std::size_t kMaxLeads = std::size_t{1} << 16;  // so that to tell them apart takes no longer than it spares
  const auto each_edge = [this](auto take) {
    for (std::size_t begin = 0; begin < key_.size(); begin += key_[begin] + 1) {
      for (const GrammarEdge& edge : grammar_->edges(key_[begin + key_[begin]]))
        if (edge.kind == GrammarEdge::Kind::kBytes) take(begin, edge);
    }
  };
  // Bytes between which no range begins or ends are of one class.
  std::bitset<257> begins;
  each_edge([&](std::size_t, const GrammarEdge& edge) {
    begins.set(edge.first);
    begins.set(edge.last + std::size_t{1});
  });
  ByteClasses classes{};
  for (std::size_t byte = 1; byte < classes.of_byte.size(); ++byte)
    classes.of_byte[byte] = static_cast<std::uint8_t>(classes.of_byte[byte - 1] + (begins[byte] ? 1 : 0));
  classes.num_classes = classes.of_byte.back() + std::size_t{1};
  // So are those of several ranges that lead to the same places: letters, small and large.
  std::size_t num_leads = 0;
  each_edge([&](std::size_t, const GrammarEdge& edge) {
    num_leads += classes.of_byte[edge.last] - classes.of_byte[edge.first] + std::size_t{1};
  });
  if (num_leads > kMaxLeads) return classes;
  std::vector<std::vector<std::uint64_t>> leads(classes.num_classes);
  each_edge([&](std::size_t place, const GrammarEdge& edge) {
    for (std::size_t i = classes.of_byte[edge.first]; i <= classes.of_byte[edge.last]; ++i)
      leads[i].push_back(std::uint64_t{place} << 32 | edge.target);
  });
  std::map<std::vector<std::uint64_t>, std::uint8_t> numbers;
  std::vector<std::uint8_t> joined;
  for (std::vector<std::uint64_t>& to : leads)
    joined.push_back(numbers.emplace(std::move(to), static_cast<std::uint8_t>(numbers.size())).first->second);
  for (std::uint8_t& number : classes.of_byte) number = joined[number];
  classes.num_classes = numbers.size();
  return classes;
}

// From those places on without a byte, to where only a byte leads on.
bool GrammarState::settle(Stacks& stacks, std::span<const std::uint32_t> begins) {
  std::vector<Stacks::Id> open, places;
  is_whole_ = false;
  num_free_characters_ = 0;
  num_passed_ = 0;
  // Nothing is begun that would need more calls within calls to have an end than there may be.
  const auto fits = [&](Stacks::Id stack) {
    return stacks.size(stack) + grammar_->least_calls(stacks.top(stack)) <= kMaxDepth;
  };
  const auto follow = [&](Stacks::Id stack) {
    if (!fits(stack) || !stacks.pass(stack)) return;
    ++num_passed_;
    open.push_back(stack);
  };
  std::ranges::for_each(begins, follow);
  std::size_t num_numbers = 0;
  while (!open.empty()) {
    const Stacks::Id stack = open.back(), below = stacks.below(stack);
    open.pop_back();
    const GrammarNode node = stacks.top(stack);
    if (grammar_->is_end(node)) {
      is_whole_ |= below == Stacks::kNone;
      if (below != Stacks::kNone) follow(below);
    }
    bool takes_bytes = false;
    for (const GrammarEdge& edge : grammar_->edges(node)) {
      if (edge.kind == GrammarEdge::Kind::kBytes) {
        takes_bytes = true;
      } else if (edge.kind == GrammarEdge::Kind::kEmpty) {
        follow(stacks.on_top(below, edge.target));
      } else {
        // A call that is the last thing of its rule comes back to nothing: lists may be long.
        const bool is_last = grammar_->is_end(edge.target);
        const Stacks::Id back = is_last ? below : stacks.on_top(below, edge.target);
        if (is_last || fits(back)) follow(stacks.on_top(back, edge.callee));
      }
    }
    if (takes_bytes) {
      places.push_back(stack);
      num_numbers += 1 + stacks.size(stack);
    }
    if (places.size() > kMaxPlaces || num_passed_ >= kMaxPassed || num_numbers > kMaxKey) {
      give_up();
      return false;
    }
  }
  std::vector<GrammarNode> nodes(num_numbers);
  std::vector<std::span<GrammarNode>> sorted;
  for (std::size_t begin = 0; const Stacks::Id stack : places) {
    sorted.push_back(std::span(nodes).subspan(begin, stacks.size(stack)));
    stacks.write(stack, sorted.back());
    begin += sorted.back().size();
    // A character of several bytes takes a call.
    if (stacks.size(stack) < kMaxDepth)
      num_free_characters_ = std::max(num_free_characters_, grammar_->num_free_characters(stacks.top(stack)));
  }
  std::ranges::sort(sorted, [](const auto& one, const auto& other) {
    return std::ranges::lexicographical_compare(one, other);
  });
  num_places_ = places.size();
  key_.clear();
  for (const std::span<GrammarNode> stack : sorted) {
    key_.push_back(static_cast<std::uint32_t>(stack.size()));
    key_.insert(key_.end(), stack.begin(), stack.end());
  }
  return is_whole_ || !key_.empty();
}

void GrammarState::give_up() {
  key_.clear();
  num_places_ = 0;
  is_whole_ = false;
  has_too_many_ = true;
}

}  // namespace larder
