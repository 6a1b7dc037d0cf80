// The disk tier's reader.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/read_in_pieces.h"

namespace larder {
namespace {

// What is read before it is verified: enough for the device, little enough for the caches.
constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20;
constexpr std::int64_t kMaxChunk = 64;
constexpr double kMaxSlowness = 10;  // against what is expected
constexpr std::size_t kMaxTold = 256;
constexpr std::int64_t kTellIntervalNs = 20 * kNsPerMs;

}  // namespace

struct DiskTier::Read {
  enum class Result { kFound, kFailed, kWrong };

  const TierBlock* block = nullptr;
  std::span<std::byte> bytes;
  int buffer = -1;  // still staged there, else:
  SlotId slot{};
  const SegmentFile* file = nullptr;
  RecordHeader header{};
  Result result = Result::kFound;
  int error = 0;  // of kFailed
};

void DiskTier::read_loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wait_for_reads(lock);
    if (reads_.empty()) return;
    const TierRead read = std::move(reads_.front());
    reads_.pop_front();
    const bool skip = stop_ || !read_breaker_.is_on(steady_now_ns());
    lock.unlock();
    const TierAnswer answer = skip ? TierAnswer{.num_found = 0, .is_faulty = true} : read_blocks(read);
    lock.lock();
    if (skip) ++stats_.num_missed;
    num_queued_blocks_ -= static_cast<std::int64_t>(read.blocks.size());
    lock.unlock();
    read.done(answer);
    lock.lock();
  }
}

// Until there is one, or the end. What is to be told is told between them.
void DiskTier::wait_for_reads(std::unique_lock<std::mutex>& lock) {
  while (!stop_ && reads_.empty()) {
    const std::int64_t wait_ns = tell_at_ns_ - steady_now_ns();
    if (untold_.empty() || tell_at_ns_ == INT64_MAX) {
      read_wake_.wait(lock);
    } else if (wait_ns > 0) {
      read_wake_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
    } else {
      tell_some(lock);
    }
  }
}

// No more at once than routers can be told of in time.
void DiskTier::tell_some(std::unique_lock<std::mutex>& lock) {
  tell_at_ns_ = steady_now_ns() + kTellIntervalNs;
  if (events_.size() >= kMaxTold || !can_read(steady_now_ns())) return;
  read_due_ns_ = steady_now_ns() + config_.hang_ms * kNsPerMs;
  for (std::size_t i = 0; i < kMaxTold && !untold_.empty() && reads_.empty() && !stop_; ++i) {
    const SlotId id = untold_.back();
    untold_.pop_back();
    const SegmentFile& file = *segments_[static_cast<std::size_t>(id.segment)];
    lock.unlock();
    const auto record = read_header(file, id.slot);
    lock.lock();
    // Gone meanwhile.
    if (record && !index_.holds(id, BlockKey(record->block.digest, record->block.group))) continue;
    if (record && is_reachable(record->block)) {
      events_.note_stored(record->block);
    } else {
      index_.mark_unreachable(id);
    }
  }
  read_due_ns_ = INT64_MAX;
}

// What follows a block that is not there, or cannot be read, is of no use, nor is what follows that. Of windows the
// first group has all.
bool DiskTier::is_reachable(const TierBlock& block) const {
  const BlockKey parent(block.parent, block.group);
  return block.parent == block.salt || index_.is_reachable(parent) || index_.is_reachable(parent.in_group(0));
}

std::optional<TierRecord> DiskTier::read_header(const SegmentFile& file, std::int32_t slot) {
  RecordHeader header{};
  IoRequest request{.fd = file.fd(),
                    .offset_bytes = file.shape().header_offset(slot),
                    .data = header.data(),
                    .size_bytes = kRecordHeaderSizeBytes};
  try {
    transfer_all(*read_io_, IoDirection::kRead, {&request, 1});
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
  return request.result < 0 ? std::nullopt : decode_record(header);
}

TierAnswer DiskTier::read_blocks(const TierRead& read) {
  const auto chunk = static_cast<std::size_t>(
      std::clamp(kChunkBytes / format_.block_size_bytes, std::int64_t{1}, kMaxChunk));
  return read_in_pieces(read, chunk, [&](std::size_t first, std::size_t count) { return read_chunk(read, first, count); });
}

TierAnswer DiskTier::read_chunk(const TierRead& read, std::size_t first, std::size_t count) {
  std::vector<Read> reads;
  bool has_memory = true;
  std::int64_t start_ns = steady_now_ns();
  try {
    reads.reserve(count);  // before anything is pinned
    plan_reads(read, first, count, reads);
    start_ns = steady_now_ns();
    transfer_reads(reads);
  } catch (const std::bad_alloc&) {
    has_memory = false;
    for (Read& one : reads) {
      one.result = Read::Result::kFailed;
      one.error = ENOMEM;
    }
  }
  const std::int64_t elapsed_ns = steady_now_ns() - start_ns;
  const TierAnswer answer = finish_reads(reads, elapsed_ns);
  return {.num_found = answer.num_found, .is_faulty = answer.is_faulty || !has_memory};
}

void DiskTier::plan_reads(const TierRead& read, std::size_t first, std::size_t count, std::vector<Read>& reads) {
  const auto block_bytes = static_cast<std::size_t>(format_.block_size_bytes);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = first; i < first + count; ++i) {
    const TierBlock& block = read.blocks[i];
    const BlockKey key(block.digest, block.group);
    Read one{.block = &block, .bytes = read.bytes.subspan(i * block_bytes, block_bytes)};
    if (const auto buffer = staging_.find(key)) {
      one.buffer = *buffer;
      staging_.hold(*buffer);
    } else if (const auto slot = index_.find(key)) {
      one.slot = *slot;
      one.file = segments_[static_cast<std::size_t>(slot->segment)].get();
      index_.pin(*slot);
    } else {
      ++stats_.num_missed;
      break;
    }
    reads.push_back(one);
  }
  const std::int64_t now_ns = steady_now_ns();
  const double expected_ns = static_cast<double>(reads.size() * block_bytes) *
                             read_rate_.seconds_per_byte(now_ns) * kNsPerSecond;
  read_due_ns_ = now_ns + std::max(config_.hang_ms * kNsPerMs,
                                   static_cast<std::int64_t>(kMaxSlowness * expected_ns));
}

