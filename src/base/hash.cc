#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <memory>

#include "base/check.h"

namespace larder {
namespace {

// OpenSSL's one call looks the algorithm up each time, which takes six times as long as hashing a block's tokens.
class Hasher {
 public:
  Hasher() : algorithm_(EVP_MD_fetch(nullptr, "SHA256", nullptr)), context_(EVP_MD_CTX_new()) {
    CHECK(algorithm_ != nullptr && context_ != nullptr, "OpenSSL has no SHA-256 or no memory");
  }
  Digest hash(std::span<const std::byte> bytes) {
    Digest digest;
    const bool done = EVP_DigestInit_ex2(context_.get(), algorithm_.get(), nullptr) == 1 &&
                      EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1 &&
                      EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1;
    CHECK(done, "SHA-256 by OpenSSL");
    return digest;
  }

 private:
  struct Free {
    void operator()(EVP_MD* algorithm) const { EVP_MD_free(algorithm); }
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD, Free> algorithm_;
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  thread_local Hasher hasher;
  return hasher.hash(bytes);
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
