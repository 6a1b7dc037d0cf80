// The CUDA tests, and what the kernels move per second, on the device that open_test_device() gives.
//
// gpu_test [--tests | --bench | --step] [--filter BEGIN] [--only TEXT] [--quick]
// gpu_test --list   the tests' suites
//
// --step: of the benchmark, what a step's launches cost. --filter: tests whose names, SUITE.TEST,
// begin so. --only: figures of the benchmark with it in their names. --quick: the benchmark in small
// sizes, for a device that is emulated.
#include <gtest/gtest.h>

#include <cstdio>
#include <stdexcept>
#include <string_view>

#include "base/error.h"
#include "kernels/cuda/test_device.h"
#include "tests/gpu/bench.h"

namespace larder {
namespace {

struct Options {
  bool list = false;
  bool tests = true;
  bool bench = true;
  bool step = false;
  bool quick = false;
  std::string filter;
  std::string only;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--list")
      options.list = true;
    else if (word == "--tests")
      options.bench = false;
    else if (word == "--bench")
      options.tests = false;
    else if (word == "--step")
      options.tests = options.bench = false, options.step = true;
    else if (word == "--quick")
      options.quick = true;
    else if (word == "--filter" && i + 1 < argc)
      options.filter = argv[++i];
    else if (word == "--only" && i + 1 < argc)
      options.only = argv[++i];
    else
      throw std::invalid_argument("what is " + std::string(word) + "?");
  }
  return options;
}

// 0, or 1 where a test failed or there was none.
int run_tests(const std::string& filter) {
  const ::testing::Count count = ::testing::run_tests(filter);
  std::printf("%d tests, %d failed\n", count.tests, count.failed);
  std::fflush(stdout);
  return count.tests > 0 && count.failed == 0 ? 0 : 1;
}

int run(const Options& options) {
  if (options.list) {
    for (const std::string& suite : ::testing::suites()) std::printf("%s\n", suite.c_str());
    return 0;
  }
  const auto device = open_test_device();
  std::printf("Device: %s\n", device->describe().c_str());
  std::fflush(stdout);
  const int status = options.tests ? run_tests(options.filter) : 0;
  if (options.bench) run_gpu_bench(*device, options.quick, options.only);
  if (options.step) run_gpu_step(*device, options.quick);
  return status;
}

}  // namespace
}  // namespace larder

int main(int argc, char** argv) {
  try {
    return larder::run(larder::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
