#include "server/api/event_log.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace larder {
namespace {

std::string event(int number, std::size_t size = 0) {
  return "event: a\ndata: {\"n\":" + std::to_string(number) + "}" + std::string(size, ' ') + "\n\n";
}

struct Written {
  explicit Written(std::size_t max_bytes, std::function<bool()> make_room = [] { return false; })
      : budget(max_bytes), log(std::make_shared<EventLog>(budget, std::move(make_room))) {}

  std::shared_ptr<EventReader> read_from(int next) {
    return EventReader::begin(log, next, [this] { ++num_wakes; });
  }

  MemoryBudget budget;
  int num_wakes = 0;
  std::shared_ptr<EventLog> log;
};

TEST(EventLogs, AreReadFromAnyEventOn) {
  Written written(1 << 20);
  written.log->append(event(0) + event(1));
  const auto late = written.read_from(3);
  written.log->append(event(2) + event(3) + event(4));
  EXPECT_EQ(written.num_wakes, 1);
  EXPECT_EQ(late->read(1), event(3) + event(4));
  EXPECT_EQ(late->read(1), "");
  EXPECT_FALSE(late->done());
  const auto all = written.read_from(0);
  EXPECT_EQ(all->read(1), event(0) + event(1)) << "what was written at once";
  EXPECT_EQ(all->read(1 << 20), event(2) + event(3) + event(4));
  written.log->close();
  EXPECT_EQ(written.num_wakes, 3) << "who waits hears of the end";
  EXPECT_TRUE(all->done());
  const auto beyond = written.read_from(9);
  EXPECT_EQ(beyond->read(1), "");
  EXPECT_TRUE(beyond->done());
}

TEST(EventLogs, LetTheOldestGoWhereThereIsNoRoom) {
  Written written(10'000);
  auto early = written.read_from(0);
  const int num_events = 100;
  for (int i = 0; i < num_events; ++i) written.log->append(event(i, 1000));
  EXPECT_GT(written.log->first(), num_events - 27);
  EXPECT_LT(written.log->first(), num_events - 20) << "10,000 bytes, and those that count nowhere";
  EXPECT_TRUE(early->has_lost());
  EXPECT_EQ(early->read(1), "");
  auto reader = written.read_from(written.log->first());
  EXPECT_FALSE(reader->has_lost());
  EXPECT_EQ(reader->read(1), event(written.log->first(), 1000));
  EXPECT_LE(written.budget.used(), 10'000u);
  // Once nobody reads what has ended all of them count.
  written.log->close();
  EXPECT_LT(written.log->first(), num_events - 20);
  early.reset();
  reader.reset();
  EXPECT_GT(written.log->first(), num_events - 10);
  EXPECT_LE(written.budget.used(), 10'000u);
}

// However much comes at once.
TEST(EventLogs, KeepTheEndOfWhatIsTooLong) {
  Written written(1'000);
  std::string events;
  for (int i = 0; i < 100; ++i) events += event(i, 1000);
  written.log->append(events);
  EXPECT_GT(written.log->first(), 70);
  EXPECT_LT(written.log->first(), 90);
  EXPECT_TRUE(written.read_from(written.log->first())->read(1 << 20).ends_with(event(99, 1000)));
}

TEST(EventLogs, TakeTheRoomOfOthersFirst) {
  MemoryBudget* budget = nullptr;
  bool is_full = true;
  Written written(30'000, [&] {
    if (!std::exchange(is_full, false)) return false;
    budget->give_back(29'000);
    return true;
  });
  budget = &written.budget;
  ASSERT_TRUE(budget->take(29'000));
  for (int i = 0; i < 30; ++i) written.log->append(event(i, 1000));
  EXPECT_FALSE(is_full);
  EXPECT_EQ(written.log->first(), 0);
}

// Its last events and its end come together, before a reader can have had the former.
TEST(EventLogs, KeepTheirEndForWhoReads) {
  Written written(1'000);
  ASSERT_TRUE(written.budget.take(1'000));
  auto reader = written.read_from(0);
  written.log->append(event(0));
  EXPECT_EQ(reader->read(1), event(0));
  written.log->append(event(1, 2'000) + event(2));
  written.log->close();
  EXPECT_FALSE(reader->has_lost());
  EXPECT_EQ(reader->read(1 << 20), event(1, 2'000) + event(2));
  EXPECT_TRUE(reader->done());
  EXPECT_EQ(written.log->first(), 0);
  reader.reset();
  EXPECT_EQ(written.log->first(), 3) << "all of it counts now, and there is no room";
}

TEST(EventLogs, ForgetReadersThatHaveGone) {
  Written written(1 << 20);
  written.read_from(0);
  written.log->append(event(0));
  EXPECT_EQ(written.num_wakes, 0);
}

}  // namespace
}  // namespace larder
