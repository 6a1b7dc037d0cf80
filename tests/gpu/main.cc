// The CUDA tests, then what the kernels move per second, on the device that open_test_device()
// gives. main [--quick]: small sizes, for a device that is emulated.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/test_device.h"
#include "tests/gpu/bench.h"

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  try {
    const auto device = larder::open_test_device();
    std::printf("Device: %s\n", device->describe().c_str());
    std::fflush(stdout);
    const int num_failed = ::testing::run_all_tests();
    std::printf(num_failed == 0 ? "ALL TESTS PASSED\n" : "%d TESTS FAILED\n", num_failed);
    std::fflush(stdout);
    larder::run_gpu_bench(*device, quick);
    return num_failed == 0 ? 0 : 1;
  } catch (const larder::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
