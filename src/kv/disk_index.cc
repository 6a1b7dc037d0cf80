#include "kv/disk_index.h"

#include "base/check.h"

namespace larder {

std::int32_t DiskIndex::add_segment(std::int32_t num_slots) {
  segments_.push_back({.slots = std::vector<Slot>(static_cast<std::size_t>(num_slots))});
  return static_cast<std::int32_t>(segments_.size()) - 1;
}

std::optional<SlotId> DiskIndex::find(const BlockKey& key) const {
  const auto found = slots_by_key_.find(key);
  if (found == slots_by_key_.end()) return std::nullopt;
  return found->second;
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
  for (const auto& [age, id] : leaves_) {
    if (slot(id).num_pins == 0) return id;
  }
  return std::nullopt;
}

std::optional<SlotId> DiskIndex::evict() {
  const std::optional<SlotId> victim = next_to_go();
  if (!victim) return std::nullopt;
  forget(*victim);
  slot(*victim).state = State::kTaken;
  return victim;
}

bool DiskIndex::put_back(SlotId id) {
  const Slot evicted = slot(id);
  if (find(evicted.key)) return false;
  store(id, evicted.key, evicted.parent, evicted.age);
  return true;
}

void DiskIndex::store(SlotId id, const BlockKey& key, const BlockKey& parent, std::uint64_t age) {
  Slot& taken = slot(id);
  CHECK(taken.state == State::kTaken && !slots_by_key_.contains(key));
  taken.key = key;
  taken.parent = parent;
  taken.age = age;
  taken.state = State::kStored;
  slots_by_key_.emplace(key, id);
  if (parent != key && num_children_[parent]++ == 0) {
    if (const auto above = find(parent)) leaves_.erase({slot(*above).age, *above});
  }
  if (is_leaf(key)) leaves_.emplace(age, id);
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
  if (is_leaf(stored.key)) {
    leaves_.erase({stored.age, id});
    leaves_.emplace(age, id);
  }
  stored.age = age;
}

bool DiskIndex::holds(SlotId id, const BlockKey& key) const {
  return slot(id).state == State::kStored && slot(id).key == key;
}

std::vector<SlotId> DiskIndex::sample_stored(std::size_t max_num) const {
  std::vector<SlotId> slots;
  for (const auto& [key, id] : slots_by_key_) {
    if (slots.size() == max_num) break;
    slots.push_back(id);
  }
  return slots;
}

void DiskIndex::forget(SlotId id) {
  Slot& stored = slot(id);
  if (stored.state != State::kStored) return;
  slots_by_key_.erase(stored.key);
  leaves_.erase({stored.age, id});
  stored.state = State::kTaken;
  if (stored.parent == stored.key) return;
  const auto siblings = num_children_.find(stored.parent);
  if (--siblings->second > 0) return;
  num_children_.erase(siblings);
  if (const auto above = find(stored.parent)) leaves_.emplace(slot(*above).age, *above);
}

}  // namespace larder
