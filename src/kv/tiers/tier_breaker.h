// Keeps a failing device out of use: off after some failures in a row, each time for longer.
#pragma once

#include <algorithm>
#include <cstdint>

namespace larder {

// Thread: the owner's lock.
class TierBreaker {
 public:
  struct Config {
    int num_failures_to_off = 1;
    std::int64_t first_retry_ns = 0;
    std::int64_t max_retry_ns = 0;  // the pause doubles up to this
  };

  explicit TierBreaker(const Config& config) : config_(config) {}

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
    if (pause_ns_ == 0 && ++num_failures_ < config_.num_failures_to_off) return false;
    pause_ns_ = std::clamp(2 * pause_ns_, config_.first_retry_ns, config_.max_retry_ns);
    off_until_ns_ = now_ns + pause_ns_;
    return true;
  }
  std::int64_t pause_ns() const { return pause_ns_; }

 private:
  Config config_;
  int num_failures_ = 0;
  std::int64_t pause_ns_ = 0;
  std::int64_t off_until_ns_ = 0;
};

}  // namespace larder
