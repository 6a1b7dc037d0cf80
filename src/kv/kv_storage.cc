#include "kv/kv_storage.h"

#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace larder {
namespace {

std::size_t storage_size_bytes(const KvLayout& layout, int num_blocks) {
  if (num_blocks <= 0) throw_invalid("{} KV blocks: at least one is needed", num_blocks);
  const auto block_size_bytes = static_cast<std::size_t>(layout.block_size_bytes());
  const auto count = static_cast<std::size_t>(num_blocks);
  if (count > std::numeric_limits<std::ptrdiff_t>::max() / block_size_bytes) {
    throw Error(ErrorKind::kUnavailable,
                fmt::format("{} KV blocks of {} bytes exceed the address space", num_blocks,
                            block_size_bytes));
  }
  return count * block_size_bytes;
}

}  // namespace

KvStorage::KvStorage(const KvLayout& layout, int num_blocks, Device* device)
    : layout_(layout),
      num_blocks_(num_blocks),
      device_(device),
      bytes_(device, storage_size_bytes(layout, num_blocks), /*touch=*/true),
      base_(bytes_.data()) {}

PagedKvView KvStorage::view(int layer) const {
  PagedKvView view = layout_.view(layer);
  view.base = base_;
  return view;
}

void KvStorage::copy_block(BlockId from, BlockId to) {
  CHECK(from != to, to_index(from));
  const auto size = static_cast<std::size_t>(layout_.block_size_bytes());
  if (device_ != nullptr) return device_->copy_within(block(to), block(from), size);
  std::memcpy(block(to), block(from), size);
}

std::span<const std::byte> KvStorage::read_block(BlockId id) const {
  CHECK(device_ == nullptr);
  return {block(id), static_cast<std::size_t>(layout_.block_size_bytes())};
}

void KvStorage::write_block(BlockId id, std::span<const std::byte> bytes) {
  CHECK(static_cast<std::int64_t>(bytes.size()) == layout_.block_size_bytes(), bytes.size());
  if (device_ != nullptr) return device_->copy_in(block(id), bytes.data(), bytes.size());
  std::memcpy(block(id), bytes.data(), bytes.size());
}

std::byte* KvStorage::block(BlockId id) const {
  CHECK(to_index(id) >= 0 && to_index(id) < num_blocks_, to_index(id), num_blocks_);
  return base_ + to_index(id) * layout_.block_size_bytes();
}

}  // namespace larder
