#include "server/wait_predictor.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/clock.h"

namespace larder {
namespace {

// Of the past, so that an end by the real clock comes later.
constexpr std::int64_t at(double seconds) {
  return static_cast<std::int64_t>(seconds * static_cast<double>(kNsPerSecond));
}

TEST(WaitPredictorTest, NobodyWaits) {
  WaitPredictor waits;
  EXPECT_EQ(waits.predict_s(at(1)), 0);
  {
    WaitPredictor::Place place(waits, 100, at(1));
    EXPECT_GT(waits.predict_s(at(1.5)), 0);
  }
  EXPECT_EQ(waits.predict_s(at(9)), 0);
}

TEST(WaitPredictorTest, ByTheRateOfLate) {
  WaitPredictor waits;
  // A thousand tokens a second for two.
  WaitPredictor::Place first(waits, 2000, at(1));
  first.begin(at(3));
  EXPECT_EQ(waits.predict_s(at(50)), 0);
  // Idle time says nothing.
  WaitPredictor::Place second(waits, 3000, at(100));
  WaitPredictor::Place third(waits, 1000, at(100));
  EXPECT_NEAR(waits.predict_s(at(100)), 4, 0.3);
  // Nothing goes on: it gets longer.
  EXPECT_GT(waits.predict_s(at(110)), 20);
  second.begin(at(110));
  second.begin(at(110));  // again is the same
  EXPECT_NEAR(waits.predict_s(at(110)), 1000.0 * (10 + 1) / (3000 + 1000), 0.1);
}

TEST(WaitPredictorTest, NothingIsKnownYet) {
  WaitPredictor waits;
  const WaitPredictor::Place place(waits, 500, at(1));
  EXPECT_NEAR(waits.predict_s(at(8)), 7, 0.01);
}

// Those behind it do not wait for it meanwhile.
TEST(WaitPredictorTest, WhoWaitsForItsReaderIsNoLine) {
  WaitPredictor waits;
  {
    WaitPredictor::Place place(waits, 500, at(1));
    place.hold(true, at(2));
    place.hold(true, at(2));
    EXPECT_EQ(waits.predict_s(at(60)), 0);
    place.hold(false, at(60));
    EXPECT_GT(waits.predict_s(at(61)), 0);
    place.hold(true, at(62));
  }
  EXPECT_EQ(waits.predict_s(at(62)), 0);
  WaitPredictor::Place begun(waits, 500, at(63));
  begun.hold(true, at(64));
  begun.begin(at(65));
  begun.hold(false, at(66));
  EXPECT_EQ(waits.predict_s(at(66)), 0);
}

TEST(WaitPredictorTest, MovesOnce) {
  WaitPredictor waits;
  std::vector<WaitPredictor::Place> places;
  for (int i = 0; i < 20; ++i) places.emplace_back(waits, 10, at(1));
  EXPECT_GT(waits.predict_s(at(2)), 0);
  places.clear();
  EXPECT_EQ(waits.predict_s(at(2)), 0);
}

}  // namespace
}  // namespace larder
