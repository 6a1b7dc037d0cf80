// Which blocks the pool has lost of late, and why: so that a miss can be told from a first visit.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/hash.h"

namespace larder {

// One block of group 0 that was evicted.
struct EvictedBlock {
  std::uint64_t key = 0;         // of its digest, see evicted_key; 0 = an empty place
  std::int64_t evicted_ns = 0;   // KvCache's clock
  float pool_in_use = 0;         // share of the pool's blocks that running sequences held then
  bool pin_had_expired = false;  // it would have stayed while its pin lasted
  bool was_cleared = false;      // on demand (/reset_prefix_cache), not for room
  std::uint8_t saved = 0;        // bit per tier that had taken it
};

inline std::uint64_t evicted_key(const Digest& digest) {
  std::uint64_t key;
  std::memcpy(&key, digest.data(), sizeof key);
  return key | 1;  // 0 stands for an empty place
}

// A set-associative table: a new entry takes the place of the oldest of its set, so that memory is
// fixed and some of the newest may be lost before some older ones. Two blocks whose keys agree in
// 63 bits are taken for one another; this only ever words a reason wrongly.
// Thread: engine only. No allocation after construction. O(1).
class EvictedBlocks {
 public:
  // Room for at least four times as many blocks as the pool has.
  explicit EvictedBlocks(int num_blocks) : sets_(num_sets(num_blocks)) {}

  static std::int64_t size_bytes(int num_blocks) {
    return static_cast<std::int64_t>(num_sets(num_blocks) * sizeof(Set));
  }

  void add(const EvictedBlock& block) {
    Set& set = set_of(block.key);
    EvictedBlock* oldest = &set[0];
    for (EvictedBlock& place : set) {
      if (place.key == block.key || place.key == 0) {
        oldest = &place;
        break;
      }
      if (place.evicted_ns < oldest->evicted_ns) oldest = &place;
    }
    *oldest = block;
  }

  // nullptr = not known. Valid until the next add().
  const EvictedBlock* find(std::uint64_t key) const {
    const Set& set = sets_[place_of(key)];
    const auto found =
        std::ranges::find_if(set, [&](const EvictedBlock& place) { return place.key == key; });
    return found == set.end() ? nullptr : &*found;
  }

 private:
  using Set = std::array<EvictedBlock, 4>;

  static std::size_t num_sets(int num_blocks) {
    return std::bit_ceil(static_cast<std::size_t>(std::max(num_blocks, 256)));
  }

  // The low bit is the same in all keys.
  std::size_t place_of(std::uint64_t key) const { return (key >> 1) & (sets_.size() - 1); }
  Set& set_of(std::uint64_t key) { return sets_[place_of(key)]; }

  std::vector<Set> sets_;
};

}  // namespace larder
