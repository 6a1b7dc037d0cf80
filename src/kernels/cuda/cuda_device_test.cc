// A GPU that cannot be taken, and steps as graphs. CUDA's runtime is played: nothing here needs a GPU or a
// driver.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/step_graphs.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace {

// What the runtime answers.
struct Answers {
  cudaError_t properties = cudaSuccess;
  cudaError_t set_device = cudaSuccess;
  cudaError_t free = cudaSuccess;
  cudaError_t loading = cudaSuccess;
  cudaError_t stream = cudaSuccess;
  cudaError_t event = cudaSuccess;
  std::size_t shared_bytes = 227 << 10;
} answers;

// What the first call found.
std::string module_loading;

// What was started: a kernel by its argument, a graph by how many kernels were captured for it.
std::vector<std::string> started;
bool captures = false;
int num_captured = 0;
bool lacks_memory = false;
bool lacks_memory_at_start = false;
bool lacks_memory_for_stream = false;

// Bytes of each copy, and what is to be called behind them.
std::vector<std::size_t> copied;
std::vector<std::pair<cudaHostFn_t, void*>> host_functions;

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const char* setting = std::getenv("CUDA_MODULE_LOADING");
  module_loading = setting == nullptr ? "" : setting;
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  properties->major = 9;
  properties->sharedMemPerBlockOptin = answers.shared_bytes;
  return answers.properties;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int, int) {
  *id = '\0';
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return answers.set_device; }
cudaError_t cudaFree(void*) { return answers.free; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "all CUDA-capable devices are busy"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorDevicesUnavailable"; }
cudaError_t cudaDriverGetVersion(int*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t*) {
  *free = 80 << 20;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void**, std::size_t) { return cudaSuccess; }
cudaError_t cudaMallocHost(void**, std::size_t) { return cudaSuccess; }
cudaError_t cudaFreeHost(void*) { return cudaSuccess; }
cudaError_t cudaMemset(void*, int, std::size_t) { return cudaSuccess; }
cudaError_t cudaMemcpy(void*, const void*, std::size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t size_bytes, cudaMemcpyKind, cudaStream_t) {
  copied.push_back(size_bytes);
  return cudaSuccess;
}
void end_copies() {
  for (const auto& [function, argument] : std::exchange(host_functions, {})) function(argument);
}
cudaError_t cudaDeviceSynchronize() {
  end_copies();
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void** args) {
  const std::string what = std::to_string(*static_cast<const int*>(args[0])) + " of " +
                           std::to_string(config->gridDim.x) + " blocks";
  if (captures)
    ++num_captured;
  else
    started.push_back(what);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  if (lacks_memory_for_stream) return cudaErrorMemoryAllocation;
  *stream = reinterpret_cast<cudaStream_t>(1);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(2);
  return answers.stream;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == reinterpret_cast<cudaStream_t>(2)) end_copies();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned) { return answers.event; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* argument) {
  host_functions.push_back({function, argument});
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  captures = true;
  num_captured = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  captures = false;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) {
  if (lacks_memory) return cudaErrorMemoryAllocation;
  *graph = reinterpret_cast<cudaGraphExec_t>(static_cast<std::intptr_t>(num_captured));
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  if (lacks_memory_at_start) return cudaErrorMemoryAllocation;
  started.push_back("graph of " + std::to_string(reinterpret_cast<std::intptr_t>(graph)));
  return cudaSuccess;
}

}  // extern "C"

