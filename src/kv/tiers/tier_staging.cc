#include "kv/tiers/tier_staging.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace larder {
namespace {

std::size_t num_buffers(std::int64_t block_size_bytes, std::int64_t size_bytes) {
  return static_cast<std::size_t>(std::max<std::int64_t>(1, size_bytes / block_size_bytes));
}

}  // namespace

TierStaging::TierStaging(std::int64_t block_size_bytes, std::int64_t size_bytes)
    : block_size_bytes_(block_size_bytes),
      memory_(num_buffers(block_size_bytes, size_bytes) *
              static_cast<std::size_t>(block_size_bytes)),
      entries_(num_buffers(block_size_bytes, size_bytes)) {
  for (int buffer = static_cast<int>(entries_.size()) - 1; buffer >= 0; --buffer)
    free_.push_back(buffer);
}

std::optional<int> TierStaging::reserve() {
  if (free_.empty()) return std::nullopt;
  const int buffer = free_.back();
  free_.pop_back();
  hold(buffer);
  return buffer;
}

std::span<std::byte> TierStaging::bytes(int buffer) {
  return {memory_.data() + buffer * block_size_bytes_, static_cast<std::size_t>(block_size_bytes_)};
}

void TierStaging::enqueue(int buffer, const TierBlock& block) {
  entry(buffer).block = block;
  buffers_by_key_.emplace(BlockKey(block.digest, block.group), buffer);
  queue_.push_back(buffer);
}

std::optional<int> TierStaging::find(const BlockKey& key) const {
  const auto found = buffers_by_key_.find(key);
  if (found == buffers_by_key_.end()) return std::nullopt;
  return found->second;
}

void TierStaging::release(int buffer) {
  CHECK(entry(buffer).num_holders > 0, buffer);
  if (--entry(buffer).num_holders == 0) free_.push_back(buffer);
}

void TierStaging::take_queued(std::size_t max_num, std::vector<int>& taken) {
  const auto num = static_cast<std::ptrdiff_t>(std::min(max_num, queue_.size()));
  taken.assign(queue_.begin(), queue_.begin() + num);
  queue_.erase(queue_.begin(), queue_.begin() + num);
}

void TierStaging::put_back(std::span<const int> buffers) {
  try {
    queue_.insert(queue_.begin(), buffers.begin(), buffers.end());
  } catch (const std::bad_alloc&) {
    for (const int buffer : buffers) {
      remove(buffer);
      release(buffer);
    }
  }
}

void TierStaging::remove(int buffer) {
  const TierBlock& block = entry(buffer).block;
  buffers_by_key_.erase(BlockKey(block.digest, block.group));
}

}  // namespace larder
