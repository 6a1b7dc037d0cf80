// Which block is in which slot of which segment, and which slot goes next. Bookkeeping only.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/tiers/tier_events.h"
#include "kv/tiers/tier_key.h"

namespace larder {

struct SlotId {
  std::int32_t segment = -1;
  std::int32_t slot = -1;

  auto operator<=>(const SlotId&) const = default;
};

// A slot is free, taken (its owner writes it), stored (found by its key) or lost (not used again).
// Blocks go least recently used first, and a block that others in the store follow does not go
// before them: without it they would be of no use. For the same reason the blocks that other groups have of
// its tokens go next. Who reads a slot pins it, and it stays.
// Thread: the owner's lock. O(log n) where the order of eviction changes, else O(1). Only what adds blocks
// or segments takes memory.
class DiskIndex {
  struct Slot;

 public:
  // From now on it tells of blocks that it forgets. events must outlive it.
  void tell(TierEvents& events) { events_ = &events; }
  // A group of the model's layers that has blocks.
  void note_group(int group) { num_groups_ = std::max(num_groups_, group + 1); }
  int num_groups() const { return num_groups_; }
  // Free ones, of a segment. Millions take a while: they are made before the lock is taken.
  using Slots = std::vector<Slot>;
  static Slots make_slots(std::int32_t num_slots);
  // Adds a segment of them and returns its number.
  std::int32_t add_segment(Slots slots);
  std::int32_t add_segment(std::int32_t num_slots) { return add_segment(make_slots(num_slots)); }

  std::optional<SlotId> find(const BlockKey& key) const;
  // Where a block's parent is: in the block's own group or in the first, which of windows has all.
  std::optional<SlotId> find_parent(const BlockKey& parent) const;
  // The free slot that lies before all others in its segment, now taken.
  std::optional<SlotId> take_free();
  // free -> taken, for what lies in it at start.
  void take(SlotId id);
  // Whose turn it is. nullopt: all are pinned or taken.
  std::optional<SlotId> next_to_go() const;
  // Forgets the block whose turn it is; its slot is now taken. nullopt: all are pinned or taken.
  std::optional<SlotId> evict();
  // Undoes evict(). false: the slot is still taken, as the block has been stored elsewhere since, or there
  // was no memory.
  [[nodiscard]] bool put_back(SlotId id);
  // taken -> stored. age: as in touch(). false: no memory, and nothing was changed.
  [[nodiscard]] bool store(SlotId id, const BlockKey& key, const BlockKey& parent, std::uint64_t age);
  // taken or stored -> free. Forgets the block.
  void release(SlotId id);
  // taken or stored -> lost: the device fails there.
  void lose(SlotId id);

  // Used at age, which never falls.
  void touch(SlotId id, std::uint64_t age);
  void pin(SlotId id) { ++slot(id).num_pins; }
  void unpin(SlotId id) { --slot(id).num_pins; }
  // What the slot holds now, if it is stored.
  bool holds(SlotId id, const BlockKey& key) const;
  // When it was stored or last touched.
  std::uint64_t age(SlotId id) const { return slot(id).age; }
  // Whether something, valid or not, may lie in the slot's header on disk.
  bool was_used(SlotId id) const { return slot(id).was_used; }
  void mark_used(SlotId id) { slot(id).was_used = true; }
  // What is stored there, until something else is, no prompt comes to.
  void mark_unreachable(SlotId id) { slot(id).is_unreachable = true; }
  bool is_reachable(const BlockKey& key) const;
  // Some that are stored, from all over the segments.
  std::vector<SlotId> sample_stored(std::size_t max_num) const;
  // All that are stored, each behind the one that it follows.
  std::vector<SlotId> parents_first() const;

  std::int64_t num_stored() const { return static_cast<std::int64_t>(slots_by_key_.size()); }

 private:
  enum class State : std::uint8_t { kFree, kTaken, kStored, kLost };
  struct Slot {
    BlockKey key;
    BlockKey parent;
    std::uint64_t age = 0;
    std::int32_t num_pins = 0;
    State state = State::kFree;
    bool was_used = false;
    bool is_unreachable = false;
  };
  struct Segment {
    Slots slots;
    std::int32_t first_free = 0;  // no slot before it is free
  };

  Slot& slot(SlotId id) {
    return segments_[static_cast<std::size_t>(id.segment)].slots[static_cast<std::size_t>(id.slot)];
  }
  const Slot& slot(SlotId id) const { return const_cast<DiskIndex*>(this)->slot(id); }
  bool may_go(SlotId id) const { return slot(id).num_pins == 0 && is_leaf(slot(id).key); }
  bool is_leaf(const BlockKey& key) const { return !num_children_.contains(key); }
  void add_leaf(SlotId id) noexcept;
  void forget(SlotId id);

  TierEvents* events_ = nullptr;
  int num_groups_ = 1;
  std::optional<BlockKey> last_evicted_;
  std::vector<Segment> segments_;
  std::unordered_map<BlockKey, SlotId, BlockKeyHash> slots_by_key_;
  // Of blocks, stored or not, that stored ones follow.
  std::unordered_map<BlockKey, std::int32_t, BlockKeyHash> num_children_;
  std::set<std::pair<std::uint64_t, SlotId>> leaves_;  // stored, without children, by age
};

}  // namespace larder
