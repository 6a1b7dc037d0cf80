// Faults 33 (a full disk), 34 (EIO, flipped bits) and 35 (kill -9 during a save).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "kv/kv_test_support.h"
#include "kv/tiers/disk_faults_test_support.h"

namespace larder {
namespace {

TEST_F(DiskFaultsTest, OnAFullDiskOlderBlocksMakeRoom) {
  auto tier = open(kNeverMs);
  faults_.has_room_in_place = true;
  put_all(*tier, test_chain(1, 40), kBlockBytes);
  faults_.bytes_until_full = 10 * kBlockBytes;
  put_all(*tier, test_chain(2, 60), kBlockBytes);
  EXPECT_GT(tier->stats().num_io_errors, 0u);
  for (int chain = 3; chain < 30; ++chain) {
    put_all(*tier, test_chain(chain, 10), kBlockBytes);
    ASSERT_EQ(count_right(*tier, test_chain(chain, 10), kBlockBytes), 10);
  }
  EXPECT_TRUE(tier->stats().is_on);
  EXPECT_GE(tier->stats().num_stored, 40);
  EXPECT_GT(tier->stats().num_evicted, 0u);
}

// What follows it does not go for it, and finds no room: that is no fault of writing in place.
TEST_F(DiskFaultsTest, OnAFullDiskAChainThatIsTooLongStopsNothing) {
  auto tier = open(kNeverMs);
  faults_.has_room_in_place = true;
  put_all(*tier, test_chain(1, 10), kBlockBytes);
  faults_.bytes_until_full = 0;
  const auto blocks = test_chain(2, 20);
  for (const TierBlock& block : blocks) put_all(*tier, {&block, 1}, kBlockBytes);
  EXPECT_TRUE(tier->stats().is_on);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 10);
  put_all(*tier, test_chain(3, 10), kBlockBytes);
  EXPECT_EQ(count_right(*tier, test_chain(3, 10), kBlockBytes), 10);
}

// Two chains fill the store and go on at once: neither goes for the other. Later one of them may, also offered
// from its end.
TEST_F(DiskFaultsTest, TakesWhatItRefusedOnceOthersAreOlder) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 3000), kBlockBytes);
  const auto size = static_cast<int>(tier->stats().num_stored);
  ASSERT_LT(size, 3000);
  put_all(*tier, test_chain(2, size / 2), kBlockBytes);
  put_all(*tier, test_chain(3, size - size / 2), kBlockBytes);
  const int second = size / 2;        // the next of chain 2
  const int third = size - size / 2;  // and of chain 3
  faults_.writes_hang = true;
  const std::uint64_t num_evicted = tier->stats().num_evicted;
  ASSERT_TRUE(put_block(*tier, test_block(2, second), kBlockBytes));
  wait_until([&] { return tier->stats().num_evicted > num_evicted; });
  const std::vector<TierBlock> at_once = {test_block(2, second + 1), test_block(3, third - 1),
                                          test_block(3, third), test_block(3, third + 1)};
  const std::uint64_t num_refused = tier->stats().num_refused;
  for (const TierBlock& block : at_once) EXPECT_TRUE(put_block(*tier, block, kBlockBytes));
  faults_.writes_hang = false;
  wait_until([&] { return tier->stats().num_pending == 0; });
  EXPECT_EQ(tier->stats().num_refused, num_refused + 4);
  for (const std::size_t i : {3, 2, 1}) put_all(*tier, std::span(at_once).subspan(i, 1), kBlockBytes);
  for (const std::size_t i : {1, 2, 3}) EXPECT_EQ(tier->presence(at_once[i]), TierPresence::kPresent) << i;
  EXPECT_EQ(count_right(*tier, test_chain(3, third + 2), kBlockBytes), third + 2);
}

