#include "kv/tiers/disk_tier.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_test_support.h"
#include "kv/kv_test_support.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

constexpr std::int64_t kBlockBytes = 5000;  // no multiple of a page
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

DiskTierConfig config_in(const TempDir& dir, std::int64_t size_bytes = 8 * kMiB) {
  DiskTierConfig config;
  config.directory = dir.path();
  config.size_bytes = size_bytes;
  config.staging_size_bytes = 1 * kMiB;
  return config;
}

// Both ways to reach the disk.
class DiskTierTest : public testing::TestWithParam<BlockIoKind> {
 protected:
  DiskTierConfig config(std::int64_t size_bytes = 8 * kMiB) const {
    DiskTierConfig config = config_in(dir_, size_bytes);
    config.io = GetParam();
    return config;
  }
  std::unique_ptr<DiskTier> open(std::int64_t size_bytes = 8 * kMiB) const {
    return std::make_unique<DiskTier>(config(size_bytes), test_format(kBlockBytes));
  }

  TempDir dir_;
};

TEST_P(DiskTierTest, GivesBackWhatWasPut) {
  const auto blocks = test_chain(1, 300);
  auto tier = open();
  EXPECT_EQ(tier->presence(blocks[0]), TierPresence::kAbsent);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(tier->presence(blocks[299]), TierPresence::kPresent);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 300);
  EXPECT_EQ(count_right(*tier, test_chain(2, 3), kBlockBytes), 0);
  const TierStats stats = tier->stats();
  EXPECT_EQ(stats.num_written, 300u);
  EXPECT_EQ(stats.num_read, 300u);
  EXPECT_EQ(stats.num_missed, 2u);
  EXPECT_EQ(stats.num_stored, 300);
  EXPECT_EQ(stats.bytes_stored, 300 * kBlockBytes);
  EXPECT_EQ(stats.num_corrupt + stats.num_io_errors, 0u);
  EXPECT_TRUE(stats.is_on);
}

TEST_P(DiskTierTest, EndsTheCountAtTheFirstThatIsMissing) {
  auto tier = open();
  auto blocks = test_chain(1, 10);
  put_all(*tier, blocks, kBlockBytes);
  blocks[4] = test_block(2, 4);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 4);
}

TEST_P(DiskTierTest, FindsAllAfterARestart) {
  const auto blocks = test_chain(1, 500);
  {
    auto tier = open();
    // Not waited for: the destructor writes what is queued.
    for (const TierBlock& block : blocks)
      wait_until([&] { return put_block(*tier, block, kBlockBytes); });
  }
  auto tier = open();
  EXPECT_EQ(tier->stats().num_stored, 500);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 500);
  // And again: the second start goes on where the first ended.
  const auto more = test_chain(2, 100);
  put_all(*tier, more, kBlockBytes);
  tier.reset();
  tier = open();
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 500);
  EXPECT_EQ(count_right(*tier, more, kBlockBytes), 100);
}

TEST_P(DiskTierTest, KeepsGroupsApart) {
  auto tier = open();
  const std::vector<TierBlock> blocks = {test_block(1, 0, 0), test_block(1, 0, 1)};
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 2);
}

TEST_P(DiskTierTest, StaysBelowItsSizeAndKeepsWhatIsUsed) {
  auto tier = open(2 * kMiB);  // some 240 blocks
  const auto used = test_chain(1, 50);
  put_all(*tier, used, kBlockBytes);
  for (int chain = 2; chain < 40; ++chain) {
    const auto blocks = test_chain(chain, 20);
    put_all(*tier, blocks, kBlockBytes);
    ASSERT_EQ(count_right(*tier, blocks, kBlockBytes), 20);
    ASSERT_EQ(count_right(*tier, used, kBlockBytes), 50);
    ASSERT_LE(dir_.segments_size_bytes(), 2 * kMiB);
  }
  const TierStats stats = tier->stats();
  EXPECT_GT(stats.num_stored, 200);
  EXPECT_EQ(static_cast<std::int64_t>(stats.num_written - stats.num_evicted), stats.num_stored);
}

