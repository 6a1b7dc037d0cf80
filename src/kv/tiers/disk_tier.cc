#include "kv/tiers/disk_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/start_thread.h"

namespace larder {
namespace {

constexpr int kNumInFlight = 64;
constexpr int kNumReadFailuresToOff = 3;
constexpr std::size_t kScanChunkBytes = std::size_t{4} << 20;
constexpr std::int32_t kHeadersPerPage = kSegmentPageBytes / kRecordHeaderSizeBytes;
constexpr int kMaxFailedScans = 32;  // a few bad sectors', not a dead disk's
constexpr double kSecondsPerRequest = 100e-6;
constexpr std::int64_t kMeasureBytes = std::int64_t{16} << 20;
constexpr std::int64_t kMeasureNs = 50 * kNsPerMs;
constexpr std::int64_t kMeasureBatchBytes = std::int64_t{4} << 20;

std::unique_ptr<BlockIo> make_read_io(const DiskTierConfig& config) {
  return config.make_io ? config.make_io() : make_block_io(config.io, kNumInFlight);
}

// Writes end in the page cache. There io_uring only hands them to threads of its own, and the
// kernel lets one in at a time: measured, one thread with pwrite is no slower.
std::unique_ptr<BlockIo> make_write_io(const DiskTierConfig& config) {
  return config.make_io ? config.make_io() : make_block_io(BlockIoKind::kThreads, 1);
}

}  // namespace

DiskTier::DiskTier(const DiskTierConfig& config, const TierFormat& format)
    : config_(config),
      format_(format),
      read_io_(make_read_io(config)),
      write_io_(make_write_io(config)),
      directory_(config.directory, format, config.size_bytes),
      foreign_(directory_.read_foreign()),
      staging_(format.block_size_bytes, config.staging_size_bytes),
      read_rate_(kAssumedSecondsPerByte),
      read_breaker_(config.first_retry_ms, config.max_retry_ms, kNumReadFailuresToOff),
      write_breaker_(config.first_retry_ms, config.max_retry_ms),
      growth_breaker_(config.first_retry_ms, config.max_retry_ms) {
  if (const DiskDirectory::Unopened& unopened = directory_.unopened(); unopened.num_segments > 0)
    spdlog::warn("disk tier {}: {} of its segments cannot be opened: {}; they count as full, and are left alone (raise "
                 "`ulimit -n`, or let this user read and write them)",
                 directory_.path(), unopened.num_segments, std::strerror(unopened.error));
  for (std::unique_ptr<SegmentFile>& segment : directory_.take_segments()) {
    const std::int32_t id = index_.add_segment(segment->shape().num_slots);
    segments_.push_back(std::move(segment));
    scan(id);
  }
  measure_reads();
  batch_.reserve(blocks_per_batch());
  const auto note_end = [this] {
    const std::lock_guard lock(mutex_);
    --num_threads_;
    thread_ended_.notify_all();
  };
  const auto start = [&](const char* purpose, void (DiskTier::*loop)()) {
    std::thread thread = start_thread(purpose, [this, loop, note_end] {
      (this->*loop)();
      note_end();
    });
    const std::lock_guard lock(mutex_);
    ++num_threads_;
    return thread;
  };
  writer_ = start("that writes to the disk tier", &DiskTier::write_loop);
  try {
    reader_ = start("that reads from the disk tier", &DiskTier::read_loop);
  } catch (...) {
    end();
    writer_.join();
    throw;
  }
}

DiskTier::~DiskTier() {
  end();
  reader_.join();
  writer_.join();
}

bool DiskTier::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    drain_until_ns_ = steady_now_ns() + config_.drain_ms * kNsPerMs;
  }
  read_wake_.notify_all();
  write_wake_.notify_all();
  std::unique_lock lock(mutex_);
  return thread_ended_.wait_for(lock, std::chrono::milliseconds(config_.drain_ms + config_.hang_ms),
                                [this] { return num_threads_ == 0; });
}