// What it refused is forgotten, as after a restart: what comes from the chain's end is not known to follow what is here.
TEST_F(DiskFaultsTest, NothingGoesForWhatFollowsNoBlockThatIsKnown) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 3000), kBlockBytes);
  tier.reset();
  tier = open(kNeverMs);
  const auto size = static_cast<int>(tier->stats().num_stored);
  ASSERT_LT(size, 3000);
  for (const int index : {2999, 2998, size + 1}) put_all(*tier, std::vector{test_block(1, index)}, kBlockBytes);
  EXPECT_EQ(tier->stats().num_evicted, 0u);
  EXPECT_EQ(tier->stats().num_refused, 3u);
  EXPECT_EQ(count_right(*tier, test_chain(1, size), kBlockBytes), size);
}

// In more than one batch: what they follow waits behind them.
TEST_F(DiskFaultsTest, WhatComesFromItsEndTakesTheRoomOfOthers) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 3000), kBlockBytes);
  faults_.writes_hang = true;
  const std::uint64_t num_evicted = tier->stats().num_evicted;
  ASSERT_TRUE(put_block(*tier, test_block(2, 0), kBlockBytes));
  wait_until([&] { return tier->stats().num_evicted > num_evicted; });
  for (int index = 150; index > 0; --index) ASSERT_TRUE(put_block(*tier, test_block(3, index), kBlockBytes));
  ASSERT_TRUE(put_block(*tier, test_block(3, 0), kBlockBytes));
  faults_.writes_hang = false;
  wait_until([&] { return tier->stats().num_pending == 0; });
  EXPECT_EQ(count_right(*tier, test_chain(3, 151), kBlockBytes), 151);
  for (const int index : {31, 30}) put_all(*tier, std::vector{test_block(4, index)}, kBlockBytes);
  for (const int index : {31, 30}) EXPECT_EQ(tier->presence(test_block(4, index)), TierPresence::kAbsent);
}

// In one batch, from its end.
TEST_F(DiskFaultsTest, OfWhatItRefusedTheBeginningGetsTheRoom) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 3000), kBlockBytes);
  const auto size = static_cast<int>(tier->stats().num_stored);
  ASSERT_LT(size, 3000);
  // Each goes where the chain's last one was.
  put_all(*tier, test_chain(2, 1), kBlockBytes);
  faults_.writes_hang = true;
  const std::uint64_t num_evicted = tier->stats().num_evicted;
  ASSERT_TRUE(put_block(*tier, test_block(3, 0), kBlockBytes));
  wait_until([&] { return tier->stats().num_evicted > num_evicted; });
  for (const int index : {size + 1, size, size - 1, size - 2})
    EXPECT_TRUE(put_block(*tier, test_block(1, index), kBlockBytes));
  faults_.writes_hang = false;
  wait_until([&] { return tier->stats().num_pending == 0; });
  EXPECT_EQ(count_right(*tier, test_chain(1, size + 2), kBlockBytes), size);
}

// Not even in place, as where files are copied on every write.
TEST_F(DiskFaultsTest, AFullDiskDropsBlocksAndServesTheOthers) {
  const auto before = test_chain(1, 150);
  const auto during = test_chain(2, 50);
  auto tier = open(kNeverMs);
  put_all(*tier, before, kBlockBytes);
  faults_.bytes_until_full = 7 * kBlockBytes + 1234;
  int num_taken = 0;
  for (const TierBlock& block : during) num_taken += put_block(*tier, block, kBlockBytes) ? 1 : 0;
  EXPECT_GT(num_taken, 0);
  // The first failure stops growth, the next one, in place, all writes.
  int next = 0;
  wait_until([&] {
    (void)put_block(*tier, test_block(4, next++), kBlockBytes);
    return !tier->stats().is_on;
  });
  EXPECT_GT(tier->stats().num_io_errors, 0u);
  EXPECT_FALSE(put_block(*tier, test_block(3, 0), kBlockBytes));
  // Those that should have made room are forgotten, the last of the chain first: one batch's.
  EXPECT_GE(count_right(*tier, before, kBlockBytes), 150 - 64);
  count_one_by_one(*tier, during);  // whatever is found is right
  tier.reset();                     // does not hang on what cannot be written
  faults_.bytes_until_full = INT64_MAX;
  tier = open(kNeverMs);
  EXPECT_EQ(count_right(*tier, before, kBlockBytes), 150);
  EXPECT_EQ(count_one_by_one(*tier, during), tier->stats().num_stored - 150);
  put_all(*tier, during, kBlockBytes);
  EXPECT_EQ(count_right(*tier, during, kBlockBytes), 50);
}

