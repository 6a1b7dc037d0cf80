// A block as a value in a remote store: its record header, then its bytes, perhaps compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/tier.h"
#include "kv/tiers/tier_record.h"

namespace larder {

// PREFIX:VERSION:FINGERPRINT:DIGEST:GROUP. Where the fingerprint, of which 16 hexadecimal digits
// are in it, or the version differs, so does the key.
std::string remote_key(std::string_view prefix, const TierFormat& format, const TierBlock& block);

// The longest value that any compression makes.
std::int64_t max_remote_value_bytes(std::int64_t block_size_bytes);

struct RemoteValue {
  RecordHeader header;
  std::vector<std::byte> compressed;  // empty: the block's own bytes follow the header
};

// level: of zstd; 0 = none. What does not get shorter stays as it is.
RemoteValue encode_remote_value(const TierFormat& format, const TierBlock& block,
                                std::span<const std::byte> bytes, int level);

// Any value. Whether it is this block, made in this format, whole and right; then the block's bytes
// are in `bytes`, [block_size_bytes], else anything is. Never needs more memory than that.
[[nodiscard]] bool decode_remote_value(std::span<const std::byte> value, const TierFormat& format,
                                       const TierBlock& block, std::span<std::byte> bytes);

}  // namespace larder
