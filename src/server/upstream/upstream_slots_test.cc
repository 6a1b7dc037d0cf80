#include "server/upstream/upstream_slots.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace larder {
namespace {

TEST(UpstreamSlotsTest, InTheOrderInWhichTheyCame) {
  UpstreamSlots slots(1, 2);
  int num_woken = 0;
  const auto wake = [&] { ++num_woken; };
  auto first = slots.enter(wake);
  auto second = slots.enter(wake);
  auto third = slots.enter(wake);
  EXPECT_TRUE(first->has_slot());
  EXPECT_FALSE(second->has_slot());
  EXPECT_EQ(slots.enter(wake), nullptr);
  first.reset();
  EXPECT_TRUE(second->has_slot());
  EXPECT_FALSE(third->has_slot());
  EXPECT_EQ(num_woken, 1);
  second.reset();
  third.reset();
  EXPECT_TRUE(slots.enter(wake)->has_slot());
}

TEST(UpstreamSlotsTest, WhoGoesMakesRoomInTheLine) {
  UpstreamSlots slots(1, 1);
  auto first = slots.enter([] {});
  auto second = slots.enter([] {});
  second.reset();
  auto third = slots.enter([] {});
  ASSERT_NE(third, nullptr);
  first.reset();
  EXPECT_TRUE(third->has_slot());
}

TEST(UpstreamSlotsTest, ByManyThreads) {
  constexpr int kSlots = 3;
  UpstreamSlots slots(kSlots, 1000);
  std::atomic<int> num_inside = 0;
  std::atomic<int> num_served = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 300; ++k) {
        const auto place = slots.enter([] {});
        while (!place->has_slot()) std::this_thread::yield();
        EXPECT_LE(++num_inside, kSlots);
        --num_inside;
        ++num_served;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_served, 8 * 300);
}

}  // namespace
}  // namespace larder