// At every byte of a write: header zeroed, payload, new header, also in place of older blocks.
TEST_F(DiskFaultsTest, AWriteCutAnywhereLeavesNothingWrong) {
  const std::int64_t cycle_bytes = 2 * 256 + kBlockBytes;
  auto setup = config(1);
  setup.size_bytes = 200'000;  // a few slots, so that most writes replace
  std::vector<TierBlock> all;
  for (int round = 0; round < 60; ++round) {
    DiskTier tier(setup, test_format(kBlockBytes));
    const auto blocks = test_chain(round + 1, 4);
    all.insert(all.end(), blocks.begin(), blocks.end());
    put_all(tier, std::span(blocks).first(2), kBlockBytes);
    faults_.bytes_until_full = 1 + round * 2 * cycle_bytes / 60;
    (void)put_block(tier, blocks[2], kBlockBytes);
    (void)put_block(tier, blocks[3], kBlockBytes);
    wait_until([&] {
      if (tier.stats().num_io_errors > 0) faults_.bytes_until_full = INT64_MAX;
      return tier.stats().num_pending == 0;
    });
    faults_.bytes_until_full = INT64_MAX;
    ASSERT_EQ(count_one_by_one(tier, all), tier.stats().num_stored);
  }
  DiskTier tier(setup, test_format(kBlockBytes));
  EXPECT_GT(tier.stats().num_stored, 5);
  // A header that was cut itself is counted as wrong at the start, and not found.
  EXPECT_EQ(count_one_by_one(tier, all), tier.stats().num_stored);
}

TEST_F(DiskFaultsTest, ComesBackWhenTheDiskHasRoomAgain) {
  auto tier = open(1);
  faults_.write_error = ENOSPC;
  EXPECT_TRUE(put_block(*tier, test_block(1, 0), kBlockBytes));
  wait_until([&] { return tier->stats().num_io_errors > 0; });
  faults_.write_error = 0;
  put_all(*tier, test_chain(2, 30), kBlockBytes);
  EXPECT_EQ(count_right(*tier, test_chain(2, 30), kBlockBytes), 30);
  EXPECT_TRUE(tier->stats().is_on);
}

TEST_F(DiskFaultsTest, OnAFullDiskAnotherModelsBlocksGoBeforeItsOwn) {
  {
    DiskTier other(config(kNeverMs), test_format(kBlockBytes, 2));
    put_all(other, test_chain(1, 400), kBlockBytes);
  }
  const std::size_t num_foreign = dir_.segments().size();
  ASSERT_GE(num_foreign, 2u);
  auto tier = open(kNeverMs);
  faults_.write_error = ENOSPC;
  faults_.num_write_errors = 1;  // of the new segment's header
  put_all(*tier, test_chain(2, 10), kBlockBytes);
  EXPECT_EQ(count_right(*tier, test_chain(2, 10), kBlockBytes), 10);
  EXPECT_EQ(tier->stats().num_refused, 0u);
  EXPECT_EQ(dir_.segments().size(), num_foreign);  // one less, and its own
}

