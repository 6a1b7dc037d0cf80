#include "server/http/io_threads.h"

#include <spdlog/spdlog.h>

#include <exception>

#include "base/start_thread.h"

namespace larder {

IoThreads::IoThreads(asio::io_context& io, int num_threads, const char* purpose)
    : io_(io), work_(io.get_executor()) {
  try {
    for (int i = 0; i < num_threads; ++i)
      threads_.push_back(start_thread(purpose, [this] { run(); }));
  } catch (...) {
    stop_and_join();
    throw;
  }
}

IoThreads::~IoThreads() { stop_and_join(); }

void IoThreads::finish() {
  work_.reset();
  run();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// A handler that fails, for want of memory most likely, ends none of the others.
void IoThreads::run() {
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      spdlog::error("a thread of the server: {}", error.what());
    }
  }
}

void IoThreads::stop_and_join() {
  io_.stop();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace larder
