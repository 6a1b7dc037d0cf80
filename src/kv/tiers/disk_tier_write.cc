// The disk tier's writer.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "kv/tiers/disk_tier.h"

namespace larder {
namespace {

// Blocks that are written together: the destructor's bound is looked at in between.
constexpr std::int64_t kBatchBytes = std::int64_t{8} << 20;
constexpr std::int64_t kMaxBatch = 64;
constexpr std::size_t kMaxRefused = 65536;
constexpr std::int64_t kMaxSlowness = 10;  // of a write against hang_ms

bool has_no_room(IoFault fault) { return fault == IoFault::kFull || fault == IoFault::kTooLong; }

}  // namespace

struct DiskTier::Write {
  int buffer = -1;
  SlotId slot{};
  const SegmentFile* file = nullptr;
  bool was_used = false;
  bool is_evicted = false;    // a block was in the slot,
  bool is_untouched = false;  // and is still: its header could not be zeroed
  std::uint64_t sequence = 0;
  RecordHeader header{};
  int error = 0;
};

// What of a batch was not written.
struct DiskTier::Failed {
  int error = 0;             // the last one; 0 = none
  bool is_in_place = false;  // one was where something had been written before, and the file may be so long
  std::vector<int> again;    // for which there was no room: older blocks make some
};

// What a block may take.
struct DiskTier::Room {
  bool may_evict = false;   // a slot that is in use
  bool is_empty = false;    // nothing is stored
  bool is_evicted = false;  // what it got was in use
};

std::size_t DiskTier::blocks_per_batch() const {
  return static_cast<std::size_t>(
      std::clamp(kBatchBytes / format_.block_size_bytes, std::int64_t{1}, kMaxBatch));
}

void DiskTier::write_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::int64_t now_ns = steady_now_ns();
    const std::int64_t off_ns = write_breaker_.off_until_ns() - now_ns;
    if (stop_ && (!staging_.has_queued() || off_ns > 0 || now_ns >= drain_until_ns_)) return;
    if (!staging_.has_queued()) {
      write_wake_.wait(lock);
    } else if (off_ns > 0) {
      write_wake_.wait_for(lock, std::chrono::nanoseconds(off_ns));
    } else {
      staging_.take_queued(blocks_per_batch(), batch_);
      lock.unlock();
      write_batch(batch_);
      lock.lock();
    }
  }
}

void DiskTier::write_batch(const std::vector<int>& buffers) {
  std::vector<Write> writes;
  Failed failed;
  std::int64_t start_ns = steady_now_ns();
  {
    const std::lock_guard lock(mutex_);
    write_due_ns_ = start_ns + kMaxSlowness * config_.hang_ms * kNsPerMs;
  }
  try {
    // Room for all first: what is pinned and taken from here on is known at the end.
    writes.reserve(buffers.size());
    failed.again.reserve(buffers.size());
    plan_writes(buffers, writes);
    start_ns = steady_now_ns();
    transfer_writes(writes);
  } catch (const std::bad_alloc&) {
    failed.error = ENOMEM;
    for (Write& write : writes) {
      if (write.error == 0) write.error = ENOMEM;
    }
  }
  const std::int64_t elapsed_ns = steady_now_ns() - start_ns;
  bool did_hang = false;
  {
    const std::lock_guard lock(mutex_);
    stats_.write_ns += elapsed_ns;
    did_hang = steady_now_ns() > std::exchange(write_due_ns_, INT64_MAX) && !stop_;
    // With blocks in the store, what was refused was refused for their sake.
    if (failed.error == 0 && writes.empty() && index_.num_stored() == 0) failed.error = growth_error_;
    finish_writes(writes, failed);
    for (const SlotId slot : held_) index_.unpin(slot);
    held_.clear();
    for (const int buffer : buffers) {
      if (std::ranges::find(failed.again, buffer) != failed.again.end()) continue;
      staging_.remove(buffer);
      staging_.release(buffer);
    }
    staging_.put_back(failed.again);
  }
  // The engine takes the lock, and is not to wait for whoever reads the log.
  if (did_hang)
    spdlog::warn("disk tier {}: a write took {:.0f} s, in which nothing else was taken", directory_.path(),
                 static_cast<double>(elapsed_ns) * 1e-9);
  const std::int64_t pause_ns = std::exchange(growth_pause_ns_, 0);
  if (failed.error != 0) return fail_writes(failed);
  if (pause_ns > 0)
    spdlog::warn("disk tier {}: no new segment: {}; for {} ms only older blocks make room", directory_.path(),
                 std::strerror(growth_error_), pause_ns / kNsPerMs);
}

