// Which of the blocks that nobody uses goes first when room is needed.
#pragma once

#include <cstdint>
#include <memory>

#include "base/types.h"

namespace larder {

enum class EvictionKind {
  kLru,      // least recently used
  kDensity,  // fewest hits to be expected per block and time, learned (DensityPolicy)
};

// How a block was given back.
struct BlockUse {
  bool is_end = false;        // the sequence ended in it: nothing in the cache follows it
  bool keeps_longer = false;  // by a request of high priority
};

// An order among idle blocks. A block is in use, or idle: given back and not taken again. Of the
// idle ones only those that were offered may go: PrefixCache offers a block once nothing hangs on
// it, so that leaves go first whatever the order, and does not offer pinned ones.
//
// Time is counted in blocks given back, so that a replay of the same requests evicts the same
// blocks. Thread: engine only. Memory fixed at construction.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A block in use, never given back, goes on where parent ends, as the latest of few that do: it is
  // likely to be used in the same rhythm.
  virtual void follow(BlockId block, BlockId parent) = 0;
  // The content of a block in use is complete. key: stands for it, equal for equal contents.
  virtual void name(BlockId block, std::uint64_t key) = 0;
  virtual void give_back(BlockId block, BlockUse use) = 0;
  // An idle block is used again; an offer ends.
  virtual void take(BlockId block) = 0;
  virtual void offer(BlockId block) = 0;
  virtual void withdraw(BlockId block) = 0;
  // The block, idle or in use, no longer holds that content; an offer ends.
  virtual void forget(BlockId block) = 0;
  // Of those offered, the one to go; kNone = none.
  virtual BlockId next() const = 0;
};

std::unique_ptr<EvictionPolicy> make_eviction_policy(EvictionKind kind, int num_blocks);
// What it takes beside the blocks.
std::int64_t eviction_policy_size_bytes(EvictionKind kind, int num_blocks);

}  // namespace larder
