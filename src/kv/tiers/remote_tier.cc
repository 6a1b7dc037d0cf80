#include "kv/tiers/remote_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/start_thread.h"
#include "kv/tiers/remote_value.h"

namespace larder {
namespace {

constexpr std::int64_t kMaxTouchIntervalNs = 60 * kNsPerSecond;
constexpr std::size_t kMaxTouches = 1 << 18;  // 10 MiB; 4 million tokens that are in use
constexpr std::int64_t kMaxBatch = 64;
constexpr std::size_t kMaxPrefix = 64;
constexpr int kMaxCompressionLevel = 19;

const RemoteTierConfig& validated(const RemoteTierConfig& config) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  };
  const std::string& prefix = config.key_prefix;
  if (prefix.empty() || prefix.size() > kMaxPrefix ||
      !std::all_of(prefix.begin(), prefix.end(), is_allowed))
    throw_invalid("remote tier: the key prefix must be 1 to {} letters, digits or -_.:",
                  kMaxPrefix);
  if (config.compression_level < 0 || config.compression_level > kMaxCompressionLevel)
    throw_invalid("remote tier: the compression level must be 0 to {}", kMaxCompressionLevel);
  if (config.ttl_seconds < 0) throw_invalid("remote tier: the time to live must not be negative");
  return config;
}

RemoteTimeouts timeouts(const RemoteTierConfig& config) {
  return {.connect_ms = config.connect_timeout_ms, .batch_ms = config.batch_timeout_ms, .max_idle_ms = config.max_idle_ms};
}

}  // namespace

RemoteTier::RemoteTier(const RemoteTierConfig& config, const TierFormat& format)
    : config_(validated(config)),
      format_(format),
      url_(parse_remote_url(config.url)),
      tls_(make_remote_tls(url_.is_tls, config.tls)),
      max_value_bytes_(max_remote_value_bytes(format.block_size_bytes)),
      read_nodes_(url_, tls_.get(), timeouts(config), stop_reads_),
      write_nodes_(url_, tls_.get(), timeouts(config), stop_writes_),
      staging_(format.block_size_bytes, config.staging_size_bytes),
      read_breaker_(config.first_retry_ms, config.max_retry_ms),
      write_breaker_(config.first_retry_ms, config.max_retry_ms),
      store_breaker_(config.max_retry_ms, config.max_retry_ms),
      leave_breaker_(config.max_retry_ms, config.max_retry_ms),
      read_rate_(kAssumedSecondsPerByte) {
  probe();
  batch_.reserve(blocks_per_batch());
  touched_.reserve(kMostTouchesAtOnce);
  writer_ = start_thread("that writes to the remote tier", [this] { write_loop(); });
  try {
    reader_ = start_thread("that reads from the remote tier", [this] { read_loop(); });
  } catch (...) {
    end();
    throw;
  }
}

RemoteTier::~RemoteTier() { end(); }

bool RemoteTier::end() {
  if (!writer_.joinable()) return true;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    drain_until_ns_ = steady_now_ns() + config_.drain_ms * kNsPerMs;
  }
  stop_reads_ = true;
  read_wake_.notify_all();
  write_wake_.notify_all();
  if (reader_.joinable()) reader_.join();
  {
    std::unique_lock lock(mutex_);
    write_wake_.wait_for(lock, std::chrono::milliseconds(config_.drain_ms),
                         [this] { return writer_ended_; });
  }
  stop_writes_ = true;
  writer_.join();
  return true;
}

bool RemoteTier::put(const TierBlock& block, std::span<const std::byte> bytes) {
  CHECK(static_cast<std::int64_t>(bytes.size()) == format_.block_size_bytes, bytes.size());
  int buffer;
  {
    const std::lock_guard lock(mutex_);
    if (staging_.find(BlockKey(block.digest, block.group))) return true;
    const bool takes = is_on_ && store_breaker_.is_on(steady_now_ns());
    const auto reserved = takes ? staging_.reserve() : std::optional<int>();
    if (!reserved) return false;
    buffer = *reserved;
  }
  std::memcpy(staging_.bytes(buffer).data(), bytes.data(), bytes.size());
  {
    const std::lock_guard lock(mutex_);
    staging_.enqueue(buffer, block);
    gone_.erase(BlockKey(block.digest, block.group));
  }
  write_wake_.notify_one();
  return true;
}

bool RemoteTier::touch(const TierBlock& block) {
  const BlockKey key(block.digest, block.group);
  {
    const std::lock_guard lock(mutex_);
    if (gone_.erase(key) > 0) return false;
    if (!is_on_ || staging_.find(key) || touches_.size() >= kMaxTouches) return true;
    touches_.push_back({block.digest, block.group});
  }
  write_wake_.notify_one();
  return true;
}

