// Fork and join for kernels: the caller and num_threads - 1 workers share out a counted loop.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <thread>
#include <vector>

namespace larder {

// A thread begins with the task of its own number, if no other has taken that; the rest are handed
// out one by one, so which thread runs which task varies from run to run: a task's result must not
// depend on it. Workers spin for a short while between loops, then sleep. A loop
// waits only for workers that have begun on it: where other processes take the cores, the caller
// does the work of those that do not come. Thread: one caller at a time. No allocation after
// construction.
class ThreadPool {
 public:
  // Throws Error{kUnavailable} where the system refuses a thread.
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

  // The same, but every thread begins with the tasks of its own part, a range of them in order, and
  // helps others then: what loops write and read of a part stays near one thread, as long as that
  // gets its share of the machine.
  template <class Function>
  void parallel_for_near(int num_tasks, Function&& function) {
    const int num_parts = num_threads();
    const auto begin_of = [&](int part) {
      return static_cast<int>(std::int64_t{num_tasks} * part / num_parts);
    };
    const auto next_of = [&](int part) -> std::atomic<int>& {
      return places_[static_cast<std::size_t>(part)].next_near;
    };
    for (int part = 0; part < num_parts; ++part)
      next_of(part).store(begin_of(part), std::memory_order_relaxed);
    parallel_for(num_parts, [&](int own, int thread) {
      for (int i = 0; i < num_parts; ++i) {
        const int part = (own + i) % num_parts;
        while (true) {
          const int task = next_of(part).fetch_add(1, std::memory_order_relaxed);
          if (task >= begin_of(part + 1)) break;
          function(task, thread);
        }
      }
    });
  }

  // What that thread will read before long. While it waits for a loop to begin or for others to end
  // one, it brings that near, from the front on. What lies there is never read, so it may be gone.
  void fetch_while_waiting(int thread, const std::byte* begin, std::int64_t size_bytes);

 private:
  using Body = void (*)(void* context, int task, int thread);

  // Of one thread.
  struct alignas(64) Place {
    // The loop, by its generation, whose task of the thread's own number somebody has taken.
    std::atomic<std::uint32_t> taken_in{0};
    std::atomic<const std::byte*> fetch_begin{nullptr};
    std::atomic<std::int64_t> fetch_bytes{0};
    std::atomic<int> next_near{0};  // task of its part in parallel_for_near()
    // The thread's own: how much of what it has fetched.
    const std::byte* fetched_of = nullptr;
    std::int64_t num_fetched = 0;
  };

  void run(int num_tasks, Body body, void* context);
  void work(int thread);
  void stop_and_join();
  bool enter();  // false: the loop is over
  void drain(int thread);
  bool take_own(int task);
  bool fetch_some(int thread);  // false: there is nothing more
  template <class Ready>
  bool wait_shortly(int thread, const Ready& ready);

  std::vector<std::thread> workers_;
  std::vector<Place> places_;
  Body body_ = nullptr;
  void* context_ = nullptr;
  int num_tasks_ = 0;
  std::uint32_t loop_ = 0;  // its generation
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  alignas(64) std::atomic<int> next_task_{0};
  alignas(64) std::atomic<std::uint32_t> gate_{0};
  // Who may have gone to sleep, so that waking, a system call, is left out when nobody has. Counted
  // before a sleeper looks a last time, and looked at behind what it looks for: one of the two sees
  // the other.
  alignas(64) std::atomic<int> num_workers_asleep_{0};
  std::atomic<bool> is_caller_asleep_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace larder
