// What the emulator finds.
#include <gtest/gtest.h>

#include <array>

#include "kernels/cuda/block_pair.h"

namespace larder::cuda_emulated {
namespace {

constexpr int kThreads = 64;
using Numbers = std::array<int, kThreads>;

// Every thread gives its neighbour a number.
LARDER_KERNEL pass_on_kernel(int first, int distance, bool waits, Numbers* to) {
  LARDER_SHARED int numbers[kThreads];
  wait_for_kernels_before();
  numbers[thread_index()] = first + thread_index();
  if (waits) sync_block();
  const auto index = static_cast<std::size_t>(thread_index());
  (*to)[index] = numbers[(thread_index() + distance) % kThreads];
}

int num_wrong(int first, int distance, bool waits) {
  Numbers numbers = {};
  launch(pass_on_kernel, dim3(1), kThreads, first, distance, waits, &numbers);
  int wrong = 0;
  for (int i = 0; i < kThreads; ++i)
    wrong += numbers[static_cast<std::size_t>(i)] != first + (i + distance) % kThreads ? 1 : 0;
  return wrong;
}

TEST(Emulation, FindsABarrierThatIsMissing) {
  for (const int distance : {1, 32, kThreads - 1}) {
    SCOPED_TRACE(distance);
    for (int block = 0; block < 4; ++block)
      EXPECT_EQ(num_wrong(1000 * block + 1000, distance, true), 0);
    // In whichever order one of two blocks runs.
    EXPECT_GT(num_wrong(5000, distance, false), 0);
    EXPECT_GT(num_wrong(6000, distance, false), 0);
  }
}

// The threads of two blocks give each other numbers, in halves of a block that go on by themselves.
LARDER_KERNEL_OF_PAIRS(kThreads) pass_over_kernel(int first, bool waits_for_half, bool waits_for_pair, Numbers* to) {
  LARDER_SHARED_BYTES(bytes);
  int* numbers = reinterpret_cast<int*>(bytes);
  wait_for_kernels_before();
  const int thread = thread_index();
  numbers[kThreads + thread] = first + thread;
  if (waits_for_half) sync_neighbours<kThreads / 2>();
  in_other_block(numbers)[thread] = numbers[kThreads + (thread ^ 16)] + pair_rank() * 100;
  if (waits_for_pair) sync_pair();
  const auto index = static_cast<std::size_t>(thread);
  to[blockIdx.x][index] = numbers[thread];
}

int num_wrong_over(int first, bool waits_for_half, bool waits_for_pair) {
  std::array<Numbers, 4> numbers = {};
  constexpr int kSharedBytes = 2 * kThreads * static_cast<int>(sizeof(int));
  launch_pairs(pass_over_kernel, dim3(4), kThreads, kSharedBytes, first, waits_for_half, waits_for_pair, numbers.data());
  int wrong = 0;
  for (int block = 0; block < 4; ++block)
    for (int i = 0; i < kThreads; ++i)
      wrong += numbers[static_cast<std::size_t>(block)][static_cast<std::size_t>(i)] !=
                       first + (i ^ 16) + (1 - block % 2) * 100
                   ? 1
                   : 0;
  return wrong;
}

TEST(Emulation, FindsABarrierOfPairsOrNeighboursThatIsMissing) {
  EXPECT_EQ(num_wrong_over(1000, true, true), 0);
  EXPECT_EQ(num_wrong_over(2000, true, true), 0);
  EXPECT_GT(num_wrong_over(3000, false, true), 0);
  EXPECT_GT(num_wrong_over(4000, true, false), 0);
}

TEST(EmulationDeathTest, FindsAThreadThatDoesNotWaitForTheKernelsBefore) {
  const auto kernel = [] {
    if (thread_index() != 5) wait_for_kernels_before();
  };
  EXPECT_DEATH(launch(static_cast<void (*)()>(kernel), dim3(1), 32), "did not wait");
}

LARDER_KERNEL_OF(32) write_shared_kernel(int at) {
  LARDER_SHARED_BYTES(bytes);
  wait_for_kernels_before();
  if (thread_index() == 0) bytes[at] = 1;
}

TEST(EmulationDeathTest, FindsABlockThatWritesBehindItsSharedMemory) {
  launch_with_shared(write_shared_kernel, dim3(1), 32, 100, 99);
  EXPECT_DEATH(launch_with_shared(write_shared_kernel, dim3(1), 32, 100, 100), "behind the block's shared memory");
  EXPECT_DEATH(launch(write_shared_kernel, dim3(1), 32, 0), "behind the block's shared memory");
  EXPECT_DEATH(launch_with_shared(write_shared_kernel, dim3(1), 32, (48 << 10) + 1, 0), "allowed");
}

}  // namespace
}  // namespace larder::cuda_emulated
