// What the emulator finds.
#include "kernels/cuda/emulation.h"

#include <gtest/gtest.h>

#include <array>

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

TEST(EmulationDeathTest, FindsAThreadThatDoesNotWaitForTheKernelsBefore) {
  const auto kernel = [] {
    if (thread_index() != 5) wait_for_kernels_before();
  };
  EXPECT_DEATH(launch(static_cast<void (*)()>(kernel), dim3(1), 32), "did not wait");
}

}  // namespace
}  // namespace larder::cuda_emulated
