// Which tokens may follow, found out once for each state of a grammar.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/grammar_state.h"

namespace larder {

// A grammar's states become those of a finite automaton as texts reach them, as RE2 does with regular expressions: a
// walk through the vocabulary's tree then costs one look into a table a node. What one knows depends on nothing but
// the grammar and the tokens, so that any number of them say the same. Thread: one at a time.
class TokenMasks {
 public:
  // What it knows takes that much at most, and then is forgotten; one walk's path may take more.
  explicit TokenMasks(std::size_t max_bytes = kMaxBytes) : max_bytes_(max_bytes) {}

  static constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

  // A bit for each token of the vocabulary: those behind which the text is still one of the constraint's, or the
  // beginning of one. Valid until the next call. Empty: that cannot be told of all of them, as one would be at too many
  // places, or it would take too long (kMaxWork) where there are many places and a new state for each text. Which
  // states those are depends on nothing that was known before.
  std::span<const std::uint64_t> allowed(const Constraint& constraint, const GrammarState& state);

  std::size_t size_bytes() const { return num_bytes_; }

 private:
  static constexpr std::size_t kMaxWork = std::size_t{8} << 20;  // of some 10 ns: a tenth of a second

  using StateId = std::uint32_t;
  // kTooMany: there would be too many places.
  static constexpr StateId kUnknown = 0xFFFFFFFF, kNone = 0xFFFFFFFE, kTooMany = 0xFFFFFFFD;

  struct Known {
    std::uint64_t grammar_id;
    GrammarState state;
    std::array<std::uint8_t, 256> class_of_byte = {};
    std::vector<StateId> next = {};    // by class; empty = nobody has gone on from here
    std::optional<std::vector<std::uint64_t>> mask = {};  // nullopt = not asked for yet
    std::uint64_t last_walk = 0;  // that went on from here, and the classes by which it did
    std::bitset<256> passed = {};
  };
  // As of the token's bytes so far.
  struct Step {
    StateId state;
    bool is_free;  // all of them are characters that the first state is free for
  };

  StateId intern(std::uint64_t grammar_id, const GrammarState& state);
  void find_classes(StateId state);
  StateId next(StateId from, std::uint8_t byte);
  void forget_all_but_path();
  void begin(const Constraint& constraint, const GrammarState& state);
  // False: there was no room for all that it came by beside what was known before.
  bool walk(const TokenTrie& tokens);
  // The first walk makes some.
  bool has_room() const { return is_first_ || num_bytes_ <= max_bytes_; }
  bool give_up();
  Step step(const Step& from, const TokenTrie::Node& node);

  const std::size_t max_bytes_;
  std::size_t num_bytes_ = 0;
  std::vector<Known> known_;
  std::unordered_multimap<std::uint64_t, StateId> by_hash_;
  std::vector<Step> path_;           // of the walk, by depth; the first is where it begins
  std::vector<std::uint64_t> mask_;  // of the walk; empty = it came to no end
  std::uint64_t walk_ = 0;           // its number
  std::size_t work_ = 0;             // that it has done
  bool is_first_ = false;            // nothing was known before it
};

}  // namespace larder
