// What a byte costs to read from a tier, learned from the reads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace larder {

// Until a read has been measured. Faster than a tier and than a GPU's computing: what is never tried is never
// measured.
inline constexpr double kAssumedSecondsPerByte = 2e-11;

// A moving average, in which a read counts by its size. Slow reads fade with time: a tier that is
// thought too slow is not read, and what is never tried is never measured again. Not thread-safe.
class ReadRate {
 public:
  // Assumed before anything was measured. It fades to that, or to the fastest that was.
  explicit ReadRate(double seconds_per_byte) : fastest_(seconds_per_byte), average_(fastest_) {}

  // In place of what was known.
  void measure(double seconds, std::int64_t num_bytes, std::int64_t now_ns) {
    average_ = seconds / static_cast<double>(num_bytes);
    fastest_ = std::min(fastest_, average_);
    measured_ns_ = now_ns;
  }
  void observe(double seconds, std::int64_t num_bytes, std::int64_t now_ns) {
    const double bytes = static_cast<double>(num_bytes);
    const double weight = kMostWeight * std::min(1.0, bytes / kFullBytes);
    const double before = seconds_per_byte(now_ns);
    average_ = before + weight * (seconds / bytes - before);
    fastest_ = std::min(fastest_, seconds / bytes);
    measured_ns_ = now_ns;
  }
  double seconds_per_byte(std::int64_t now_ns) const {
    const double idle_s = static_cast<double>(now_ns - measured_ns_) * 1e-9;
    const double faded = average_ * std::exp2(-idle_s / kHalfLifeSeconds);
    return std::max(fastest_, faded);
  }

 private:
  static constexpr double kMostWeight = 0.2;
  static constexpr double kFullBytes = 4 << 20;  // reads of that size count fully
  static constexpr double kHalfLifeSeconds = 300;

  double fastest_;
  double average_;
  std::int64_t measured_ns_ = 0;
};

}  // namespace larder