// The pool answers for them, so that they are never read here.
TEST_P(DiskTierTest, KeepsWhatIsTouched) {
  auto tier = open(2 * kMiB);  // some 240 blocks
  const auto used = test_chain(1, 50);
  put_all(*tier, used, kBlockBytes);
  for (int chain = 2; chain < 40; ++chain) {
    put_all(*tier, test_chain(chain, 20), kBlockBytes);
    for (const TierBlock& block : used) ASSERT_TRUE(tier->touch(block));
  }
  EXPECT_GT(tier->stats().num_evicted, 0u);
  EXPECT_FALSE(tier->touch(test_block(2, 19)));
  EXPECT_EQ(count_right(*tier, used, kBlockBytes), 50);
}

// In one group and in two: what stays is its beginning, and older chains make room for that.
TEST_P(DiskTierTest, KeepsTheBeginningOfAChainLongerThanItself) {
  for (const int num_blocks : {360, 720}) {
    for (const int num_groups : {1, 2}) {
      const TempDir dir;
      DiskTierConfig config = config_in(dir, 2 * kMiB);  // some 240 blocks
      config.io = GetParam();
      auto tier = std::make_unique<DiskTier>(config, test_format(kBlockBytes));
      put_all(*tier, test_chain(1, 100), kBlockBytes);
      std::vector<TierBlock> blocks;
      for (int i = 0; i < num_blocks; ++i)
        blocks.push_back(test_block(2, i / num_groups, i % num_groups));
      put_all(*tier, blocks, kBlockBytes);
      EXPECT_GT(tier->stats().num_refused, 0u);
      tier.reset();
      tier = std::make_unique<DiskTier>(config, test_format(kBlockBytes));
      const auto num_stored = static_cast<int>(tier->stats().num_stored);
      EXPECT_GT(num_stored, 200);
      EXPECT_GE(count_right(*tier, blocks, kBlockBytes), num_stored - 64) << num_blocks;
    }
  }
}

TEST_P(DiskTierTest, EvictsAChainFromItsEnd) {
  auto tier = open(2 * kMiB);
  const auto old = test_chain(1, 100);
  put_all(*tier, old, kBlockBytes);
  put_all(*tier, test_chain(2, 200), kBlockBytes);
  // A part is gone, and what is left is the chain's beginning.
  const int num_left = count_right(*tier, old, kBlockBytes);
  EXPECT_GT(num_left, 0);
  EXPECT_LT(num_left, 100);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(tier->presence(old[static_cast<std::size_t>(i)]),
              i < num_left ? TierPresence::kPresent : TierPresence::kAbsent);
  }
}

TEST_P(DiskTierTest, ShrinksWhenTheLimitDid) {
  {
    auto tier = open(8 * kMiB);
    for (int chain = 1; chain <= 8; ++chain) put_all(*tier, test_chain(chain, 100), kBlockBytes);
  }
  EXPECT_GT(dir_.segments_size_bytes(), 4 * kMiB);
  auto tier = open(4 * kMiB);
  EXPECT_LE(dir_.segments_size_bytes(), 4 * kMiB);
  const std::int64_t num_kept = tier->stats().num_stored;
  EXPECT_GT(num_kept, 100);
  EXPECT_LT(num_kept, 600);
  int num_found = 0;
  for (int chain = 1; chain <= 8; ++chain) {
    for (const TierBlock& block : test_chain(chain, 100))
      num_found += count_right(*tier, {&block, 1}, kBlockBytes);
  }
  EXPECT_EQ(num_found, num_kept);
  put_all(*tier, test_chain(9, 100), kBlockBytes);
  EXPECT_EQ(count_right(*tier, test_chain(9, 100), kBlockBytes), 100);
  EXPECT_LE(dir_.segments_size_bytes(), 4 * kMiB);
}

