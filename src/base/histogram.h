// Counts in fixed buckets, as Prometheus exports them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace larder {

// bounds: upper ends, ascending; one more bucket takes the rest. Thread: the owner's.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}

  void observe(double value) {
    std::size_t bucket = 0;
    while (bucket < bounds_.size() && value > bounds_[bucket]) ++bucket;
    ++counts_[bucket];
    sum_ += value;
    ++num_observed_;
  }

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<std::uint64_t>& counts() const { return counts_; }  // not cumulative
  double sum() const { return sum_; }
  std::uint64_t num_observed() const { return num_observed_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
  std::uint64_t num_observed_ = 0;
};

}  // namespace larder
