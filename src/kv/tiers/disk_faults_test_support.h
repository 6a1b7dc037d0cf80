// A disk tier over a disk that fails as it is told to.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "kv/tiers/block_io_faulty.h"
#include "kv/tiers/disk_segment.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {

constexpr std::int64_t kBlockBytes = 5000;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class DiskFaultsTest : public testing::Test {
 protected:
  DiskFaultsTest() { spdlog::set_level(spdlog::level::off); }  // what is tested is warned of
  ~DiskFaultsTest() override { spdlog::set_level(spdlog::level::info); }

  DiskTierConfig config(int retry_ms) {
    DiskTierConfig config;
    config.directory = dir_.path();
    config.size_bytes = 8 * kMiB;
    config.staging_size_bytes = 1 * kMiB;
    config.first_retry_ms = config.max_retry_ms = retry_ms;
    config.make_io = [this] {
      return std::make_unique<FaultyIo>(make_block_io(BlockIoKind::kAuto, 4), faults_);
    };
    return config;
  }
  std::unique_ptr<DiskTier> open(int retry_ms) {
    return std::make_unique<DiskTier>(config(retry_ms), test_format(kBlockBytes));
  }

  // Of the first segment.
  SegmentShape shape() const {
    const auto size = std::filesystem::file_size(dir_.segments().front());
    return {.format = test_format(kBlockBytes),
            .num_slots = slots_within(static_cast<std::int64_t>(size), kBlockBytes)};
  }

  TempDir dir_;
  DiskFaults faults_;
};

// While it lives, files grow to so many bytes only.
class FileLimit {
 public:
  explicit FileLimit(std::int64_t size_bytes) : on_signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit low{static_cast<rlim_t>(size_bytes), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, on_signal_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*on_signal_)(int);
  rlimit before_{};
};

inline int count_one_by_one(KvTier& tier, const std::vector<TierBlock>& blocks) {
  int num_found = 0;
  for (const TierBlock& block : blocks) num_found += count_right(tier, {&block, 1}, kBlockBytes);
  return num_found;
}

}  // namespace larder