bool DiskTier::can_write(std::int64_t now_ns) const {
  return write_breaker_.is_on(now_ns) && now_ns < write_due_ns_;
}

void DiskTier::plan_writes(const std::vector<int>& buffers, std::vector<Write>& writes) {
  std::unique_lock lock(mutex_);
  const std::vector<int> sorted = parents_first(buffers);
  const std::vector<bool> may_evict = hold_chains(sorted);
  const bool is_empty = index_.num_stored() == 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const int buffer = sorted[i];
    const TierBlock& block = staging_.block(buffer);
    Room room{.may_evict = may_evict[i], .is_empty = is_empty};
    const auto slot = take_slot(lock, room);
    if (!slot) {
      refuse(block);
      continue;
    }
    refused_.erase(BlockKey(block.digest, block.group));
    writes.push_back({.buffer = buffer,
                      .slot = *slot,
                      .file = segments_[static_cast<std::size_t>(slot->segment)].get(),
                      .was_used = index_.was_used(*slot),
                      .is_evicted = room.is_evicted,
                      .sequence = next_age_++});
  }
}

// Chains may be offered from their end: where there is not room for all, their beginning gets it.
std::vector<int> DiskTier::parents_first(const std::vector<int>& buffers) const {
  std::unordered_map<BlockKey, Digest, BlockKeyHash> parents;  // of those in the batch
  for (const int buffer : buffers) {
    const TierBlock& block = staging_.block(buffer);
    parents.emplace(BlockKey(block.digest, 0), block.parent);
  }
  std::vector<std::pair<std::size_t, int>> by_depth;
  for (const int buffer : buffers) {
    std::size_t depth = 0;
    Digest before = staging_.block(buffer).parent;
    // Bounded, as no fault may hang it.
    for (; depth < buffers.size(); ++depth) {
      const auto found = parents.find(BlockKey(before, 0));
      if (found == parents.end()) break;
      before = found->second;
    }
    by_depth.emplace_back(depth, buffer);
  }
  std::ranges::stable_sort(by_depth, {}, [](const auto& one) { return one.first; });
  std::vector<int> sorted;
  for (const auto& [depth, buffer] : by_depth) sorted.push_back(buffer);
  return sorted;
}

// None goes for what follows it: a chain longer than the store would eat its own beginning. Returns for which of them
// others may go: not where nothing before it is known, which may be here all the same; nor would it be found.
std::vector<bool> DiskTier::hold_chains(const std::vector<int>& buffers) {
  ChainEnds ends;
  std::vector<bool> may_evict;
  for (const int buffer : buffers) {
    const TierBlock& block = staging_.block(buffer);
    bool is_reachable = block.parent == block.salt;
    for (int group = 0; group < index_.num_groups(); ++group) {
      hold(BlockKey(block.digest, group));
      const bool is_held = hold_before(BlockKey(block.parent, group), ends);
      is_reachable = is_reachable || (is_held && group == 0);  // of windows the first group has all
    }
    may_evict.push_back(is_reachable);
  }
  return may_evict;
}

