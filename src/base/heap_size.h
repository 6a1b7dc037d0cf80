// What the allocator and the containers of the standard library take, for memory that is planned.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace larder {

// Of one allocation: glibc adds 8 bytes and rounds up to a multiple of 16, at least 32.
constexpr std::int64_t heap_bytes(std::size_t size_bytes) {
  return static_cast<std::int64_t>(std::max<std::size_t>((size_bytes + 8 + 15) / 16 * 16, 32));
}

// Beside the value in a node of libstdc++'s std::set and, with the hash, std::unordered_map.
constexpr std::size_t kSetNodeBytes = 32;
constexpr std::size_t kHashNodeBytes = 16;
// Of a table of hashes, for each value that it was reserved for: a number of buckets that is prime.
constexpr std::int64_t kReservedBucketBytes = 9;
// For each value where it grows by doubling: the old one is there until the new one is filled.
constexpr std::int64_t kGrowingBucketBytes = 24;

}  // namespace larder
