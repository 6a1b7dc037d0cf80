// What becomes of a tier's blocks, kept until it is taken.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/kv_events.h"
#include "kv/tier.h"
#include "kv/tiers/tier_key.h"

namespace larder {

// Bounded, and never fails: where there is no room, or no memory, all that is kept is dropped, and take() says so.
// Thread: the owner's lock.
class TierEvents {
 public:
  static constexpr std::size_t kMost = 16'384;
  static constexpr std::int64_t kMostBytes = std::int64_t{2 * kMost * sizeof(KvEvent)};  // while it grows

  // From now on what it is told is kept.
  void record(KvMedium medium);
  bool is_recording() const { return is_recording_; }
  void note_stored(const TierBlock& block) noexcept;
  void note_removed(const BlockKey& key) noexcept;

  std::size_t size() const { return events_.size(); }
  bool empty() const { return events_.empty() && !has_dropped_; }
  // In order. KvEvent::window is left to who knows the layout.
  KvEvents take();

 private:
  void add(const KvEvent& event) noexcept;

  bool is_recording_ = false;
  KvMedium medium_ = KvMedium::kDisk;
  bool has_dropped_ = false;
  KvEvents events_;
};

}  // namespace larder
