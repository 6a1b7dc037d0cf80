// Blocks whose bytes follow from their identity, and a directory that goes away.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <random>
#include <source_location>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "kv/tier.h"

namespace larder {

inline constexpr int kNeverMs = 1'000'000'000;

class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "larder_tier_XXXXXX";
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // The segment files, by name.
  std::vector<std::filesystem::path> segments() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      if (entry.path().extension() == ".kv") found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
  }
  std::int64_t segments_size_bytes() const {
    std::int64_t total = 0;
    for (const auto& file : segments())
      total += static_cast<std::int64_t>(std::filesystem::file_size(file));
    return total;
  }

 private:
  std::string path_;
};

inline TierFormat test_format(std::int64_t block_size_bytes, int model = 1) {
  TierFormat format;
  format.fingerprint.fill(static_cast<std::uint8_t>(model));
  format.block_size_bytes = block_size_bytes;
  return format;
}

inline Digest test_digest(std::uint64_t value) {
  return sha256(std::as_bytes(std::span(&value, 1)));
}

// Number `index` of a chain, from 0.
inline TierBlock test_block(int chain, int index, int group = 0) {
  const auto digest_at = [chain](int i) {
    return test_digest((static_cast<std::uint64_t>(chain) << 32) +
                       static_cast<std::uint64_t>(i + 1));
  };
  TierBlock block;
  block.digest = digest_at(index);
  block.parent = digest_at(index - 1);
  block.salt = digest_at(-1);
  for (int i = 0; i < kBlockSize; ++i)
    block.tokens[static_cast<std::size_t>(i)] = chain * 1000 + index * kBlockSize + i;
  block.group = group;
  return block;
}

inline std::vector<std::byte> test_bytes(const TierBlock& block, std::int64_t size_bytes) {
  std::uint64_t seed;
  std::memcpy(&seed, block.digest.data(), sizeof seed);
  std::mt19937_64 random(seed + static_cast<std::uint64_t>(block.group));
  std::vector<std::byte> bytes(static_cast<std::size_t>(size_bytes));
  for (std::size_t i = 0; i < bytes.size(); i += sizeof seed) {
    const std::uint64_t value = random();
    std::memcpy(&bytes[i], &value, std::min(sizeof value, bytes.size() - i));
  }
  return bytes;
}

inline std::vector<TierBlock> test_chain(int chain, int num_blocks) {
  std::vector<TierBlock> blocks;
  for (int i = 0; i < num_blocks; ++i) blocks.push_back(test_block(chain, i));
  return blocks;
}

struct TestRead {
  int num_found = 0;
  bool is_faulty = false;
  std::vector<std::byte> bytes;
};

// Waits for the answer.
inline TestRead read_blocks(KvTier& tier, std::span<const TierBlock> blocks,
                            std::int64_t block_size_bytes) {
  TestRead result;
  result.bytes.resize(blocks.size() * static_cast<std::size_t>(block_size_bytes));
  std::promise<TierAnswer> promise;
  tier.get({.blocks = blocks, .bytes = result.bytes, .done = [&](TierAnswer answer) { promise.set_value(answer); }});
  const TierAnswer answer = promise.get_future().get();
  result.num_found = answer.num_found;
  result.is_faulty = answer.is_faulty;
  return result;
}

// How many of the blocks are found; every one of them must be right.
inline int count_right(KvTier& tier, std::span<const TierBlock> blocks,
                       std::int64_t block_size_bytes) {
  const TestRead read = read_blocks(tier, blocks, block_size_bytes);
  for (int i = 0; i < read.num_found; ++i) {
    const auto bytes = test_bytes(blocks[static_cast<std::size_t>(i)], block_size_bytes);
    CHECK(std::memcmp(read.bytes.data() + i * block_size_bytes, bytes.data(), bytes.size()) == 0,
          "a wrong block was served", i);
  }
  return read.num_found;
}

// Until it holds; what does not within two minutes never will.
inline void wait_until(const std::function<bool()>& condition,
                       std::source_location where = std::source_location::current()) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(2), "waited in vain",
          where.file_name(), where.line());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline bool put_block(KvTier& tier, const TierBlock& block, std::int64_t block_size_bytes) {
  return tier.put(block, test_bytes(block, block_size_bytes));
}

// Offers until all are taken, and waits until they are written or dropped.
inline void put_all(KvTier& tier, std::span<const TierBlock> blocks,
                    std::int64_t block_size_bytes) {
  for (const TierBlock& block : blocks)
    wait_until([&] { return put_block(tier, block, block_size_bytes); });
  wait_until([&] { return tier.stats().num_pending == 0; });
}

}  // namespace larder
