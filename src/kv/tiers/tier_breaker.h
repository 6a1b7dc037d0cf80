// Keeps a failing device out of use: off after some failures in a row, each time for longer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace larder {

// Thread: the owner's lock.
class TierBreaker {
 public:
  // The pause doubles from the first to the second.
  TierBreaker(int first_retry_ms, int max_retry_ms, int num_failures_to_off = 1)
      : first_retry_ns_(first_retry_ms * kNsPerMs),
        max_retry_ns_(max_retry_ms * kNsPerMs),
        num_failures_to_off_(num_failures_to_off) {}

  // After its pause it is on again: what fails then puts it off for longer.
  bool is_on(std::int64_t now_ns) const { return now_ns >= off_until_ns_; }
  std::int64_t off_until_ns() const { return off_until_ns_; }
  void succeed() {
    num_failures_ = 0;
    pause_ns_ = 0;
  }
  // Whether this one put it off.
  bool fail(std::int64_t now_ns) {
    if (!is_on(now_ns)) return false;
    if (pause_ns_ == 0 && ++num_failures_ < num_failures_to_off_) return false;
    pause_ns_ = std::clamp(2 * pause_ns_, first_retry_ns_, max_retry_ns_);
    off_until_ns_ = now_ns + pause_ns_;
    return true;
  }
  std::int64_t pause_ns() const { return pause_ns_; }

 private:
  const std::int64_t first_retry_ns_;
  const std::int64_t max_retry_ns_;
  const int num_failures_to_off_;
  int num_failures_ = 0;
  std::int64_t pause_ns_ = 0;
  std::int64_t off_until_ns_ = 0;
};

}  // namespace larder
