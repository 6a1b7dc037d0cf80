#include "grammar/grammar_state.h"

#include <algorithm>
#include <utility>

namespace larder {

GrammarState::GrammarState(const Grammar& grammar) : grammar_(&grammar) { settle({{grammar.start()}}); }

bool GrammarState::push(std::uint8_t byte) {
  std::vector<Stack> next;
  for (std::size_t begin = 0; begin < key_.size(); begin += key_[begin] + 1) {
    const auto stack = std::span(key_).subspan(begin + 1, key_[begin]);
    for (const GrammarEdge& edge : grammar_->edges(stack.back())) {
      if (edge.kind != GrammarEdge::Kind::kBytes || byte < edge.first || byte > edge.last) continue;
      next.emplace_back(stack.begin(), stack.end()).back() = edge.target;
    }
  }
  return settle(std::move(next));
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

// From those places on without a byte, to where only a byte leads on.
bool GrammarState::settle(std::vector<Stack> open) {
  std::set<Stack> seen;
  std::set<Stack> places;
  is_whole_ = false;
  num_free_characters_ = 0;
  const auto follow = [&](Stack stack) {
    if (seen.insert(stack).second) open.push_back(std::move(stack));
  };
  for (const Stack& stack : std::exchange(open, {})) follow(stack);
  while (!open.empty()) {
    const Stack stack = std::move(open.back());
    open.pop_back();
    const GrammarNode node = stack.back();
    if (grammar_->is_end(node)) {
      is_whole_ |= stack.size() == 1;
      if (stack.size() > 1) follow(Stack(stack.begin(), stack.end() - 1));
    }
    bool takes_bytes = false;
    for (const GrammarEdge& edge : grammar_->edges(node)) {
      if (edge.kind == GrammarEdge::Kind::kBytes) {
        takes_bytes = true;
        continue;
      }
      Stack next = stack;
      next.back() = edge.target;
      // A call that is the last thing of its rule comes back to nothing: lists may be long.
      const bool is_call = edge.kind == GrammarEdge::Kind::kCall;
      if (is_call && grammar_->is_end(edge.target)) {
        next.back() = edge.callee;
      } else if (is_call) {
        next.push_back(edge.callee);
      }
      if (next.size() <= kMaxDepth) follow(std::move(next));
    }
    if (takes_bytes) places.insert(stack);
    if (places.size() > kMaxPlaces || seen.size() >= kMaxPassed) {
      places.clear();
      is_whole_ = false;
      break;
    }
  }
  key_.clear();
  num_passed_ = std::min(seen.size(), kMaxPassed);
  num_places_ = places.size();
  for (const Stack& stack : places) {
    key_.push_back(static_cast<std::uint32_t>(stack.size()));
    key_.insert(key_.end(), stack.begin(), stack.end());
    num_free_characters_ = std::max(num_free_characters_, grammar_->num_free_characters(stack.back()));
  }
  if (key_.size() > kMaxKey) {
    key_.clear();
    is_whole_ = false;
  }
  return is_whole_ || !key_.empty();
}

}  // namespace larder
