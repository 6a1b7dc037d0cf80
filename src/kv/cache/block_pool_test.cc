#include "kv/cache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace larder {
namespace {

TEST(BlockPool, FreeAndHeldAddUpWhateverHappens) {
  constexpr int kNumBlocks = 13;
  BlockPool pool(kNumBlocks);
  std::vector<int> expected(kNumBlocks, 0);
  std::mt19937 random(1);
  for (int step = 0; step < 20000; ++step) {
    const int action = static_cast<int>(random() % 3);
    const auto index = random() % kNumBlocks;
    const BlockId block{static_cast<std::int32_t>(index)};
    if (action == 0) {
      const auto allocated = pool.allocate();
      const bool any_free = std::ranges::count(expected, 0) > 0;
      ASSERT_EQ(allocated.has_value(), any_free);
      if (allocated) {
        auto& count = expected[static_cast<std::size_t>(to_index(*allocated))];
        ASSERT_EQ(count, 0);
        count = 1;
      }
    } else if (expected[index] > 0) {
      action == 1 ? pool.hold(block) : pool.release(block);
      expected[index] += action == 1 ? 1 : -1;
    }
    ASSERT_EQ(pool.ref_count(block), expected[index]);
    ASSERT_EQ(pool.num_free(), std::ranges::count(expected, 0));
    ASSERT_EQ(pool.num_free() + pool.num_held(), pool.num_blocks());
  }
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(BlockId{0}), "CHECK failed");
  EXPECT_DEATH(pool.hold(BlockId{1}), "CHECK failed");
  EXPECT_DEATH(pool.release(BlockId::kNone), "CHECK failed");
}

}  // namespace
}  // namespace larder
