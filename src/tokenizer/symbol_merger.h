// The loop of byte-pair encoding: join the best neighbours until none may be joined.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/types.h"

namespace larder {

// What two neighbours become. Lower priority numbers go first, and of equal ones the leftmost.
struct Merge {
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t priority = kNever;
  TokenId result = -1;
};

// A token in the making; joined symbols keep the left one's place.
struct Symbol {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t begin = 0;  // offset in the text
  TokenId id = -1;
  std::uint32_t previous = kNone, next = kNone;
  Merge merge = {};  // with next
};

// Joins symbols in place; walk the result from the first by next. lookup(left, right) -> Merge.
// n log n: a queue of pairs in which those that are no longer neighbours are passed over, by their
// priority having changed.
template <class Lookup>
void merge_symbols(std::vector<Symbol>& symbols, std::vector<std::uint64_t>& queue, Lookup lookup) {
  const auto entry_of = [&](std::uint32_t left) {
    return std::uint64_t{symbols[left].merge.priority} << 32 | left;
  };
  const auto update = [&](std::uint32_t left) {
    Symbol& symbol = symbols[left];
    symbol.merge = symbol.next == Symbol::kNone ? Merge{} : lookup(symbol, symbols[symbol.next]);
    return symbol.merge.priority != Merge::kNever;
  };
  queue.clear();
  const auto size = static_cast<std::uint32_t>(symbols.size());
  for (std::uint32_t i = 0; i < size; ++i) {
    symbols[i].previous = i == 0 ? Symbol::kNone : i - 1;
    symbols[i].next = i + 1 == size ? Symbol::kNone : i + 1;
  }
  for (std::uint32_t i = 0; i < size; ++i)
    if (update(i)) queue.push_back(entry_of(i));
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const std::uint64_t entry = queue.back();
    queue.pop_back();
    const auto left = static_cast<std::uint32_t>(entry);
    if (symbols[left].merge.priority == Merge::kNever || entry_of(left) != entry) continue;
    Symbol& symbol = symbols[left];
    Symbol& gone = symbols[symbol.next];
    symbol.id = symbol.merge.result;
    symbol.next = gone.next;
    gone.merge = {};
    if (symbol.next != Symbol::kNone) symbols[symbol.next].previous = left;
    const std::uint32_t changed[] = {symbol.previous, left};
    for (const std::uint32_t i : changed) {
      if (i == Symbol::kNone || !update(i)) continue;
      queue.push_back(entry_of(i));
      std::push_heap(queue.begin(), queue.end(), std::greater<>());
    }
  }
}

}  // namespace larder
