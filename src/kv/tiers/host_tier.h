// KV blocks in the host's memory, behind a device that has less.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kv/tier.h"
#include "kv/tiers/disk_index.h"
#include "kv/tiers/read_rate.h"
#include "kv/tiers/tier_events.h"

namespace larder {

// One piece of memory in slots of a block each. Slots are lent: a device copies from and to them. Blocks have no checksum, as the pool's have none: they leave the
// process no more than those do. Full, it gives up blocks as the disk tier does, but refuses one that
// would take the place of what it continues, or that continues what is not here: of a chain that is too
// long the beginning stays. Thread: see KvTier.
class HostTier final : public KvTier {
 public:
  // Takes as many blocks as size_bytes hold, at least one, now: page-locked where device is not null.
  // Throws Error: kInvalidArgument when it holds none, kUnavailable. The device must outlive it.
  HostTier(std::int64_t size_bytes, std::int64_t block_size_bytes, Device* device);

  const char* name() const override { return "host"; }
  [[nodiscard]] bool put(const TierBlock& block, std::span<const std::byte> bytes) override;
  [[nodiscard]] bool touch(const TierBlock& block) override;
  [[nodiscard]] TierPresence presence(const TierBlock& block) const override;
  bool has_lost(const TierBlock& block) const override;
  void get(TierRead read) override;
  bool lends() const override { return true; }
  int lend(std::span<const TierBlock> blocks, const Take& take) override;
  void note_lent(std::int64_t num_blocks, std::int64_t ns) override;
  [[nodiscard]] bool put_filled(const TierBlock& block, const Fill& fill) override;
  void note_filled(std::int64_t num_blocks, std::int64_t ns) override;
  double estimate_read_seconds(std::int64_t num_blocks) const override;
  TierStats stats() const override;
  void record_events() override;
  KvEvents take_events() override;
  bool has_events() const override;

 private:
  void measure_reads();
  std::span<std::byte> bytes(SlotId slot);
  std::optional<SlotId> find(const TierBlock& block) const;
  std::optional<SlotId> take_slot(const TierBlock& block);
  bool touch_stored(const TierBlock& block);
  bool continues(const TierBlock& block, const Digest& other) const;

  const std::int64_t block_size_bytes_;
  const std::int32_t num_slots_;
  HostMemory memory_;

  mutable std::mutex mutex_;  // of all that follows
  TierEvents events_;
  DiskIndex index_;
  std::vector<TierBlock> blocks_;  // [num_slots_], what is in each
  ReadRate read_rate_;
  TierStats stats_;
  std::uint64_t next_age_ = 1;
};

}  // namespace larder
