// The order of eviction that is learned: fewest expected hits per block and time first.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/cache/eviction.h"
#include "kv/cache/index_lists.h"
#include "kv/cache/indexed_heap.h"
#include "kv/cache/reuse_model.h"

namespace larder {

// Every idle block has an age and a class, hence a density (ReuseModel). Blocks of one class,
// bucket of age and priority stand in one cell; the cell of least density gives the next one, the
// one that was given back first before its like, and then what it hung on: sequences go whole, not
// all by a bit. What a request of high priority gave back counts four times its density.
//
// Blocks that went are remembered for a while as ghosts (their key, class and age, no bytes): they
// tell the model of uses that came too late, and give a block that returns its history back. There
// are 16 times the pool of them, at least 32,768 and at most 1,048,576, at some 50 bytes each.
//
// name, give_back, take, offer and forget are O(log c) amortised in the number of cells, next is
// O(1).
class DensityPolicy : public EvictionPolicy {
 public:
  explicit DensityPolicy(int num_blocks);
  // What one takes, at most.
  static std::int64_t size_bytes(int num_blocks);

  void follow(BlockId block, BlockId parent) override;
  void name(BlockId block, std::uint64_t key) override;
  void give_back(BlockId block, BlockUse use) override;
  void take(BlockId block) override;
  void offer(BlockId block) override;
  void withdraw(BlockId block) override;
  void forget(BlockId block) override;
  BlockId next() const override;

 private:
  // A block of the pool by its index, or a ghost by num_blocks_ + its place in the ring.
  struct Entry {
    std::uint64_t key = 0;       // 0 = the content is not complete, or there is none
    std::int64_t given_back = 0;  // clock_
    float mean_gap_log2 = ReuseModel::kNoGap;
    std::uint16_t num_uses = 0;  // saturates
    std::uint8_t block_class = 0;
    std::uint8_t bucket = 0;
    bool is_aging = false;  // idle, or a ghost
    bool is_offered = false;
    bool keeps_longer = false;
  };

  Entry& entry(int index) { return entries_[static_cast<std::size_t>(index)]; }
  const Entry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }
  int cell_of(const Entry& entry) const;
  double density_of(int cell) const;
  void enter_cell(int index, bool is_first);
  void leave_cell(int index);
  // The block is used: age and class have led to this.
  void observe_use(Entry& used);
  void grow_older();
  void learn();

  int* find_ghost(std::uint64_t key);
  void drop_ghost(int index);
  void make_ghost(int index);

  const int num_blocks_;
  const int num_ghosts_;
  ReuseModel model_;
  std::vector<Entry> entries_;  // [num_blocks_ + num_ghosts_]
  IndexLists ages_;             // of entries, a list per bucket, oldest first
  IndexLists cells_;            // of offered blocks, oldest first
  IndexedHeap order_;           // of cells that are not empty, by density
  int next_ghost_ = 0;
  std::vector<std::int32_t> ghost_heads_;  // by hash of the key
  std::vector<std::int32_t> ghost_next_;   // [num_ghosts_]
  std::int64_t clock_ = 0;  // blocks given back
  const std::int64_t learn_interval_;
};

}  // namespace larder
