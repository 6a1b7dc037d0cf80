#include "kv/tiers/tier_record.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

namespace larder {
namespace {

static_assert(std::endian::native == std::endian::little, "the stored format is little-endian");

// As it lies in a file or a value. Ordered so that nothing needs padding.
struct RawRecord {
  std::array<char, 4> magic;
  std::uint16_t version;
  std::uint16_t encoding;
  Digest fingerprint;
  Digest digest;
  Digest parent;
  Digest salt;
  std::array<TokenId, kBlockSize> tokens;
  std::int32_t group;
  std::uint32_t reserved;
  std::int64_t payload_size_bytes;
  std::int64_t stored_size_bytes;
  std::uint64_t sequence;
  std::uint64_t payload_hash_low;
  std::uint64_t payload_hash_high;
  std::uint64_t header_hash;  // XXH3-64 of all that comes before
};
static_assert(sizeof(RawRecord) == kRecordHeaderSizeBytes);

constexpr std::array<char, 4> kMagic = {'L', 'R', 'D', 'B'};

std::uint64_t hash_header(const RawRecord& raw) {
  return XXH3_64bits(&raw, offsetof(RawRecord, header_hash));
}

}  // namespace

PayloadHash hash_payload(std::span<const std::byte> payload) {
  const XXH128_hash_t hash = XXH3_128bits(payload.data(), payload.size());
  return {.low = hash.low64, .high = hash.high64};
}

TierRecord make_record(const TierFormat& format, const TierBlock& block,
                       std::span<const std::byte> bytes) {
  const auto size_bytes = static_cast<std::int64_t>(bytes.size());
  return {.fingerprint = format.fingerprint,
          .block = block,
          .encoding = RecordEncoding::kPlain,
          .payload_size_bytes = size_bytes,
          .stored_size_bytes = size_bytes,
          .payload_hash = hash_payload(bytes)};
}

RecordHeader encode_record(const TierRecord& record) {
  RawRecord raw{.magic = kMagic,
                .version = kRecordVersion,
                .encoding = static_cast<std::uint16_t>(record.encoding),
                .fingerprint = record.fingerprint,
                .digest = record.block.digest,
                .parent = record.block.parent,
                .salt = record.block.salt,
                .tokens = record.block.tokens,
                .group = record.block.group,
                .reserved = 0,
                .payload_size_bytes = record.payload_size_bytes,
                .stored_size_bytes = record.stored_size_bytes,
                .sequence = record.sequence,
                .payload_hash_low = record.payload_hash.low,
                .payload_hash_high = record.payload_hash.high,
                .header_hash = 0};
  raw.header_hash = hash_header(raw);
  return std::bit_cast<RecordHeader>(raw);
}

std::optional<TierRecord> decode_record(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordHeaderSizeBytes) return std::nullopt;
  RawRecord raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kMagic || raw.version != kRecordVersion) return std::nullopt;
  if (raw.header_hash != hash_header(raw)) return std::nullopt;
  if (raw.encoding > static_cast<std::uint16_t>(RecordEncoding::kZstd)) return std::nullopt;
  if (raw.payload_size_bytes < 0 || raw.stored_size_bytes < 0) return std::nullopt;
  return TierRecord{.fingerprint = raw.fingerprint,
                    .block = {.digest = raw.digest,
                              .parent = raw.parent,
                              .salt = raw.salt,
                              .tokens = raw.tokens,
                              .group = raw.group},
                    .encoding = static_cast<RecordEncoding>(raw.encoding),
                    .payload_size_bytes = raw.payload_size_bytes,
                    .stored_size_bytes = raw.stored_size_bytes,
                    .payload_hash = {.low = raw.payload_hash_low, .high = raw.payload_hash_high},
                    .sequence = raw.sequence};
}

bool is_record_in(const TierRecord& record, const TierFormat& format) {
  return record.fingerprint == format.fingerprint &&
         record.payload_size_bytes == format.block_size_bytes &&
         (record.encoding != RecordEncoding::kPlain ||
          record.stored_size_bytes == record.payload_size_bytes);
}

bool is_record_of(const TierRecord& record, const TierFormat& format, const TierBlock& block) {
  return is_record_in(record, format) && record.block == block;
}

}  // namespace larder