// Fault 40, a clock jump: segments are given up by their last write, whatever the files' times say.
TEST_P(DiskTierTest, ShrinksByTheLastWritesOfSegments) {
  namespace fs = std::filesystem;
  {
    auto tier = open(8 * kMiB);
    int chain = 0;
    while (tier->stats().num_evicted == 0) put_all(*tier, test_chain(++chain, 100), kBlockBytes);
  }
  const std::vector<fs::path> segments = dir_.segments();
  ASSERT_GE(segments.size(), 3u);
  // The first one holds the oldest blocks, and so the newest, which took their places.
  const auto now = fs::file_time_type::clock::now();
  for (std::size_t i = 0; i < segments.size(); ++i)
    fs::last_write_time(segments[i], now + std::chrono::hours(i));
  open(8 * kMiB);
  open(4 * kMiB);
  EXPECT_TRUE(fs::exists(segments[0]));
  EXPECT_FALSE(fs::exists(segments[1]));
  EXPECT_TRUE(fs::exists(segments.back()));
}

// What is larger than all that may be there goes first, though it was written last: by this format, or by another one.
TEST_P(DiskTierTest, ShrinksByWhatCanNeverFit) {
  const auto old = test_chain(1, 900);
  put_all(*open(8 * kMiB), old, kBlockBytes);
  const std::size_t num_small = dir_.segments().size();
  for (const int model : {1, 2}) {
    put_all(*open(40 * kMiB), test_chain(model + 1, 300), kBlockBytes);
    ASSERT_EQ(dir_.segments().size(), num_small + 1);
    { const DiskTier reader(config(8 * kMiB), test_format(kBlockBytes, model)); }
    EXPECT_EQ(dir_.segments().size(), num_small);
    EXPECT_EQ(count_right(*open(8 * kMiB), old, kBlockBytes), 900) << model;
  }
}

// Fault 38: another model, KV type, instruction set or version in one directory.
TEST_P(DiskTierTest, NeverUsesAnotherFormatsBlocks) {
  const auto blocks = test_chain(1, 50);
  {
    DiskTier other(config(), test_format(kBlockBytes, 2));
    put_all(other, blocks, kBlockBytes);
  }
  {
    DiskTier longer(config(), test_format(kBlockBytes + 1, 1));
    EXPECT_EQ(longer.stats().num_stored, 0);
    put_all(longer, blocks, kBlockBytes + 1);
  }
  {
    auto tier = open();
    EXPECT_EQ(tier->presence(blocks[0]), TierPresence::kAbsent);
    EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
    // But it can tell that they are there.
    for (const TierBlock& block : blocks) EXPECT_TRUE(tier->is_stored_for_another(block.digest));
    EXPECT_FALSE(tier->is_stored_for_another(test_chain(2, 1)[0].digest));
    put_all(*tier, blocks, kBlockBytes);
    EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 50);
  }
  // Nothing was lost by any of them.
  DiskTier other(config(), test_format(kBlockBytes, 2));
  EXPECT_EQ(count_right(other, blocks, kBlockBytes), 50);
}

TEST_P(DiskTierTest, GivesUpOtherFormatsFirst) {
  {
    DiskTier other(config(4 * kMiB), test_format(kBlockBytes, 2));
    put_all(other, test_chain(1, 400), kBlockBytes);
  }
  auto tier = open(4 * kMiB);
  const auto blocks = test_chain(2, 400);
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 400);
  EXPECT_EQ(tier->stats().num_evicted, 0u);
  EXPECT_LE(dir_.segments_size_bytes(), 4 * kMiB);
}

TEST_P(DiskTierTest, SurvivesGarbageInItsDirectory) {
  const auto blocks = test_chain(1, 50);
  {
    auto tier = open();
    put_all(*tier, blocks, kBlockBytes);
  }
  const auto write_file = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir_.path() + "/" + name, std::ios::binary) << text;
  };
  write_file("notes.txt", "mine");
  write_file("segment-00000099.kv", "garbage");
  write_file("segment-00000098.kv", "");
  write_file("segment-1.kv", std::string(8192, 'x'));
  std::filesystem::create_directory(dir_.path() + "/segment-00000097.kv");
  std::filesystem::create_symlink("/dev/zero", dir_.path() + "/segment-00000096.kv");
  auto tier = open();
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 50);
  put_all(*tier, test_chain(2, 900), kBlockBytes);
  EXPECT_TRUE(tier->stats().is_on);
  EXPECT_EQ(std::filesystem::file_size(dir_.path() + "/notes.txt"), 4u);
}

