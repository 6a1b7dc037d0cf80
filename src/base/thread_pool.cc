#include "base/thread_pool.h"

#include "base/check.h"

namespace larder {
namespace {

// About 50 us: longer than the gap between two kernels of a step, shorter than a wasted time slice.
constexpr int kSpins = 2000;

// Bit of gate_: workers may enter. The bits below count those inside.
constexpr std::uint32_t kOpen = std::uint32_t{1} << 31;

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
  // The gate is shut and nobody is inside, so nobody reads these now.
  body_ = body;
  context_ = context;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  gate_.store(kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  drain(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spin = 0;; ++spin) {
    const std::uint32_t inside = gate_.load(std::memory_order_acquire);
    if (inside == 0) return;
    if (spin < kSpins)
      pause_cpu();
    else
      gate_.wait(inside, std::memory_order_acquire);
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
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!enter()) continue;
    drain(thread);
    if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) gate_.notify_one();
  }
}

bool ThreadPool::enter() {
  std::uint32_t gate = gate_.load(std::memory_order_relaxed);
  while (gate & kOpen)
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                    std::memory_order_relaxed))
      return true;
  return false;
}

void ThreadPool::wait_until(const std::atomic<bool>& ready) {
  for (int spin = 0; !ready.load(std::memory_order_acquire); ++spin) {
    if (spin < kSpins)
      pause_cpu();
    else
      ready.wait(false, std::memory_order_acquire);
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
