// The bytes of all KV blocks.
#pragma once

#include "base/aligned_buffer.h"
#include "base/types.h"
#include "kernels/kernels.h"
#include "kv/kv_layout.h"

namespace larder {

// Thread: engine and the kernels that it forks. No allocation after construction.
class KvStorage {
 public:
  // Takes num_blocks * layout.block_size_bytes() now and zeroes it, so that the plan is what the process
  // has. Throws Error{kUnavailable}.
  KvStorage(const KvLayout& layout, int num_blocks);

  PagedKvView view(int layer) const;
  void copy_block(BlockId from, BlockId to);
  std::size_t size_bytes() const { return bytes_.size_bytes(); }

 private:
  const KvLayout& layout_;
  AlignedBuffer bytes_;
};

}  // namespace larder
