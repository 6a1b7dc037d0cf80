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

// Whether a character that a string has as it is leads on in strings alone, which count them: then what is too long for
// the longest of them is too long. What strings have beside those begins with other bytes.
bool are_free_in_strings_alone(const Grammar& grammar, const GrammarState& state) {
  const auto is_of_string = [&](GrammarNode node) {
    return grammar.num_free_characters(node) > 0 ||
           std::ranges::all_of(grammar.edges(node), [](const GrammarEdge& edge) {
             const bool is_mark = edge.first == edge.last && (edge.first == '"' || edge.first == '\\');
             return edge.kind != GrammarEdge::Kind::kBytes || edge.first >= 0x80 || is_mark;
           });
  };
  const std::span<const std::uint32_t> key = state.key();
  for (std::size_t begin = 0; begin < key.size(); begin += key[begin] + 1) {
    // Where no call more is possible, only characters of one byte are free.
    if (key[begin] >= GrammarState::kMaxDepth || !is_of_string(key[begin + key[begin]])) return false;
  }
  return true;
}

}  // namespace

std::span<const std::uint64_t> TokenMasks::allowed(const Constraint& constraint, const GrammarState& state) {
  begin(constraint, state);
  if (!known_[path_.front().state].mask) {
    // How far a walk comes may not depend on what others have left: one that finds too little room begins anew.
    if (!walk(*constraint.tokens)) {
      path_.clear();
      forget_all_but_path();
      begin(constraint, state);
      is_first_ = true;
      walk(*constraint.tokens);
    }
    known_[path_.front().state].mask = mask_;
    num_bytes_ += mask_.size() * sizeof(std::uint64_t);
  }
  return *known_[path_.front().state].mask;
}

void TokenMasks::begin(const Constraint& constraint, const GrammarState& state) {
  path_.clear();
  if (num_bytes_ > max_bytes_) forget_all_but_path();
  // For the walk, which has not begun: whether it may pass over what is too long.
  path_.push_back({intern(constraint.grammar.id(), state), are_free_in_strings_alone(constraint.grammar, state)});
  is_first_ = false;
}

// In the order of texts: what the bytes before lead to is known when a node is come to.
bool TokenMasks::walk(const TokenTrie& tokens) {
  const std::span<const TokenTrie::Node> nodes = tokens.nodes();
  ++walk_;
  work_ = 0;
  // Tokens of free characters alone are there from the beginning, as far as they are sorted by their number.
  Step& first_step = path_.front();
  const std::size_t num_free = known_[first_step.state].state.num_free_characters();
  const bool has_all = num_free >= tokens.most_free_characters();
  const std::size_t num_taken = has_all ? TokenTrie::kMostShort + 1 : std::min(num_free, TokenTrie::kMostShort);
  const auto taken = tokens.free_tokens(num_taken);
  mask_.assign(taken.begin(), taken.end());
  const bool are_taken_all = std::exchange(first_step.is_free, num_free > 0) && num_taken == num_free;
  for (std::size_t i = 0; i < nodes.size();) {
    if (!has_room()) break;
    if (work_ >= kMaxWork) return give_up();
    const TokenTrie::Node& node = nodes[i];
    path_.resize(node.depth, path_.front());  // the node's parent is the last
    const Step parent = path_.back();
    const GrammarState& before = known_[parent.state].state;
    ++work_;
    const std::size_t end = node.end;
    const std::uint32_t first = node.first_token;
    if (node.num_free_characters > 0 && node.num_free_characters <= before.num_free_characters()) {
      const bool is_taken = parent.is_free && (has_all || node.depth - 1u + node.num_free_characters <= num_taken);
      if (!is_taken) set_bits(tokens.tokens().subspan(first, tokens.first_token_at(end) - first), mask_);
      i = end;
      continue;
    }
    // Longer ones are none, where they are no others than strings'.
    if (are_taken_all && node.num_free_characters > 0 && parent.is_free && (node.depth > 1 || node.byte < 0x80)) {
      i = end;
      continue;
    }
    const Step here = step(parent, node);
    if (here.state == kTooMany) return give_up();
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
  return has_room();
}

// Without a mask, for which there is room.
bool TokenMasks::give_up() {
  path_.resize(1);
  mask_.clear();
  return true;
}

TokenMasks::Step TokenMasks::step(const Step& from, const TokenTrie::Node& node) {
  constexpr std::size_t kWorkOfPlace = 16;  // that is found out, where it is not known
  // Told of single bytes only: a character of several is looked at byte by byte.
  const bool is_plain = node.byte >= 0x20 && node.byte < 0x80 && node.byte != '"' && node.byte != '\\';
  find_classes(from.state);
  Known& known = known_[from.state];
  // All work counts as if it had to be done now.
  if (std::exchange(known.last_walk, walk_) != walk_) {
    known.passed.reset();
    work_ += kWorkOfPlace * (1 + known.state.num_places());
  }
  const std::uint8_t byte_class = known.class_of_byte[node.byte];
  const bool is_passed = known.passed[byte_class];
  known.passed.set(byte_class);
  const StateId state = next(from.state, node.byte);
  if (!is_passed) work_ += kWorkOfPlace * (1 + (state < kTooMany ? known_[state].state.num_passed() : 0));
  return {state, from.is_free && is_plain};
}

void TokenMasks::find_classes(StateId state) {
  Known& known = known_[state];
  if (!known.next.empty()) return;
  const GrammarState::ByteClasses classes = known.state.byte_classes();
  known.class_of_byte = classes.of_byte;
  known.next.assign(classes.num_classes, kUnknown);
  num_bytes_ += classes.num_classes * sizeof(StateId);
}

TokenMasks::StateId TokenMasks::intern(std::uint64_t grammar_id, const GrammarState& state) {
  const std::uint64_t hash = hash_of(grammar_id, state.key());
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto entry = begin; entry != end; ++entry) {
    const Known& known = known_[entry->second];
    if (known.grammar_id == grammar_id && std::ranges::equal(known.state.key(), state.key())) return entry->second;
  }
  const auto id = static_cast<StateId>(known_.size());
  known_.push_back({.grammar_id = grammar_id, .state = state});
  by_hash_.emplace(hash, id);
  num_bytes_ += sizeof(Known) + state.key().size() * sizeof(std::uint32_t) + kBytesOfNode;
  return id;
}

// All bytes of a class lead to where the first of them does that is asked for.
TokenMasks::StateId TokenMasks::next(StateId from, std::uint8_t byte) {
  const std::size_t byte_class = known_[from].class_of_byte[byte];
  const StateId known = known_[from].next[byte_class];
  if (known != kUnknown) return known;
  const std::uint64_t grammar_id = known_[from].grammar_id;
  GrammarState state = known_[from].state;
  StateId found = kNone;
  if (state.push(byte)) {
    found = intern(grammar_id, state);
  } else if (state.has_too_many()) {
    found = kTooMany;
  }
  known_[from].next[byte_class] = found;
  if (!is_first_ || num_bytes_ <= max_bytes_ || found == kNone || found == kTooMany) return found;
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
