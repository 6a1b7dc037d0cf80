// Fixed set of KV block ids; the bytes live in KvStorage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/types.h"

namespace larder {

// A block is free (ref_count 0, on the free list) or held (> 0), never both;
// num_free() + num_held() == num_blocks(), always. Every table that lists a block holds one
// reference, and so does the prefix cache for each block that it can find. Thread: engine only. All
// functions O(1). No heap allocation after construction.
class BlockPool {
 public:
  explicit BlockPool(int num_blocks) : ref_counts_(static_cast<std::size_t>(num_blocks)) {
    CHECK(num_blocks > 0, num_blocks);
    free_.reserve(ref_counts_.size());
    for (int index = num_blocks - 1; index >= 0; --index) free_.push_back(BlockId{index});
  }

  static std::int64_t size_bytes(int num_blocks) {
    return num_blocks * std::int64_t{sizeof(std::int32_t) + sizeof(BlockId)};
  }

  // A block with ref_count 1. nullopt = exhausted, a normal outcome: the caller evicts or preempts.
  [[nodiscard]] std::optional<BlockId> allocate() {
    if (free_.empty()) return std::nullopt;
    const BlockId block = free_.back();
    free_.pop_back();
    ref_counts_[index_of(block)] = 1;
    return block;
  }

  // One reference more on a held block.
  void hold(BlockId block) {
    std::int32_t& ref_count = ref_counts_[index_of(block)];
    CHECK(ref_count > 0, to_index(block));
    ++ref_count;
  }

  // One reference less; the last one frees the block.
  void release(BlockId block) {
    std::int32_t& ref_count = ref_counts_[index_of(block)];
    CHECK(ref_count > 0, to_index(block));
    if (--ref_count == 0) free_.push_back(block);
  }

  int ref_count(BlockId block) const { return ref_counts_[index_of(block)]; }
  int num_blocks() const { return static_cast<int>(ref_counts_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_held() const { return num_blocks() - num_free(); }

 private:
  std::size_t index_of(BlockId block) const {
    CHECK(to_index(block) >= 0 && to_index(block) < num_blocks(), to_index(block));
    return static_cast<std::size_t>(to_index(block));
  }

  std::vector<std::int32_t> ref_counts_;
  std::vector<BlockId> free_;  // the last one released is the next one given, while it is in cache
};

}  // namespace larder
