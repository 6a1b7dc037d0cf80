#include "kv/tiers/host_tier.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"

namespace larder {
namespace {

constexpr std::int64_t kMeasureBytes = std::int64_t{16} << 20;

// Blocks before one, of its chain, that it may not displace. Only those at the chain's end can be up for
// eviction: the last of each group.
constexpr int kNumNearest = 4;

std::int32_t num_slots(std::int64_t size_bytes, std::int64_t block_size_bytes) {
  const std::int64_t count = size_bytes / block_size_bytes;
  if (count == 0)
    throw_invalid("{} bytes do not hold one KV block of {} bytes; give more", size_bytes, block_size_bytes);
  return static_cast<std::int32_t>(std::min<std::int64_t>(count, INT32_MAX));
}

BlockKey key_of(const TierBlock& block) { return {block.digest, block.group}; }

}  // namespace

HostTier::HostTier(std::int64_t size_bytes, std::int64_t block_size_bytes, Device* device)
    : block_size_bytes_(block_size_bytes),
      num_slots_(num_slots(size_bytes, block_size_bytes)),
      memory_(device, static_cast<std::size_t>(num_slots_ * block_size_bytes)),
      blocks_(static_cast<std::size_t>(num_slots_)),
      read_rate_(kAssumedSecondsPerByte) {
  index_.add_segment(num_slots_);
  measure_reads();
}

// Of slots from the first on; what is in them does not matter.
void HostTier::measure_reads() {
  const std::int64_t num_blocks =
      std::clamp<std::int64_t>(kMeasureBytes / block_size_bytes_, 1, num_slots_);
  std::vector<std::byte> scratch(static_cast<std::size_t>(block_size_bytes_));
  const std::int64_t start_ns = steady_now_ns();
  for (std::int32_t slot = 0; slot < num_blocks; ++slot)
    std::memcpy(scratch.data(), bytes({0, slot}).data(), scratch.size());
  const std::int64_t end_ns = steady_now_ns();
  read_rate_.measure(static_cast<double>(end_ns - start_ns) * 1e-9, num_blocks * block_size_bytes_,
                     end_ns);
}

std::span<std::byte> HostTier::bytes(SlotId slot) {
  return {memory_.data() + slot.slot * block_size_bytes_,
          static_cast<std::size_t>(block_size_bytes_)};
}

std::optional<SlotId> HostTier::find(const TierBlock& block) const {
  return index_.find(key_of(block));
}

bool HostTier::put(const TierBlock& block, std::span<const std::byte> given) {
  CHECK(static_cast<std::int64_t>(given.size()) == block_size_bytes_, given.size());
  const std::int64_t start_ns = steady_now_ns();
  bool is_filled = false;
  const bool is_done = put_filled(block, [&](std::span<std::byte> slot) {
    std::memcpy(slot.data(), given.data(), given.size());
    is_filled = true;
  });
  if (is_filled) note_filled(1, steady_now_ns() - start_ns);
  return is_done;
}

bool HostTier::put_filled(const TierBlock& block, const Fill& fill) {
  const std::lock_guard lock(mutex_);
  if (touch_stored(block)) return true;
  const auto slot = take_slot(block);
  if (!slot) {
    ++stats_.num_refused;
    return true;  // now or later: it is lost
  }
  fill(bytes(*slot));
  blocks_[static_cast<std::size_t>(slot->slot)] = block;
  if (!index_.store(*slot, key_of(block), BlockKey(block.parent, block.group), next_age_++)) {
    index_.release(*slot);
    ++stats_.num_refused;
    return true;
  }
  events_.note_stored(block);
  return true;
}

void HostTier::note_filled(std::int64_t num_blocks, std::int64_t ns) {
  const std::lock_guard lock(mutex_);
  stats_.num_written += static_cast<std::uint64_t>(num_blocks);
  stats_.bytes_written += num_blocks * block_size_bytes_;
  stats_.write_ns += ns;
}

// A free one, or that of a block which goes for it.
std::optional<SlotId> HostTier::take_slot(const TierBlock& block) {
  if (const auto free = index_.take_free()) return free;
  if (block.parent != block.salt && !index_.find(BlockKey(block.parent, 0))) return std::nullopt;
  const auto victim = index_.next_to_go();
  if (!victim || continues(block, blocks_[static_cast<std::size_t>(victim->slot)].digest))
    return std::nullopt;
  ++stats_.num_evicted;
  return index_.evict();
}

// Whether the other is it or shortly before it, in whatever group.
bool HostTier::continues(const TierBlock& block, const Digest& other) const {
  Digest at = block.digest;
  Digest before = block.parent;
  for (int i = 0; i < kNumNearest; ++i) {
    if (at == other) return true;
    const auto slot = index_.find(BlockKey(before, 0));
    if (!slot) return false;
    at = before;
    before = blocks_[static_cast<std::size_t>(slot->slot)].parent;
  }
  return false;
}

bool HostTier::touch_stored(const TierBlock& block) {
  const auto slot = find(block);
  if (slot) index_.touch(*slot, next_age_++);
  return slot.has_value();
}

bool HostTier::touch(const TierBlock& block) {
  const std::lock_guard lock(mutex_);
  return touch_stored(block);
}

TierPresence HostTier::presence(const TierBlock& block) const {
  const std::lock_guard lock(mutex_);
  return find(block) ? TierPresence::kPresent : TierPresence::kAbsent;
}

bool HostTier::has_lost(const TierBlock& block) const {
  const std::lock_guard lock(mutex_);
  return !find(block);
}

void HostTier::get(TierRead read) {
  const auto size = static_cast<std::size_t>(block_size_bytes_);
  CHECK(read.bytes.size() == read.blocks.size() * size, read.bytes.size());
  const std::int64_t start_ns = steady_now_ns();
  const int num_found = lend(read.blocks, [&](std::span<const std::byte* const> lent) {
    std::byte* to = read.bytes.data();
    for (const std::byte* block : lent) {
      std::memcpy(to, block, size);
      to += size;
    }
  });
  note_lent(num_found, steady_now_ns() - start_ns);
  read.done({.num_found = num_found});
}

int HostTier::lend(std::span<const TierBlock> blocks, const Take& take) {
  const std::lock_guard lock(mutex_);
  std::vector<const std::byte*> found;
  for (const TierBlock& block : blocks) {
    const auto slot = find(block);
    if (!slot || blocks_[static_cast<std::size_t>(slot->slot)] != block) {
      ++(slot ? stats_.num_corrupt : stats_.num_missed);
      break;
    }
    found.push_back(bytes(*slot).data());
  }
  if (found.empty()) return 0;
  take(found);
  // What comes first is used last, so that a chain goes from its end.
  for (std::size_t i = found.size(); i-- > 0;) touch_stored(blocks[i]);
  return static_cast<int>(found.size());
}

void HostTier::note_lent(std::int64_t num_blocks, std::int64_t ns) {
  if (num_blocks == 0) return;
  const std::lock_guard lock(mutex_);
  stats_.num_read += static_cast<std::uint64_t>(num_blocks);
  stats_.bytes_read += num_blocks * block_size_bytes_;
  stats_.read_ns += ns;
  read_rate_.observe(static_cast<double>(ns) * 1e-9, num_blocks * block_size_bytes_, steady_now_ns());
}

double HostTier::estimate_read_seconds(std::int64_t num_blocks) const {
  const std::lock_guard lock(mutex_);
  return static_cast<double>(num_blocks * block_size_bytes_) *
         read_rate_.seconds_per_byte(steady_now_ns());
}

void HostTier::record_events() {
  const std::lock_guard lock(mutex_);
  events_.record(KvMedium::kHost);
  index_.tell(events_);
}

KvEvents HostTier::take_events() {
  const std::lock_guard lock(mutex_);
  return events_.take();
}

bool HostTier::has_events() const {
  const std::lock_guard lock(mutex_);
  return !events_.empty();
}

TierStats HostTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.num_stored = index_.num_stored();
  stats.bytes_stored = stats.num_stored * block_size_bytes_;
  return stats;
}

}  // namespace larder