// No room for another segment: what is oldest makes room in those that are there.
TEST_F(DiskFaultsTest, GoesOnInPlaceWhenItCannotGrow) {
  auto setup = config(kNeverMs);
  DiskTier tier(setup, test_format(kBlockBytes));
  // The first segment's slots, all used.
  int num_blocks = 0;
  while (dir_.segments().size() < 2) {
    const TierBlock block = test_block(1, num_blocks++);
    put_all(tier, {&block, 1}, kBlockBytes);
  }
  std::filesystem::permissions(
      dir_.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  if (::access(dir_.path().c_str(), W_OK) == 0) {
    // Root may write anywhere; a directory in the next segment's place stops it as well.
    for (int number = 3; number < 20; ++number)
      std::filesystem::create_directory(fmt::format("{}/segment-{:08}.kv", dir_.path(), number));
  }
  for (int chain = 2; chain < 20; ++chain) {
    put_all(tier, test_chain(chain, 50), kBlockBytes);
    ASSERT_EQ(count_right(tier, test_chain(chain, 50), kBlockBytes), 50);
  }
  EXPECT_TRUE(tier.stats().is_on);
  EXPECT_GT(tier.stats().num_evicted, 0u);
  EXPECT_GT(tier.stats().num_io_errors, 0u);
  std::filesystem::permissions(dir_.path(), std::filesystem::perms::owner_all);
}

// Of holes that lie past it, and of blocks that were written there before.
TEST_F(DiskFaultsTest, PastTheLimitOfFilesOlderBlocksMakeRoom) {
  DiskTierConfig setup = config(kNeverMs);
  setup.make_io = nullptr;
  { put_all(*std::make_unique<DiskTier>(setup, test_format(kBlockBytes, 2)), test_chain(1, 1), kBlockBytes); }
  { put_all(*std::make_unique<DiskTier>(setup, test_format(kBlockBytes)), test_chain(1, 200), kBlockBytes); }
  const auto segments = dir_.segments();
  ASSERT_EQ(segments.size(), 2u);
  const FileLimit limit(1 * kMiB);
  for (const int retry_ms : {kNeverMs, 1}) {
    setup.first_retry_ms = setup.max_retry_ms = retry_ms;
    DiskTier tier(setup, test_format(kBlockBytes));
    for (int chain = 2; chain < 30; ++chain) {
      put_all(tier, test_chain(chain, 10), kBlockBytes);
      ASSERT_EQ(count_right(tier, test_chain(chain, 10), kBlockBytes), 10) << chain;
    }
    EXPECT_TRUE(tier.stats().is_on);
    EXPECT_GT(tier.stats().num_io_errors, 0u);
    EXPECT_GT(tier.stats().num_evicted, 0u);
    EXPECT_GT(tier.stats().num_stored, 80);
  }
  EXPECT_EQ(dir_.segments(), segments) << "another model's goes for nothing";
}

TEST_F(DiskFaultsTest, AFailedWriteLosesTheSlotNotTheTier) {
  auto tier = open(1);
  faults_.write_error = EIO;
  EXPECT_TRUE(put_block(*tier, test_block(1, 0), kBlockBytes));
  wait_until([&] { return tier->stats().num_io_errors > 0; });
  faults_.write_error = 0;
  put_all(*tier, test_chain(1, 20), kBlockBytes);
  EXPECT_EQ(count_right(*tier, test_chain(1, 20), kBlockBytes), 20);
}

// Which says nothing of the slot, nor of the block that was to go.
TEST_F(DiskFaultsTest, AWriteThatTheSystemRefusesCostsNoSlot) {
  const auto num_slots = [&] {
    std::int64_t num = 0;
    for (const auto& segment : dir_.segments())
      num += slots_within(static_cast<std::int64_t>(std::filesystem::file_size(segment)), kBlockBytes);
    return num;
  };
  auto tier = open(1);
  const auto fail_some = [&](int error, int chain) {
    const std::uint64_t num_before = tier->stats().num_io_errors;
    faults_.write_error = error;
    for (int i = 0; tier->stats().num_io_errors < num_before + 5; ++i)
      wait_until([&] { return put_block(*tier, test_block(chain + i, 0), kBlockBytes); });
    wait_until([&] { return tier->stats().num_pending == 0; });
    faults_.write_error = 0;
  };
  put_all(*tier, test_chain(1, 10), kBlockBytes);
  fail_some(ENOMEM, 1000);
  put_all(*tier, test_chain(1, 3000), kBlockBytes);
  const std::int64_t size = tier->stats().num_stored;
  EXPECT_EQ(size, num_slots());
  fail_some(EROFS, 100'000);
  EXPECT_EQ(tier->stats().num_stored, size);
  EXPECT_EQ(count_right(*tier, test_chain(1, 3000), kBlockBytes), size);
  put_all(*tier, test_chain(2, 10), kBlockBytes);
  EXPECT_EQ(count_right(*tier, test_chain(2, 10), kBlockBytes), 10);
}

// A pool over the disk, with one block in it so that there is a segment.
struct CacheOverDisk {
  explicit CacheOverDisk(const DiskTierConfig& config) : test(shapes(), 16, make_tiers(config)) {
    put_all(*disk, test_chain(1, 1), kSizeBytes);
  }

  static std::vector<KvLayerShape> shapes() { return {KvLayerShape{1, 4, 0}}; }
  std::vector<std::unique_ptr<KvTier>> make_tiers(const DiskTierConfig& config) {
    std::vector<std::unique_ptr<KvTier>> tiers;
    tiers.push_back(std::make_unique<DiskTier>(config, test_format(kSizeBytes)));
    disk = static_cast<DiskTier*>(tiers.back().get());
    return tiers;
  }
  // Computes num_blocks blocks that nothing holds afterwards.
  void run(int num_blocks) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(num_blocks * kBlockSize), 7);
    const int num_tokens = static_cast<int>(tokens.size());
    BlockTable table;
    ASSERT_EQ(test.cache.match(table, tokens, {}, num_tokens - 1), 0);
    ASSERT_TRUE(test.cache.extend(table, num_tokens));
    test.write(table, tokens, 0, num_tokens);
    test.cache.publish(table, tokens, num_tokens);
    test.cache.release(table);
  }

  static inline const std::int64_t kSizeBytes = KvLayout(shapes()).block_size_bytes();
  DiskTier* disk = nullptr;
  TestCache test;
};

