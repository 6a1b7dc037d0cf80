#include "kv/tiers/disk_segment.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

namespace larder {
namespace {

// So that no offset overflows: with at most 2^31 slots, a file stays below 2^62.
constexpr std::int64_t kMaxBlockSizeBytes = std::int64_t{1} << 30;
constexpr std::int32_t kChunkRecords = 4096;
constexpr std::array<char, 8> kMagic = {'L', 'A', 'R', 'D', 'E', 'R', 'K', 'V'};

struct RawSegment {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint16_t record_version;
  std::uint16_t record_size_bytes;
  Digest fingerprint;
  std::int64_t block_size_bytes;
  std::int64_t num_slots;
  std::uint64_t header_hash;  // XXH3-64 of all that comes before
};
static_assert(sizeof(RawSegment) == 72);

std::int64_t round_up_to_page(std::int64_t size_bytes) {
  return (size_bytes + kSegmentPageBytes - 1) / kSegmentPageBytes * kSegmentPageBytes;
}

std::uint64_t hash_header(const RawSegment& raw) {
  return XXH3_64bits(&raw, offsetof(RawSegment, header_hash));
}

}  // namespace

std::int64_t SegmentShape::payload_stride_bytes() const {
  return round_up_to_page(format.block_size_bytes);
}

std::int64_t SegmentShape::header_offset(std::int32_t slot) const {
  return kSegmentPageBytes + slot * std::int64_t{kRecordHeaderSizeBytes};
}

std::int64_t SegmentShape::payload_offset(std::int32_t slot) const {
  return kSegmentPageBytes + round_up_to_page(table_size_bytes()) + slot * payload_stride_bytes();
}

std::int32_t slots_within(std::int64_t size_bytes, std::int64_t block_size_bytes) {
  const std::int64_t per_slot_bytes =
      round_up_to_page(block_size_bytes) + std::int64_t{kRecordHeaderSizeBytes};
  std::int64_t num_slots =
      std::max<std::int64_t>(0, size_bytes - kSegmentPageBytes) / per_slot_bytes;
  num_slots = std::min<std::int64_t>(num_slots, std::numeric_limits<std::int32_t>::max());
  SegmentShape shape{.format = {.fingerprint = {}, .block_size_bytes = block_size_bytes},
                     .num_slots = static_cast<std::int32_t>(num_slots)};
  // The table's rounding may take what a slot needs.
  while (shape.num_slots > 0 && shape.file_size_bytes() > size_bytes) --shape.num_slots;
  return shape.num_slots;
}

SegmentHeader encode_segment_header(const SegmentShape& shape) {
  RawSegment raw{.magic = kMagic,
                 .version = kSegmentVersion,
                 .record_version = kRecordVersion,
                 .record_size_bytes = kRecordHeaderSizeBytes,
                 .fingerprint = shape.format.fingerprint,
                 .block_size_bytes = shape.format.block_size_bytes,
                 .num_slots = shape.num_slots,
                 .header_hash = 0};
  raw.header_hash = hash_header(raw);
  SegmentHeader header{};
  std::memcpy(header.data(), &raw, sizeof raw);
  return header;
}

std::optional<SegmentShape> decode_segment_header(std::span<const std::byte> bytes) {
  RawSegment raw;
  if (bytes.size() < sizeof raw) return std::nullopt;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kMagic || raw.version != kSegmentVersion ||
      raw.record_version != kRecordVersion || raw.record_size_bytes != kRecordHeaderSizeBytes ||
      raw.header_hash != hash_header(raw))
    return std::nullopt;
  if (raw.block_size_bytes < 1 || raw.block_size_bytes > kMaxBlockSizeBytes) return std::nullopt;
  if (raw.num_slots < 1 || raw.num_slots >= std::numeric_limits<std::int32_t>::max())
    return std::nullopt;
  return SegmentShape{
      .format = {.fingerprint = raw.fingerprint, .block_size_bytes = raw.block_size_bytes},
      .num_slots = static_cast<std::int32_t>(raw.num_slots)};
}

void read_records(const std::string& path, const SegmentShape& shape, const std::function<bool(const TierRecord&)>& take) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  std::vector<std::byte> chunk(std::size_t{kChunkRecords} * kRecordHeaderSizeBytes);
  for (std::int32_t slot = 0; slot < shape.num_slots;) {
    const auto num_wanted = static_cast<std::size_t>(std::min(shape.num_slots - slot, kChunkRecords));
    const ssize_t size_bytes = ::pread(fd, chunk.data(), num_wanted * kRecordHeaderSizeBytes, shape.header_offset(slot));
    const std::size_t num_read = size_bytes > 0 ? static_cast<std::size_t>(size_bytes) / kRecordHeaderSizeBytes : 0;
    if (num_read == 0) break;  // the file was cut there
    for (std::size_t i = 0; i < num_read; ++i) {
      const auto record = decode_record(std::span(chunk).subspan(i * kRecordHeaderSizeBytes, kRecordHeaderSizeBytes));
      if (!record || take(*record)) continue;
      ::close(fd);
      return;
    }
    slot += static_cast<std::int32_t>(num_read);
  }
  ::close(fd);
}

SegmentFile::~SegmentFile() { ::close(fd_); }

}  // namespace larder
