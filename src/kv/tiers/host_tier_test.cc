#include "kv/tiers/host_tier.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

constexpr std::int64_t kBlockBytes = 1000;

std::span<const TierBlock> first(const std::vector<TierBlock>& blocks, std::size_t count) {
  return std::span(blocks).first(count);
}

TEST(HostTier, GivesBackWhatItTook) {
  HostTier tier(8 * kBlockBytes + 999, kBlockBytes, nullptr);
  const auto blocks = test_chain(1, 8);
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 8);
  EXPECT_EQ(tier.presence(blocks[7]), TierPresence::kPresent);
  EXPECT_EQ(tier.presence(test_block(2, 0)), TierPresence::kAbsent);
  EXPECT_TRUE(tier.has_lost(test_block(2, 0)));
  const TierStats stats = tier.stats();
  EXPECT_EQ(stats.num_written, 8u);
  EXPECT_EQ(stats.bytes_written, 8 * kBlockBytes);
  EXPECT_EQ(stats.num_read, 8u);
  EXPECT_EQ(stats.bytes_read, 8 * kBlockBytes);
  EXPECT_EQ(stats.num_stored, 8);
  EXPECT_EQ(stats.bytes_stored, 8 * kBlockBytes);
  EXPECT_EQ(stats.num_evicted, 0u);
  EXPECT_GT(tier.estimate_read_seconds(8), tier.estimate_read_seconds(1));
}

TEST(HostTier, AReadEndsAtWhatIsNotThere) {
  HostTier tier(8 * kBlockBytes, kBlockBytes, nullptr);
  auto blocks = test_chain(1, 4);
  put_all(tier, first(blocks, 2), kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 2);
  EXPECT_EQ(tier.stats().num_missed, 1u);
  blocks[1].tokens[3] += 1;  // another block, whatever its digest says
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 1);
  EXPECT_EQ(tier.stats().num_corrupt, 1u);
}

TEST(HostTier, TheLeastRecentlyUsedEndsMakeRoom) {
  HostTier tier(6 * kBlockBytes, kBlockBytes, nullptr);
  const auto old = test_chain(1, 3), used = test_chain(2, 3), fresh = test_chain(3, 2);
  put_all(tier, used, kBlockBytes);
  put_all(tier, old, kBlockBytes);
  for (int i = 3; i-- > 0;) EXPECT_TRUE(tier.touch(used[static_cast<std::size_t>(i)]));
  put_all(tier, fresh, kBlockBytes);
  EXPECT_EQ(count_right(tier, fresh, kBlockBytes), 2);
  EXPECT_EQ(count_right(tier, used, kBlockBytes), 3);
  EXPECT_EQ(count_right(tier, old, kBlockBytes), 1);
  EXPECT_FALSE(tier.touch(old[2]));
  EXPECT_EQ(tier.stats().num_evicted, 2u);
  EXPECT_EQ(tier.stats().num_stored, 6);
}

TEST(HostTier, OfAChainThatIsTooLongTheBeginningStays) {
  for (const int num_groups : {1, 3}) {
    for (int num_slots = 3 * num_groups; num_slots < 5 * num_groups; ++num_slots) {
      HostTier tier(num_slots * kBlockBytes, kBlockBytes, nullptr);
      const auto before = test_chain(1, num_slots);
      put_all(tier, before, kBlockBytes);
      std::vector<TierBlock> blocks;
      for (int i = 0; i < 20; ++i)
        for (int group = 0; group < num_groups; ++group) blocks.push_back(test_block(2, i, group));
      put_all(tier, blocks, kBlockBytes);
      EXPECT_EQ(count_right(tier, blocks, kBlockBytes), num_slots) << num_groups;
      EXPECT_EQ(tier.stats().num_stored, num_slots);
      EXPECT_EQ(tier.stats().num_refused, blocks.size() - static_cast<std::size_t>(num_slots));
    }
  }
}

TEST(HostTier, RefusesASizeForNoBlock) {
  EXPECT_THROW(HostTier(kBlockBytes - 1, kBlockBytes, nullptr), Error);
}

}  // namespace
}  // namespace larder
