// Blocks on their way from the pool to a tier that lends its memory: beside a device's kernels, many in one go.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "base/types.h"
#include "kv/kv_storage.h"
#include "kv/tier.h"

namespace larder {

// Thread: engine only.
class LeavingBlocks {
 public:
  // storage must outlive it.
  explicit LeavingBlocks(KvStorage& storage) : storage_(storage) {}
  ~LeavingBlocks();  // waits
  LeavingBlocks(const LeavingBlocks&) = delete;
  LeavingBlocks& operator=(const LeavingBlocks&) = delete;

  // Tells the tier of those that have left how long that took. Not within a call of the tier's.
  void tell();
  // The same; and whether nothing is on its way.
  bool have_left();
  // A block that is complete, and where its bytes go: memory of HostMemory that only what was called before and
  // start() touch until they have left.
  void add(BlockId block, std::span<std::byte> to);
  // Those that were added, to that tier, which must outlive it; they follow what is still on its way.
  void start(KvTier& tier);
  // Before a block's bytes change.
  void wait_for(BlockId block);

 private:
  KvStorage& storage_;
  KvTier* tier_ = nullptr;
  std::vector<BlockId> blocks_;  // on their way, then those that were added
  std::vector<std::byte*> to_;   // of those that were added
  std::int64_t begin_ns_ = 0;
  std::atomic<int> num_copying_ = 0;  // of start()
  std::atomic<std::int64_t> end_ns_ = 0;
};

}  // namespace larder
