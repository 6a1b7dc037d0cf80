// What the cache says of the tokens that it has not: against histories with known ends.
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "kv/kv_test_support.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;
constexpr std::int64_t kSecond = 1'000'000'000;

struct Outcome {
  int num_matched = 0;
  std::vector<MissedSpan> missed;
};

// Computes the tokens as a sequence would; pins them for ttl_ns if that is not 0.
Outcome run(TestCache& test, const Tokens& tokens, std::int64_t ttl_ns = 0) {
  BlockTable table;
  Outcome result;
  const int num_tokens = static_cast<int>(tokens.size());
  result.num_matched = test.cache.match(table, tokens, "", num_tokens - 1);
  const std::span<const TokenId> sought(tokens.data(), tokens.size() - 1);
  test.cache.explain_miss(table, sought, result.missed);
  EXPECT_TRUE(test.cache.extend(table, num_tokens));
  test.cache.publish(table, tokens, num_tokens);
  if (ttl_ns > 0) {
    EXPECT_TRUE(test.cache.pin(tokens, "", ttl_ns));
  }
  test.cache.release(table);
  return result;
}

TEST(KvCacheMiss, SaysNothingOfWhatItNeverSaw) {
  TestCache test({KvLayerShape{1, 4, 0}}, 8);
  EXPECT_TRUE(run(test, counting(40)).missed.empty());
  EXPECT_TRUE(run(test, counting(40, 1000)).missed.empty());
}

TEST(KvCacheMiss, TellsWhenRoomWasNeeded) {
  TestCache test({KvLayerShape{1, 4, 0}}, 4);
  run(test, counting(48));
  test.clock.advance_ns(5 * kSecond);
  const std::int64_t evicted_ns = test.clock.now_ns();
  run(test, counting(64, 1000));  // takes the whole pool
  test.clock.advance_ns(kSecond);
  const Outcome again = run(test, counting(48));
  EXPECT_EQ(again.num_matched, 0);
  ASSERT_EQ(again.missed.size(), 1u);
  EXPECT_EQ(again.missed[0].cause, MissCause::kEvicted);
  EXPECT_EQ(again.missed[0].begin, 0);
  EXPECT_EQ(again.missed[0].end, 32);  // full blocks of the 47 tokens that were sought
  EXPECT_EQ(again.missed[0].evicted_ns, evicted_ns);
  EXPECT_FALSE(again.missed[0].was_cleared);
}

TEST(KvCacheMiss, TellsWhereAnEvictedEndBegins) {
  TestCache test({KvLayerShape{1, 4, 0}}, 5);
  run(test, counting(64));
  run(test, counting(32, 1000));  // one block was free, one leaf goes
  const Outcome again = run(test, counting(64));
  EXPECT_EQ(again.num_matched, 48);
  EXPECT_TRUE(again.missed.empty());  // 15 tokens of the last block were sought: no full one
  const Outcome longer = run(test, counting(80));
  EXPECT_EQ(longer.num_matched, 64);
}

// 600 blocks later the table, of 1,024 places in sets of four, has lost some of the prompt's blocks.
TEST(KvCacheMiss, TellsOfBlocksBetweenForgottenOnes) {
  constexpr int kNumBlocks = 40;
  TestCache test({KvLayerShape{1, 4, 0}}, kNumBlocks);
  run(test, counting(30 * kBlockSize));
  for (int i = 1; i <= 16; ++i) run(test, counting(kNumBlocks * kBlockSize, 10'000 * i));
  const Outcome again = run(test, counting(30 * kBlockSize + 1));
  EXPECT_EQ(again.num_matched, 0);
  ASSERT_EQ(again.missed.size(), 1u);
  EXPECT_EQ(again.missed[0].cause, MissCause::kEvicted);
  EXPECT_EQ(again.missed[0].begin, 0);
  EXPECT_GE(again.missed[0].end, 26 * kBlockSize);
}

TEST(KvCacheMiss, TellsAPinThatExpired) {
  TestCache test({KvLayerShape{1, 4, 0}}, 4);
  run(test, counting(32), 10 * kSecond);
  test.clock.advance_ns(11 * kSecond);
  run(test, counting(64, 1000));
  const Outcome again = run(test, counting(33));
  ASSERT_EQ(again.missed.size(), 1u);
  EXPECT_EQ(again.missed[0].cause, MissCause::kExpired);
}

TEST(KvCacheMiss, TellsAPinThatHadToGo) {
  TestCache test({KvLayerShape{1, 4, 0}}, 4);
  run(test, counting(32), 10 * kSecond);
  run(test, counting(64, 1000));  // nothing else is left
  const Outcome again = run(test, counting(33));
  ASSERT_EQ(again.missed.size(), 1u);
  EXPECT_EQ(again.missed[0].cause, MissCause::kEvicted);
}

TEST(KvCacheMiss, TellsWhatWasCleared) {
  TestCache test({KvLayerShape{1, 4, 0}}, 8);
  run(test, counting(32));
  test.cache.clear();
  const Outcome again = run(test, counting(33));
  ASSERT_EQ(again.missed.size(), 1u);
  EXPECT_TRUE(again.missed[0].was_cleared);
}

TEST(KvCacheMiss, TellsAWindowThatSlid) {
  // Two groups: a kept one, and one that slides over 20 tokens.
  TestCache test({KvLayerShape{1, 4, 0}, KvLayerShape{1, 4, 20}}, 20);
  run(test, counting(160));
  // Short of room, what the window has passed goes first, the kept blocks stay.
  for (int round = 0; round < 3; ++round) run(test, counting(30, 1000 + 100 * round));
  const Outcome shorter = run(test, counting(100));
  ASSERT_LT(shorter.num_matched, 99);
  ASSERT_FALSE(shorter.missed.empty());
  EXPECT_EQ(shorter.missed[0].cause, MissCause::kWindowSlid);
  EXPECT_EQ(shorter.missed[0].begin, shorter.num_matched);
  EXPECT_EQ(shorter.missed[0].end, 96);
}

TEST(EvictedBlocks, KeepsTheNewestOfASet) {
  EvictedBlocks blocks(256);
  // Keys of one set.
  const auto key = [](std::uint64_t i) { return (i * 256 + 7) << 1 | 1; };
  for (std::uint64_t i = 0; i < 6; ++i)
    blocks.add({.key = key(i), .evicted_ns = static_cast<std::int64_t>(100 + i)});
  EXPECT_EQ(blocks.find(key(0)), nullptr);
  EXPECT_EQ(blocks.find(key(1)), nullptr);
  for (std::uint64_t i = 2; i < 6; ++i) ASSERT_NE(blocks.find(key(i)), nullptr) << i;
  blocks.add({.key = key(5), .evicted_ns = 500});  // again: no second place
  EXPECT_EQ(blocks.find(key(5))->evicted_ns, 500);
  EXPECT_NE(blocks.find(key(2)), nullptr);
}

}  // namespace
}  // namespace larder
