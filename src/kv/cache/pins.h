// Blocks that are to stay for a time.
#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <vector>

#include "base/heap_size.h"
#include "base/types.h"

namespace larder {

// Who pins a block pins its ancestors for as long or longer, and those are less deep: so leaves
// come first here, too. Thread: engine only. O(log n) for a pinned block, O(1) for others.
class Pins {
 public:
  explicit Pins(int num_blocks) : pins_(static_cast<std::size_t>(num_blocks)) {}

  static std::int64_t size_bytes(int num_blocks) {
    return num_blocks * std::int64_t{sizeof(Pin)};
  }
  // And with so many pinned blocks, all idle.
  static std::int64_t growth_bytes(int num_pinned) {
    return num_pinned * 2 * heap_bytes(kSetNodeBytes + sizeof(Key));
  }

  int num_pinned() const { return static_cast<int>(all_.size()); }
  bool is_pinned(BlockId block) const { return until_ns(block) > 0; }
  // 0 = not pinned.
  std::int64_t until_ns(BlockId block) const { return pin_of(block).until_ns; }

  // Until then, or later if it is pinned for longer already. depth: in blocks from the root. For an
  // idle block set_idle() must follow.
  void pin(BlockId block, std::int64_t until_ns, int depth) {
    if (until_ns <= pin_of(block).until_ns) return;
    unpin(block);
    pin_of(block) = {until_ns, depth};
    all_.insert(key_of(block));
  }
  void unpin(BlockId block) {
    if (!is_pinned(block)) return;
    all_.erase(key_of(block));
    idle_.erase(key_of(block));
    pin_of(block) = {};
  }
  // A pinned block was given back, or is used again.
  void set_idle(BlockId block, bool is_idle) {
    if (is_idle)
      idle_.insert(key_of(block));
    else
      idle_.erase(key_of(block));
  }

  // A block whose time is up, deepest first; kNone = none.
  BlockId first_expired(std::int64_t now_ns) const {
    return all_.empty() || all_.begin()->until_ns > now_ns ? BlockId::kNone : all_.begin()->block;
  }
  // When the first one's time is up; the end of time = none.
  std::int64_t next_expiry_ns() const { return all_.empty() ? INT64_MAX : all_.begin()->until_ns; }
  // Of those not in use, the one whose time is up first.
  BlockId first_idle() const { return idle_.empty() ? BlockId::kNone : idle_.begin()->block; }

 private:
  struct Pin {
    std::int64_t until_ns = 0;  // 0 = not pinned
    int depth = 0;
  };
  struct Key {
    std::int64_t until_ns;
    int height;  // -depth
    BlockId block;
    auto operator<=>(const Key&) const = default;
  };

  Pin& pin_of(BlockId block) { return pins_[static_cast<std::size_t>(to_index(block))]; }
  const Pin& pin_of(BlockId block) const {
    return pins_[static_cast<std::size_t>(to_index(block))];
  }
  Key key_of(BlockId block) const { return {pin_of(block).until_ns, -pin_of(block).depth, block}; }

  std::vector<Pin> pins_;  // [num_blocks]
  std::set<Key> all_;
  std::set<Key> idle_;
};

}  // namespace larder
