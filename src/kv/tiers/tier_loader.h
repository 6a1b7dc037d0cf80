// Brings blocks from the tiers into the pool while the engine computes for others.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "kernels/device.h"
#include "kv/kv_storage.h"
#include "kv/tier.h"

namespace larder {

// A block to load and the pool's block that it goes to.
struct LoadBlock {
  TierBlock block;
  BlockId target = BlockId::kNone;
  int tier = 0;  // which of the tiers has it
};

// How a load went: the first num_loaded of its blocks are in storage.
struct EndedLoad {
  std::uint64_t id = 0;
  int num_loaded = 0;
  bool is_faulty = false;  // the tier of the next one may have it, and did not bring it, or not in time
};

// A load is a list of blocks in order; it ends with the first that its tier has not got. Tiers write
// into a fixed set of staging buffers and only the engine's thread has them copied from there into storage,
// so a load can be dropped at any time and its targets used for something else: what arrives late
// goes nowhere. A tier that does not answer in time ends the loads that wait for it. Loads take
// turns, and one has at most two buffers, so that reading and copying overlap; no tier has all of
// them, so that none waits for a slower one. A tier that lends (KvTier) needs none: its blocks go straight into
// storage, so many bytes at a time. Into a device's storage copies go beside its kernels
// (KvStorage::write_blocks()). Thread: engine only, but for the tiers' answers and the copies' ends.
class TierLoader {
 public:
  // References must outlive it. Staging of staging_bytes, at least two blocks, is taken now. wake:
  // called when poll() has something to do, on a tier's thread or, within start() and poll(), on
  // the engine's; it must not call the loader.
  // patience_ns: what a tier has at least to answer; it has ten times what it said it would take.
  TierLoader(std::span<KvTier* const> tiers, KvStorage& storage, std::int64_t block_size_bytes,
             std::int64_t staging_bytes, std::int64_t patience_ns = 2'000'000'000);
  ~TierLoader();  // waits for the tiers' answers

  void set_wake(std::function<void()> wake);

  // Begins a load of at least one block. Returns its id, never 0.
  std::uint64_t start(std::vector<LoadBlock> blocks);
  // Its targets are the caller's again at once.
  void cancel(std::uint64_t id);
  // Has what arrived copied, asks for more; ended loads that were not cancelled are appended. now_ns:
  // by the steady clock.
  void poll(std::vector<EndedLoad>& ended) { poll(ended, steady_now_ns()); }
  void poll(std::vector<EndedLoad>& ended, std::int64_t now_ns);

 private:
  struct Buffer;
  struct Load;
  struct Arrived {
    Buffer* buffer;
    TierAnswer answer;
  };
  // Blocks on their way into storage.
  struct Copy {
    std::uint64_t load_id = 0;
    int num_blocks = 0;
    Buffer* buffer = nullptr;  // null: lent
    std::size_t tier = 0;
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };

  bool issue(Load& load);
  bool take_lent(Load& load);
  Load* find(std::uint64_t id);
  void copy(Load& load, int first, std::span<const std::byte* const> bytes, const Copy& copy);
  void note_copied();
  void take_arrived();
  void issue_all();
  std::int64_t due_ns(std::size_t tier, std::size_t num_blocks) const;
  bool hangs(std::size_t tier, std::int64_t now_ns) const;
  void take(const Arrived& arrived);
  void copy_from(Load& load, Buffer& buffer);
  void give_back(Buffer& buffer);
  void give_back_arrived(const Load& load);

  const std::vector<KvTier*> tiers_;
  KvStorage& storage_;
  const std::int64_t block_size_bytes_;
  const std::int64_t patience_ns_;
  int blocks_per_buffer_ = 1;
  HostMemory staging_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Buffer*> free_;
  std::size_t max_buffers_per_tier_ = 1;
  std::vector<std::size_t> num_buffers_of_tier_;  // [tiers], not free
  std::deque<std::unique_ptr<Load>> loads_;       // whose turn is next, first
  std::uint64_t next_id_ = 1;
  const std::int64_t max_lent_bytes_;
  std::int64_t lent_bytes_ = 0;    // being copied, as far as poll() knows
  std::int64_t lent_until_ns_ = 0;  // when the last of what was lent had been copied
  std::vector<Arrived> taken_;      // scratch, with as much room as arrived_

  std::mutex mutex_;  // guards what follows
  std::vector<Arrived> arrived_;  // has room for all buffers: tiers' threads take no memory
  std::vector<Copy> copied_;
  int num_owed_ = 0;      // answers of tiers
  int num_uncopied_ = 0;  // copies that have not ended
  std::function<void()> wake_;
};

}  // namespace larder