// Often enough that no block in use outlives its time there.
std::int64_t RemoteTier::touch_interval_ns() const {
  return config_.ttl_seconds == 0
             ? kMaxTouchIntervalNs
             : std::min(kMaxTouchIntervalNs, config_.ttl_seconds * kNsPerSecond / 4);
}

TierPresence RemoteTier::presence(const TierBlock&) const {
  const std::lock_guard lock(mutex_);
  return is_on_ ? TierPresence::kUnknown : TierPresence::kAbsent;
}

bool RemoteTier::has_lost(const TierBlock& block) const {
  const std::lock_guard lock(mutex_);
  return gone_.contains(BlockKey(block.digest, block.group));
}

void RemoteTier::get(TierRead read) {
  CHECK(
      read.bytes.size() == read.blocks.size() * static_cast<std::size_t>(format_.block_size_bytes),
      read.bytes.size());
  {
    const std::lock_guard lock(mutex_);
    if (is_on_ && reads_.size() < static_cast<std::size_t>(config_.max_queued_reads)) {
      const auto num_blocks = static_cast<std::int64_t>(read.blocks.size());
      reads_.push_back(std::move(read));
      num_queued_blocks_ += num_blocks;
      read_wake_.notify_one();
      return;
    }
    ++stats_.num_missed;
  }
  read.done({.num_found = 0, .is_faulty = true});
}

double RemoteTier::estimate_read_seconds(std::int64_t num_blocks) const {
  const std::lock_guard lock(mutex_);
  if (!is_on_) return kOffSeconds;
  const auto num_bytes =
      static_cast<double>((num_blocks + num_queued_blocks_) * format_.block_size_bytes);
  return round_trip_seconds_ + num_bytes * read_rate_.seconds_per_byte(steady_now_ns());
}

TierStats RemoteTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.num_pending = staging_.num_pending();
  stats.is_on = is_on_ && store_breaker_.is_on(steady_now_ns());
  return stats;
}

RemoteOutcome RemoteTier::exchange(RemoteNodes& nodes, const RemoteRequest& request, std::int64_t max_reply_bytes,
                                   const RemoteNodes::OnReply& on_reply) {
  bool is_elsewhere = false;
  const RemoteOutcome outcome =
      nodes.exchange(request, max_reply_bytes, [&](int command, const RemoteReply& reply) {
        is_elsewhere = is_elsewhere || reply.is_of_another();
        on_reply(command, reply);
      });
  if (is_elsewhere) leave_server();
  if (outcome == RemoteOutcome::kOk) {
    // The PING that put it on may have come at a slow moment.
    const double seconds = static_cast<double>(nodes.exchange_ns()) / kNsPerSecond;
    const std::lock_guard lock(mutex_);
    round_trip_seconds_ = std::min(round_trip_seconds_, seconds);
  } else {
    turn_off(outcome, nodes.error(), &nodes == &read_nodes_ ? read_breaker_ : write_breaker_);
  }
  return outcome;
}

std::string RemoteTier::key_of(const TierBlock& block) const {
  return remote_key(config_.key_prefix, format_, block);
}

std::size_t RemoteTier::blocks_per_batch() const {
  return static_cast<std::size_t>(
      std::clamp(config_.batch_size_bytes / max_value_bytes_, std::int64_t{1}, kMaxBatch));
}

void RemoteTier::turn_off(RemoteOutcome outcome, const std::string& reason, TierBreaker& breaker) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    ++(outcome == RemoteOutcome::kTimeout ? stats_.num_timeouts : stats_.num_io_errors);
    const std::int64_t now_ns = steady_now_ns();
    if (is_on_ || now_ns >= probe_at_ns()) breaker.fail(now_ns);
    if (!std::exchange(is_on_, false)) return;
  }
  write_wake_.notify_one();
  spdlog::warn("remote tier {}: off: {}", url_.display(), reason);
}

// Its work was given up, in the middle of an answer, perhaps.
void RemoteTier::rest_without_memory(RemoteNodes& nodes, TierBreaker& breaker) {
  nodes.close();
  try {
    turn_off(RemoteOutcome::kFailed, "no memory", breaker);
  } catch (const std::bad_alloc&) {
    // For the log's line there was none either; it is off.
  }
}

// After a failover its name means another one, and it goes on answering: both connections are opened anew.
void RemoteTier::leave_server() {
  {
    const std::lock_guard lock(mutex_);
    if (!leave_breaker_.fail(steady_now_ns())) return;
  }
  read_nodes_.leave();
  write_nodes_.leave();
}

void RemoteTier::stop_writes(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    store_breaker_.fail(steady_now_ns());
  }
  spdlog::warn("remote tier {}: no writes for {} ms: {}", url_.display(), config_.max_retry_ms,
               reason);
}

}  // namespace larder
