#include "kernels/cuda/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <vector>

#include "base/check.h"

namespace larder::cuda_emulated {

dim3 blockIdx{0, 0, 0};

void require(bool condition, const char* what) { CHECK(condition, what); }

namespace emulator {
namespace {

constexpr std::size_t kStackBytes = 128 * 1024;

struct Copy {
  void* to;
  const void* from;
  std::size_t size_bytes;
  int group;
};

// A thread of the block that runs. It lives on for the next block, since a context takes long to
// make; between turns only the registers that a call preserves change hands.
struct Fiber {
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  jmp_buf place;
  bool begun = false;
  bool ended = true;
  const std::uint64_t* waits_for = nullptr;  // runs again when this is no longer waited_at
  std::uint64_t waited_at = 0;
  std::vector<Copy> copies;
  int num_copy_groups = 0;  // that have ended
};

struct BulkCopy {
  void* to;
  const void* from;
  std::size_t size_bytes;
  const std::uint64_t* arrivals;
};

struct Warp {
  std::uint32_t given[2][kWarp] = {};
  Fragment fragments[2][kWarp] = {};
  int num_come = 0;
  std::uint64_t generation = 0;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  jmp_buf scheduler;
  ucontext_t scheduler_context;
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  int num_threads = 0;
  int num_running = 0;
  int num_waited = 0;  // for the kernels before
  // Every other block runs its last thread first: what one thread writes and another reads without a
  // barrier between is read too early in one of the two orders.
  bool is_backwards = true;
  int current = 0;
  int num_come = 0;  // to the block's barrier
  std::uint64_t generation = 0;
  int num_first_come = 0;  // to that of its first threads
  std::uint64_t first_generation = 0;
  std::vector<BulkCopy> bulk_copies;
};

Block& block() {
  static Block it;
  return it;
}

Fiber& current_fiber() { return *block().fibers[static_cast<std::size_t>(block().current)]; }

void leave() {
  Fiber& fiber = current_fiber();
  if (_setjmp(fiber.place) == 0) _longjmp(block().scheduler, 1);
}

void wait_while(const std::uint64_t& generation) {
  Fiber& fiber = current_fiber();
  fiber.waits_for = &generation;
  fiber.waited_at = generation;
  leave();
}

void open_if_all_came() {
  Block& b = block();
  if (b.num_come == 0 || b.num_come < b.num_running) return;
  b.num_come = 0;
  ++b.generation;
}

void run_fiber() {
  for (;;) {
    Block& b = block();
    b.body(b.context);
    b.fibers[static_cast<std::size_t>(b.current)]->ended = true;
    --b.num_running;
    open_if_all_came();
    leave();
  }
}

void resume(Fiber& fiber) {
  Block& b = block();
  if (_setjmp(b.scheduler) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, run_fiber, 0);
  setcontext(&context);
}

}  // namespace

void run_block(int num_threads, void (*body)(void*), void* context) {
  Block& b = block();
  CHECK(num_threads % kWarp == 0 && num_threads <= 1024, num_threads);
  while (static_cast<int>(b.fibers.size()) < num_threads)
    b.fibers.push_back(std::make_unique<Fiber>());
  b.warps.assign(static_cast<std::size_t>(num_threads / kWarp), {});
  b.body = body;
  b.context = context;
  b.num_threads = b.num_running = num_threads;
  b.num_come = 0;
  b.num_first_come = 0;
  b.num_waited = 0;
  b.bulk_copies.clear();
  b.is_backwards = !b.is_backwards;
  for (int i = 0; i < num_threads; ++i) {
    Fiber& fiber = *b.fibers[static_cast<std::size_t>(i)];
    fiber.ended = false;
    fiber.waits_for = nullptr;
    fiber.copies.clear();
    fiber.num_copy_groups = 0;
  }
  while (b.num_running > 0) {
    bool has_moved = false;
    for (int turn = 0; turn < num_threads; ++turn) {
      b.current = b.is_backwards ? num_threads - 1 - turn : turn;
      Fiber& fiber = *b.fibers[static_cast<std::size_t>(b.current)];
      if (fiber.ended) continue;
      if (fiber.waits_for != nullptr && *fiber.waits_for == fiber.waited_at) continue;
      fiber.waits_for = nullptr;
      has_moved = true;
      resume(fiber);
    }
    CHECK(has_moved, "threads wait at different barriers", b.num_running, b.num_come);
  }
  CHECK(b.num_waited == num_threads, "threads that did not wait for the kernels before", b.num_waited);
}
void note_wait_for_kernels() { ++block().num_waited; }

int current_thread() { return block().current; }
int current_num_threads() { return block().num_threads; }

void wait_for_block() {
  Block& b = block();
  ++b.num_come;
  if (b.num_come == b.num_running) return open_if_all_came();
  wait_while(b.generation);
}

void wait_for_first_threads(int num_threads) {
  Block& b = block();
  CHECK(b.current < num_threads, b.current, num_threads);
  if (++b.num_first_come < num_threads) return wait_while(b.first_generation);
  b.num_first_come = 0;
  ++b.first_generation;
}

namespace {

Warp& current_warp() { return block().warps[static_cast<std::size_t>(block().current / kWarp)]; }

// Until all lanes have come.
void meet(Warp& warp) {
  if (++warp.num_come == kWarp) {
    warp.num_come = 0;
    ++warp.generation;
  } else {
    wait_while(warp.generation);
  }
}

template <class T>
const T* exchange_in(Warp& warp, T (*given)[kWarp], const T& value) {
  T* all = given[warp.generation % 2];
  all[block().current % kWarp] = value;
  meet(warp);
  return all;
}

}  // namespace

const std::uint32_t* exchange(std::uint32_t value) {
  return exchange_in(current_warp(), current_warp().given, value);
}
const Fragment* exchange(const Fragment& fragment) {
  return exchange_in(current_warp(), current_warp().fragments, fragment);
}

void copy_later(void* to, const void* from, std::size_t size_bytes) {
  Fiber& fiber = current_fiber();
  fiber.copies.push_back({to, from, size_bytes, fiber.num_copy_groups});
}
void end_copies() { ++current_fiber().num_copy_groups; }
void wait_for_copies(int num_left) {
  Fiber& fiber = current_fiber();
  std::erase_if(fiber.copies, [&](const Copy& copy) {
    if (copy.group >= fiber.num_copy_groups - num_left) return false;
    std::memcpy(copy.to, copy.from, copy.size_bytes);
    return true;
  });
}

// A state: the threads of a phase, those that have not come yet, the phases that have ended.
void begin_arrivals(std::uint64_t* state, int num_threads) {
  const auto count = static_cast<std::uint64_t>(num_threads);
  CHECK(count > 0 && count < 1 << 16, num_threads);
  *state = count | count << 16;
}
void arrive(std::uint64_t* state) {
  *state -= std::uint64_t{1} << 16;
  if ((*state >> 16 & 0xFFFF) != 0) return;
  *state += (*state & 0xFFFF) << 16;
  *state += std::uint64_t{1} << 32;
}
void wait_for_arrivals(const std::uint64_t* state, int parity) {
  while ((*state >> 32 & 1) == static_cast<std::uint64_t>(parity)) wait_while(*state);
  std::erase_if(block().bulk_copies, [&](const BulkCopy& copy) {
    if (copy.arrivals != state) return false;
    std::memcpy(copy.to, copy.from, copy.size_bytes);
    return true;
  });
}
void copy_in_bulk(void* to, const void* from, std::size_t size_bytes, const std::uint64_t* arrivals) {
  const auto is_aligned = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  CHECK(size_bytes > 0 && size_bytes % 16 == 0 && is_aligned(to) && is_aligned(from), size_bytes);
  block().bulk_copies.push_back({to, from, size_bytes, arrivals});
}

}  // namespace emulator
}  // namespace larder::cuda_emulated
