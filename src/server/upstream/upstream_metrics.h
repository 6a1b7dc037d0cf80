// What /metrics shows of the upstream.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "base/histogram.h"
#include "server/upstream/upstream_route.h"

namespace larder {

// From a request's slot to the head of its reply, in seconds.
inline constexpr std::array<double, 16> kFirstByteBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75,
                                                            1,     2.5,  5,     10,   20,  60,   180, 600};

struct UpstreamStats {
  std::array<std::uint64_t, kNumUpstreamReasons> num_requests{};  // by UpstreamReason
  std::uint64_t num_failures = 0;                                 // not answered, or not to the end
  std::uint64_t num_sent_bytes = 0;                               // of bodies, likewise
  std::uint64_t num_received_bytes = 0;
  std::uint64_t num_connections = 0;  // made, for requests that found none kept
  Histogram first_byte{kFirstByteBounds};
};

// Thread: any.
class UpstreamMetrics {
 public:
  void count_request(UpstreamReason reason, std::uint64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    ++stats_.num_requests.at(static_cast<std::size_t>(reason));
    stats_.num_sent_bytes += num_bytes;
  }
  void count_failure() {
    const std::lock_guard lock(mutex_);
    ++stats_.num_failures;
  }
  void count_connection() {
    const std::lock_guard lock(mutex_);
    ++stats_.num_connections;
  }
  void count_received(std::uint64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    stats_.num_received_bytes += num_bytes;
  }
  void observe_first_byte(double seconds) {
    const std::lock_guard lock(mutex_);
    stats_.first_byte.observe(seconds);
  }
  UpstreamStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  UpstreamStats stats_;
};

}  // namespace larder
