#include "server/http/io_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <new>

#include "base/thread_test_support.h"
#include "server/server_test_support.h"

namespace larder {
namespace {

TEST(IoThreads, FinishWhatIsLeft) {
  asio::io_context io;
  IoThreads threads(io, 2, "of a test");
  std::atomic<int> num_run = 0;
  for (int i = 0; i < 100; ++i) asio::post(io, [&] { ++num_run; });
  threads.finish();
  EXPECT_EQ(num_run, 100);
}

TEST(IoThreads, AHandlerThatFailsEndsNoOther) {
  asio::io_context io;
  IoThreads threads(io, 2, "of a test");
  std::atomic<int> num_run = 0;
  for (int i = 0; i < 100; ++i) {
    asio::post(io, [&, i] {
      ++num_run;
      if (i % 10 == 0) throw std::bad_alloc();
    });
  }
  threads.finish();
  EXPECT_EQ(num_run, 100);
}

TEST(IoThreadsDeathTest, AServerSaysWhichThreadTheSystemRefuses) {
  const auto start = [](int num_allowed) {
    const TestServer running;  // whose model another one serves, too
    EXPECT_EQ(running.get("/version").status, 200);  // it has all of its threads
    ServerConfig config;
    config.port = 0;
    run_with_threads(num_allowed, [&] { const HttpServer refused(config, running.model()); });
  };
  for (const int num_allowed : {0, 1}) {
    EXPECT_EXIT(start(num_allowed), ::testing::ExitedWithCode(3),
                "cannot start the thread that prepares requests: .*pids.max");
  }
}

}  // namespace
}  // namespace larder
