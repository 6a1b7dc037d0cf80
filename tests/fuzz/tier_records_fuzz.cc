// Bytes -> what the tiers read from a disk or a server that anyone may have written to: a segment's
// header and table, a record's header, a remote value. Each is tried as it is and with its
// checksums set right, so that what comes after them is reached, too.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "fuzz_target.h"
#include "kv/tiers/disk_segment.h"
#include "kv/tiers/remote_value.h"
#include "kv/tiers/tier_record.h"

namespace {

constexpr std::int64_t kBlockBytes = 512;
// Where the checksums of the headers lie.
constexpr std::size_t kSegmentHashOffset = 64;
constexpr std::size_t kRecordHashOffset = larder::kRecordHeaderSizeBytes - 8;

using Bytes = std::vector<std::byte>;

Bytes with_hash(Bytes bytes, std::size_t offset) {
  if (bytes.size() < offset + 8) return bytes;
  const std::uint64_t hash = XXH3_64bits(bytes.data(), offset);
  std::memcpy(bytes.data() + offset, &hash, sizeof hash);
  return bytes;
}

// Each: whether it is one.
bool parse_segment(const Bytes& bytes) {
  const auto shape = larder::decode_segment_header(bytes);
  if (!shape) return false;
  // No offset overflows, and every slot's header and payload lie in order.
  const std::int32_t last = shape->num_slots - 1;
  CHECK(shape->header_offset(0) == larder::kSegmentPageBytes);
  CHECK(shape->header_offset(last) > 0 && shape->header_offset(last) < shape->payload_offset(0));
  CHECK(shape->payload_offset(last) < shape->file_size_bytes());
  CHECK(shape->payload_stride_bytes() >= shape->format.block_size_bytes);
  CHECK(larder::decode_segment_header(larder::encode_segment_header(*shape)).has_value());
  return true;
}

bool parse_record(const Bytes& bytes) {
  const auto record = larder::decode_record(bytes);
  if (!record) return false;
  const auto again = larder::decode_record(larder::encode_record(*record));
  CHECK(again && again->block == record->block && again->payload_hash == record->payload_hash);
  CHECK(again->stored_size_bytes == record->stored_size_bytes);
  return true;
}

// What is accepted has the length and the checksum that its header names.
bool parse_value(const Bytes& bytes) {
  const auto record = larder::decode_record(bytes);
  const larder::TierFormat format{.fingerprint = record ? record->fingerprint : larder::Digest{},
                                  .block_size_bytes = kBlockBytes};
  const larder::TierBlock block = record ? record->block : larder::TierBlock{};
  Bytes payload(kBlockBytes);
  if (!larder::decode_remote_value(bytes, format, block, payload)) return false;
  CHECK(record && record->payload_hash == larder::hash_payload(payload));
  larder::TierBlock other = block;
  other.tokens[3] ^= 1;
  CHECK(!larder::decode_remote_value(bytes, format, other, payload));
  return true;
}

void write_header(const larder::TierRecord& record, Bytes& value) {
  const larder::RecordHeader header = larder::encode_record(record);
  std::copy(header.begin(), header.end(), value.begin());
}

// As a value whose lengths and checksums are right, so that the payload is what counts.
Bytes as_value(Bytes bytes) {
  auto record = larder::decode_record(with_hash(bytes, kRecordHashOffset));
  if (!record) return bytes;
  const larder::TierFormat format{.fingerprint = record->fingerprint,
                                  .block_size_bytes = kBlockBytes};
  record->payload_size_bytes = kBlockBytes;
  record->stored_size_bytes =
      static_cast<std::int64_t>(bytes.size() - larder::kRecordHeaderSizeBytes);
  write_header(*record, bytes);
  // What comes out of it, before the checksum is looked at.
  Bytes payload(kBlockBytes);
  if (larder::decode_remote_value(bytes, format, record->block, payload)) return bytes;
  record->payload_hash = larder::hash_payload(payload);
  write_header(*record, bytes);
  return bytes;
}

}  // namespace

bool try_input(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const Bytes bytes(begin, begin + size);
  parse_segment(bytes);
  const bool is_segment = parse_segment(with_hash(bytes, kSegmentHashOffset));
  parse_record(bytes);
  const bool is_record = parse_record(with_hash(bytes, kRecordHashOffset));
  parse_value(bytes);
  parse_value(with_hash(bytes, kRecordHashOffset));
  const bool is_value = parse_value(as_value(bytes));
  // What has more than a record is to be a value.
  return is_segment || is_value || (is_record && size <= larder::kRecordHeaderSizeBytes);
}
