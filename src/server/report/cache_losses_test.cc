#include "server/report/cache_losses.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace larder {
namespace {

Json report(const char* misses, const char* divergence = "null") {
  return Json::parse(std::string(R"({"object":"cache.report","prompt_tokens":100,"cached_tokens":40,)") +
                     R"("misses":)" + misses + R"(,"divergence":)" + divergence + "}");
}

TEST(CacheLosses, PutsTheGreatestFirst) {
  CacheLosses losses;
  losses.add(report(R"([{"reason":"evicted","tokens":59,"advice":"Make room."},{"reason":"too_short","tokens":1}])"));
  const char* timestamp =
      R"({"class":"timestamp","segment":"system","old_text":"10:01","new_text":"10:02","advice":"Move it."})";
  for (int i = 0; i < 3; ++i) {
    losses.add(report(
        R"([{"reason":"diverged","tokens":30},{"reason":"never_seen","tokens":29},{"reason":"too_short","tokens":1}])",
        timestamp));
  }
  EXPECT_EQ(losses.num_requests(), 4);
  EXPECT_EQ(losses.num_prompt_tokens(), 400);
  EXPECT_EQ(losses.num_cached_tokens(), 160);
  EXPECT_EQ(losses.num_new_tokens(), 91);
  const std::vector<CacheLoss> sorted = losses.sorted();
  ASSERT_EQ(sorted.size(), 2u);
  EXPECT_EQ(sorted[0].why, "timestamp");
  EXPECT_EQ(sorted[0].num_tokens, 90);
  EXPECT_EQ(sorted[0].num_requests, 3);
  EXPECT_EQ(sorted[0].advice, "Move it.");
  EXPECT_EQ(sorted[1].why, "evicted");
  EXPECT_EQ(sorted[1].advice, "Make room.");
}

TEST(CacheLosses, KeepsApartWhatIsHelpedInOtherWays) {
  CacheLosses losses;
  losses.add(report(R"([{"reason":"bypassed","tokens":20,"advice":"Ask less."},{"reason":"bypassed","tokens":1,"advice":"Ask less."}])"));
  losses.add(report(R"([{"reason":"bypassed","tokens":30,"advice":"Look further."}])"));
  losses.add(report(R"([{"reason":"bypassed","tokens":5,"advice":"Ask less."}])"));
  const std::vector<CacheLoss> sorted = losses.sorted();
  ASSERT_EQ(sorted.size(), 2u);
  EXPECT_EQ(sorted[0].advice, "Look further.");
  EXPECT_EQ(sorted[1].advice, "Ask less.");
  EXPECT_EQ(sorted[1].num_tokens, 26);
  EXPECT_EQ(sorted[1].num_requests, 2);
}

TEST(CacheLosses, RefusesWhatIsNoReport) {
  CacheLosses losses;
  EXPECT_THROW(losses.add(Json::parse("[]")), Error);
  EXPECT_THROW(losses.add(Json::parse(R"({"object":"list"})")), Error);
  for (const char* odd : {R"("prompt_tokens":"many")", R"("cached_tokens":null)", R"("misses":7)",
                          R"("misses":[{"tokens":"all"}])", R"("misses":{"tokens":1})"}) {
    EXPECT_THROW(
        losses.add(Json::parse(std::string(R"({"object":"cache.report",)") + odd + "}")), Error)
        << odd;
  }
  losses.add(Json::parse(R"({"object":"cache.report","misses":[7,"x"]})"));
  EXPECT_EQ(losses.num_requests(), 1) << "what was refused does not count";
}

}  // namespace
}  // namespace larder
