#include "base/thread_pool.h"

#include <system_error>

#include "base/check.h"
#include "base/error.h"

namespace larder {
namespace {

// About 50 us: longer than the gap between two kernels of a step, shorter than a wasted time slice.
constexpr int kSpins = 2000;

// Bit of gate_: workers may enter. The bits below count those inside.
constexpr std::uint32_t kOpen = std::uint32_t{1} << 31;

// Lines that a waiting thread asks for before it looks again whether there is work.
constexpr std::int64_t kFetchBytes = 8 * 64;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : places_(static_cast<std::size_t>(num_threads)) {
  CHECK(num_threads >= 1, num_threads);
  workers_.reserve(places_.size() - 1);
  try {
    for (int thread = 1; thread < num_threads; ++thread)
      workers_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& error) {  // a limit of the user or of the control group
    stop_and_join();
    throw Error(ErrorKind::kUnavailable,
                fmt::format("cannot start thread {} of {}: {}; give a smaller --threads",
                            workers_.size() + 2, num_threads, error.code().message()));
  }
}

ThreadPool::~ThreadPool() { stop_and_join(); }

void ThreadPool::stop_and_join() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::fetch_while_waiting(int thread, const std::byte* begin, std::int64_t size_bytes) {
  Place& place = places_[static_cast<std::size_t>(thread)];
  place.fetch_bytes.store(size_bytes, std::memory_order_relaxed);
  place.fetch_begin.store(begin, std::memory_order_relaxed);
}

bool ThreadPool::fetch_some(int thread) {
  Place& place = places_[static_cast<std::size_t>(thread)];
  const std::byte* begin = place.fetch_begin.load(std::memory_order_relaxed);
  if (begin != place.fetched_of) {
    place.fetched_of = begin;
    place.num_fetched = 0;
  }
  if (place.num_fetched >= place.fetch_bytes.load(std::memory_order_relaxed)) return false;
  for (std::int64_t i = 0; i < kFetchBytes; i += 64)
    __builtin_prefetch(begin + place.num_fetched + i, 0, 2);
  place.num_fetched += kFetchBytes;
  return true;
}

// Whether it became ready before it would pay to sleep.
template <class Ready>
bool ThreadPool::wait_shortly(int thread, const Ready& ready) {
  for (int spin = 0; spin < kSpins;) {
    if (ready()) return true;
    if (fetch_some(thread)) continue;
    pause_cpu();
    ++spin;
  }
  return ready();
}

void ThreadPool::run(int num_tasks, Body body, void* context) {
  // The gate is shut and nobody is inside, so nobody reads these now.
  body_ = body;
  context_ = context;
  num_tasks_ = num_tasks;
  next_task_.store(num_threads(), std::memory_order_relaxed);
  const std::uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  loop_ = generation;
  gate_.store(kOpen, std::memory_order_release);
  generation_.store(generation);
  if (num_workers_asleep_.load() > 0) generation_.notify_all();
  drain(0);
  for (int task = 1; task < num_threads(); ++task)
    if (take_own(task)) body(context, task, 0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  const auto nobody_inside = [&] { return gate_.load(std::memory_order_acquire) == 0; };
  while (!wait_shortly(0, nobody_inside)) {
    is_caller_asleep_.store(true);
    const std::uint32_t inside = gate_.load();
    if (inside != 0) gate_.wait(inside);
    is_caller_asleep_.store(false, std::memory_order_relaxed);
  }
}

void ThreadPool::work(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    const auto has_begun = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    while (!wait_shortly(thread, has_begun)) {
      num_workers_asleep_.fetch_add(1);
      generation_.wait(seen);
      num_workers_asleep_.fetch_sub(1, std::memory_order_relaxed);
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!enter()) continue;
    drain(thread);
    if (gate_.fetch_sub(1) == 1 && is_caller_asleep_.load()) gate_.notify_one();
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

bool ThreadPool::take_own(int task) {
  if (task >= num_tasks_) return false;
  std::atomic<std::uint32_t>& taken_in = places_[static_cast<std::size_t>(task)].taken_in;
  return taken_in.load(std::memory_order_relaxed) != loop_ &&
         taken_in.exchange(loop_, std::memory_order_relaxed) != loop_;
}

void ThreadPool::drain(int thread) {
  if (take_own(thread)) body_(context_, thread, thread);
  while (true) {
    const int task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    body_(context_, task, thread);
  }
}

}  // namespace larder
