// SHA-256: content addresses of KV blocks and files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace larder {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::span<const std::byte> bytes);
std::string to_hex(const Digest& digest);
// 63 bits of the text's SHA-256, never 0 but for "".
std::uint64_t hash_text(std::string_view text);

// For unordered containers: a digest is already uniform.
struct DigestHash {
  std::size_t operator()(const Digest& digest) const {
    std::size_t value;
    std::memcpy(&value, digest.data(), sizeof value);
    return value;
  }
};

}  // namespace larder