// One that has no room for so many files.
TEST_P(DiskTierTest, LeavesItsOwnSegmentsThatItCannotOpen) {
  const auto blocks = test_chain(1, 900);
  {
    auto tier = open();
    put_all(*tier, blocks, kBlockBytes);
  }
  const auto before = dir_.segments();
  ASSERT_GE(before.size(), 4u);
  rlimit all{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &all), 0);
  // The numbers below are in use; the listing of the folder and the lock, then the lock and two segments.
  const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::close(next);
  const rlimit few{static_cast<rlim_t>(next) + 3, all.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    DiskDirectory directory(dir_.path(), test_format(kBlockBytes), 8 * kMiB);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &all), 0);
    EXPECT_EQ(directory.take_segments().size(), 2u);
    EXPECT_EQ(directory.unopened().num_segments, static_cast<int>(before.size()) - 2);
    EXPECT_EQ(directory.unopened().error, EMFILE);
    EXPECT_FALSE(directory.delete_oldest_foreign());
  }
  EXPECT_EQ(dir_.segments(), before);
  EXPECT_EQ(count_right(*open(), blocks, kBlockBytes), 900);
}

TEST_P(DiskTierTest, FindsANumberBehindTheLast) {
  std::ofstream(dir_.path() + "/segment-99999999.kv", std::ios::binary) << "garbage";
  std::ofstream(dir_.path() + "/segment-00000001.kv", std::ios::binary) << "garbage";
  const auto blocks = test_chain(1, 50);
  for (int restart = 0; restart < 2; ++restart) {
    auto tier = open();
    if (restart == 0) put_all(*tier, blocks, kBlockBytes);
    EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 50) << restart;
  }
}

// A header that lies about its table, and tables cut anywhere.
TEST_P(DiskTierTest, SurvivesDamagedSegments) {
  const auto blocks = test_chain(1, 300);
  {
    auto tier = open();
    put_all(*tier, blocks, kBlockBytes);
  }
  const auto segment = dir_.segments().front();
  const auto full_bytes = static_cast<std::int64_t>(std::filesystem::file_size(segment));
  const SegmentShape shape{.format = test_format(kBlockBytes),
                           .num_slots = slots_within(full_bytes, kBlockBytes)};
  ASSERT_LT(shape.num_slots, 300);
  for (const std::int64_t size_bytes :
       {full_bytes - 1, full_bytes / 2, std::int64_t{9000}, std::int64_t{4097}, std::int64_t{4000}}) {
    std::filesystem::resize_file(segment, static_cast<std::uintmax_t>(size_bytes));
    auto tier = open();
    int num_found = 0;
    for (const TierBlock& block : blocks) num_found += count_right(*tier, {&block, 1}, kBlockBytes);
    int num_whole = 300 - shape.num_slots;  // in the other segment
    for (std::int32_t slot = 0; slot < shape.num_slots; ++slot)
      num_whole += shape.payload_offset(slot) + kBlockBytes <= size_bytes ? 1 : 0;
    EXPECT_EQ(num_found, num_whole) << size_bytes;
    EXPECT_TRUE(tier->stats().is_on);
  }
}

TEST_P(DiskTierTest, SurvivesSegmentsThatClaimToBeHuge) {
  const auto blocks = test_chain(1, 50);
  for (int number = 1; number < 12; ++number) {
    const SegmentHeader header =
        encode_segment_header({.format = test_format(kBlockBytes, number % 2 + 1),
                               .num_slots = std::numeric_limits<std::int32_t>::max() - 1});
    std::ofstream(fmt::format("{}/segment-{:08}.kv", dir_.path(), number), std::ios::binary)
        .write(reinterpret_cast<const char*>(header.data()), header.size());
  }
  std::filesystem::resize_file(dir_.segments().front(), std::uintmax_t{1} << 40);
  auto tier = open();
  EXPECT_LE(dir_.segments_size_bytes(), 8 * kMiB);
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 50);
}

