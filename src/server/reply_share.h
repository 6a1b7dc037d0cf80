// What a reply takes of the memory that all of them may take together.
#pragma once

#include <algorithm>
#include <cstddef>

#include "server/memory_budget.h"

namespace larder {

// Thread: its owner's.
class ReplyShare : public BudgetShare {
 public:
  static constexpr std::size_t kSmallBytes = std::size_t{64} << 10;

  // max_bytes: the budget's.
  ReplyShare(MemoryBudget& budget, std::size_t max_bytes) : BudgetShare(budget), max_bytes_(max_bytes) {}

  // That the reply holds so many bytes now. false: there is no room for them. A small one counts nowhere before its reader
  // is behind; one larger than all of the budget goes alone.
  [[nodiscard]] bool may_hold(std::size_t num_bytes) {
    const std::size_t counted = num_bytes <= kSmallBytes ? 0 : std::min(num_bytes, max_bytes_);
    shrink_to(counted);  // what has been told is held no longer
    return grow_to(counted);
  }

 private:
  const std::size_t max_bytes_;
};

}  // namespace larder
