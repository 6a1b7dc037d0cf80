#include "engine/token_counts.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t kFewestSlots = 64;

}  // namespace

void TokenCounts::reserve(std::size_t num_more) {
  if (2 * (num_taken_ + num_more) <= slots_.size()) return;
  std::vector<Slot> grown(std::bit_ceil(std::max(2 * (num_taken_ + num_more), kFewestSlots)));
  for (const Slot& taken : slots_)
    if (taken.token != kFree) grown[find(grown, taken.token)] = taken;
  slots_ = std::move(grown);
}

TokenCounts::Slot& TokenCounts::slot(TokenId token) {
  reserve(1);
  Slot& found = slots_[find(slots_, token)];
  if (found.token == kFree) ++num_taken_;
  found.token = token;
  return found;
}

// Its place, or the free one that it would have.
std::size_t TokenCounts::find(std::span<const Slot> slots, TokenId token) {
  constexpr std::uint32_t kGolden = 0x9e3779b9;  // Fibonacci hashing: neighbours part
  const std::size_t mask = slots.size() - 1;
  const int num_bits = std::countr_zero(slots.size());
  std::size_t place = (static_cast<std::uint32_t>(token) * kGolden) >> (32 - num_bits);
  while (slots[place].token != kFree && slots[place].token != token) place = (place + 1) & mask;
  return place;
}

}  // namespace larder
