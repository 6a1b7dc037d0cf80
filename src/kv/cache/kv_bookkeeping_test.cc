// What a cache takes beside the storage of its blocks, against what it says.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/heap_test_support.h"
#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

constexpr int kNumBlocks = 100'000;
constexpr int kNumSpare = 100;
constexpr KvLayerShape kFull{1, 1, 0};
constexpr KvLayerShape kSliding{1, 1, 32};

// With more prompts than it has room for, of so many blocks, each with a salt of its own.
void fill(KvCache& cache, int num_prompt_blocks, bool is_pinned) {
  const int num_tokens = num_prompt_blocks * kBlockSize;
  const int num_prompts = kNumBlocks / num_prompt_blocks / cache.num_groups() + kNumSpare;
  for (int prompt = 0; prompt < num_prompts; ++prompt) {
    const std::vector<TokenId> tokens(static_cast<std::size_t>(num_tokens), prompt);
    const std::string salt = std::string(24, 's') + std::to_string(10'000'000 + prompt);
    BlockTable table;
    ASSERT_EQ(cache.match(table, tokens, salt, num_tokens - 1), 0);
    ASSERT_TRUE(cache.extend(table, num_tokens));
    cache.publish(table, tokens, num_tokens);
    if (is_pinned) {
      ASSERT_TRUE(cache.pin(tokens, salt, 1'000'000'000));
    }
    cache.release(table);
  }
  const KvStats stats = cache.stats();
  EXPECT_GT(stats.num_cached, kNumBlocks - kNumSpare);
  EXPECT_EQ(stats.num_pinned, is_pinned ? stats.num_cached : 0);
}

class KvBookkeepingTest : public testing::TestWithParam<EvictionKind> {
 protected:
  void SetUp() override {
    if (!is_heap_known()) GTEST_SKIP() << "the heap's size is not known";
  }
};

TEST_P(KvBookkeepingTest, IsNeverPassedAndHardlyMore) {
  const KvLayout layout(std::vector{kFull});
  KvStorage storage(layout, kNumBlocks);
  const ManualClock clock;
  const KvCacheConfig config{
      .num_blocks = kNumBlocks, .eviction = GetParam(), .max_pinned_share = 1};
  const std::int64_t before = heap_in_use();
  KvCache cache(layout, storage, clock, config);
  fill(cache, 1, /*is_pinned=*/true);
  const std::int64_t measured = heap_in_use() - before;
  const KvBookkeeping planned = KvCache::bookkeeping(layout, config, 0);
  EXPECT_LE(measured, planned.fixed_bytes + planned.growth_bytes);
  EXPECT_GE(measured, (planned.fixed_bytes + planned.growth_bytes) * 4 / 5);
}

// Of what grows, it has at the start what it has reserved and not touched.
TEST_P(KvBookkeepingTest, CountsWhatIsThereFromTheStart) {
  const KvLayout layout(std::vector{kFull, kSliding, kSliding});
  KvStorage storage(layout, kNumBlocks);
  const ManualClock clock;
  const KvCacheConfig config{.num_blocks = kNumBlocks, .eviction = GetParam()};
  const std::int64_t before = heap_in_use();
  KvCache cache(layout, storage, clock, config);
  const std::int64_t at_start = heap_in_use() - before;
  const KvBookkeeping planned = KvCache::bookkeeping(layout, config, 0);
  EXPECT_GE(at_start, planned.fixed_bytes * 4 / 5);
  EXPECT_LE(at_start, planned.fixed_bytes + planned.growth_bytes);
  fill(cache, 10, /*is_pinned=*/false);
  EXPECT_LE(heap_in_use() - before, planned.fixed_bytes + planned.growth_bytes);
}

INSTANTIATE_TEST_SUITE_P(Kinds, KvBookkeepingTest,
                         testing::Values(EvictionKind::kDensity, EvictionKind::kLru));

}  // namespace
}  // namespace larder
