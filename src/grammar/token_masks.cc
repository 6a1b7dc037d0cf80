#include "grammar/token_masks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/hash.h"

namespace larder {
namespace {

constexpr std::size_t kBytesOfNode = 64;  // that a hash table takes for an entry, or a little less

std::uint64_t hash_of(std::uint64_t grammar_id, std::span<const std::uint32_t> key) {
  const auto bytes = std::as_bytes(key);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return hash_text(text) ^ (grammar_id * 0x9e3779b97f4a7c15u);
}

void set_bits(std::span<const TokenId> tokens, std::span<std::uint64_t> mask) {
  for (const TokenId token : tokens) {
    const auto place = static_cast<std::size_t>(token);
    mask[place / 64] |= std::uint64_t{1} << (place % 64);
  }
}

}  // namespace

std::span<const std::uint64_t> TokenMasks::allowed(const Constraint& constraint, const GrammarState& state) {
  path_.clear();
  if (num_bytes_ > max_bytes_) forget_all_but_path();
  path_.push_back({intern(constraint.grammar.id(), state), true});
  if (known_[path_.front().state].mask.empty()) {
    const TokenTrie& tokens = *constraint.tokens;
    const bool is_free = state.num_free_characters() >= tokens.most_free_characters();
    path_.front().is_free = is_free;
    mask_.assign(tokens.free_tokens().size(), 0);
    if (is_free) std::ranges::copy(tokens.free_tokens(), mask_.begin());
    walk(tokens);
    known_[path_.front().state].mask = mask_;
    num_bytes_ += mask_.size() * sizeof(mask_.front());
  }
  return known_[path_.front().state].mask;
}

// In the order of texts: what the bytes before lead to is known when a node is come to.
void TokenMasks::walk(const TokenTrie& tokens) {
  const std::span<const TokenTrie::Node> nodes = tokens.nodes();
  std::size_t work = 0;
  for (std::size_t i = 0; i < nodes.size() && work < kMaxWork;) {
    const TokenTrie::Node& node = nodes[i];
    path_.resize(node.depth, path_.front());  // the node's parent is the last
    const Step parent = path_.back();
    const GrammarState& before = known_[parent.state].state;
    work += before.num_places();
    const std::size_t end = node.end;
    const std::uint32_t first = node.first_token;
    if (node.num_free_characters > 0 && node.num_free_characters <= before.num_free_characters()) {
      if (!parent.is_free) set_bits(tokens.tokens().subspan(first, tokens.first_token_at(end) - first), mask_);
      i = end;
      continue;
    }
    const Step here = step(parent, node);
    if (here.state == kNone) {
      i = end;
      continue;
    }
    path_.push_back(here);
    // Those of the node alone stand before those below.
    set_bits(tokens.tokens().subspan(first, tokens.first_token_at(i + 1) - first), mask_);
    ++i;
  }
  path_.resize(1);
}

TokenMasks::Step TokenMasks::step(const Step& from, const TokenTrie::Node& node) {
  // Told of single bytes only: a character of several is looked at byte by byte.
  const bool is_plain = node.byte >= 0x20 && node.byte < 0x80 && node.byte != '"' && node.byte != '\\';
  const StateId state = next(from.state, node.byte);
  return {state, from.is_free && is_plain};
}

TokenMasks::StateId TokenMasks::intern(std::uint64_t grammar_id, const GrammarState& state) {
  const std::uint64_t hash = hash_of(grammar_id, state.key());
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    const Known& known = known_[entry->second];
    if (known.grammar_id == grammar_id && std::ranges::equal(known.state.key(), state.key())) return entry->second;
  }
  const auto id = static_cast<StateId>(known_.size());
  known_.push_back({grammar_id, state, {}, {}});
  known_.back().next.fill(kUnknown);
  by_hash_.emplace(hash, id);
  num_bytes_ += sizeof(Known) + state.key().size() * sizeof(std::uint32_t) + kBytesOfNode;
  return id;
}

TokenMasks::StateId TokenMasks::next(StateId from, std::uint8_t byte) {
  const StateId known = known_[from].next[byte];
  if (known != kUnknown) return known;
  const std::uint64_t grammar_id = known_[from].grammar_id;
  GrammarState state = known_[from].state;
  const StateId found = state.push(byte) ? intern(grammar_id, state) : kNone;
  known_[from].next[byte] = found;
  if (num_bytes_ <= max_bytes_ || found == kNone) return found;
  path_.push_back({found, false});
  forget_all_but_path();
  const StateId kept = path_.back().state;
  path_.pop_back();
  return kept;
}

void TokenMasks::forget_all_but_path() {
  std::vector<std::pair<std::uint64_t, GrammarState>> kept;  // one may stand in the path several times
  for (const Step& step : path_) kept.emplace_back(known_[step.state].grammar_id, known_[step.state].state);
  known_.clear();
  by_hash_.clear();
  num_bytes_ = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) path_[i].state = intern(kept[i].first, kept[i].second);
}

}  // namespace larder
