// KV blocks on a disk: they outlive the process, also one that was killed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kv/tier.h"
#include "kv/tiers/block_io.h"
#include "kv/tiers/disk_directory.h"
#include "kv/tiers/disk_index.h"
#include "kv/tiers/disk_segment.h"
#include "kv/tiers/read_rate.h"
#include "kv/tiers/tier_breaker.h"
#include "kv/tiers/tier_events.h"
#include "kv/tiers/tier_key.h"
#include "kv/tiers/tier_record.h"
#include "kv/tiers/tier_staging.h"

namespace larder {

struct DiskTierConfig {
  std::string directory;        // made where it is missing; this process's alone
  std::int64_t size_bytes = 0;  // of all segment files in it, other models' too
  std::int64_t staging_size_bytes = std::int64_t{64} << 20;  // copies that wait to be written
  int max_queued_reads = 256;                                // get() calls; more find nothing
  int drain_ms = 5000;  // how long the end writes what is queued
  // A read under way for longer, or 10 times as long as expected, hangs; a write that takes 10 times as long.
  int hang_ms = 1000;
  // How long faults keep it out of use: doubles from the first to the second.
  int first_retry_ms = 1000;
  int max_retry_ms = 60'000;
  // When it tells of what it held at start, from when events are taken on: routers may be told to forget until then.
  int tell_after_ms = 12'000;
  BlockIoKind io = BlockIoKind::kAuto;  // of reads; writes are a thread's
  // For tests: the reader's and the writer's device.
  std::function<std::unique_ptr<BlockIo>()> make_io;
};

// A directory of segments (see DiskSegment), an index of it in memory (about 200 bytes a block), a
// thread that writes and one that reads. A block counts as stored once its header is written; until
// then it is served from its copy.
//
// Faults: a full disk costs the blocks that did not fit; for a while older ones then make room, as
// they do, in place, too, where a file may not be so long. A write that fails otherwise, or in place,
// drops the block and stops writes for a while; reads go on. Three reads in a row that fail stop
// reads, too. Either stops while one hangs. is_on is false while either is stopped; writes go on
// while reads are. A wrong byte costs the one block. Thread: see KvTier; everything behind mutex_,
// but for the I/O itself.
class DiskTier final : public KvTier {
 public:
  // Reads the tables of all segments: about 5 ms per 1,000 blocks on a cold disk. Throws as
  // DiskDirectory does, and Error{kUnavailable} for io_uring where it is required and forbidden.
  DiskTier(const DiskTierConfig& config, const TierFormat& format);
  ~DiskTier() override;

  const char* name() const override { return "disk"; }
  [[nodiscard]] bool put(const TierBlock& block, std::span<const std::byte> bytes) override;
  [[nodiscard]] bool touch(const TierBlock& block) override;
  [[nodiscard]] TierPresence presence(const TierBlock& block) const override;
  bool has_lost(const TierBlock& block) const override;
  void get(TierRead read) override;
  bool is_stored_for_another(const Digest& digest) const override {
    return foreign_.contains(digest);
  }
  double estimate_read_seconds(std::int64_t num_blocks) const override;
  TierStats stats() const override;
  bool takes_writes() const override;
  void record_events() override;
  KvEvents take_events() override;
  bool has_events() const override;
  bool end() override;

 private:
  struct Write;
  struct Failed;
  struct Room;
  struct Read;
  using ChainEnds = std::unordered_map<BlockKey, bool, BlockKeyHash>;

  // At construction.
  void scan(std::int32_t segment);
  void scan_headers(SlotId first, std::int32_t count, std::span<std::byte> chunk);
  void index_slot(SlotId id, std::span<const std::byte> header);
  void measure_reads();

  std::size_t blocks_per_batch() const;
  void write_loop();
  void write_batch(const std::vector<int>& buffers);
  void plan_writes(const std::vector<int>& buffers, std::vector<Write>& writes);
  std::vector<int> parents_first(const std::vector<int>& buffers) const;
  std::vector<bool> hold_chains(const std::vector<int>& buffers);
  bool hold_before(BlockKey before, ChainEnds& ends);
  std::optional<Digest> parent_of_waiting(const BlockKey& key) const;
  bool hold(const BlockKey& key);
  void refuse(const TierBlock& block);
  std::optional<SlotId> take_slot(std::unique_lock<std::mutex>& lock, Room& room);
  void transfer_writes(std::vector<Write>& writes);
  void finish_writes(std::vector<Write>& writes, Failed& failed);
  void give_up_slot(const Write& write);
  void fail_writes(const Failed& failed);

  void read_loop();
  void wait_for_reads(std::unique_lock<std::mutex>& lock);
  void tell_some(std::unique_lock<std::mutex>& lock);
  bool is_reachable(const TierBlock& block) const;
  std::optional<TierRecord> read_header(const SegmentFile& file, std::int32_t slot);
  TierAnswer read_blocks(const TierRead& read);
  TierAnswer read_chunk(const TierRead& read, std::size_t first, std::size_t count);
  void plan_reads(const TierRead& read, std::size_t first, std::size_t count, std::vector<Read>& reads);
  void transfer_reads(std::vector<Read>& reads);
  TierAnswer finish_reads(std::vector<Read>& reads, std::int64_t elapsed_ns);
  bool drop_unreadable(const Read& read);
  bool can_read(std::int64_t now_ns) const;
  bool can_write(std::int64_t now_ns) const;

  const DiskTierConfig config_;
  const TierFormat format_;
  std::unique_ptr<BlockIo> read_io_;   // reader's
  std::unique_ptr<BlockIo> write_io_;  // writer's
  int num_failed_scans_ = 0;           // at the start
  int growth_error_ = 0;               // writer's: why there is no new segment, 0 = the limit
  std::int64_t growth_pause_ns_ = 0;   // writer's: for how long there will be none, 0 = told
  DiskDirectory directory_;            // writer's
  std::vector<SlotId> held_;           // writer's: pinned, since what is written follows them
  std::vector<int> batch_;             // writer's, with room from the start
  const ForeignBlocks foreign_;        // at start

  mutable std::mutex mutex_;  // of all that follows, but for the threads
  std::condition_variable write_wake_;
  std::condition_variable read_wake_;
  std::vector<std::unique_ptr<SegmentFile>> segments_;  // grows only
  TierEvents events_;
  DiskIndex index_;
  std::vector<SlotId> untold_;  // what it held at start, the next one last
  std::int64_t tell_at_ns_ = INT64_MAX;
  // Blocks that found no room, and what each follows.
  std::unordered_map<BlockKey, Digest, BlockKeyHash> refused_;
  TierStaging staging_;
  std::deque<TierRead> reads_;
  std::int64_t num_queued_blocks_ = 0;  // in reads_ and being read
  ReadRate read_rate_;
  std::int64_t read_due_ns_ = INT64_MAX;  // of those under way
  std::int64_t write_due_ns_ = INT64_MAX;
  TierBreaker read_breaker_;
  TierBreaker write_breaker_;
  TierBreaker growth_breaker_;  // of the files: while they may not grow, old blocks make room
  TierStats stats_;
  std::uint64_t next_age_ = 1;
  bool stop_ = false;
  std::int64_t drain_until_ns_ = 0;
  int num_threads_ = 0;  // that run
  std::condition_variable thread_ended_;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace larder
