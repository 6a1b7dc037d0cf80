#include "base/thread_pool.h"

#include "base/check.h"

namespace larder {
namespace {

// About 50 us: longer than the gap between two kernels of a step, shorter than a wasted time slice.
constexpr int kSpins = 2000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK(num_threads >= 1, num_threads);
  for (int thread = 1; thread < num_threads; ++thread)
    workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int num_tasks, Body body, void* context) {
  body_ = body;
  context_ = context;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  num_working_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  drain(0);
  for (int spin = 0;; ++spin) {
    const int working = num_working_.load(std::memory_order_acquire);
    if (working == 0) return;
    if (spin < kSpins)
      pause_cpu();
    else
      num_working_.wait(working, std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    for (int spin = 0; generation_.load(std::memory_order_acquire) == seen; ++spin) {
      if (spin < kSpins)
        pause_cpu();
      else
        generation_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (stop_.load()) return;
    drain(thread);
    if (num_working_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_working_.notify_one();
  }
}

void ThreadPool::drain(int thread) {
  while (true) {
    const int task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    body_(context_, task, thread);
  }
}

}  // namespace larder
