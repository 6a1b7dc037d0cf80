// Which tokens a sequence has, and how often: what penalties go by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace larder {

// Each token once, so that neither what it takes nor the time of a draw grows with the sequence beyond the vocabulary's
// size. Thread: one at a time, or many that read.
class TokenCounts {
 public:
  TokenCounts(std::span<const TokenId> prompt, std::span<const TokenId> output) {
    for (const TokenId token : prompt) slot(token).count |= 1;
    for (const TokenId token : output) add(token);
  }

  // Of the output.
  void add(TokenId token) { slot(token).count += 2; }
  void take_back(TokenId token) { slot(token).count -= 2; }
  // So many more can be added without memory.
  void reserve(std::size_t num_more);

  // Of every token that is there: it, and how many times it is in the output. In no order.
  template <class Function>
  void for_each(const Function& function) const {
    for (const Slot& one : slots_)
      if (one.count > 0) function(one.token, static_cast<std::int32_t>(one.count >> 1));
  }

 private:
  struct Slot {
    TokenId token = kFree;
    std::uint32_t count = 0;  // bit 0: in the prompt; above it: times in the output
  };
  static constexpr TokenId kFree = -1;

  Slot& slot(TokenId token);
  static std::size_t find(std::span<const Slot> slots, TokenId token);

  std::vector<Slot> slots_;  // a power of two, of which at most half are taken
  std::size_t num_taken_ = 0;
};

}  // namespace larder