// What is stored nearest before a block, past those that wait or found no room, is kept, and all before that with it.
// Returns whether there is any, or the beginning waits. ends: the same of what has been passed.
bool DiskTier::hold_before(BlockKey before, ChainEnds& ends) {
  std::vector<BlockKey> path;
  bool is_held = false;
  while (true) {
    const auto [known, is_new] = ends.try_emplace(before, false);
    is_held = !is_new && known->second;
    if (!is_new) break;
    path.push_back(before);
    is_held = hold(before);
    if (is_held) break;
    const auto waiting = staging_.find(before);
    is_held = waiting && staging_.block(*waiting).parent == staging_.block(*waiting).salt;
    const auto parent = parent_of_waiting(before);
    if (is_held || !parent) break;
    before = BlockKey(*parent, before.group());
  }
  for (const BlockKey& key : path) ends[key] = is_held;
  return is_held;
}

// Or of one that found no room.
std::optional<Digest> DiskTier::parent_of_waiting(const BlockKey& key) const {
  if (const auto buffer = staging_.find(key)) return staging_.block(*buffer).parent;
  const auto refused = refused_.find(key);
  return refused == refused_.end() ? std::nullopt : std::optional(refused->second);
}

// Whether it is stored.
bool DiskTier::hold(const BlockKey& key) {
  const auto slot = index_.find(key);
  if (!slot) return false;
  held_.push_back(*slot);
  index_.pin(*slot);
  return true;
}

void DiskTier::refuse(const TierBlock& block) {
  ++stats_.num_refused;
  if (refused_.size() >= kMaxRefused) refused_.clear();
  refused_.emplace(BlockKey(block.digest, block.group), block.parent);
}

// A free slot, else one of a new segment, else the one whose turn it is. While the disk is full
// only that one, if there is any: its bytes are there already, a free slot's may be a hole.
std::optional<SlotId> DiskTier::take_slot(std::unique_lock<std::mutex>& lock, Room& room) {
  const bool may_grow = growth_breaker_.is_on(steady_now_ns());
  if (may_grow) {
    if (const auto slot = index_.take_free()) return slot;
    segments_.reserve(segments_.size() + 1);  // a segment that is made has its place
    lock.unlock();
    std::unique_ptr<SegmentFile> segment = directory_.create_segment(*write_io_, growth_error_);
    // What no model here reads goes before this one's own.
    while (fault_of(growth_error_) == IoFault::kFull && directory_.delete_oldest_foreign())
      segment = directory_.create_segment(*write_io_, growth_error_);
    DiskIndex::Slots slots;
    if (segment) slots = DiskIndex::make_slots(segment->shape().num_slots);
    lock.lock();
    if (segment) {
      growth_breaker_.succeed();
      index_.add_segment(std::move(slots));
      segments_.push_back(std::move(segment));
      return index_.take_free();
    }
    if (growth_error_ != 0) {
      ++stats_.num_io_errors;
      if (growth_breaker_.fail(steady_now_ns())) growth_pause_ns_ = growth_breaker_.pause_ns();
    }
  }
  const auto slot = room.may_evict ? index_.evict() : std::nullopt;
  if (slot) {
    room.is_evicted = true;
    ++stats_.num_evicted;
    return slot;
  }
  return !may_grow && room.is_empty ? index_.take_free() : std::nullopt;
}

