// The remote tier against the real server; fault 36 as far as a real server shows it.
#include "kv/tiers/remote_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_test_support.h"
#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_value.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

constexpr std::int64_t kBlockBytes = 50'000;

class RemoteTierTest : public RedisTest {
 protected:
  static RemoteTierConfig config(const RedisServer& server) { return RedisTest::config(server.url(), kBlockBytes); }
};

TEST_F(RemoteTierTest, GivesBackWhatWasPut) {
  const RedisServer server;
  const auto blocks = test_chain(1, 60);
  {
    RemoteTier tier(config(server), test_format(kBlockBytes));
    EXPECT_TRUE(tier.stats().is_on);
    EXPECT_EQ(tier.presence(blocks[0]), TierPresence::kUnknown);
    EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 0);
    put_all(tier, blocks, kBlockBytes);
    EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 60);
    EXPECT_EQ(count_right(tier, std::vector{blocks[3], test_block(2, 0), blocks[4]}, kBlockBytes),
              1);
    const TierStats stats = tier.stats();
    EXPECT_EQ(stats.num_written, 60u);
    EXPECT_EQ(stats.num_read, 61u);
    EXPECT_EQ(stats.num_missed, 2u);
    EXPECT_EQ(stats.num_corrupt + stats.num_io_errors + stats.num_timeouts, 0u);
    EXPECT_GT(tier.estimate_read_seconds(100), tier.estimate_read_seconds(1));
  }
  RemoteTier other(config(server), test_format(kBlockBytes));
  EXPECT_EQ(count_right(other, blocks, kBlockBytes), 60);
  // Sent by another already: not again.
  put_all(other, blocks, kBlockBytes);
  EXPECT_EQ(other.stats().num_written, 0u);
  EXPECT_EQ(server.ask({"DBSIZE"}), "60");
}

TEST_F(RemoteTierTest, SaysWhichThreadTheSystemRefuses) {
  const RedisServer server;
  const auto open = [&] {
    run_with_threads(1, [&] { const RemoteTier tier(config(server), test_format(kBlockBytes)); });
  };
  EXPECT_EXIT(open(), ::testing::ExitedWithCode(3),
              "cannot start the thread that reads from the remote tier: .*pids.max");
}

TEST_F(RemoteTierTest, TheDestructorSendsWhatIsQueued) {
  const RedisServer server;
  const auto blocks = test_chain(1, 50);
  {
    RemoteTier tier(config(server), test_format(kBlockBytes));
    for (const TierBlock& block : blocks) ASSERT_TRUE(put_block(tier, block, kBlockBytes));
  }
  RemoteTier tier(config(server), test_format(kBlockBytes));
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 50);
}

TEST_F(RemoteTierTest, CompressesAndExpiresIfTold) {
  const RedisServer server;
  RemoteTierConfig compressed = config(server);
  compressed.compression_level = 3;
  compressed.ttl_seconds = 1000;
  compressed.key_prefix = "team:a";
  const TierFormat format = test_format(kBlockBytes);
  RemoteTier tier(compressed, format);
  const TierBlock zeros = test_block(1, 0);
  const std::vector<std::byte> bytes(kBlockBytes);
  ASSERT_TRUE(tier.put(zeros, bytes));
  put_all(tier, test_chain(2, 3), kBlockBytes);  // random bytes: no shorter, so stored as they are
  EXPECT_EQ(read_blocks(tier, {&zeros, 1}, kBlockBytes).num_found, 1);
  EXPECT_EQ(read_blocks(tier, {&zeros, 1}, kBlockBytes).bytes, bytes);
  EXPECT_EQ(count_right(tier, test_chain(2, 3), kBlockBytes), 3);
  const std::string key = remote_key("team:a", format, zeros);
  EXPECT_LT(std::stoi(server.ask({"STRLEN", key})), 1000);
  EXPECT_GT(std::stoi(server.ask({"TTL", key})), 900);
  // A put of what is there renews its time.
  EXPECT_EQ(server.ask({"EXPIRE", key, "10"}), "1");
  ASSERT_TRUE(tier.put(zeros, bytes));
  wait_until([&] { return tier.stats().num_pending == 0; });
  EXPECT_GT(std::stoi(server.ask({"TTL", key})), 900);
}

TEST_F(RemoteTierTest, TouchesRenewTheTimeAndTellWhatHasGone) {
  const RedisServer server;
  RemoteTierConfig expiring = config(server);
  expiring.ttl_seconds = 1000;
  const TierFormat format = test_format(kBlockBytes);
  RemoteTier tier(expiring, format);
  EXPECT_EQ(tier.touch_interval_ns(), 60'000'000'000);
  const auto blocks = test_chain(1, 2);
  put_all(tier, blocks, kBlockBytes);
  const std::string key = remote_key("larder", format, blocks[0]);
  EXPECT_EQ(server.ask({"EXPIRE", key, "10"}), "1");
  EXPECT_EQ(server.ask({"DEL", remote_key("larder", format, blocks[1])}), "1");
  EXPECT_TRUE(tier.touch(blocks[0]));
  wait_until([&] { return std::stoi(server.ask({"TTL", key})) > 900; });
  // Found out behind, so that it is said when asked again.
  wait_until([&] { return !tier.touch(blocks[1]); });
  EXPECT_TRUE(tier.touch(blocks[0]));
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 2);
  EXPECT_EQ(tier.stats().num_written, 3u);
}

