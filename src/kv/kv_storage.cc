#include "kv/kv_storage.h"

#include <cstring>
#include <limits>
#include <utility>

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

void copy_at_once(std::span<const HostCopy> copies) {
  for (const HostCopy& copy : copies) std::memcpy(copy.to, copy.from, copy.size_bytes);
}

}  // namespace

KvStorage::KvStorage(const KvLayout& layout, int num_blocks, Device* device)
    : layout_(layout),
      num_blocks_(num_blocks),
      device_(device),
      bytes_(device, storage_size_bytes(layout, num_blocks), /*touch=*/true),
      base_(bytes_.data()) {
  if (device == nullptr) return;
  read_ = host_buffer(*device, static_cast<std::size_t>(layout.block_size_bytes()));
  if (!layout.key_basis().empty()) copy_key_basis();
}

void KvStorage::copy_key_basis() {
  std::vector<float> balance;
  std::vector<std::int16_t> order;
  for (const KeyBasis& basis : layout_.key_basis()) {
    key_basis_begin_.push_back(balance.size());
    balance.insert(balance.end(), basis.balance.begin(), basis.balance.end());
    order.insert(order.end(), basis.order.begin(), basis.order.end());
  }
  const auto balances = std::as_bytes(std::span(balance));
  const auto orders = std::as_bytes(std::span(order));
  key_basis_ = DeviceBuffer(device_, balances.size() + orders.size());
  device_->copy_in(key_basis_.data(), balances.data(), balances.size());
  device_->copy_in(key_basis_.data() + balances.size(), orders.data(), orders.size());
}

PagedKvView KvStorage::view(int layer) const {
  PagedKvView view = layout_.view(layer);
  view.base = base_;
  if (device_ == nullptr || view.key_balance == nullptr) return view;
  CHECK(!key_basis_begin_.empty());
  const std::size_t begin = key_basis_begin_[static_cast<std::size_t>(layer)];
  const std::size_t num_values = key_basis_.size_bytes() / (sizeof(float) + sizeof(std::int16_t));
  const auto* balance = reinterpret_cast<const float*>(key_basis_.data());
  view.key_balance = balance + begin;
  view.key_order = reinterpret_cast<const std::int16_t*>(balance + num_values) + begin;
  return view;
}

void KvStorage::copy_block(BlockId from, BlockId to) {
  CHECK(from != to, to_index(from));
  const auto size = static_cast<std::size_t>(layout_.block_size_bytes());
  if (device_ != nullptr) return device_->copy_within(block(to), block(from), size);
  std::memcpy(block(to), block(from), size);
}

std::span<const std::byte> KvStorage::read_block(BlockId id) const {
  const auto size = static_cast<std::size_t>(layout_.block_size_bytes());
  if (device_ == nullptr) return {block(id), size};
  device_->copy_out(read_.get(), block(id), size);
  return {read_.get(), size};
}

void KvStorage::write_blocks(std::span<const BlockId> ids, std::span<const std::byte* const> from,
                             std::function<void()> done) {
  CHECK(ids.size() == from.size(), ids.size(), from.size());
  const auto size = static_cast<std::size_t>(layout_.block_size_bytes());
  std::vector<HostCopy> copies;
  for (std::size_t i = 0; i < ids.size(); ++i) copies.push_back({block(ids[i]), from[i], size});
  if (device_ != nullptr) return device_->copy_in_beside(copies, std::move(done));
  copy_at_once(copies);
  done();
}

void KvStorage::read_blocks(std::span<const BlockId> ids, std::span<std::byte* const> to,
                            std::function<void()> done) const {
  CHECK(ids.size() == to.size(), ids.size(), to.size());
  const auto size = static_cast<std::size_t>(layout_.block_size_bytes());
  std::vector<HostCopy> copies;
  for (std::size_t i = 0; i < ids.size(); ++i) copies.push_back({to[i], block(ids[i]), size});
  if (device_ != nullptr) return device_->copy_out_beside(copies, std::move(done));
  copy_at_once(copies);
  done();
}

void KvStorage::finish_copies() const {
  if (device_ != nullptr) device_->finish_copies_beside();
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
