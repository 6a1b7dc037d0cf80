// By what a store finds a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/hash.h"

namespace larder {

// 128 bits of a block's digest and its group: enough to find it by. What is read back is compared
// with the whole identity.
struct BlockKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  BlockKey() = default;
  BlockKey(const Digest& digest, int group) {
    std::memcpy(&low, digest.data(), sizeof low);
    std::memcpy(&high, digest.data() + sizeof low, sizeof high);
    high ^= static_cast<std::uint64_t>(group);
  }
  bool operator==(const BlockKey&) const = default;
};

struct BlockKeyHash {
  std::size_t operator()(const BlockKey& key) const { return key.low ^ (key.high * 31); }
};

}  // namespace larder
