// The remote tier's writer, which also looks after a server that is gone.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/printable.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/remote_value.h"

namespace larder {
namespace {

constexpr std::int64_t kMaxShortReplyBytes = 1024;
constexpr std::size_t kMaxGone = 65536;

}  // namespace

void RemoteTier::write_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    const std::int64_t now = steady_now_ns();
    const std::int64_t off_ns = (is_on_ ? store_breaker_.off_until_ns() : probe_at_ns()) - now;
    if (stop_ && (!is_on_ || off_ns > 0 || !staging_.has_queued() || now >= drain_until_ns_)) {
      writer_ended_ = true;
      write_wake_.notify_all();
      return;
    }
    if (!is_on_ && off_ns <= 0) {
      unlocked(lock, [&] { probe(); });
    } else if (is_on_ && !touches_.empty() && !(stop_ && staging_.has_queued())) {
      // Also while the server takes no more blocks: those it has are used.
      const auto end = touches_.begin() + static_cast<std::ptrdiff_t>(std::min(touches_.size(), kMostTouchesAtOnce));
      touched_.assign(touches_.begin(), end);
      touches_.erase(touches_.begin(), end);
      unlocked(lock, [&] { send_touches(touched_); });
    } else if (is_on_ && !staging_.has_queued()) {
      write_wake_.wait(lock);
    } else if (off_ns > 0) {
      write_wake_.wait_for(lock, std::chrono::nanoseconds(off_ns));
    } else {
      staging_.take_queued(blocks_per_batch(), batch_);
      std::vector<int> unsent;
      if (!unlocked(lock, [&] { unsent = write_batch(batch_); })) {
        staging_.put_back(batch_);
        if (stop_) drain_until_ns_ = 0;
        continue;
      }
      for (const int buffer : batch_) {
        if (std::ranges::find(unsent, buffer) != unsent.end()) continue;
        staging_.remove(buffer);
        staging_.release(buffer);
        ++stats_.num_settled;
      }
      staging_.put_back(unsent);
      // The pauses between attempts are longer than there is time now.
      if (stop_ && !unsent.empty()) drain_until_ns_ = 0;
    }
  }
}

// Without the lock. false: there was no memory for it, and the tier is off for a while.
template <class Work>
bool RemoteTier::unlocked(std::unique_lock<std::mutex>& lock, const Work& work) {
  bool is_done = true;
  lock.unlock();
  try {
    work();
  } catch (const std::bad_alloc&) {
    rest_without_memory(write_nodes_, write_breaker_);
    is_done = false;
  }
  lock.lock();
  return is_done;
}

void RemoteTier::probe() {
  const RemoteOutcome outcome = write_nodes_.open();
  if (outcome != RemoteOutcome::kOk) {
    bool was_on;
    {
      const std::lock_guard lock(mutex_);
      was_on = read_breaker_.pause_ns() == 0 && write_breaker_.pause_ns() == 0;
    }
    // Once, not for every attempt.
    if (was_on) spdlog::warn("remote tier {}: {}", url_.display(), write_nodes_.error());
    turn_off(outcome, write_nodes_.error(), write_breaker_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_on_ = true;
    round_trip_seconds_ = static_cast<double>(write_nodes_.round_trip_ns()) / kNsPerSecond;
  }
  spdlog::info("remote tier {}: on", url_.display());
}

std::vector<int> RemoteTier::write_batch(const std::vector<int>& buffers) {
  const std::int64_t start_ns = steady_now_ns();
  std::vector<int> missing;
  std::vector<int> unsent = buffers;
  if (find_stored(buffers, missing) == RemoteOutcome::kOk)
    unsent = missing.empty() ? missing : send_blocks(missing);
  const std::lock_guard lock(mutex_);
  stats_.write_ns += steady_now_ns() - start_ns;
  if (unsent.empty()) write_breaker_.succeed();
  return unsent;
}

void RemoteTier::send_touches(const std::vector<Touched>& blocks) {
  const std::string ttl = std::to_string(config_.ttl_seconds);
  RemoteRequest request;
  for (const Touched& touched : blocks) {
    TierBlock block;
    block.digest = touched.digest;
    block.group = touched.group;
    if (config_.ttl_seconds > 0) {
      request.add({"EXPIRE", key_of(block), ttl});
    } else {
      request.add({"TOUCH", key_of(block)});
    }
  }
  std::vector<bool> is_gone(blocks.size(), false);
  exchange(write_nodes_, request, kMaxShortReplyBytes, [&](int command, const RemoteReply& reply) {
    is_gone[static_cast<std::size_t>(command)] = reply.kind == RemoteReply::Kind::kInteger && reply.integer == 0;
  });
  const std::lock_guard lock(mutex_);
  // What is not used again would stay in it for ever.
  if (gone_.size() > kMaxGone) gone_.clear();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockKey key(blocks[i].digest, blocks[i].group);
    if (is_gone[i] && !staging_.find(key)) gone_.insert(key);
  }
}

