#include "kv/tiers/disk_index.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/check.h"

namespace larder {

DiskIndex::Slots DiskIndex::make_slots(std::int32_t num_slots) { return Slots(static_cast<std::size_t>(num_slots)); }

std::int32_t DiskIndex::add_segment(Slots slots) {
  segments_.push_back({.slots = std::move(slots)});
  return static_cast<std::int32_t>(segments_.size()) - 1;
}

std::optional<SlotId> DiskIndex::find(const BlockKey& key) const {
  const auto found = slots_by_key_.find(key);
  if (found == slots_by_key_.end()) return std::nullopt;
  return found->second;
}

std::optional<SlotId> DiskIndex::find_parent(const BlockKey& parent) const {
  const auto own = find(parent);
  return own ? own : find(parent.in_group(0));
}

std::optional<SlotId> DiskIndex::take_free() {
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
    Segment& in = segments_[segment];
    for (; in.first_free < static_cast<std::int32_t>(in.slots.size()); ++in.first_free) {
      const SlotId id{static_cast<std::int32_t>(segment), in.first_free};
      if (slot(id).state == State::kFree) {
        take(id);
        return id;
      }
    }
  }
  return std::nullopt;
}

void DiskIndex::take(SlotId id) {
  CHECK(slot(id).state == State::kFree);
  slot(id).state = State::kTaken;
}

std::optional<SlotId> DiskIndex::next_to_go() const {
  // Those of the same tokens, unless it is back: a key's group is in its lowest bits.
  const bool is_gone = last_evicted_ && !find(*last_evicted_);
  const std::uint64_t num_keys = is_gone ? std::bit_ceil(static_cast<unsigned>(num_groups_)) : 0;
  for (std::uint64_t bits = 1; bits < num_keys; ++bits) {
    BlockKey key = *last_evicted_;
    key.high ^= bits;  // its group's
    if (const auto id = find(key); id && may_go(*id)) return id;
  }
  for (const auto& [age, id] : leaves_) {
    if (slot(id).num_pins == 0) return id;
  }
  return std::nullopt;
}

std::optional<SlotId> DiskIndex::evict() {
  const std::optional<SlotId> victim = next_to_go();
  if (!victim) return std::nullopt;
  last_evicted_ = slot(*victim).key;
  forget(*victim);
  slot(*victim).state = State::kTaken;
  return victim;
}

bool DiskIndex::put_back(SlotId id) {
  last_evicted_.reset();
  const Slot evicted = slot(id);
  return !find(evicted.key) && store(id, evicted.key, evicted.parent, evicted.age);
}

bool DiskIndex::store(SlotId id, const BlockKey& key, const BlockKey& parent, std::uint64_t age) {
  Slot& taken = slot(id);
  CHECK(taken.state == State::kTaken && !slots_by_key_.contains(key));
  try {
    slots_by_key_.emplace(key, id);
    if (parent != key && num_children_[parent]++ == 0) {
      if (const auto above = find(parent)) leaves_.erase({slot(*above).age, *above});
    }
  } catch (const std::bad_alloc&) {
    slots_by_key_.erase(key);
    return false;
  }
  taken.key = key;
  taken.parent = parent;
  taken.age = age;
  taken.state = State::kStored;
  taken.is_unreachable = false;
  if (is_leaf(key)) add_leaf(id);
  return true;
}

// Without memory for its place in the order, it stays until it is used again.
void DiskIndex::add_leaf(SlotId id) noexcept {
  try {
    leaves_.emplace(slot(id).age, id);
  } catch (const std::bad_alloc&) {
  }
}

void DiskIndex::release(SlotId id) {
  forget(id);
  slot(id).state = State::kFree;
  Segment& in = segments_[static_cast<std::size_t>(id.segment)];
  if (id.slot < in.first_free) in.first_free = id.slot;
}

void DiskIndex::lose(SlotId id) {
  forget(id);
  slot(id).state = State::kLost;
}

void DiskIndex::touch(SlotId id, std::uint64_t age) {
  Slot& stored = slot(id);
  CHECK(stored.state == State::kStored);
  auto place = leaves_.extract({stored.age, id});
  stored.age = age;
  if (place) {
    place.value().first = age;
    leaves_.insert(std::move(place));
  } else if (is_leaf(stored.key)) {
    add_leaf(id);
  }
}

bool DiskIndex::holds(SlotId id, const BlockKey& key) const {
  return slot(id).state == State::kStored && slot(id).key == key;
}

bool DiskIndex::is_reachable(const BlockKey& key) const {
  const auto id = find(key);
  return id && !slot(*id).is_unreachable;
}

std::vector<SlotId> DiskIndex::sample_stored(std::size_t max_num) const {
  std::vector<SlotId> slots;
  const std::size_t stride = std::max<std::size_t>(1, slots_by_key_.size() / std::max<std::size_t>(1, max_num));
  std::size_t num_passed = 0;
  for (std::size_t segment = 0; segment < segments_.size(); ++segment) {
    const std::vector<Slot>& in = segments_[segment].slots;
    for (std::size_t i = 0; i < in.size() && slots.size() < max_num; ++i) {
      if (in[i].state == State::kStored && num_passed++ % stride == 0)
        slots.push_back({static_cast<std::int32_t>(segment), static_cast<std::int32_t>(i)});
    }
  }
  return slots;
}

// By how many stored ones each follows. What follows itself, as a damaged store may say, ends somewhere.
std::vector<SlotId> DiskIndex::parents_first() const {
  constexpr std::int32_t kUnknown = -1;
  std::vector<std::vector<std::int32_t>> depths;
  for (const Segment& segment : segments_) depths.emplace_back(segment.slots.size(), kUnknown);
  const auto depth = [&](SlotId id) -> std::int32_t& {
    return depths[static_cast<std::size_t>(id.segment)][static_cast<std::size_t>(id.slot)];
  };
  std::vector<SlotId> stored;
  std::vector<SlotId> above;  // whose depth is not known yet, upwards
  for (std::int32_t segment = 0; segment < static_cast<std::int32_t>(segments_.size()); ++segment) {
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(segments_[static_cast<std::size_t>(segment)].slots.size()); ++i) {
      if (slot({segment, i}).state != State::kStored) continue;
      stored.push_back({segment, i});
      std::optional<SlotId> at = stored.back();
      for (; at && depth(*at) == kUnknown; at = find_parent(slot(*at).parent)) {
        depth(*at) = 0;
        above.push_back(*at);
      }
      for (std::int32_t below = at ? depth(*at) : kUnknown; !above.empty(); above.pop_back())
        depth(above.back()) = ++below;
    }
  }
  std::ranges::stable_sort(stored, {}, depth);
  return stored;
}

void DiskIndex::forget(SlotId id) {
  Slot& stored = slot(id);
  if (stored.state != State::kStored) return;
  if (events_ != nullptr) events_->note_removed(stored.key);
  slots_by_key_.erase(stored.key);
  leaves_.erase({stored.age, id});
  stored.state = State::kTaken;
  if (stored.parent == stored.key) return;
  const auto siblings = num_children_.find(stored.parent);
  if (--siblings->second > 0) return;
  num_children_.erase(siblings);
  if (const auto above = find(stored.parent)) add_leaf(*above);
}

}  // namespace larder