// Loads end, the tier is off, and so is what owns it once it should be: no thread waits for the disk.
TEST_F(DiskFaultsTest, ADiskThatDoesNotAnswerHoldsNobodyUp) {
  static DiskFaults faults;  // the reader's, which outlives the test
  const KvLayout layout{std::vector{KvLayerShape{64, 1024}}};
  KvStorage storage(layout, 2);
  DiskTierConfig setup = config(kNeverMs);
  setup.make_io = [] {
    return std::make_unique<FaultyIo>(make_block_io(BlockIoKind::kThreads, 1), faults);
  };
  setup.drain_ms = 10;
  setup.hang_ms = 50;
  std::vector<std::unique_ptr<KvTier>> list;
  list.push_back(std::make_unique<DiskTier>(setup, test_format(layout.block_size_bytes())));
  KvTier& tier = *list[0];
  auto tiers =
      std::make_unique<KvTiers>(std::move(list), storage, layout.block_size_bytes(), 0);
  const auto blocks = test_chain(1, 2);
  put_all(tier, blocks, layout.block_size_bytes());
  EXPECT_EQ(tier.presence(blocks[0]), TierPresence::kPresent);
  faults.reads_hang = true;
  tiers->loader().start({{.block = blocks[0], .target = BlockId{0}, .tier = 0}});
  wait_until([&] { return tier.presence(blocks[0]) == TierPresence::kAbsent; });
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_EQ(tier.estimate_read_seconds(1), kOffSeconds);
  EXPECT_EQ(count_right(tier, blocks, layout.block_size_bytes()), 0);  // at once
  std::vector<EndedLoad> ended;
  wait_until([&] {
    tiers->loader().poll(ended);
    return !ended.empty();
  });
  EXPECT_EQ(ended[0].num_loaded, 0);
  tiers.reset();
  faults.reads_hang = false;
}

TEST_F(DiskFaultsTest, NothingIsTakenBehindAWriteThatDoesNotComeBack) {
  DiskTierConfig setup = config(kNeverMs);
  setup.hang_ms = 5;
  DiskTier tier(setup, test_format(kBlockBytes));
  const auto blocks = test_chain(1, 1);
  faults_.writes_hang = true;
  EXPECT_TRUE(put_block(tier, blocks[0], kBlockBytes));
  wait_until([&] { return !tier.takes_writes(); });
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_FALSE(put_block(tier, test_block(2, 0), kBlockBytes));
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 1) << "from its copy";
  faults_.writes_hang = false;
  wait_until([&] { return tier.stats().is_on && tier.stats().num_pending == 0; });
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 1);
}