// Fault 34: every byte counts, in a header and in a payload.
TEST_P(DiskTierTest, AFlippedBitIsAMiss) {
  const auto blocks = test_chain(1, 40);
  {
    auto tier = open();
    put_all(*tier, blocks, kBlockBytes);
  }
  const auto segment = dir_.segments().front();
  const auto flip = [&](std::int64_t offset_bytes) {
    std::fstream file(segment, std::ios::binary | std::ios::in | std::ios::out);
    char byte = 0;
    file.seekg(offset_bytes).get(byte);
    file.seekp(offset_bytes).put(static_cast<char>(byte ^ 16));
  };
  SegmentShape shape{.format = test_format(kBlockBytes), .num_slots = 0};
  shape.num_slots =
      slots_within(static_cast<std::int64_t>(std::filesystem::file_size(segment)), kBlockBytes);
  flip(shape.payload_offset(7) + 4321);
  flip(shape.header_offset(9) + 100);
  auto tier = open();
  EXPECT_EQ(tier->stats().num_corrupt, 1u);  // the header, at start
  flip(shape.header_offset(11) + 40);        // and one while it runs
  std::vector<int> missing;
  for (int i = 0; i < 40; ++i) {
    if (count_right(*tier, {&blocks[static_cast<std::size_t>(i)], 1}, kBlockBytes) == 0)
      missing.push_back(i);
  }
  EXPECT_THAT(missing, testing::ElementsAre(7, 9, 11));
  EXPECT_EQ(tier->stats().num_corrupt, 3u);
  EXPECT_EQ(tier->presence(blocks[7]), TierPresence::kAbsent);
  // Put again, they are right again, also after a restart.
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 40);
  tier.reset();
  EXPECT_EQ(count_right(*open(), blocks, kBlockBytes), 40);
}

TEST_P(DiskTierTest, ComparesTheWholeIdentity) {
  auto tier = open();
  const TierBlock block = test_block(1, 3);
  for (int field = 0; field < 3; ++field) {
    put_all(*tier, {&block, 1}, kBlockBytes);
    TierBlock other = block;
    if (field == 0) other.parent[5] ^= 1;
    if (field == 1) other.salt[5] ^= 1;
    if (field == 2) other.tokens[5] ^= 1;
    EXPECT_EQ(read_blocks(*tier, {&other, 1}, kBlockBytes).num_found, 0) << field;
  }
  EXPECT_EQ(tier->stats().num_corrupt, 3u);
}

INSTANTIATE_TEST_SUITE_P(Io, DiskTierTest,
                         testing::Values(BlockIoKind::kAuto, BlockIoKind::kThreads),
                         [](const auto& which) {
                           return which.param == BlockIoKind::kAuto ? "Auto" : "Threads";
                         });

TEST(DiskTier, RefusesADirectoryInUse) {
  const TempDir dir;
  const DiskTier tier(config_in(dir), test_format(kBlockBytes));
  try {
    DiskTier second(config_in(dir), test_format(kBlockBytes));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_THAT(error.what(), testing::HasSubstr(dir.path()));
    EXPECT_THAT(error.what(), testing::HasSubstr("give each process its own"));
  }
}

TEST(DiskTier, SaysWhyItCannotStart) {
  const TempDir dir;
  const auto expect_error = [](const DiskTierConfig& config, ErrorKind kind) {
    try {
      DiskTier tier(config, test_format(kBlockBytes));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
    }
  };
  expect_error(config_in(dir, 9000), ErrorKind::kInvalidArgument);
  expect_error(config_in(dir, -1), ErrorKind::kInvalidArgument);
  DiskTierConfig config = config_in(dir);
  config.directory = "/proc/nothing/here";
  expect_error(config, ErrorKind::kUnavailable);
  std::ofstream(dir.path() + "/file") << "x";
  config.directory = dir.path() + "/file";
  expect_error(config, ErrorKind::kUnavailable);
}

