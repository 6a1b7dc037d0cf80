// Fault 34 as a reader sees it: EIO, flipped bits, a disk that is dead.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <span>
#include <vector>

#include "kv/tiers/disk_faults_test_support.h"

namespace larder {
namespace {

TEST_F(DiskFaultsTest, AnUnreadableBlockIsAMiss) {
  const auto blocks = test_chain(1, 10);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  faults_.num_read_errors = 1;
  faults_.read_error = EIO;
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
  EXPECT_EQ(tier->stats().num_io_errors, 1u);
  EXPECT_TRUE(tier->stats().is_on);
  EXPECT_EQ(tier->presence(blocks[0]), TierPresence::kAbsent);
  EXPECT_EQ(count_right(*tier, std::span(blocks).subspan(1), kBlockBytes), 9);
  put_all(*tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 10);
}

TEST_F(DiskFaultsTest, SaysWhetherAFaultEndedARead) {
  auto tier = open(kNeverMs);
  put_all(*tier, test_chain(1, 10), kBlockBytes);
  const auto expect = [&](int num_found, bool is_faulty) {
    const TestRead read = read_blocks(*tier, test_chain(1, 12), kBlockBytes);
    EXPECT_EQ(read.num_found, num_found);
    EXPECT_EQ(read.is_faulty, is_faulty);
  };
  expect(10, false);
  faults_.num_read_errors = 1;
  faults_.read_error = EIO;
  expect(0, true);
  expect(0, false);  // the first one has gone
  put_all(*tier, test_chain(1, 1), kBlockBytes);
  faults_.num_read_errors = INT32_MAX;
  expect(0, true);
  EXPECT_FALSE(tier->stats().is_on);
  expect(0, true);  // not asked for
}

// The place stays bad, and its header is still on the disk.
TEST_F(DiskFaultsTest, ARestartFindsWhatWasWrittenAnewForAnUnreadableBlock) {
  const auto blocks = test_chain(1, 1);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  faults_.bad_place = shape().payload_offset(0);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
  put_all(*tier, blocks, kBlockBytes);
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 1) << start;
    tier.reset();
    tier = open(kNeverMs);
    EXPECT_EQ(tier->stats().num_stored, 1);
  }
}

TEST_F(DiskFaultsTest, ABadPageOfHeadersHidesThoseAlone) {
  const auto blocks = test_chain(1, 100);
  put_all(*open(kNeverMs), blocks, kBlockBytes);
  faults_.bad_place = shape().header_offset(20);
  auto tier = open(kNeverMs);
  EXPECT_EQ(tier->stats().num_io_errors, 1u);
  EXPECT_EQ(count_one_by_one(*tier, blocks), 100 - 16);
  tier.reset();
  faults_.bad_place = -1;
  EXPECT_EQ(count_right(*open(kNeverMs), blocks, kBlockBytes), 100);
}

TEST_F(DiskFaultsTest, AFaultOfTheSystemCostsNoBlock) {
  const auto blocks = test_chain(1, 10);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  faults_.num_read_errors = 1;
  faults_.read_error = ENOMEM;
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
  EXPECT_EQ(tier->stats().num_io_errors, 1u);
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 10);
}

// One that is dead, not bad in some places, has lost no more than it was found out with.
TEST_F(DiskFaultsTest, ADiskThatComesBackStillHasItsBlocks) {
  const auto blocks = test_chain(1, 10);
  auto tier = open(1);
  put_all(*tier, blocks, kBlockBytes);
  faults_.read_error = EIO;
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
  EXPECT_EQ(tier->stats().num_io_errors, 10u);
  faults_.read_error = 0;
  wait_until([&] { return tier->stats().is_on; });
  EXPECT_EQ(count_right(*tier, std::span(blocks).subspan(3), kBlockBytes), 7);
}

TEST_F(DiskFaultsTest, ADeadDiskTurnsReadsOff) {
  const auto blocks = test_chain(1, 10);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  faults_.read_error = EIO;
  wait_until([&] {
    EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
    return !tier->stats().is_on;
  });
  EXPECT_EQ(tier->presence(blocks[9]), TierPresence::kAbsent);
  EXPECT_GT(tier->estimate_read_seconds(1), 1e6);
  tier.reset();
  // Its headers cannot be read: nothing is found, nothing is overwritten.
  tier = open(kNeverMs);
  EXPECT_EQ(tier->stats().num_stored, 0);
  tier.reset();
  faults_.read_error = 0;
  EXPECT_EQ(count_right(*open(kNeverMs), blocks, kBlockBytes), 10);
}

TEST_F(DiskFaultsTest, WhatADeadDiskLeavesUnreadIsMissed) {
  const auto blocks = test_chain(1, 8);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  faults_.read_error = EIO;
  std::promise<void> all_asked;
  std::atomic<int> num_answered = 0;
  std::vector<std::byte> bytes(8 * kBlockBytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    tier->get({.blocks = std::span(blocks).subspan(i, 1),
               .bytes = std::span(bytes).subspan(i * kBlockBytes, kBlockBytes),
               .done = [&, i](TierAnswer) {
                 if (i == 0) all_asked.get_future().wait();
                 ++num_answered;
               }});
  }
  all_asked.set_value();
  wait_until([&] { return num_answered == 8; });
  EXPECT_EQ(tier->stats().num_io_errors, 3u);
  EXPECT_EQ(tier->stats().num_missed, 5u);
}

TEST_F(DiskFaultsTest, FlippedBitsOnTheWayAreMisses) {
  const auto blocks = test_chain(1, 10);
  auto tier = open(kNeverMs);
  put_all(*tier, blocks, kBlockBytes);
  faults_.flip_bits = true;
  EXPECT_EQ(count_right(*tier, blocks, kBlockBytes), 0);
  EXPECT_EQ(tier->stats().num_corrupt, 10u);
  EXPECT_TRUE(tier->stats().is_on);
}

}  // namespace
}  // namespace larder
