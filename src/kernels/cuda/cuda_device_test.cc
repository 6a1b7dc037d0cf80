// A GPU that cannot be taken. CUDA's runtime is played: nothing here needs a GPU or a driver.
#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/error.h"

namespace {

// What the runtime answers.
struct Answers {
  cudaError_t properties = cudaSuccess;
  cudaError_t set_device = cudaSuccess;
  cudaError_t free = cudaSuccess;
  cudaError_t loading = cudaSuccess;
} answers;

// What the first call found.
std::string module_loading;

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
  return answers.properties;
}
cudaError_t cudaSetDevice(int) { return answers.set_device; }
cudaError_t cudaFree(void*) { return answers.free; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "all CUDA-capable devices are busy"; }
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
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

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
  answers = {};
  EXPECT_NE(open_cuda_device(0), nullptr);
}

TEST(CudaDevice, KernelsAreLoadedBeforeMemoryIsPlanned) {
  unsetenv("CUDA_MODULE_LOADING");
  open_cuda_device(0);
  EXPECT_EQ(module_loading, "EAGER");
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  open_cuda_device(0);
  EXPECT_EQ(module_loading, "LAZY") << "as the user has it";
}

TEST(CudaDevice, LeavesRoomForThePiecesThatMemoryComesIn) {
  EXPECT_EQ(open_cuda_device(0)->free_bytes(), 48U << 20);
}

}  // namespace
}  // namespace larder
