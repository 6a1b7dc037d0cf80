// Copies of blocks on their way to a slow store, in memory that was bounded before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/aligned_buffer.h"
#include "kv/tier.h"
#include "kv/tiers/tier_key.h"

namespace larder {

// A buffer is free, or held: by who fills it, then by the queue, by the writer, and by readers of
// its bytes. A block can be found from enqueue() until remove().
// Thread: the owner's lock, but for bytes(), which belong to who holds the buffer.
class TierStaging {
 public:
  // At least one buffer; pages are taken when first used. Throws Error{kUnavailable}.
  TierStaging(std::int64_t block_size_bytes, std::int64_t size_bytes);

  // A buffer to fill, held once. nullopt: all are in use.
  std::optional<int> reserve();
  std::span<std::byte> bytes(int buffer);
  // Keeps the hold for whoever takes it from the queue.
  void enqueue(int buffer, const TierBlock& block);
  std::optional<int> find(const BlockKey& key) const;
  void hold(int buffer) { ++entry(buffer).num_holders; }
  void release(int buffer);
  const TierBlock& block(int buffer) const { return entry(buffer).block; }

  bool has_queued() const { return !queue_.empty(); }
  // The oldest ones, at most this many; their holds go to the caller.
  void take_queued(std::size_t max_num, std::vector<int>& taken);
  // Taken ones, to the front again, in their order; with their holds.
  void put_back(std::span<const int> buffers);
  // No longer found.
  void remove(int buffer);
  // Queued or being written.
  std::int64_t num_pending() const { return static_cast<std::int64_t>(buffers_by_key_.size()); }

 private:
  struct Entry {
    TierBlock block;
    int num_holders = 0;
  };

  Entry& entry(int buffer) { return entries_[static_cast<std::size_t>(buffer)]; }
  const Entry& entry(int buffer) const { return entries_[static_cast<std::size_t>(buffer)]; }

  std::int64_t block_size_bytes_;
  AlignedBuffer memory_;
  std::vector<Entry> entries_;
  std::vector<int> free_;
  std::deque<int> queue_;
  std::unordered_map<BlockKey, int, BlockKeyHash> buffers_by_key_;
};

}  // namespace larder