void DiskTier::scan(std::int32_t segment) {
  const SegmentShape& shape = segments_[static_cast<std::size_t>(segment)]->shape();
  constexpr auto kMostSlots = static_cast<std::int32_t>(kScanChunkBytes / kRecordHeaderSizeBytes);
  std::vector<std::byte> chunk(std::min<std::size_t>(kScanChunkBytes, shape.table_size_bytes()));
  for (std::int32_t slot = 0; slot < shape.num_slots; slot += kMostSlots)
    scan_headers({segment, slot}, std::min(kMostSlots, shape.num_slots - slot), chunk);
}

// count slots from `first` on. What lies around a page that cannot be read is read without it.
void DiskTier::scan_headers(SlotId first, std::int32_t count, std::span<std::byte> chunk) {
  const SegmentFile& file = *segments_[static_cast<std::size_t>(first.segment)];
  IoRequest request{.fd = file.fd(),
                    .offset_bytes = file.shape().header_offset(first.slot),
                    .data = chunk.data(),
                    .size_bytes = count * std::int64_t{kRecordHeaderSizeBytes}};
  transfer_all(*read_io_, IoDirection::kRead, {&request, 1});
  if (request.result >= 0) {
    for (std::int32_t i = 0; i < count; ++i)
      index_slot({first.segment, first.slot + i},
                 chunk.subspan(static_cast<std::size_t>(i) * kRecordHeaderSizeBytes, kRecordHeaderSizeBytes));
    return;
  }
  if (count > kHeadersPerPage && ++num_failed_scans_ <= kMaxFailedScans) {
    const std::int32_t half = (count / 2 + kHeadersPerPage - 1) / kHeadersPerPage * kHeadersPerPage;
    scan_headers(first, half, chunk);
    return scan_headers({first.segment, first.slot + half}, count - half, chunk);
  }
  // Unknown, so neither found nor written to.
  ++stats_.num_io_errors;
  for (std::int32_t i = 0; i < count; ++i) {
    index_.take({first.segment, first.slot + i});
    index_.lose({first.segment, first.slot + i});
  }
}

void DiskTier::index_slot(SlotId id, std::span<const std::byte> header) {
  static constexpr RecordHeader kFree{};
  if (std::memcmp(header.data(), kFree.data(), kFree.size()) == 0) return;
  index_.take(id);
  index_.mark_used(id);
  const auto record = decode_record(header);
  if (!record || record->encoding != RecordEncoding::kPlain || !is_record_in(*record, format_)) {
    ++stats_.num_corrupt;
    index_.release(id);
    return;
  }
  const BlockKey key(record->block.digest, record->block.group);
  if (const auto other = index_.find(key)) {
    // The older one was given up, most likely because it could not be read.
    const bool is_older = record->sequence < index_.age(*other);
    index_.release(is_older ? id : *other);
    if (is_older) return;
  }
  index_.note_group(record->block.group);
  if (!index_.store(id, key, BlockKey(record->block.parent, record->block.group), record->sequence))
    throw std::bad_alloc();
  next_age_ = std::max(next_age_, record->sequence + 1);
}

// Of blocks that lie all over the store.
void DiskTier::measure_reads() {
  std::vector<SlotId> slots = index_.sample_stored(static_cast<std::size_t>(
      std::max<std::int64_t>(1, kMeasureBytes / format_.block_size_bytes)));
  if (slots.empty()) return;
  const auto block_bytes = static_cast<std::size_t>(format_.block_size_bytes);
  const std::size_t batch = std::clamp(static_cast<std::size_t>(kMeasureBatchBytes) / block_bytes,
                                       std::size_t{1}, slots.size());
  std::vector<std::byte> scratch(batch * block_bytes);
  const std::int64_t start_ns = steady_now_ns();
  std::int64_t num_bytes = 0;
  for (std::size_t i = 0; i < slots.size() && steady_now_ns() - start_ns < kMeasureNs;) {
    std::vector<IoRequest> requests;
    for (; i < slots.size() && requests.size() < batch; ++i) {
      const SegmentFile& file = *segments_[static_cast<std::size_t>(slots[i].segment)];
      requests.push_back({.fd = file.fd(),
                          .offset_bytes = file.shape().payload_offset(slots[i].slot),
                          .data = scratch.data() + requests.size() * block_bytes,
                          .size_bytes = format_.block_size_bytes});
    }
    transfer_all(*read_io_, IoDirection::kRead, requests);
    for (const IoRequest& request : requests)
      num_bytes += std::max<std::int64_t>(0, request.result);
  }
  const std::int64_t end_ns = steady_now_ns();
  if (num_bytes > 0)
    read_rate_.measure(static_cast<double>(end_ns - start_ns) * 1e-9, num_bytes, end_ns);
}

