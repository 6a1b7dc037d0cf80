// Traces through the real cache, and through one that knows the future.
#pragma once

#include <cstdint>

#include "kv/cache/eviction.h"
#include "trace.h"

namespace larder {

struct ReplayResult {
  std::int64_t num_blocks = 0;  // of all requests
  std::int64_t num_hits = 0;    // of those, found with all that are before them in the request
  double ns_per_block = 0;      // in KvCache: match, extend, publish, release

  double hit_ratio() const {
    return num_blocks == 0 ? 0 : static_cast<double>(num_hits) / static_cast<double>(num_blocks);
  }
};

// What the capacity holds: with kPool the running request's blocks, too; with kIdle they have room
// beside it, and only what stays between two requests counts, as in published replays.
enum class CapacityOf { kPool, kIdle };

// One request after the other, one block of the trace as one block of the pool. What a request has
// beyond the capacity is left out.
ReplayResult replay(const Trace& trace, EvictionKind eviction, int capacity, CapacityOf of);

// Evicts what is used furthest in the future, deepest first (Belady, 1966), under the same rules.
ReplayResult replay_belady(const Trace& trace, int capacity, CapacityOf of);

}  // namespace larder
