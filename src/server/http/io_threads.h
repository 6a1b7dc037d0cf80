// Threads that run an io_context.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <thread>
#include <vector>

#include "server/asio_types.h"

namespace larder {

// In place of asio::thread_pool, whose constructor waits for ever for its first thread where the system
// refuses the second one.
class IoThreads {
 public:
  // They wait for work until finish(). As start_thread().
  IoThreads(asio::io_context& io, int num_threads, const char* purpose);
  ~IoThreads();  // drops what is left to do
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  // Takes part until nothing is left to do, and the threads have ended. What a handler throws is logged.
  void finish();

 private:
  void run();
  void stop_and_join();

  asio::io_context& io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
};

}  // namespace larder
