// What one rendering may use: steps, depth, bytes. Every value that a template makes is charged
// here, so that a hostile template fails before the machine does.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace larder::jinja {

// How a template fails, inside; chat_template.cc adds the line and makes an Error of it.
struct Failure {
  std::string message;
  int line = 0;  // 0 = where the interpreter stands
  bool is_out_of_steps = false;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{.message = fmt::format(format, std::forward<Args>(args)...)};
}

// Thread: one. Outlives everything charged to it.
class Budget {
 public:
  Budget(std::int64_t max_steps, std::size_t max_bytes, int max_depth)
      : steps_left_(max_steps), bytes_left_(max_bytes), max_depth_(max_depth) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // One step is one node evaluated or one element looked at.
  void step(std::size_t num_steps = 1) {
    if (num_steps > static_cast<std::size_t>(steps_left_)) {
      throw Failure{.message = "it takes more steps than are allowed (an endless loop?)", .is_out_of_steps = true};
    }
    steps_left_ -= static_cast<std::int64_t>(num_steps);
  }
  // Work that is linear in bytes, at the speed of memory.
  void scan(std::size_t num_bytes) { step(num_bytes / kBytesPerStep); }

  void take(std::size_t num_bytes) {
    if (num_bytes > bytes_left_) fail("it makes more text or values than are allowed");
    bytes_left_ -= num_bytes;
  }
  void give_back(std::size_t num_bytes) { bytes_left_ += num_bytes; }

  int max_depth() const { return max_depth_; }

 private:
  friend class PrintGuard;
  static constexpr std::size_t kBytesPerStep = 128;

  std::int64_t steps_left_;
  std::size_t bytes_left_;
  int max_depth_;
  int print_depth_ = 0;
};

// One more level of a value that is printed; fails before the machine's stack could end. A value
// is no deeper than max_depth, but namespaces count as flat, and may hold one another in a chain.
class PrintGuard {
 public:
  explicit PrintGuard(Budget& budget) : depth_(budget.print_depth_) {
    const int max_depth = 2 * budget.max_depth();
    if (depth_ >= max_depth) fail("a value to print is nested deeper than {}", max_depth);
    ++depth_;
  }
  ~PrintGuard() { --depth_; }
  PrintGuard(const PrintGuard&) = delete;
  PrintGuard& operator=(const PrintGuard&) = delete;

 private:
  int& depth_;
};

// Bytes taken from a budget for as long as this lives.
class Charge {
 public:
  Charge() = default;
  explicit Charge(Budget& budget) : budget_(&budget) {}
  ~Charge() {
    if (budget_ != nullptr) budget_->give_back(num_bytes_);
  }
  Charge(Charge&& other) noexcept
      : budget_(other.budget_), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  void add(std::size_t num_bytes) {
    if (budget_ == nullptr) return;
    budget_->take(num_bytes);
    num_bytes_ += num_bytes;
  }
  // From this budget, which is the same at every call.
  void add(Budget& budget, std::size_t num_bytes) {
    budget_ = &budget;
    add(num_bytes);
  }

 private:
  Budget* budget_ = nullptr;
  std::size_t num_bytes_ = 0;
};

}  // namespace larder::jinja