TEST_F(DiskFaultsTest, ADiskThatIsNotReadTakesWhatIsEvicted) {
  CacheOverDisk pool(config(kNeverMs));
  faults_.read_error = EIO;
  for (int chain = 2; pool.disk->stats().is_on; ++chain) {
    put_all(*pool.disk, test_chain(chain, 1), CacheOverDisk::kSizeBytes);
    EXPECT_EQ(count_right(*pool.disk, test_chain(chain, 1), CacheOverDisk::kSizeBytes), 0);
  }
  pool.run(5);
  EXPECT_TRUE(pool.test.cache.can_save());
  const std::uint64_t num_before = pool.disk->stats().num_written;
  pool.test.cache.clear();
  wait_until([&] { return pool.disk->stats().num_pending == 0; });
  EXPECT_EQ(pool.disk->stats().num_written - num_before, 5u);
  EXPECT_EQ(pool.test.cache.stats().num_evicted_unsaved, 0u);
}

TEST_F(DiskFaultsTest, WhatAFailedWriteLostIsCountedWhenItIsEvicted) {
  CacheOverDisk pool(config(kNeverMs));
  pool.run(1);
  faults_.write_error = EIO;
  pool.test.cache.poll_tiers();
  EXPECT_FALSE(pool.test.cache.has_unsaved());  // taken
  wait_until([&] { return pool.disk->stats().num_pending == 0 && !pool.disk->takes_writes(); });
  pool.test.cache.clear();
  EXPECT_EQ(pool.test.cache.stats().num_evicted_unsaved, 1u);
}

TEST_F(DiskFaultsTest, ShortAndInterruptedTransfersAreFinished) {
  const auto blocks = test_chain(1, 100);
  faults_.short_transfers = true;
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 100);
  tier.reset();
  tier = open(kNeverMs);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 100);
  EXPECT_EQ(tier->stats().num_io_errors + tier->stats().num_corrupt, 0u);
}

TEST_F(DiskFaultsTest, ASlowDiskRefusesRatherThanWaits) {
  auto setup = config(kNeverMs);
  setup.staging_size_bytes = 4 * kBlockBytes;
  setup.drain_ms = 0;
  faults_.write_delay_ms = 20;
  const auto blocks = test_chain(1, 50);
  int num_taken = 0;
  {
    DiskTier tier(setup, test_format(kBlockBytes));
    for (const TierBlock& block : blocks) {
      if (!put_block(tier, block, kBlockBytes)) break;
      // Served from its copy, whatever the disk does.
      EXPECT_EQ(tier.presence(block), TierPresence::kPresent);
      EXPECT_EQ(count_right(tier, {&block, 1}, kBlockBytes), 1);
      ++num_taken;
    }
    EXPECT_GE(num_taken, 4);
    EXPECT_LT(num_taken, 50);
    EXPECT_EQ(tier.stats().num_refused, 0u);  // it may be offered again
  }
  faults_.write_delay_ms = 0;
  auto tier = open(kNeverMs);
  EXPECT_EQ(count_one_by_one(*tier, blocks), tier->stats().num_stored);
}

TEST_F(DiskFaultsTest, CallsWhatIsLeftOfDone) {
  auto tier = open(kNeverMs);
  const auto blocks = test_chain(1, 50);
  put_all(*tier, blocks, kBlockBytes);
  std::vector<std::vector<std::byte>> bytes(200, std::vector<std::byte>(50 * kBlockBytes));
  std::atomic<int> num_done = 0;
  for (auto& destination : bytes)
    tier->get({.blocks = blocks, .bytes = destination, .done = [&](TierAnswer) { ++num_done; }});
  tier.reset();
  EXPECT_EQ(num_done, 200);
}

// Puts blocks for ever, and says over the pipe how many are written.
[[noreturn]] void save_until_killed(const DiskTierConfig& config, int pipe_fd) {
  DiskTier tier(config, test_format(kBlockBytes));
  for (int chain = 1;; ++chain) {
    put_all(tier, test_chain(chain, 25), kBlockBytes);
    if (::write(pipe_fd, &chain, sizeof chain) != sizeof chain) ::_exit(1);
  }
}

