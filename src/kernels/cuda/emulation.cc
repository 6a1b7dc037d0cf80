#include "kernels/cuda/emulation.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstring>
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

struct Barrier {
  int num_come = 0;
  std::uint64_t generation = 0;
};

constexpr int kMostNeighbours = 8;  // groups of them
struct Block {
  int num_running = 0;
  Barrier all;
  Barrier neighbours[kMostNeighbours];
};

// The blocks that run at the same time: one, or a pair.
struct Blocks {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  jmp_buf scheduler;
  ucontext_t scheduler_context;
  void (*body)(void*) = nullptr;
  void* context = nullptr;
  int num_threads = 0;  // of each
  int num_running = 0;
  int num_waited = 0;  // for the kernels before
  // Every other block runs its last thread first: what one thread writes and another reads without a
  // barrier between is read too early in one of the two orders.
  bool is_backwards = true;
  int current = 0;
  unsigned first_block = 0;  // in x
  Block each[2];
  Barrier pair;
  std::vector<BulkCopy> bulk_copies;
  int shared_bytes = 0;
  unsigned char* shared = nullptr;  // of a pair, once a block has asked
};

// What lies in shared memory when a block begins: no number, and as an index far outside. And behind it.
constexpr int kNothing = 0xFF;
constexpr int kBehind = 0xA5;

Blocks& blocks() {
  static Blocks they;
  return they;
}

Fiber& current_fiber() { return *blocks().fibers[static_cast<std::size_t>(blocks().current)]; }
Block& current_block() { return blocks().each[current_rank()]; }

void fill_shared(Blocks& b) {
  for (int rank = 0; rank < 2; ++rank) {
    unsigned char* of_block = b.shared + rank * kCudaMostSharedBytes;
    std::memset(of_block, kNothing, static_cast<std::size_t>(b.shared_bytes));
    std::memset(of_block + b.shared_bytes, kBehind, static_cast<std::size_t>(kCudaMostSharedBytes - b.shared_bytes));
  }
}

void check_shared(const Blocks& b) {
  if (b.shared == nullptr) return;
  for (int rank = 0; rank < 2; ++rank) {
    const unsigned char* of_block = b.shared + rank * kCudaMostSharedBytes;
    for (int i = b.shared_bytes; i < kCudaMostSharedBytes; ++i)
      CHECK(of_block[i] == kBehind, "behind the block's shared memory", i, b.shared_bytes);
  }
}

void leave() {
  Fiber& fiber = current_fiber();
  if (_setjmp(fiber.place) == 0) _longjmp(blocks().scheduler, 1);
}

void wait_while(const std::uint64_t& generation) {
  Fiber& fiber = current_fiber();
  fiber.waits_for = &generation;
  fiber.waited_at = generation;
  leave();
}

void open_if_all_came(Block& block) {
  if (block.all.num_come == 0 || block.all.num_come < block.num_running) return;
  block.all.num_come = 0;
  ++block.all.generation;
}

void wait_at(Barrier& barrier, int num_threads) {
  if (++barrier.num_come < num_threads) return wait_while(barrier.generation);
  barrier.num_come = 0;
  ++barrier.generation;
}

void run_fiber() {
  for (;;) {
    Blocks& b = blocks();
    b.body(b.context);
    b.fibers[static_cast<std::size_t>(b.current)]->ended = true;
    --b.num_running;
    --current_block().num_running;
    open_if_all_came(current_block());
    leave();
  }
}

