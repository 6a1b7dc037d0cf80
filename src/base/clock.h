// Time as an interface, so that a simulation can drive the engine.
#pragma once

#include <chrono>
#include <cstdint>

namespace larder {

inline constexpr std::int64_t kNsPerMs = 1'000'000;
inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

inline std::int64_t steady_now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic nanoseconds.
  virtual std::int64_t now_ns() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return steady_now_ns(); }
};

// Moves only when told to.
class ManualClock final : public Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_; }
  void advance_ns(std::int64_t delta_ns) { now_ns_ += delta_ns; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace larder