bool DiskTier::put(const TierBlock& block, std::span<const std::byte> bytes) {
  CHECK(static_cast<std::int64_t>(bytes.size()) == format_.block_size_bytes, bytes.size());
  const BlockKey key(block.digest, block.group);
  int buffer;
  {
    const std::lock_guard lock(mutex_);
    index_.note_group(block.group);
    if (staging_.find(key)) return true;
    if (const auto slot = index_.find(key)) {
      index_.touch(*slot, next_age_++);
      return true;
    }
    const auto reserved =
        can_write(steady_now_ns()) ? staging_.reserve() : std::optional<int>();
    if (!reserved) return false;
    buffer = *reserved;
  }
  std::memcpy(staging_.bytes(buffer).data(), bytes.data(), bytes.size());
  {
    const std::lock_guard lock(mutex_);
    staging_.enqueue(buffer, block);
  }
  write_wake_.notify_one();
  return true;
}

bool DiskTier::touch(const TierBlock& block) {
  const BlockKey key(block.digest, block.group);
  const std::lock_guard lock(mutex_);
  if (staging_.find(key)) return true;
  const auto slot = index_.find(key);
  if (slot) index_.touch(*slot, next_age_++);
  return slot.has_value();
}

TierPresence DiskTier::presence(const TierBlock& block) const {
  const BlockKey key(block.digest, block.group);
  const std::lock_guard lock(mutex_);
  if (!can_read(steady_now_ns())) return TierPresence::kAbsent;
  return staging_.find(key) || index_.find(key) ? TierPresence::kPresent : TierPresence::kAbsent;
}

bool DiskTier::has_lost(const TierBlock& block) const {
  const BlockKey key(block.digest, block.group);
  const std::lock_guard lock(mutex_);
  return !staging_.find(key) && !index_.find(key);
}

void DiskTier::get(TierRead read) {
  CHECK(
      read.bytes.size() == read.blocks.size() * static_cast<std::size_t>(format_.block_size_bytes),
      read.bytes.size());
  {
    const std::lock_guard lock(mutex_);
    if (can_read(steady_now_ns()) &&
        reads_.size() < static_cast<std::size_t>(config_.max_queued_reads)) {
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

double DiskTier::estimate_read_seconds(std::int64_t num_blocks) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t now = steady_now_ns();
  if (!can_read(now)) return kOffSeconds;
  const auto num_bytes =
      static_cast<double>((num_blocks + num_queued_blocks_) * format_.block_size_bytes);
  return kSecondsPerRequest + num_bytes * read_rate_.seconds_per_byte(now);
}

TierStats DiskTier::stats() const {
  const std::lock_guard lock(mutex_);
  TierStats stats = stats_;
  stats.num_stored = index_.num_stored();
  stats.bytes_stored = stats.num_stored * format_.block_size_bytes;
  stats.num_pending = staging_.num_pending();
  const std::int64_t now = steady_now_ns();
  stats.is_on = can_read(now) && can_write(now);
  return stats;
}

void DiskTier::record_events() {
  const std::lock_guard lock(mutex_);
  events_.record(KvMedium::kDisk);
  index_.tell(events_);
  untold_ = index_.parents_first();
  std::ranges::reverse(untold_);
}

KvEvents DiskTier::take_events() {
  const std::lock_guard lock(mutex_);
  if (tell_at_ns_ == INT64_MAX) {
    tell_at_ns_ = steady_now_ns() + config_.tell_after_ms * kNsPerMs;
    read_wake_.notify_all();
  }
  return events_.take();
}

bool DiskTier::has_events() const {
  const std::lock_guard lock(mutex_);
  return events_.is_recording() &&
         (!events_.empty() || !untold_.empty() || (staging_.num_pending() > 0 && can_write(steady_now_ns())));
}

bool DiskTier::takes_writes() const {
  const std::lock_guard lock(mutex_);
  return can_write(steady_now_ns());
}

}  // namespace larder