TEST(DiskTier, HoldsOneBlockIfThatIsAllThereIsRoomFor) {
  const TempDir dir;
  DiskTier tier(config_in(dir, 4 * 4096), test_format(kBlockBytes));
  for (int i = 0; i < 5; ++i) {
    const TierBlock block = test_block(i, 0);
    put_all(tier, {&block, 1}, kBlockBytes);
    EXPECT_EQ(count_right(tier, {&block, 1}, kBlockBytes), 1);
    EXPECT_EQ(tier.stats().num_stored, 1);
  }
}

TEST(DiskTier, EstimatesFromWhatItMeasured) {
  const TempDir dir;
  {
    DiskTier tier(config_in(dir), test_format(kBlockBytes));
    put_all(tier, test_chain(1, 100), kBlockBytes);
  }
  const DiskTier tier(config_in(dir), test_format(kBlockBytes));
  EXPECT_GT(tier.estimate_read_seconds(1), 0);
  EXPECT_LT(tier.estimate_read_seconds(1), 1);
  EXPECT_GT(tier.estimate_read_seconds(1000), tier.estimate_read_seconds(10));
}

// What is never tried is never measured.
TEST(DiskTier, AnEmptyOneIsReadByAMachineThatComputesFast) {
  const TempDir dir;
  const std::vector<KvLayerShape> shapes = {KvLayerShape{8, 128, 0}};
  const std::int64_t block_bytes = KvLayout(shapes).block_size_bytes();
  std::vector<std::unique_ptr<KvTier>> tiers;
  tiers.push_back(std::make_unique<DiskTier>(config_in(dir), test_format(block_bytes)));
  KvTier& disk = *tiers[0];
  TestCache test(shapes, 64, std::move(tiers));
  // A GPU's, for a model of 8B.
  test.tiers->set_seconds_per_token(3.6e-10 * static_cast<double>(block_bytes) / kBlockSize);
  const std::vector<TokenId> tokens = counting(40 * kBlockSize + 1);
  const int num_tokens = static_cast<int>(tokens.size());
  BlockTable first, second;
  EXPECT_EQ(test.cache.match(first, tokens, {}, num_tokens - 1), 0);
  ASSERT_TRUE(test.cache.extend(first, num_tokens));
  test.write(first, tokens, 0, num_tokens);
  test.cache.publish(first, tokens, num_tokens);
  test.cache.release(first);
  wait_until([&] {
    test.cache.poll_tiers();
    return !test.cache.has_unsaved() && disk.stats().num_pending == 0;
  });
  test.cache.clear();
  EXPECT_EQ(test.cache.match(second, tokens, {}, num_tokens - 1), 0);
  EXPECT_TRUE(test.cache.begin_load(second, tokens, num_tokens - 1));
  test.cache.release(second);
}

TEST(DiskTierDeathTest, SaysWhichThreadTheSystemRefuses) {
  if (!kThreadLimitIsExact) GTEST_SKIP() << "ThreadSanitizer takes a share of the threads' room";
  const TempDir dir;
  const auto open = [&](int num_allowed, int num_io_threads) {
    DiskTierConfig config = config_in(dir);
    config.make_io = [&] { return make_block_io(BlockIoKind::kThreads, num_io_threads); };
    run_with_threads(num_allowed, [&] { const DiskTier tier(config, test_format(kBlockBytes)); });
  };
  const auto ended = ::testing::ExitedWithCode(3);
  EXPECT_EXIT(open(0, 1), ended, "cannot start the thread that writes to the disk tier: .*pids.max");
  EXPECT_EXIT(open(1, 1), ended, "cannot start the thread that reads from the disk tier: .*pids.max");
  EXPECT_EXIT(open(1, 4), ended, "cannot start the thread that reads blocks from files: .*pids.max");
}

}  // namespace
}  // namespace larder