// Those that have no value of a right length, or one that was wrong, are missing.
RemoteOutcome RemoteTier::find_stored(const std::vector<int>& buffers, std::vector<int>& missing) {
  RemoteRequest lookup;
  for (const int buffer : buffers) lookup.add({"STRLEN", key_of(staging_.block(buffer))});
  std::vector<std::int64_t> lengths(buffers.size(), 0);
  const auto on_length = [&](int command, const RemoteReply& reply) {
    if (reply.kind == RemoteReply::Kind::kInteger) lengths[static_cast<std::size_t>(command)] = reply.integer;
  };
  const RemoteOutcome outcome = exchange(write_nodes_, lookup, kMaxShortReplyBytes, on_length);
  if (outcome != RemoteOutcome::kOk) return outcome;
  const auto plain_bytes =
      format_.block_size_bytes + static_cast<std::int64_t>(kRecordHeaderSizeBytes);
  RemoteRequest renewal;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const TierBlock& block = staging_.block(buffers[i]);
      const bool may_be_right =
          lengths[i] == plain_bytes || (config_.compression_level > 0 && lengths[i] < plain_bytes &&
                                        lengths[i] > std::int64_t{kRecordHeaderSizeBytes});
      if (wrong_.contains(BlockKey(block.digest, block.group)) || !may_be_right) {
        missing.push_back(buffers[i]);
      } else if (config_.ttl_seconds > 0) {
        renewal.add({"EXPIRE", key_of(block), std::to_string(config_.ttl_seconds)});
      }
    }
  }
  if (renewal.num_commands() == 0) return outcome;
  return exchange(write_nodes_, renewal, kMaxShortReplyBytes, [](int, const RemoteReply&) {});
}

std::vector<int> RemoteTier::send_blocks(const std::vector<int>& buffers) {
  std::vector<RemoteValue> values;
  values.reserve(buffers.size());  // since the request points into them
  RemoteRequest store;
  for (const int buffer : buffers) {
    const TierBlock& block = staging_.block(buffer);
    const std::span<const std::byte> bytes = staging_.bytes(buffer);
    const RemoteValue& value =
        values.emplace_back(encode_remote_value(format_, block, bytes, config_.compression_level));
    const std::span<const std::byte> payload =
        value.compressed.empty() ? bytes : std::span<const std::byte>(value.compressed);
    if (config_.ttl_seconds > 0) {
      store.add({"SETEX", key_of(block), std::to_string(config_.ttl_seconds)}, value.header, payload);
    } else {
      store.add({"SET", key_of(block)}, value.header, payload);
    }
  }
  std::vector<bool> is_stored(buffers.size(), false);
  std::string refusal;
  const auto on_reply = [&](int command, const RemoteReply& reply) {
    if (reply.kind == RemoteReply::Kind::kStatus) {
      is_stored[static_cast<std::size_t>(command)] = true;
    } else {
      refusal =
          reply.kind == RemoteReply::Kind::kError ? printable(reply.text()) : "no answer to SET";
    }
  };
  const RemoteOutcome outcome = exchange(write_nodes_, store, kMaxShortReplyBytes, on_reply);
  if (!refusal.empty()) stop_writes(refusal);
  std::vector<int> unsent;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!is_stored[i]) {
      unsent.push_back(buffers[i]);
      continue;
    }
    const TierBlock& block = staging_.block(buffers[i]);
    wrong_.erase(BlockKey(block.digest, block.group));
    ++stats_.num_written;
    stats_.bytes_written += format_.block_size_bytes;
  }
  if (outcome == RemoteOutcome::kOk) stats_.num_io_errors += unsent.size();
  return unsent;
}

}  // namespace larder
