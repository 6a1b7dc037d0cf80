#include "engine/prompt_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder {

bool operator==(const MissedSpan& a, const MissedSpan& b) {
  return a.begin == b.begin && a.end == b.end && a.cause == b.cause;
}
void PrintTo(const MissedSpan& span, std::ostream* out) {
  *out << '[' << span.begin << ", " << span.end << ") " << static_cast<int>(span.cause);
}

namespace {

using ::testing::ElementsAre;

MissedSpan missed(int begin, int end, MissCause cause) { return {.begin = begin, .end = end, .cause = cause}; }

TEST(PromptAccount, WhatThePoolHasIsKnownAtOnceAndCountsWhenSettled) {
  PromptAccount account;
  EXPECT_TRUE(account.is_new());
  EXPECT_EQ(account.num_cached(), 0);
  account.look_up(100, 64, {missed(99, 100, MissCause::kTooShort)});
  EXPECT_FALSE(account.is_new());
  EXPECT_FALSE(account.is_settled());
  EXPECT_EQ(account.num_cached(), 64);
  account.settle();
  EXPECT_TRUE(account.is_settled());
  EXPECT_EQ(account.num_cached(), 64);
  EXPECT_EQ(account.num_loaded(), 0);
}

TEST(PromptAccount, EachTokenIsComputedOnce) {
  PromptAccount account;
  account.look_up(100, 32, {});
  account.settle();
  EXPECT_EQ(account.compute_to(50), 18);
  EXPECT_EQ(account.compute_to(40), 0) << "preempted, and computed again";
  EXPECT_EQ(account.compute_to(90), 40);
  EXPECT_EQ(account.compute_to(104), 10) << "an answer is no prompt";
  EXPECT_EQ(account.compute_to(105), 0);
}

TEST(PromptAccount, LoadsAddUp) {
  PromptAccount account;
  account.look_up(200, 32, {missed(32, 199, MissCause::kEvicted), missed(199, 200, MissCause::kTooShort)});
  account.begin_load({.has_begun = true, .has_looked = true, .sure_end = 160});
  account.add({.num_matched = 96, .num_by_tier = {64, 0}});
  account.begin_load({.has_begun = true, .has_looked = true, .sure_end = 160});
  account.add({.num_matched = 160, .num_by_tier = {0, 64}});
  account.settle();
  EXPECT_EQ(account.num_cached(), 160);
  EXPECT_EQ(account.num_loaded(), 128);
  EXPECT_THAT(account.facts().num_loaded_by_tier, ElementsAre(64, 64));
  EXPECT_THAT(account.facts().missed,
              ElementsAre(missed(160, 199, MissCause::kEvicted), missed(199, 200, MissCause::kTooShort)));
}

// A load brings whole blocks, whatever the pool had of them.
TEST(PromptAccount, NoMoreIsLoadedThanThePoolLacked) {
  PromptAccount account;
  account.look_up(100, 40, {});
  account.add({.num_matched = 64, .num_by_tier = {16, 16}});
  account.settle();
  EXPECT_EQ(account.num_loaded(), 24);
  EXPECT_THAT(account.facts().num_loaded_by_tier, ElementsAre(16, 8));
}

TEST(PromptAccount, AFaultOfATierIsToldUpToWhereItWas) {
  PromptAccount account;
  account.look_up(100, 16, {missed(16, 80, MissCause::kEvicted), missed(99, 100, MissCause::kTooShort)});
  account.begin_load({.has_begun = true, .has_looked = true, .sure_end = 96});
  // What nothing was known of, a tier had.
  EXPECT_THAT(account.facts().missed, ElementsAre(missed(16, 80, MissCause::kEvicted), missed(80, 96, MissCause::kEvicted),
                                                  missed(99, 100, MissCause::kTooShort)));
  account.add({.num_matched = 32, .num_by_tier = {16}, .failed_end = 64});
  EXPECT_THAT(account.facts().missed,
              ElementsAre(missed(32, 64, MissCause::kTierFailed), missed(64, 80, MissCause::kEvicted),
                          missed(80, 96, MissCause::kEvicted), missed(99, 100, MissCause::kTooShort)));
}

// Cheaper to compute than to load.
TEST(PromptAccount, WhatIsNotWorthALoadIsTooShort) {
  PromptAccount account;
  account.look_up(100, 16, {missed(16, 80, MissCause::kEvicted)});
  account.begin_load({.has_begun = false, .has_looked = true, .sure_end = 48});
  EXPECT_THAT(account.facts().missed,
              ElementsAre(missed(16, 48, MissCause::kTooShort), missed(48, 80, MissCause::kEvicted)));
}

TEST(PromptAccount, WhatALoadThatIsGivenUpWouldHaveBroughtIsForgotten) {
  PromptAccount account;
  account.look_up(100, 16, {missed(16, 80, MissCause::kEvicted)});
  account.begin_load({.has_begun = true, .has_looked = true, .sure_end = 96});
  account.start_anew();
  EXPECT_TRUE(account.is_new());
  EXPECT_EQ(account.num_cached(), 0);
  EXPECT_TRUE(account.facts().missed.empty());
  account.look_up(100, 0, {});
  account.settle();
  EXPECT_EQ(account.compute_to(100), 100);
}

}  // namespace
}  // namespace larder
