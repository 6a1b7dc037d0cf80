// The bytes of all KV blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

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
  // in whose memory, null = the host's; the keys' basis goes there, too, and may not be set later.
  KvStorage(const KvLayout& layout, int num_blocks, Device* device = nullptr);

  int num_blocks() const { return num_blocks_; }
  PagedKvView view(int layer) const;
  void copy_block(BlockId from, BlockId to);
  // All bytes of a block, [layout.block_size_bytes()], for tiers. A device's are copied out: until the
  // next call.
  std::span<const std::byte> read_block(BlockId id) const;
  void write_block(BlockId id, std::span<const std::byte> bytes);
  // Many at once, from or to where each lies, which is memory of HostMemory: beside a device's kernels, each call's
  // behind those of the one before. But for those, both sides are left alone until done has been called: once, on
  // any thread or within this call.
  void write_blocks(std::span<const BlockId> ids, std::span<const std::byte* const> from,
                    std::function<void()> done);
  void read_blocks(std::span<const BlockId> ids, std::span<std::byte* const> to, std::function<void()> done) const;
  // Waits until done of all those has been called.
  void finish_copies() const;
  std::size_t size_bytes() const { return bytes_.size_bytes(); }
  Device* device() const { return device_; }  // null = the host

 private:
  void copy_key_basis();
  std::byte* block(BlockId id) const;

  const KvLayout& layout_;
  int num_blocks_;
  Device* device_;
  DeviceBuffer bytes_;
  std::byte* base_;
  HostBuffer read_;  // one block; where there is a device
  // A device's: balances of all layers, then their orders. Where each layer's begin, in numbers.
  DeviceBuffer key_basis_;
  std::vector<std::size_t> key_basis_begin_;
};

}  // namespace larder
