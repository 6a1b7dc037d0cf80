#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/sha.h>

namespace larder {

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

std::string to_hex(const Digest& digest) {
  std::string text;
  for (std::uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::uint64_t hash_text(std::string_view text) {
  if (text.empty()) return 0;
  const Digest digest = sha256(std::as_bytes(std::span(text)));
  std::uint64_t hash;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return hash | 1;
}

}  // namespace larder
