// The bytes of all KV blocks.
#pragma once

#include <cstddef>
#include <span>

#include "base/types.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "kv/kv_layout.h"

namespace larder {

// Thread: engine and the kernels that it forks. No allocation after construction.
class KvStorage {
 public:
  // Takes num_blocks * layout.block_size_bytes() now and zeroes it, so that the plan is what the
  // process has. Throws Error{kUnavailable}. layout and device must outlive the storage. device:
  // in whose memory, null = the host's.
  KvStorage(const KvLayout& layout, int num_blocks, Device* device = nullptr);

  int num_blocks() const { return num_blocks_; }
  PagedKvView view(int layer) const;
  void copy_block(BlockId from, BlockId to);
  // All bytes of a block, [layout.block_size_bytes()], for tiers. In the host's memory only.
  std::span<const std::byte> read_block(BlockId id) const;
  void write_block(BlockId id, std::span<const std::byte> bytes);
  std::size_t size_bytes() const { return bytes_.size_bytes(); }

 private:
  std::byte* block(BlockId id) const;

  const KvLayout& layout_;
  int num_blocks_;
  Device* device_;
  DeviceBuffer bytes_;
  std::byte* base_;
};

}  // namespace larder
