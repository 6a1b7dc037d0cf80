// The blocks of one sequence.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/types.h"

namespace larder {

// What a sequence's tokens see: all before them, or with window > 0 the window tokens up to
// themselves and the first num_sinks of all. Multiples of kBlockSize.
struct AttentionSpan {
  int window = 0;
  int num_sinks = 0;

  // Up to here nothing has left the window, so that keys and values are those of any sequence with
  // these tokens. Beyond, they are the sequence's own and never published.
  int num_shareable() const { return window > 0 ? window : std::numeric_limits<int>::max(); }
};

// For each group, entry i holds positions [16 i, 16 i + 16), or kNone where the window has passed
// it. Filled and emptied by KvCache only, which must release it before it dies. Move-only.
class BlockTable {
 public:
  BlockTable() = default;
  ~BlockTable() { CHECK(groups_.empty()); }
  BlockTable(BlockTable&& other) noexcept { swap(other); }
  BlockTable& operator=(BlockTable&& other) noexcept {
    CHECK(groups_.empty());
    swap(other);
    return *this;
  }

  // True before match() and after release().
  bool empty() const { return groups_.empty(); }
  // What the table gives back from now on is of high priority: it stays longer (EvictionPolicy),
  // until it is used again.
  void keep_longer() { keeps_longer_ = true; }
  // Idle blocks that the table takes from now on are not used by that: they are given back as they were.
  void borrow() { borrows_ = true; }
  std::span<const BlockId> blocks(int group) const {
    return groups_[static_cast<std::size_t>(group)].blocks;
  }
  // Tokens whose keys and values are in storage, as of the last match() or publish().
  int num_computed() const { return num_computed_; }
  // Blocks after the computed ones are on their way from a tier: nothing may be computed until
  // KvCache::finish_load.
  bool is_loading() const { return load_ != 0; }
  std::uint64_t load_id() const { return load_; }

 private:
  friend class KvCache;

  struct Group {
    std::vector<BlockId> blocks;
    int first_live = 0;  // entries before it are kNone, but for a span's sinks
  };

  void swap(BlockTable& other) {
    std::swap(groups_, other.groups_);
    std::swap(root_, other.root_);
    std::swap(num_computed_, other.num_computed_);
    std::swap(load_, other.load_);
    std::swap(num_short_loads_, other.num_short_loads_);
    std::swap(span_, other.span_);
    std::swap(keeps_longer_, other.keeps_longer_);
    std::swap(borrows_, other.borrows_);
    std::swap(touch_at_ns_, other.touch_at_ns_);
  }

  std::vector<Group> groups_;
  std::int32_t root_ = -1;  // PrefixCache's node of the salt
  AttentionSpan span_;
  int num_computed_ = 0;
  std::uint64_t load_ = 0;  // TierLoader's id, 0 = none
  int num_short_loads_ = 0;  // that brought less than was asked for
  bool keeps_longer_ = false;
  bool borrows_ = false;
  std::int64_t touch_at_ns_ = 0;  // when tiers hear next that the blocks are in use
};

}  // namespace larder