// For eviction from the pool, which comes before the next touch.
TEST_F(RemoteTierTest, KnowsWhatATouchDidNotFindUntilItIsPutAgain) {
  const RedisServer server;
  const TierFormat format = test_format(kBlockBytes);
  RemoteTier tier(config(server), format);
  const auto blocks = test_chain(1, 2);
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(server.ask({"DEL", remote_key("larder", format, blocks[1])}), "1");
  EXPECT_FALSE(tier.has_lost(blocks[1]));
  for (const TierBlock& block : blocks) EXPECT_TRUE(tier.touch(block));
  wait_until([&] { return tier.has_lost(blocks[1]); });
  EXPECT_FALSE(tier.has_lost(blocks[0]));
  EXPECT_TRUE(put_block(tier, blocks[1], kBlockBytes));
  EXPECT_FALSE(tier.has_lost(blocks[1]));
  wait_until([&] { return tier.stats().num_pending == 0; });
  EXPECT_TRUE(tier.touch(blocks[1]));
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 2);
}

// So that a server that evicts by use keeps what the pool answers for.
TEST_F(RemoteTierTest, WhatNeverExpiresIsTouchedToo) {
  const RedisServer server;
  RemoteTier tier(config(server), test_format(kBlockBytes));
  const auto blocks = test_chain(1, 2);
  put_all(tier, {blocks.data(), 1}, kBlockBytes);
  EXPECT_TRUE(tier.touch(blocks[0]));
  wait_until([&] {
    return server.ask({"INFO", "commandstats"}).find("cmdstat_touch") != std::string::npos;
  });
  wait_until([&] { return !tier.touch(blocks[1]); });
}

TEST_F(RemoteTierTest, UsesThePasswordAndTheDatabase) {
  const RedisServer server({}, "p@ss:word/");
  RemoteTierConfig with = config(server);
  with.url = "redis://:p%40ss%3Aword%2F@" + server.url().substr(8) + "/3";
  RemoteTier tier(with, test_format(kBlockBytes));
  EXPECT_TRUE(tier.stats().is_on);
  put_all(tier, test_chain(1, 2), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 2), kBlockBytes), 2);
  EXPECT_EQ(server.ask({"DBSIZE"}), "0");
  const RemoteTier without(config(server), test_format(kBlockBytes));
  EXPECT_FALSE(without.stats().is_on);
}

// Fault 38: models and versions have keys of their own, and values say what they are.
TEST_F(RemoteTierTest, NeverUsesAnotherFormatsValues) {
  const RedisServer server;
  const auto blocks = test_chain(1, 5);
  RemoteTier one(config(server), test_format(kBlockBytes, 1));
  RemoteTier two(config(server), test_format(kBlockBytes, 2));
  put_all(one, blocks, kBlockBytes);
  EXPECT_EQ(count_right(two, blocks, kBlockBytes), 0);
  EXPECT_EQ(two.stats().num_corrupt, 0u);
  // The same first 64 bits: told apart by what is in the value.
  TierFormat near = test_format(kBlockBytes, 1);
  near.fingerprint[31] ^= 1;
  RemoteTier three(config(server), near);
  EXPECT_EQ(count_right(three, blocks, kBlockBytes), 0);
  EXPECT_EQ(three.stats().num_corrupt, 5u);
}

TEST_F(RemoteTierTest, WrongValuesAreMissesAndAreWrittenAnew) {
  const RedisServer server;
  const TierFormat format = test_format(kBlockBytes);
  const auto blocks = test_chain(1, 6);
  RemoteTier tier(config(server), format);
  put_all(tier, blocks, kBlockBytes);
  const auto key = [&](int i) {
    return remote_key("larder", format, blocks[static_cast<std::size_t>(i)]);
  };
  server.ask({"SETRANGE", key(0), "30000", "xyz"});
  server.ask({"SETRANGE", key(1), "100", "xyz"});
  server.ask({"APPEND", key(2), "one byte or more"});
  server.ask({"SET", key(3), "short"});
  server.ask({"DEL", key(4)});
  server.ask({"RPUSH", key(4), "a", "list"});
  server.ask({"SETRANGE", key(5), "5000000", "long"});
  for (const TierBlock& block : blocks) EXPECT_EQ(count_right(tier, {&block, 1}, kBlockBytes), 0);
  EXPECT_EQ(tier.stats().num_corrupt, 6u);
  EXPECT_TRUE(tier.stats().is_on);
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 6);
}

