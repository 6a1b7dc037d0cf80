#include "kv/tiers/remote_value.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace larder {
namespace {

constexpr std::size_t kFingerprintDigits = 16;

}  // namespace

std::string remote_key(std::string_view prefix, const TierFormat& format, const TierBlock& block) {
  return fmt::format("{}:{}:{}:{}:{}", prefix, kRecordVersion,
                     to_hex(format.fingerprint).substr(0, kFingerprintDigits), to_hex(block.digest),
                     block.group);
}

std::int64_t max_remote_value_bytes(std::int64_t block_size_bytes) {
  return static_cast<std::int64_t>(kRecordHeaderSizeBytes +
                                   ZSTD_compressBound(static_cast<std::size_t>(block_size_bytes)));
}

RemoteValue encode_remote_value(const TierFormat& format, const TierBlock& block,
                                std::span<const std::byte> bytes, int level) {
  TierRecord record = make_record(format, block, bytes);
  RemoteValue value;
  if (level > 0) {
    value.compressed.resize(ZSTD_compressBound(bytes.size()));
    const std::size_t size_bytes = ZSTD_compress(value.compressed.data(), value.compressed.size(),
                                                 bytes.data(), bytes.size(), level);
    const bool is_shorter = !ZSTD_isError(size_bytes) && size_bytes < bytes.size();
    value.compressed.resize(is_shorter ? size_bytes : 0);
    if (is_shorter) {
      record.encoding = RecordEncoding::kZstd;
      record.stored_size_bytes = static_cast<std::int64_t>(size_bytes);
    }
  }
  value.header = encode_record(record);
  return value;
}

bool decode_remote_value(std::span<const std::byte> value, const TierFormat& format,
                         const TierBlock& block, std::span<std::byte> bytes) {
  CHECK(static_cast<std::int64_t>(bytes.size()) == format.block_size_bytes, bytes.size());
  const auto record = decode_record(value);
  if (!record || !is_record_of(*record, format, block)) return false;
  const std::span<const std::byte> stored = value.subspan(kRecordHeaderSizeBytes);
  if (static_cast<std::int64_t>(stored.size()) != record->stored_size_bytes) return false;
  if (record->encoding == RecordEncoding::kPlain) {
    std::memcpy(bytes.data(), stored.data(), bytes.size());
  } else {
    // Stops at the end of bytes, whatever the value would grow to.
    const std::size_t size_bytes =
        ZSTD_decompress(bytes.data(), bytes.size(), stored.data(), stored.size());
    if (ZSTD_isError(size_bytes) || size_bytes != bytes.size()) return false;
  }
  return hash_payload(bytes) == record->payload_hash;
}

}  // namespace larder