void resume(Fiber& fiber) {
  Blocks& b = blocks();
  blockIdx.x = b.first_block + static_cast<unsigned>(current_rank());
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

void run_blocks(int num_blocks, int num_threads, void (*body)(void*), void* context) {
  Blocks& b = blocks();
  CHECK(num_threads % kWarp == 0 && num_threads <= 1024 && num_blocks <= 2, num_blocks, num_threads);
  const int num_fibers = num_blocks * num_threads;
  while (static_cast<int>(b.fibers.size()) < num_fibers)
    b.fibers.push_back(std::make_unique<Fiber>());
  b.warps.assign(static_cast<std::size_t>(num_fibers / kWarp), {});
  b.body = body;
  b.context = context;
  b.num_threads = num_threads;
  b.num_running = num_fibers;
  b.first_block = blockIdx.x;
  b.pair.num_come = 0;
  for (Block& block : b.each) {
    block.num_running = num_threads;
    block.all.num_come = 0;
    for (Barrier& barrier : block.neighbours) barrier.num_come = 0;
  }
  b.num_waited = 0;
  b.shared = nullptr;
  b.bulk_copies.clear();
  b.is_backwards = !b.is_backwards;
  for (int i = 0; i < num_fibers; ++i) {
    Fiber& fiber = *b.fibers[static_cast<std::size_t>(i)];
    fiber.ended = false;
    fiber.waits_for = nullptr;
    fiber.copies.clear();
    fiber.num_copy_groups = 0;
  }
  while (b.num_running > 0) {
    bool has_moved = false;
    for (int turn = 0; turn < num_fibers; ++turn) {
      b.current = b.is_backwards ? num_fibers - 1 - turn : turn;
      Fiber& fiber = *b.fibers[static_cast<std::size_t>(b.current)];
      if (fiber.ended) continue;
      if (fiber.waits_for != nullptr && *fiber.waits_for == fiber.waited_at) continue;
      fiber.waits_for = nullptr;
      has_moved = true;
      resume(fiber);
    }
    CHECK(has_moved, "threads wait at different barriers", b.num_running, current_block().all.num_come);
  }
  blockIdx.x = b.first_block;
  check_shared(b);
  CHECK(b.num_waited == num_fibers, "threads that did not wait for the kernels before", b.num_waited);
}
void give_shared(int shared_bytes) { blocks().shared_bytes = shared_bytes; }
unsigned char* shared_of_block(unsigned char* of_pair) {
  Blocks& b = blocks();
  if (b.shared == nullptr) {
    b.shared = of_pair;
    fill_shared(b);
  }
  return of_pair + current_rank() * kCudaMostSharedBytes;
}
void note_wait_for_kernels() { ++blocks().num_waited; }

int current_thread() { return blocks().current % blocks().num_threads; }
int current_rank() { return blocks().current / blocks().num_threads; }
int current_num_threads() { return blocks().num_threads; }

void wait_for_block() {
  Block& block = current_block();
  ++block.all.num_come;
  if (block.all.num_come == block.num_running) return open_if_all_came(block);
  wait_while(block.all.generation);
}

void wait_for_neighbours(int index, int num_threads) {
  CHECK(index < kMostNeighbours && current_thread() / num_threads == index, current_thread(), index, num_threads);
  wait_at(current_block().neighbours[index], num_threads);
}

void wait_for_pair() { wait_at(blocks().pair, 2 * blocks().num_threads); }
unsigned char* in_other_block(unsigned char* shared) {
  return current_rank() == 0 ? shared + kCudaMostSharedBytes : shared - kCudaMostSharedBytes;
}

namespace {

Warp& current_warp() { return blocks().warps[static_cast<std::size_t>(blocks().current / kWarp)]; }

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
  all[current_thread() % kWarp] = value;
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
  std::erase_if(blocks().bulk_copies, [&](const BulkCopy& copy) {
    if (copy.arrivals != state) return false;
    std::memcpy(copy.to, copy.from, copy.size_bytes);
    return true;
  });
}
void copy_in_bulk(void* to, const void* from, std::size_t size_bytes, const std::uint64_t* arrivals) {
  const auto is_aligned = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  CHECK(size_bytes > 0 && size_bytes % 16 == 0 && is_aligned(to) && is_aligned(from), size_bytes);
  blocks().bulk_copies.push_back({to, from, size_bytes, arrivals});
}

}  // namespace emulator
}  // namespace larder::cuda_emulated