TEST_F(RemoteTierTest, AnEvictingServerMakesMisses) {
  const RedisServer server({"--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"});
  RemoteTier tier(config(server), test_format(kBlockBytes));
  int num_found = 0;
  for (int chain = 1; chain <= 30; ++chain) {
    put_all(tier, test_chain(chain, 10), kBlockBytes);
    for (const TierBlock& block : test_chain(std::max(1, chain - 3), 10))
      num_found += count_right(tier, {&block, 1}, kBlockBytes);
  }
  EXPECT_LT(num_found, 300);
  EXPECT_GT(tier.stats().num_missed, 0u);
  EXPECT_EQ(tier.stats().num_corrupt, 0u);
}

TEST_F(RemoteTierTest, AFullServerStopsWritesNotReads) {
  const RedisServer server({"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"});
  RemoteTierConfig setup = config(server);
  setup.max_retry_ms = 1'000'000;
  RemoteTier tier(setup, test_format(kBlockBytes));
  const auto blocks = test_chain(1, 200);
  for (const TierBlock& block : blocks) {
    if (!put_block(tier, block, kBlockBytes)) break;
  }
  wait_until([&] { return !tier.stats().is_on; });
  EXPECT_FALSE(put_block(tier, test_block(2, 0), kBlockBytes));
  EXPECT_GT(tier.stats().num_io_errors, 0u);
  EXPECT_GT(count_right(tier, blocks, kBlockBytes), 10);
}

TEST_F(RemoteTierTest, IsOffWhileTheServerIsGoneAndComesBack) {
  RedisServer server;
  RemoteTier tier(config(server), test_format(kBlockBytes));
  const auto blocks = test_chain(1, 20);
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 20);
  server.kill();
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 0);
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_EQ(tier.presence(blocks[0]), TierPresence::kAbsent);
  EXPECT_GT(tier.estimate_read_seconds(1), 1e6);
  EXPECT_FALSE(put_block(tier, test_block(2, 0), kBlockBytes));
  server.start();
  wait_until([&] { return tier.stats().is_on; });
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 0);  // it has forgotten all
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 20);
}

// Restarted between two reads: the connection is stale, the server is not.
TEST_F(RemoteTierTest, OpensAStaleConnectionAgain) {
  const RedisServer server;
  RemoteTier tier(config(server), test_format(kBlockBytes));
  put_all(tier, test_chain(1, 5), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 5), kBlockBytes), 5);
  server.ask({"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_EQ(count_right(tier, test_chain(1, 5), kBlockBytes), 5);
  put_all(tier, test_chain(2, 5), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(2, 5), kBlockBytes), 5);
  EXPECT_EQ(tier.stats().num_io_errors, 0u);
}

TEST_F(RemoteTierTest, AHungServerCostsOneTimeout) {
  const RedisServer server;
  RemoteTierConfig setup = config(server);
  setup.connect_timeout_ms = setup.batch_timeout_ms = 1000;
  setup.first_retry_ms = setup.max_retry_ms = 1'000'000;
  setup.drain_ms = 100;
  const auto blocks = test_chain(1, 20);
  {
    RemoteTier patient(config(server), test_format(kBlockBytes));
    put_all(patient, blocks, kBlockBytes);
  }
  RemoteTier tier(setup, test_format(kBlockBytes));
  ASSERT_TRUE(tier.stats().is_on);
  server.signal(SIGSTOP);
  std::vector<std::vector<std::byte>> bytes(50, std::vector<std::byte>(20 * kBlockBytes));
  std::atomic<int> num_done = 0;
  for (auto& destination : bytes)
    tier.get({.blocks = blocks, .bytes = destination, .done = [&](const TierAnswer& answer) {
                EXPECT_EQ(answer.num_found, 0);
                ++num_done;
              }});
  wait_until([&] { return num_done == 50; });
  EXPECT_EQ(tier.stats().num_timeouts, 1u);
  EXPECT_FALSE(tier.stats().is_on);
  server.signal(SIGCONT);
}

TEST_F(RemoteTierTest, StartsOffWithoutAServer) {
  RedisServer server;
  server.kill();
  RemoteTier tier(config(server), test_format(kBlockBytes));
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_FALSE(put_block(tier, test_block(1, 0), kBlockBytes));
  EXPECT_EQ(count_right(tier, test_chain(1, 1), kBlockBytes), 0);
  server.start();
  wait_until([&] { return tier.stats().is_on; });
  put_all(tier, test_chain(1, 3), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 3);
}

TEST(RemoteTier, RefusesABadConfiguration) {
  const auto expect_error = [](const RemoteTierConfig& config) {
    try {
      RemoteTier tier(config, test_format(kBlockBytes));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    }
  };
  RemoteTierConfig good;
  good.url = "redis://127.0.0.1:1";
  for (const std::string& prefix : std::vector<std::string>{"", "a b", std::string(65, 'a')}) {
    RemoteTierConfig bad = good;
    bad.key_prefix = prefix;
    expect_error(bad);
  }
  RemoteTierConfig bad = good;
  bad.compression_level = 20;
  expect_error(bad);
  bad = good;
  bad.ttl_seconds = -1;
  expect_error(bad);
  bad = good;
  bad.url = "http://127.0.0.1";
  expect_error(bad);
}

}  // namespace
}  // namespace larder
