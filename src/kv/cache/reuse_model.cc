#include "kv/cache/reuse_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace larder {
namespace {

// Uses of a level: at least its entry, at most the next one less one.
constexpr std::array<int, ReuseModel::kNumUses> kLeastUses = {1, 2, 3, 4, 5, 7, 10, 15, 25, 51};

// In pools: observations that weigh as much as what the terms start from, and the most that is
// remembered.
constexpr double kPriorPools = 0.02;
constexpr double kUsesPriorPools = 0.1;
constexpr double kMemoryPools = 32;

// Chance of a use in any bucket before anything is known.
constexpr double kPriorChance = 0.05;

}  // namespace

ReuseModel::ReuseModel(int num_blocks)
    : num_blocks_(num_blocks),
      counts_(static_cast<std::size_t>(kNumClasses * kNumBuckets)),
      densities_(counts_.size()) {
  double begin = 0;
  for (std::size_t bucket = 0; bucket < ends_.size(); ++bucket) {
    const auto place = static_cast<double>(bucket);
    const double end = num_blocks_ * (bucket < 2 ? std::exp2(place - 2) : std::exp2(place / 2 - 1));
    ends_[bucket] = std::max<std::int64_t>(static_cast<std::int64_t>(end), 1);
    // The last one has no end: what reaches it is as good as gone.
    widths_[bucket] = bucket + 1 < ends_.size() ? end - begin : 3 * begin;
    begin = end;
  }
  ends_.back() = std::numeric_limits<std::int64_t>::max();
  const double prior = kPriorPools * num_blocks_;
  for (Term& term : terms_.base) term = {std::log(kPriorChance / (1 - kPriorChance)), 0};
  for (auto& shifts : terms_.shift) shifts.fill({0, prior});
  for (Term& term : terms_.end) term = {0, prior};
  for (std::size_t level = 0; level < terms_.uses.size(); ++level) {
    const int least = kLeastUses[level];
    terms_.uses[level] = {std::log(least / 2.5), kUsesPriorPools * num_blocks_};
  }
  learn();
}

int ReuseModel::class_of(int num_uses, float mean_gap_log2, bool is_end) const {
  const auto level = std::ranges::upper_bound(kLeastUses, num_uses) - kLeastUses.begin() - 1;
  int gap = 0;
  if (mean_gap_log2 != kNoGap) {
    const double octave = mean_gap_log2 - std::log2(num_blocks_ / 2);
    gap = 1 + std::clamp(static_cast<int>(std::floor(octave)) + 1, 0, kNumGaps - 2);
  }
  return (static_cast<int>(level) * kNumGaps + gap) * 2 + (is_end ? 1 : 0);
}

void ReuseModel::observe(int block_class, int bucket, bool is_used) {
  Count& count = counts_[static_cast<std::size_t>(block_class * kNumBuckets + bucket)];
  ++count.num_left;
  count.num_used += is_used;
}

std::array<ReuseModel::Term*, 4> ReuseModel::terms_of(int block_class, int bucket) {
  const auto b = static_cast<std::size_t>(bucket);
  const auto is_end = static_cast<std::size_t>(block_class % 2);
  const auto gap = static_cast<std::size_t>(block_class / 2 % kNumGaps);
  const auto level = static_cast<std::size_t>(block_class / 2 / kNumGaps);
  return {&terms_.base[b], &terms_.shift[gap][b], &terms_.uses[level], &terms_.end[is_end]};
}

double ReuseModel::chance(int block_class, int bucket) {
  double logit = 0;
  for (const Term* term : terms_of(block_class, bucket)) logit += term->value;
  return 1 / (1 + std::exp(-logit));
}

void ReuseModel::step(Term& term) const {
  if (term.curvature == 0) return;
  term.weight = std::min(term.weight + term.curvature, kMemoryPools * num_blocks_);
  term.value += std::clamp(term.slope / (term.weight + kPriorPools * num_blocks_), -1.0, 1.0);
  term.slope = term.curvature = 0;
}

void ReuseModel::learn() {
  for (int block_class = 0; block_class < kNumClasses; ++block_class) {
    for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
      Count& count = counts_[static_cast<std::size_t>(block_class * kNumBuckets + bucket)];
      if (count.num_left == 0) continue;
      const double expected = chance(block_class, bucket);
      for (Term* term : terms_of(block_class, bucket)) {
        term->slope += count.num_used - count.num_left * expected;
        term->curvature += count.num_left * expected * (1 - expected);
      }
      count = {};
    }
  }
  for (Term& term : terms_.base) step(term);
  for (auto& shifts : terms_.shift) {
    for (Term& term : shifts) step(term);
  }
  for (Term& term : terms_.uses) step(term);
  for (Term& term : terms_.end) step(term);
  for (int block_class = 0; block_class < kNumClasses; ++block_class) update_densities(block_class);
}

void ReuseModel::update_densities(int block_class) {
  std::array<double, kNumBuckets> chances;
  for (int bucket = 0; bucket < kNumBuckets; ++bucket) {
    chances[static_cast<std::size_t>(bucket)] = chance(block_class, bucket);
  }
  for (std::size_t first = 0; first < chances.size(); ++first) {
    double alive = 1, hits = 0, time = 0, best = 0;
    for (std::size_t bucket = first; bucket < chances.size(); ++bucket) {
      const double used = alive * chances[bucket];
      hits += used;
      time += widths_[bucket] * (alive - used / 2);
      alive -= used;
      best = std::max(best, hits / time);
    }
    densities_[static_cast<std::size_t>(block_class * kNumBuckets) + first] = best;
  }
}

}  // namespace larder
