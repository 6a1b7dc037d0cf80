#include "kv/tiers/tier_breaker.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

TEST(TierBreaker, IsOffForLongerEachTime) {
  TierBreaker breaker(100, 350);
  std::int64_t now_ns = 7;
  for (const int pause_ms : {100, 200, 350, 350}) {
    ASSERT_TRUE(breaker.is_on(now_ns));
    EXPECT_TRUE(breaker.fail(now_ns));
    EXPECT_EQ(breaker.pause_ns(), pause_ms * kNsPerMs);
    EXPECT_EQ(breaker.off_until_ns(), now_ns + pause_ms * kNsPerMs);
    now_ns = breaker.off_until_ns();
    EXPECT_FALSE(breaker.is_on(now_ns - 1));
  }
  breaker.succeed();
  EXPECT_TRUE(breaker.fail(now_ns));
  EXPECT_EQ(breaker.pause_ns(), 100 * kNsPerMs);
}

// What was under way when it was put off says nothing new.
TEST(TierBreaker, FailuresOfAPauseDoNotCount) {
  TierBreaker breaker(100, 350);
  EXPECT_TRUE(breaker.fail(0));
  const std::int64_t off_until_ns = breaker.off_until_ns();
  EXPECT_FALSE(breaker.fail(off_until_ns - 1));
  EXPECT_EQ(breaker.off_until_ns(), off_until_ns);
  EXPECT_EQ(breaker.pause_ns(), 100 * kNsPerMs);
}

TEST(TierBreaker, TakesSomeFailuresInARowAndThenOneAfterAPause) {
  TierBreaker breaker(100, 350, 3);
  EXPECT_FALSE(breaker.fail(0));
  EXPECT_FALSE(breaker.fail(0));
  breaker.succeed();
  EXPECT_FALSE(breaker.fail(0));
  EXPECT_FALSE(breaker.fail(0));
  EXPECT_TRUE(breaker.is_on(0));
  EXPECT_TRUE(breaker.fail(0));
  EXPECT_TRUE(breaker.fail(breaker.off_until_ns()));
  EXPECT_EQ(breaker.pause_ns(), 200 * kNsPerMs);
}

}  // namespace
}  // namespace larder
