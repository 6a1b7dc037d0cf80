// How far a text has come in a grammar.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "grammar/grammar.h"

namespace larder {

// All places where the text may be, each with the calls that it has yet to return from. Equal texts, and those
// after which the same may follow in the same way, have equal states. A value; the grammar must outlive it.
// Thread: one at a time.
class GrammarState {
 public:
  // Calls within calls: what would take more counts as not of the language.
  static constexpr std::size_t kMaxDepth = 128;
  // Places at once: a text that would be at more of them cannot be followed.
  static constexpr std::size_t kMaxPlaces = 2048;
  static constexpr std::size_t kMaxPassed = 8192;  // on the way to those
  static constexpr std::size_t kMaxKey = 32768;    // numbers that all of it takes

  // A number for each byte, from 0 on: those of one number lead to the same places, or all of them to none.
  struct ByteClasses {
    std::array<std::uint8_t, 256> of_byte;
    std::size_t num_classes;
  };

  explicit GrammarState(const Grammar& grammar);

  // One byte more. False: no text of the language goes on like that, and the state is of no more use.
  bool push(std::uint8_t byte);

  // The text is one of the language, whatever may follow.
  bool is_whole() const { return is_whole_; }
  // Nothing may follow.
  bool is_over() const { return key_.empty(); }
  // Nothing is known of what may follow, as there are too many places.
  bool has_too_many() const { return has_too_many_; }
  // What has to follow next: a byte without which the text is not one of the language, and no other may stand there.
  std::optional<std::uint8_t> only_byte() const;
  ByteClasses byte_classes() const;
  std::size_t num_places() const { return num_places_; }
  // On the way from the byte before, by which the time that it took can be told.
  std::size_t num_passed() const { return num_passed_; }
  // Any so many characters of a JSON string that need no escape may follow.
  std::uint16_t num_free_characters() const { return num_free_characters_; }
  // The same for equal states of a grammar, beside is_whole().
  std::span<const std::uint32_t> key() const { return key_; }

 private:
  class Stacks;

  bool settle(Stacks& stacks, std::span<const std::uint32_t> begins);
  void give_up();

  const Grammar* grammar_;
  std::vector<std::uint32_t> key_;  // of every stack, in order: its size, and its nodes
  std::size_t num_places_ = 0;
  std::size_t num_passed_ = 0;
  std::uint16_t num_free_characters_ = 0;
  bool is_whole_ = false;
  bool has_too_many_ = false;
};

}  // namespace larder