namespace larder {
namespace cuda {

extern const KernelTable kTable;
const KernelTable kTable{};
int loading_error() { return answers.loading; }

}  // namespace cuda

namespace {

void expect_unavailable(const Answers& told) {
  answers = told;
  try {
    open_cuda_device(0);
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_STREQ(error.what(),
                 "device cuda:0: cannot be taken: all CUDA-capable devices are busy");
  }
}

TEST(CudaDevice, OneThatCannotBeTakenIsUnavailable) {
  expect_unavailable({.set_device = cudaErrorDevicesUnavailable});
  expect_unavailable({.free = cudaErrorMemoryAllocation});
  expect_unavailable({.properties = cudaErrorUnknown});
  expect_unavailable({.loading = cudaErrorUnsupportedPtxVersion});
  expect_unavailable({.stream = cudaErrorMemoryAllocation});
  expect_unavailable({.event = cudaErrorMemoryAllocation});
  lacks_memory_for_stream = true;
  expect_unavailable({});
  lacks_memory_for_stream = false;
  answers = {};
  EXPECT_NE(open_cuda_device(0), nullptr);
}

TEST(CudaDevice, OneWithTooLittleSharedMemoryIsUnavailable) {
  answers = {.shared_bytes = 99 << 10};
  try {
    open_cuda_device(0);
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_STREQ(error.what(), "device cuda:0:  has 99 KiB of shared memory for a block; 227 KiB are needed");
  }
  answers = {};
}

TEST(CudaDevice, KernelsAreLoadedBeforeMemoryIsPlanned) {
  unsetenv("CUDA_MODULE_LOADING");
  open_cuda_device(0);
  EXPECT_EQ(module_loading, "EAGER");
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  open_cuda_device(0);
  EXPECT_EQ(module_loading, "LAZY") << "as the user has it";
}

// Starts two kernels as a step.
std::vector<std::string> run_step(cuda::StepGraphs& graphs, int first, int second, unsigned blocks = 1) {
  started.clear();
  graphs.begin();
  for (const int value : {first, second}) {
    const void* const args[] = {&value};
    const std::size_t sizes[] = {sizeof(value)};
    graphs.add({&captures, dim3(blocks), 32, 0, args, sizes, 1});
    EXPECT_TRUE(started.empty()) << "before the step's end";
  }
  graphs.end();
  return started;
}

using Started = std::vector<std::string>;

TEST(StepGraphs, StartAStepThatComesAgainAsAGraph) {
  cuda::StepGraphs graphs;
  EXPECT_EQ(run_step(graphs, 1, 2), (Started{"1 of 1 blocks", "2 of 1 blocks"}));
  EXPECT_EQ(run_step(graphs, 1, 2), Started{"graph of 2"});
  EXPECT_EQ(run_step(graphs, 1, 3), (Started{"1 of 1 blocks", "3 of 1 blocks"}))
      << "another argument";
  EXPECT_EQ(run_step(graphs, 1, 2, 5), (Started{"1 of 5 blocks", "2 of 5 blocks"})) << "another grid";
  EXPECT_EQ(run_step(graphs, 1, 2), Started{"graph of 2"});
  EXPECT_EQ(run_step(graphs, 1, 3), Started{"graph of 2"});
}

// The same step again and again, while memory is lacking for what a graph needs.
void expect_no_graph(cuda::StepGraphs& graphs, bool& lacks) {
  lacks = true;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(run_step(graphs, 1, 2), (Started{"1 of 1 blocks", "2 of 1 blocks"})) << i;
  lacks = false;
}

TEST(StepGraphs, DoWithoutWhereThereIsNoMemoryForOne) {
  cuda::StepGraphs graphs;
  expect_no_graph(graphs, lacks_memory);
}

TEST(StepGraphs, DoWithoutWhereThereIsNoMemoryToWriteOneDown) {
  cuda::StepGraphs graphs;
  expect_no_graph(graphs, lacks_memory_for_stream);
}

TEST(StepGraphs, DoWithoutWhereThereIsNoMemoryToStartOne) {
  cuda::StepGraphs graphs;
  expect_no_graph(graphs, lacks_memory_at_start);
  EXPECT_EQ(run_step(graphs, 1, 2), (Started{"1 of 1 blocks", "2 of 1 blocks"})) << "tried once";
}

TEST(StepGraphs, KeepTheStepsThatWereUsedLast) {
  cuda::StepGraphs graphs;
  for (int i = 0; i < 2; ++i) run_step(graphs, -1, 0);
  for (int i = 0; i < 200; ++i) {
    run_step(graphs, i, 0);
    EXPECT_EQ(run_step(graphs, -1, 0), Started{"graph of 2"}) << i;
  }
  EXPECT_LT(graphs.num_graphs(), 100);
  EXPECT_EQ(run_step(graphs, 0, 0), (Started{"0 of 1 blocks", "0 of 1 blocks"})) << "forgotten";
}

TEST(StepGraphs, KeepThoseThatCameAgainBeforeThoseThatCameOnce) {
  cuda::StepGraphs graphs;
  for (int again = 0; again < 2; ++again)
    for (int i = 0; i < 10; ++i) run_step(graphs, -1, i);
  for (int i = 0; i < 200; ++i) run_step(graphs, i, 0);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(run_step(graphs, -1, i), Started{"graph of 2"}) << i;
  // And the ones that come now are known when they come again.
  for (int i = 0; i < 100; ++i)
    for (int again = 0; again < 2; ++again) run_step(graphs, 1000 + i, 0);
  EXPECT_EQ(run_step(graphs, 1099, 0), Started{"graph of 2"});
  EXPECT_LT(graphs.num_graphs(), 100);
}

TEST(CudaDevice, LeavesRoomForThePiecesThatMemoryComesIn) {
  EXPECT_EQ(open_cuda_device(0)->free_bytes(), 48U << 20);
}

TEST(CudaDevice, CopiesWhatLiesSideBySideAtOnceAndTellsWhenItHas) {
  const auto device = open_cuda_device(0);
  std::array<std::byte, 64> to{};
  std::array<std::byte, 64> from{};
  copied.clear();
  int num_done = 0;
  device->copy_in_beside(std::vector<HostCopy>{{to.data(), from.data(), 8},
                                               {to.data() + 8, from.data() + 8, 8},
                                               {to.data() + 16, from.data() + 32, 8},
                                               {to.data() + 40, from.data() + 40, 8}},
                         [&] { ++num_done; });
  EXPECT_EQ(copied, (std::vector<std::size_t>{16, 8, 8}));
  EXPECT_EQ(num_done, 0);
  device->synchronize();
  EXPECT_EQ(num_done, 0) << "kernels need not wait for them";
  device->finish_copies_beside();
  EXPECT_EQ(num_done, 1);
  device->finish_copies_beside();
  EXPECT_EQ(num_done, 1);
}

TEST(CudaDevice, HoldsNothingThatIsKnownWhereTheDriverDoesNotTell) {
  EXPECT_EQ(cuda::free_bytes_by_driver("no bus"), -1);
  EXPECT_EQ(open_cuda_device(0)->own_bytes(), 0);
}

}  // namespace
}  // namespace larder
