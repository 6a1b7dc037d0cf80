// The tiers behind a pool, nearest first, and what they cost against computing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_storage.h"
#include "kv/tier.h"
#include "kv/tiers/tier_loader.h"

namespace larder {

// Thread: engine only, but for stats().
class KvTiers {
 public:
  // At least one tier. storage must outlive it. staging_bytes: of loads on their way into the pool.
  KvTiers(std::vector<std::unique_ptr<KvTier>> tiers, KvStorage& storage,
          std::int64_t block_size_bytes, std::int64_t staging_bytes);
  // Waits no longer than its tiers' end() do.
  ~KvTiers();

  int num_tiers() const { return static_cast<int>(tiers_.size()); }
  KvTier& tier(int index) { return *tiers_[static_cast<std::size_t>(index)]; }
  TierLoader& loader() { return *loader_; }
  // The nearest that other processes read; -1 = none.
  int shared_tier() const;

  // The nearest tier that has a block, or may have it.
  struct Place {
    int tier = -1;         // none
    bool is_sure = false;  // it has it
  };
  [[nodiscard]] Place find(const TierBlock& block) const;
  // See KvTier.
  bool are_stored_for_another(const Digest& digest) const;
  // The shortest of any of them.
  std::int64_t touch_interval_ns() const;
  double read_seconds(int tier, std::int64_t num_blocks) const;
  std::vector<TierStats> stats() const;
  // See KvTier; of all of them.
  void record_events();
  void take_events(KvEvents& events);
  bool has_events() const;
  // A block is gone before the tier took it.
  void count_refused(int tier) { ++num_refused_[static_cast<std::size_t>(tier)]; }

  // Of the model's forward pass over a prompt; what a load is held against. Measured at start and
  // kept up to date by the engine.
  void set_seconds_per_token(double seconds) { seconds_per_token_ = seconds; }
  double seconds_per_token() const { return seconds_per_token_; }

 private:
  std::vector<std::unique_ptr<KvTier>> tiers_;
  std::vector<std::atomic<std::uint64_t>> num_refused_;  // [num_tiers]; beside the tiers' own
  std::unique_ptr<TierLoader> loader_;
  double seconds_per_token_ = 1e9;  // until told: anything is cheaper than computing
};

}  // namespace larder