// The old header goes first, the new one comes last.
void DiskTier::transfer_writes(std::vector<Write>& writes) {
  static RecordHeader free_header{};  // only read
  std::vector<IoRequest> requests;
  std::vector<Write*> owners;
  requests.reserve(writes.size());
  owners.reserve(writes.size());
  const auto transfer = [&] {
    transfer_all(*write_io_, IoDirection::kWrite, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].result < 0) owners[i]->error = static_cast<int>(-requests[i].result);
    }
    requests.clear();
    owners.clear();
  };
  const auto add = [&](Write& write, std::int64_t offset_bytes, std::span<std::byte> bytes) {
    requests.push_back({.fd = write.file->fd(),
                        .offset_bytes = offset_bytes,
                        .data = bytes.data(),
                        .size_bytes = static_cast<std::int64_t>(bytes.size())});
    owners.push_back(&write);
  };
  for (Write& write : writes) {
    if (write.was_used) add(write, write.file->shape().header_offset(write.slot.slot), free_header);
  }
  transfer();
  for (Write& write : writes) {
    write.is_untouched = write.error != 0;
    if (write.is_untouched) continue;
    const std::span<std::byte> bytes = staging_.bytes(write.buffer);
    TierRecord record = make_record(format_, staging_.block(write.buffer), bytes);
    record.sequence = write.sequence;
    write.header = encode_record(record);
    add(write, write.file->shape().payload_offset(write.slot.slot), bytes);
  }
  transfer();
  for (Write& write : writes) {
    if (write.error == 0)
      add(write, write.file->shape().header_offset(write.slot.slot), write.header);
  }
  transfer();
}

void DiskTier::finish_writes(std::vector<Write>& writes, Failed& failed) {
  bool wrote = false;
  bool grew = false;
  for (Write& write : writes) {
    const TierBlock& block = staging_.block(write.buffer);
    const BlockKey key(block.digest, block.group);
    if (write.error == 0) index_.mark_used(write.slot);  // else it may be a hole still
    if (write.error == 0 && index_.find(key)) {
      index_.release(write.slot);  // put twice at once
      continue;
    }
    if (write.error == 0 && !index_.store(write.slot, key, BlockKey(block.parent, block.group), write.sequence))
      write.error = ENOMEM;
    if (write.error == 0) {
      events_.note_stored(block);
      ++stats_.num_written;
      stats_.bytes_written += format_.block_size_bytes;
      wrote = true;
      grew = grew || !write.was_used;
      continue;
    }
    ++stats_.num_io_errors;
    failed.error = write.error;
    give_up_slot(write);
    const IoFault fault = fault_of(write.error);
    const bool is_in_place = write.was_used && fault != IoFault::kTooLong;
    failed.is_in_place = failed.is_in_place || is_in_place;
    if (has_no_room(fault) && !is_in_place) failed.again.push_back(write.buffer);
  }
  if (index_.num_stored() == 0) failed.again.clear();
  if (failed.error != 0) return;
  if (wrote) write_breaker_.succeed();
  if (grew) growth_breaker_.succeed();
}

// A disk that takes nothing, or a system short of memory, says nothing of the slot, nor of what is in it.
void DiskTier::give_up_slot(const Write& write) {
  switch (fault_of(write.error)) {
    case IoFault::kPlace:
    case IoFault::kTooLong: return index_.lose(write.slot);
    case IoFault::kFull: return index_.release(write.slot);
    case IoFault::kSystem: break;
  }
  if (!write.is_evicted || !write.is_untouched || !index_.put_back(write.slot)) index_.release(write.slot);
}

void DiskTier::fail_writes(const Failed& failed) {
  const IoFault fault = fault_of(failed.error);
  // What no model here reads is the first to go.
  if (fault == IoFault::kFull && directory_.delete_oldest_foreign()) return;
  bool may_replace = false;
  std::int64_t pause_ns = 0;
  {
    const std::lock_guard lock(mutex_);
    may_replace = has_no_room(fault) && !failed.is_in_place && index_.num_stored() > 0;
    TierBreaker& breaker = may_replace ? growth_breaker_ : write_breaker_;
    if (!breaker.fail(steady_now_ns())) return;
    pause_ns = breaker.pause_ns();
  }
  if (may_replace) {
    spdlog::warn("disk tier {}: full: {}; for {} ms only older blocks make room", directory_.path(),
                 std::strerror(failed.error), pause_ns / kNsPerMs);
  } else {
    spdlog::warn("disk tier {}: no writes for {} ms: {}", directory_.path(), pause_ns / kNsPerMs,
                 std::strerror(failed.error));
  }
}

}  // namespace larder