void DiskTier::transfer_reads(std::vector<Read>& reads) {
  std::vector<IoRequest> requests;
  std::vector<Read*> owners;
  const auto add = [&](Read& read, std::int64_t offset_bytes, std::span<std::byte> bytes) {
    requests.push_back({.fd = read.file->fd(),
                        .offset_bytes = offset_bytes,
                        .data = bytes.data(),
                        .size_bytes = static_cast<std::int64_t>(bytes.size())});
    owners.push_back(&read);
  };
  for (Read& read : reads) {
    if (read.buffer >= 0) continue;
    add(read, read.file->shape().header_offset(read.slot.slot), read.header);
    add(read, read.file->shape().payload_offset(read.slot.slot), read.bytes);
  }
  if (!requests.empty()) transfer_all(*read_io_, IoDirection::kRead, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].result >= 0) continue;
    owners[i]->result = Read::Result::kFailed;
    owners[i]->error = static_cast<int>(-requests[i].result);
  }
  for (Read& read : reads) {
    if (read.buffer >= 0) {
      std::memcpy(read.bytes.data(), staging_.bytes(read.buffer).data(), read.bytes.size());
      if (staging_.block(read.buffer) != *read.block) read.result = Read::Result::kWrong;
    } else if (read.result == Read::Result::kFound) {
      const auto record = decode_record(read.header);
      if (!record || record->encoding != RecordEncoding::kPlain ||
          !is_record_of(*record, format_, *read.block) ||
          record->payload_hash != hash_payload(read.bytes))
        read.result = Read::Result::kWrong;
    }
  }
}

TierAnswer DiskTier::finish_reads(std::vector<Read>& reads, std::int64_t elapsed_ns) {
  std::int64_t pause_ns = 0;  // 0 = reads go on
  std::unique_lock lock(mutex_);
  // Once it has ended, the log may have, too.
  const bool did_hang = steady_now_ns() > std::exchange(read_due_ns_, INT64_MAX) && !stop_;
  int num_found = 0;
  bool ended = false;
  std::int64_t bytes_transferred = 0;
  for (const Read& read : reads) {
    const bool found = read.result == Read::Result::kFound;
    ended = ended || !found;
    if (!ended) ++num_found;
    if (read.buffer >= 0) {
      staging_.release(read.buffer);
      if (read.result == Read::Result::kWrong) ++stats_.num_corrupt;
      continue;
    }
    index_.unpin(read.slot);
    if (found) {
      bytes_transferred += format_.block_size_bytes;
      read_breaker_.succeed();
    } else if (drop_unreadable(read)) {
      pause_ns = read_breaker_.pause_ns();
    }
  }
  // What comes first is used last, so that a chain goes from its end.
  for (auto read = reads.rbegin(); read != reads.rend(); ++read) {
    // One block may be in it twice, and the second time unreadable.
    if (read->buffer < 0 &&
        index_.holds(read->slot, BlockKey(read->block->digest, read->block->group)))
      index_.touch(read->slot, next_age_++);
  }
  stats_.num_read += static_cast<std::uint64_t>(num_found);
  stats_.bytes_read += num_found * format_.block_size_bytes;
  stats_.read_ns += elapsed_ns;
  if (bytes_transferred > 0)
    read_rate_.observe(static_cast<double>(elapsed_ns) * 1e-9, bytes_transferred, steady_now_ns());
  lock.unlock();
  // The engine takes the lock, and is not to wait for whoever reads the log.
  if (did_hang)
    spdlog::warn("disk tier {}: a read took {:.1f} s, in which there were no others", directory_.path(),
                 static_cast<double>(elapsed_ns) * 1e-9);
  if (pause_ns > 0)
    spdlog::warn("disk tier {}: no reads for {} ms: too many failed", directory_.path(),
                 pause_ns / kNsPerMs);
  return {.num_found = num_found, .is_faulty = ended};
}

// Under the lock, as is the next. No fault forbids it, and none hangs.
bool DiskTier::can_read(std::int64_t now_ns) const {
  return read_breaker_.is_on(now_ns) && now_ns < read_due_ns_;
}

// Whether that put reads off.
bool DiskTier::drop_unreadable(const Read& read) {
  if (!index_.holds(read.slot, BlockKey(read.block->digest, read.block->group))) return false;
  if (read.result == Read::Result::kWrong) {
    ++stats_.num_corrupt;
    index_.release(read.slot);
    return false;
  }
  ++stats_.num_io_errors;
  // A disk that gives nothing, or a system short of memory, says nothing of the slot.
  if (fault_of(read.error) == IoFault::kPlace && read_breaker_.is_on(steady_now_ns())) index_.lose(read.slot);
  return read_breaker_.fail(steady_now_ns());
}

}  // namespace larder
