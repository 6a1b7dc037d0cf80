// The base line: least recently used first.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache/eviction.h"
#include "kv/cache/indexed_heap.h"

namespace larder {

// A block that a request of high priority gave back counts as given back later, by three times the
// pool.
class LruPolicy : public EvictionPolicy {
 public:
  explicit LruPolicy(int num_blocks)
      : bonus_(3.0 * num_blocks),
        keys_(static_cast<std::size_t>(num_blocks)),
        offered_(num_blocks) {}

  static std::int64_t size_bytes(int num_blocks) { return std::int64_t{num_blocks} * 28; }

  void follow(BlockId, BlockId) override {}
  void name(BlockId, std::uint64_t) override {}
  void give_back(BlockId block, BlockUse use) override {
    keys_[static_cast<std::size_t>(to_index(block))] = ++clock_ + (use.keeps_longer ? bonus_ : 0);
  }
  void take(BlockId block) override { forget(block); }
  void offer(BlockId block) override {
    offered_.push(to_index(block), keys_[static_cast<std::size_t>(to_index(block))]);
  }
  void withdraw(BlockId block) override { offered_.remove(to_index(block)); }
  void forget(BlockId block) override {
    if (offered_.contains(to_index(block))) withdraw(block);
  }
  BlockId next() const override {
    return offered_.empty() ? BlockId::kNone : BlockId{offered_.top()};
  }

 private:
  const double bonus_;
  double clock_ = 0;
  std::vector<double> keys_;  // [num_blocks]
  IndexedHeap offered_;
};

}  // namespace larder
