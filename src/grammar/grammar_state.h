// How far a text has come in a grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace larder {

// All places where the text may be, each with the calls that it has yet to return from. Equal texts, and those
// after which the same may follow in the same way, have equal states. A value; the grammar must outlive it.
// Thread: one at a time.
class GrammarState {
 public:
  // Calls within calls, and places at once: what would take more counts as not of the language.
  static constexpr std::size_t kMaxDepth = 128;
  static constexpr std::size_t kMaxPlaces = 1024;
  static constexpr std::size_t kMaxPassed = 4096;  // on the way to those
  static constexpr std::size_t kMaxKey = 16384;    // numbers that all of it takes

  explicit GrammarState(const Grammar& grammar);

  // One byte more. False: no text of the language goes on like that, and the state is of no more use.
  bool push(std::uint8_t byte);

  // The text is one of the language, whatever may follow.
  bool is_whole() const { return is_whole_; }
  // Nothing may follow.
  bool is_over() const { return key_.empty(); }
  // What has to follow next: a byte without which the text is not one of the language, and no other may stand there.
  std::optional<std::uint8_t> only_byte() const;
  std::size_t num_places() const { return num_places_; }
  // On the way from the byte before, by which the time that it took can be told; kMaxPassed where there were too many.
  std::size_t num_passed() const { return num_passed_; }
  // Any so many characters of a JSON string that need no escape may follow.
  std::uint16_t num_free_characters() const { return num_free_characters_; }
  // The same for equal states of a grammar, beside is_whole().
  std::span<const std::uint32_t> key() const { return key_; }

 private:
  using Stack = std::vector<GrammarNode>;  // where calls return to, outermost first, then the place

  bool settle(std::vector<Stack> open);

  const Grammar* grammar_;
  std::vector<std::uint32_t> key_;  // of every stack, in order: its size, and its nodes
  std::size_t num_places_ = 0;
  std::size_t num_passed_ = 0;
  std::uint16_t num_free_characters_ = 0;
  bool is_whole_ = false;
};

}  // namespace larder