TEST_F(DiskFaultsTest, KilledDuringASaveItHasAllThatWasWritten) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    const TempDir dir;
    DiskTierConfig setup = config(kNeverMs);
    setup.make_io = nullptr;
    setup.io = round % 2 == 0 ? BlockIoKind::kAuto : BlockIoKind::kThreads;
    setup.directory = dir.path();
    setup.size_bytes = 64 * kMiB;
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const pid_t child = ::fork();
    if (child == 0) save_until_killed(setup, fds[1]);
    ::close(fds[1]);
    int num_chains = 0;
    while (num_chains < 1 + round % 5 &&
           ::read(fds[0], &num_chains, sizeof num_chains) == sizeof num_chains) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;  // while it saved, not before
    int more = 0;
    while (::read(fds[0], &more, sizeof more) == sizeof more) num_chains = more;
    ::close(fds[0]);
    ASSERT_GT(num_chains, 0);

    DiskTier tier(setup, test_format(kBlockBytes));
    for (int chain = 1; chain <= num_chains; ++chain)
      ASSERT_EQ(count_right(tier, test_chain(chain, 25), kBlockBytes), 25) << chain;
    const int num_more = count_right(tier, test_chain(num_chains + 1, 25), kBlockBytes);
    ASSERT_EQ(tier.stats().num_stored, num_chains * 25 + num_more);
    ASSERT_EQ(tier.stats().num_corrupt, 0u);
  }
}

// Killed again and again over the same slots, which are full and replaced in place.
TEST_F(DiskFaultsTest, KilledWhileItReplacesBlocksItServesNoWrongOne) {
  DiskTierConfig setup = config(kNeverMs);
  setup.make_io = nullptr;
  setup.size_bytes = 1 * kMiB;
  for (int round = 0; round < 10; ++round) {
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const pid_t child = ::fork();
    if (child == 0) save_until_killed(setup, fds[1]);
    ::close(fds[1]);
    int num_chains = 0;
    while (num_chains < 10 + round &&
           ::read(fds[0], &num_chains, sizeof num_chains) == sizeof num_chains) {
    }
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(fds[0]);
    DiskTier tier(setup, test_format(kBlockBytes));
    ASSERT_GT(tier.stats().num_stored, 50);
    const std::int64_t num_stored = tier.stats().num_stored;
    int num_found = 0;
    for (int chain = 1; num_found < num_stored && chain < num_chains + 200; ++chain)
      num_found += count_one_by_one(tier, test_chain(chain, 25));
    ASSERT_EQ(num_found, num_stored);
  }
}

// Readers and the writer at once, over slots that are replaced all the time.
TEST_F(DiskFaultsTest, ReadsAndWritesAtOnce) {
  for (const BlockIoKind io : {BlockIoKind::kAuto, BlockIoKind::kThreads}) {
    DiskTierConfig setup = config(kNeverMs);
    setup.make_io = nullptr;
    setup.io = io;
    setup.size_bytes = 1 * kMiB;
    DiskTier tier(setup, test_format(kBlockBytes));
    std::atomic<bool> stop = false;
    std::thread watcher([&] {
      while (!stop) (void)tier.stats();
    });
    int num_found = 0;
    for (int chain = 1; chain <= 60; ++chain) {
      const auto blocks = test_chain(chain, 10);
      for (const TierBlock& block : blocks) {
        wait_until([&] { return put_block(tier, block, kBlockBytes); });
        num_found += count_right(tier, {&block, 1}, kBlockBytes);
      }
      num_found += count_right(tier, test_chain(std::max(1, chain - 5), 10), kBlockBytes);
    }
    stop = true;
    watcher.join();
    EXPECT_EQ(num_found, 1200);
    EXPECT_EQ(tier.stats().num_corrupt + tier.stats().num_io_errors, 0u);
  }
}

}  // namespace
}  // namespace larder
