#include "kv/tiers/read_rate.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr double kAssumed = 2e-11;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kMany = 64 << 20;

TEST(ReadRate, FollowsWhatIsMeasured) {
  ReadRate rate(kAssumed);
  EXPECT_EQ(rate.seconds_per_byte(5 * kSecond), kAssumed);
  rate.measure(0.064, kMany, kSecond);
  EXPECT_NEAR(rate.seconds_per_byte(kSecond), 0.064 / kMany, 1e-15);
  for (int i = 0; i < 50; ++i) rate.observe(0.64, kMany, 2 * kSecond);
  EXPECT_NEAR(rate.seconds_per_byte(2 * kSecond), 0.64 / kMany, 1e-12);
}

TEST(ReadRate, ASmallReadThatWasSlowSaysLittle) {
  ReadRate rate(kAssumed);
  rate.observe(0.1, 368'640, kSecond);
  EXPECT_LT(rate.seconds_per_byte(kSecond), 1e-8);
}

TEST(ReadRate, SlownessFadesSoThatItIsTriedAgain) {
  ReadRate rate(kAssumed);
  rate.measure(60, kMany, kSecond);
  const double slow = rate.seconds_per_byte(kSecond);
  EXPECT_NEAR(rate.seconds_per_byte(301 * kSecond), slow / 2, slow * 1e-6);
  EXPECT_EQ(rate.seconds_per_byte(100'000 * kSecond), kAssumed);
}

// Also where even the slow moment was faster than what had been assumed.
TEST(ReadRate, ASlowMomentOfAFastTierFades) {
  constexpr double kFast = 4e-11, kSlow = 5e-10;
  for (const double assumed : {kAssumed, 1e-9}) {
    ReadRate rate(assumed);
    rate.measure(kFast * kMany, kMany, kSecond);
    for (int i = 0; i < 50; ++i) rate.observe(kSlow * kMany, kMany, kSecond);
    EXPECT_GT(rate.seconds_per_byte(kSecond), 0.9 * kSlow);
    EXPECT_LE(rate.seconds_per_byte(100'000 * kSecond), kFast);
  }
}

// A first measurement at a slow moment is none that it stays at.
TEST(ReadRate, WhatWasNeverFastFadesToWhatWasAssumed) {
  ReadRate rate(kAssumed);
  rate.measure(kMany * 5e-10, kMany, kSecond);
  EXPECT_EQ(rate.seconds_per_byte(100'000 * kSecond), kAssumed);
}

TEST(ReadRate, SpeedDoesNotFade) {
  ReadRate rate(kAssumed);
  rate.measure(0.001, kMany, kSecond);
  EXPECT_EQ(rate.seconds_per_byte(10'000 * kSecond), 0.001 / kMany);
}

}  // namespace
}  // namespace larder
