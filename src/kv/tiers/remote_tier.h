// KV blocks on a Redis or Valkey server, which other processes and machines share.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "kv/tier.h"
#include "kv/tiers/read_rate.h"
#include "kv/tiers/remote_nodes.h"
#include "kv/tiers/remote_tls.h"
#include "kv/tiers/remote_url.h"
#include "kv/tiers/tier_breaker.h"
#include "kv/tiers/tier_key.h"
#include "kv/tiers/tier_staging.h"

namespace larder {

struct RemoteTierConfig {
  std::string url;                    // redis://[[user]:password@]host[:port][/db], or rediss://
  RemoteTlsFiles tls;                 // for rediss://
  std::string key_prefix = "larder";  // of all keys: up to 64 letters, digits and -_.:
  int compression_level = 0;          // of zstd, 1 to 19; 0 = none
  int ttl_seconds = 0;                // after the last write or use; 0 = for ever
  std::int64_t staging_size_bytes = std::int64_t{64} << 20;  // copies that wait to be sent
  std::int64_t batch_size_bytes = std::int64_t{8} << 20;     // in flight on each of two connections
  int max_queued_reads = 256;                                // get() calls; more find nothing
  int connect_timeout_ms = 1000;  // with TLS, AUTH, SELECT and PING
  int batch_timeout_ms = 1000;    // and the time for its bytes at 50 MB/s
  int max_idle_ms = 60'000;       // of a connection; then it is opened anew before it is used
  int drain_ms = 5000;            // how long the destructor sends what is queued
  // How long the server is left alone after a fault: doubles from the first to the second.
  int first_retry_ms = 500;
  int max_retry_ms = 30'000;
};

// Two connections, to each node of a cluster, each with a thread: one reads, one writes and, while the tier is off, looks
// whether the server is there again. Values that have the right length already are not sent again.
//
// Faults: whatever a key holds, it is this block or a miss. A server that does not answer in time,
// closes or talks nonsense puts the tier off: get() then finds nothing at once, put() refuses. So a
// hung server costs one timeout. A server that cannot store (out of memory, read only) gets no
// writes for max_retry_ms; reads go on. One that is not the one to ask, as after a failover, is left:
// its name is looked up anew, at most every max_retry_ms. What a server did not take is not lost: it stays in the
// queue, before what came later, and is sent when the pause is over.
// Thread: see KvTier; everything behind mutex_, but for the connections.
class RemoteTier final : public KvTier {
 public:
  // Throws Error{kInvalidArgument} for a bad configuration. A server that is not there is no error:
  // the tier starts off.
  RemoteTier(const RemoteTierConfig& config, const TierFormat& format);
  ~RemoteTier() override;

  const char* name() const override { return "remote"; }
  bool is_shared() const override { return true; }
  [[nodiscard]] bool put(const TierBlock& block, std::span<const std::byte> bytes) override;
  // Asks the server behind: what it has no more is told when the block is touched again.
  [[nodiscard]] bool touch(const TierBlock& block) override;
  std::int64_t touch_interval_ns() const override;
  // kUnknown, or kAbsent while off.
  [[nodiscard]] TierPresence presence(const TierBlock& block) const override;
  // What a touch has found out.
  bool has_lost(const TierBlock& block) const override;
  void get(TierRead read) override;
  double estimate_read_seconds(std::int64_t num_blocks) const override;
  TierStats stats() const override;
  bool end() override;

 private:
  static constexpr std::size_t kMostTouchesAtOnce = 4096;
  struct Touched {
    Digest digest;
    std::int32_t group;
  };
  struct Batch;

  void write_loop();
  template <class Work>
  bool unlocked(std::unique_lock<std::mutex>& lock, const Work& work);
  void probe();
  // Both return what the server did not take, in order.
  std::vector<int> write_batch(const std::vector<int>& buffers);
  std::vector<int> send_blocks(const std::vector<int>& buffers);
  void send_touches(const std::vector<Touched>& blocks);
  RemoteOutcome find_stored(const std::vector<int>& buffers, std::vector<int>& missing);

  void read_loop();
  TierAnswer read_blocks(const TierRead& read);
  TierAnswer read_batch(const TierRead& read, std::size_t first, std::size_t count);
  TierAnswer finish_batch(std::span<const TierBlock> blocks, const Batch& batch);

  RemoteOutcome exchange(RemoteNodes& nodes, const RemoteRequest& request, std::int64_t max_reply_bytes,
                         const RemoteNodes::OnReply& on_reply);
  std::string key_of(const TierBlock& block) const;
  std::size_t blocks_per_batch() const;
  // breaker: of whom what failed was asked.
  void turn_off(RemoteOutcome outcome, const std::string& reason, TierBreaker& breaker);
  void stop_writes(const std::string& reason);
  void leave_server();
  void rest_without_memory(RemoteNodes& nodes, TierBreaker& breaker);
  // When the writer looks, while off, whether the server is there again.
  std::int64_t probe_at_ns() const { return std::max(read_breaker_.off_until_ns(), write_breaker_.off_until_ns()); }

  const RemoteTierConfig config_;
  const TierFormat format_;
  const RemoteUrl url_;
  const std::unique_ptr<const RemoteTls> tls_;  // null: in the clear
  const std::int64_t max_value_bytes_;
  std::atomic<bool> stop_reads_{false};
  std::atomic<bool> stop_writes_{false};
  RemoteNodes read_nodes_;        // reader's
  RemoteNodes write_nodes_;       // writer's
  std::vector<int> batch_;        // writer's, with room from the start
  std::vector<Touched> touched_;  // the same

  mutable std::mutex mutex_;  // of all that follows, but for the threads
  std::condition_variable read_wake_;
  std::condition_variable write_wake_;
  TierStaging staging_;
  std::deque<TierRead> reads_;
  std::int64_t num_queued_blocks_ = 0;  // in reads_ and being read
  // Whose value was wrong when it was read: sent again, whatever its length, until it is stored.
  std::unordered_set<BlockKey, BlockKeyHash> wrong_;
  std::deque<Touched> touches_;                      // to be sent
  std::unordered_set<BlockKey, BlockKeyHash> gone_;  // that the server did not know when touched
  TierStats stats_;
  bool is_on_ = false;  // neither connection has failed since it was found there
  // A connection succeeds once it has done what it is for: what works on one says nothing of the other.
  TierBreaker read_breaker_;
  TierBreaker write_breaker_;
  TierBreaker store_breaker_;  // of a server that takes no blocks
  TierBreaker leave_breaker_;  // of a server that is not the one to ask: its name may still lead there
  double round_trip_seconds_ = 0;  // the shortest exchange since it is on
  ReadRate read_rate_;
  bool stop_ = false;
  std::int64_t drain_until_ns_ = 0;
  bool writer_ended_ = false;

  std::thread writer_;
  std::thread reader_;
};

}  // namespace larder
