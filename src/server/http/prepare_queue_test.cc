#include "server/http/prepare_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace larder {
namespace {

// Without threads: in the order in which one would take them.
class PrepareQueueTest : public testing::Test {
 protected:
  auto noting(const std::string& name) {
    return [this, name] { done_.push_back(name); };
  }

  asio::io_context io_;
  PrepareQueue queue_{io_};
  std::vector<std::string> done_;
};

TEST_F(PrepareQueueTest, IdleJobsComeBehindAllOthers) {
  queue_.post_idle([this] {
    done_.emplace_back("idle 1");
    queue_.post(noting("4"));  // while it was under way
  });
  queue_.post(noting("1"));
  queue_.post_idle(noting("idle 2"));
  queue_.post([this] {
    done_.emplace_back("2");
    queue_.post(noting("3"));
  });
  io_.poll();
  EXPECT_EQ(done_, (std::vector<std::string>{"1", "2", "3", "idle 1", "4", "idle 2"}));
  io_.restart();
  queue_.post_idle(noting("idle 3"));
  io_.poll();
  EXPECT_EQ(done_.back(), "idle 3") << "somebody looks again";
}

TEST_F(PrepareQueueTest, TheLatestIdleJobsAreKept) {
  const auto owned = std::make_shared<int>();
  queue_.post_idle([owned] { ADD_FAILURE(); });
  for (std::size_t i = 0; i < PrepareQueue::kMostIdle; ++i) queue_.post_idle(noting(std::to_string(i)));
  EXPECT_EQ(owned.use_count(), 1) << "what was dropped is gone";
  io_.poll();
  ASSERT_EQ(done_.size(), PrepareQueue::kMostIdle);
  EXPECT_EQ(done_.front(), "0");
}

// Of two threads one stays free, however many idle jobs there are.
TEST_F(PrepareQueueTest, OneIdleJobAtATime) {
  std::promise<void> begun, may_end;
  queue_.post_idle([&] {
    begun.set_value();
    may_end.get_future().wait();
  });
  queue_.post_idle(noting("second"));
  std::thread other([this] { io_.run(); });
  begun.get_future().wait();
  queue_.post(noting("asked for"));
  io_.poll();
  EXPECT_EQ(done_, std::vector<std::string>{"asked for"});
  may_end.set_value();
  other.join();
  EXPECT_EQ(done_, (std::vector<std::string>{"asked for", "second"}));
}

}  // namespace
}  // namespace larder
