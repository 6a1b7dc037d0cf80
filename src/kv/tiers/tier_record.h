// The header that every stored block carries, on disk and in a remote value: what the block is, how
// long its bytes are and their checksum. Both stores compare all of it before a byte is used.
//
// 256 bytes, little-endian, ended by a checksum of the header itself.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kv/tier.h"

namespace larder {

inline constexpr std::size_t kRecordHeaderSizeBytes = 256;
// Of the header and of what follows it. Another version's records are not read.
inline constexpr std::uint16_t kRecordVersion = 1;

using RecordHeader = std::array<std::byte, kRecordHeaderSizeBytes>;

// XXH3-128.
struct PayloadHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const PayloadHash&) const = default;
};

PayloadHash hash_payload(std::span<const std::byte> payload);

enum class RecordEncoding : std::uint16_t { kPlain = 0, kZstd = 1 };

struct TierRecord {
  Digest fingerprint{};
  TierBlock block;
  RecordEncoding encoding = RecordEncoding::kPlain;
  std::int64_t payload_size_bytes = 0;  // of the block
  std::int64_t stored_size_bytes = 0;   // as stored: less where compressed
  PayloadHash payload_hash;             // of the block's bytes, uncompressed
  std::uint64_t sequence = 0;           // later records have higher ones; 0 where there is no order
};

// bytes and its checksum are the block's, stored plainly.
TierRecord make_record(const TierFormat& format, const TierBlock& block,
                       std::span<const std::byte> bytes);
RecordHeader encode_record(const TierRecord& record);
// Any bytes. nullopt: too short, damaged, or not a header of this version.
std::optional<TierRecord> decode_record(std::span<const std::byte> bytes);
// Whether the record was made in this format, and (below) whether it is of this block.
bool is_record_in(const TierRecord& record, const TierFormat& format);
bool is_record_of(const TierRecord& record, const TierFormat& format, const TierBlock& block);

}  // namespace larder
