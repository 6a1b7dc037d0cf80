// Fork and join for kernels: the caller and num_threads - 1 workers share out a counted loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <thread>
#include <vector>

namespace larder {

// Tasks are handed out one by one, so which thread runs which task varies from run to run: a task's
// result must not depend on it. Workers spin for a short while between loops, then sleep. A loop
// waits only for workers that have begun on it: where other processes take the cores, the caller
// does the work of those that do not come. Thread: one caller at a time. No allocation after
// construction.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(task, thread) for every task in [0, num_tasks), thread in [0, num_threads()),
  // and returns when all have ended. The function must not throw.
  template <class Function>
  void parallel_for(int num_tasks, Function&& function) {
    if (num_tasks <= 1 || workers_.empty()) {
      for (int task = 0; task < num_tasks; ++task) function(task, 0);
      return;
    }
    run(
        num_tasks,
        [](void* context, int task, int thread) {
          (*static_cast<std::remove_reference_t<Function>*>(context))(task, thread);
        },
        &function);
  }

  // As parallel_for(), but first() runs before every task, on the calling thread. Meanwhile each
  // worker takes a task and calls ahead(task, ready) for it, which may get things ready and should
  // return once ready is true; the calling thread calls ahead(task, nullptr) before first().
  template <class First, class Ahead, class Function>
  void parallel_for_after(First&& first, int num_tasks, Ahead&& ahead, Function&& function) {
    // With fewer tasks than threads the caller might find none left.
    if (num_tasks < num_threads() || workers_.empty()) {
      first();
      return parallel_for(num_tasks, function);
    }
    std::atomic<bool> ready{false};
    parallel_for(num_tasks, [&](int task, int thread) {
      if (!ready.load(std::memory_order_acquire)) {
        if (thread == 0) {
          ahead(task, static_cast<const std::atomic<bool>*>(nullptr));
          first();
          ready.store(true, std::memory_order_release);
          ready.notify_all();
        } else {
          ahead(task, static_cast<const std::atomic<bool>*>(&ready));
          wait_until(ready);
        }
      }
      function(task, thread);
    });
  }

 private:
  using Body = void (*)(void* context, int task, int thread);

  void run(int num_tasks, Body body, void* context);
  void work(int thread);
  bool enter();  // false: the loop is over
  void drain(int thread);
  static void wait_until(const std::atomic<bool>& ready);

  std::vector<std::thread> workers_;
  Body body_ = nullptr;
  void* context_ = nullptr;
  int num_tasks_ = 0;
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> next_task_{0};
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace larder
