// A bound on what many holders take together.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace larder {

// Thread: any.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // false = it would go over, or leave less than `reserved`; nothing is taken then.
  [[nodiscard]] bool take(std::size_t bytes, std::size_t reserved = 0) {
    if (used_.fetch_add(bytes) + bytes + reserved <= max_bytes_) return true;
    used_.fetch_sub(bytes);
    return false;
  }
  void give_back(std::size_t bytes) { used_.fetch_sub(bytes); }
  std::size_t used() const { return used_.load(); }

 private:
  const std::size_t max_bytes_;
  std::atomic<std::size_t> used_{0};
};

// What one holder has taken; gives it back at its end.
class BudgetShare {
 public:
  explicit BudgetShare(MemoryBudget& budget) : budget_(budget) {}
  ~BudgetShare() { release(); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

  [[nodiscard]] bool grow(std::size_t bytes, std::size_t reserved = 0) {
    if (!budget_.take(bytes, reserved)) return false;
    bytes_ += bytes;
    return true;
  }
  // To be so many in all, unless they are already.
  [[nodiscard]] bool grow_to(std::size_t bytes) { return bytes <= bytes_ || grow(bytes - bytes_); }
  void shrink_to(std::size_t bytes) {
    if (bytes < bytes_) budget_.give_back(std::exchange(bytes_, bytes) - bytes);
  }
  void release() { shrink_to(0); }

 private:
  MemoryBudget& budget_;
  std::size_t bytes_ = 0;
};

}  // namespace larder
