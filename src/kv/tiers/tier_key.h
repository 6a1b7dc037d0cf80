// By what a store finds a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/hash.h"

namespace larder {

// 112 bits of a block's digest, its last ones, and its group: enough to find it by. What is read back is compared
// with the whole identity.
struct BlockKey {
  static constexpr std::uint64_t kGroupMask = 0xFFFF;  // the lowest bits of `high`: its group

  std::uint64_t low = 0;
  std::uint64_t high = 0;

  BlockKey() = default;
  BlockKey(const Digest& digest, int group) {
    std::memcpy(&high, digest.data() + kBegin, sizeof high);
    std::memcpy(&low, digest.data() + kBegin + sizeof high, sizeof low);
    high = (high & ~kGroupMask) | (static_cast<std::uint64_t>(group) & kGroupMask);
  }
  int group() const { return static_cast<int>(high & kGroupMask); }
  // That of the same tokens in another group.
  BlockKey in_group(int group) const {
    BlockKey key = *this;
    key.high = (high & ~kGroupMask) | (static_cast<std::uint64_t>(group) & kGroupMask);
    return key;
  }
  // A digest whose last 8 bytes, by which routers know a block, are the block's; the others are not.
  Digest digest_end() const {
    Digest digest{};
    std::memcpy(digest.data() + kBegin + sizeof high, &low, sizeof low);
    return digest;
  }
  bool operator==(const BlockKey&) const = default;

 private:
  static constexpr std::size_t kBegin = sizeof(Digest) - 2 * sizeof(std::uint64_t);
};

struct BlockKeyHash {
  std::size_t operator()(const BlockKey& key) const { return key.low ^ (key.high * 31); }
};

}  // namespace larder
