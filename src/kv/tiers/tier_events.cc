#include "kv/tiers/tier_events.h"

#include <new>
#include <utility>

namespace larder {

void TierEvents::record(KvMedium medium) {
  is_recording_ = true;
  medium_ = medium;
}

void TierEvents::note_stored(const TierBlock& block) noexcept {
  add({.kind = KvEvent::Kind::kStored,
       .medium = medium_,
       .is_first = block.parent == block.salt,
       .group = block.group,
       .digest = block.digest,
       .parent = block.parent,
       .salt = block.salt,
       .tokens = block.tokens});
}

void TierEvents::note_removed(const BlockKey& key) noexcept {
  add({.kind = KvEvent::Kind::kRemoved, .medium = medium_, .group = key.group(), .digest = key.digest_end()});
}

// Without what was removed, what was stored would promise too much.
void TierEvents::add(const KvEvent& event) noexcept {
  if (!is_recording_) return;
  try {
    if (events_.size() < kMost) return events_.push_back(event);
  } catch (const std::bad_alloc&) {
  }
  events_ = {};
  has_dropped_ = true;
}

KvEvents TierEvents::take() {
  KvEvents taken;
  if (has_dropped_) taken.push_back({.kind = KvEvent::Kind::kCleared, .medium = medium_});
  has_dropped_ = false;
  if (taken.empty()) return std::exchange(events_, {});
  taken.insert(taken.end(), events_.begin(), events_.end());
  events_.clear();
  return taken;
}

}  // namespace larder
