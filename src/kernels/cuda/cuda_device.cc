#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <source_location>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/step_graphs.h"

namespace larder {

// The kernels' side, compiled by nvcc; see cuda/functions.h and cuda/platform.h.
namespace cuda {

extern const KernelTable kTable;
// A cudaError_t: whether the device takes the kernels. All are compiled alike, so one speaks for them.
int loading_error();

void require(bool condition, const char* what) { CHECK(condition, what); }
void require_launched(int error) {
  CHECK(error == cudaSuccess, cudaGetErrorString(static_cast<cudaError_t>(error)));
}
bool is_on(const char* variable) {
  const char* setting = std::getenv(variable);
  return setting == nullptr || std::string_view(setting) != "0";
}
bool kernels_overlap() {
  static const bool overlap = is_on("LARDER_CUDA_OVERLAP");
  return overlap;
}

// Of all devices: those that have it are of one compute capability, and others have other kernels.
bool wgmma_is_there = false;
bool has_wgmma() { return wgmma_is_there; }
int multiprocessors = 1;
int num_multiprocessors() { return multiprocessors; }

// Of the thread, while it writes down a step.
thread_local StepGraphs* recording = nullptr;

void start_kernel(const void* kernel, dim3 grid, int num_threads, int shared_bytes,
                  const void* const* args, const std::size_t* arg_sizes, int num_args) {
  const KernelStart start = {kernel, grid, num_threads, shared_bytes, args, arg_sizes, num_args};
  if (recording != nullptr)
    recording->add(start);
  else
    require_launched(start_now(start, nullptr));
}

}  // namespace cuda

namespace {

// The kernels are compiled for this compute capability and, as PTX, for those after it.
constexpr int kOldestMajor = 9;

// The driver gives memory in pieces of 2 MiB, of which every buffer may leave one unused.
constexpr std::size_t kRoundingBytes = 32 << 20;

// An error after the start is a bug, or the device or its driver has failed.
void check(cudaError_t error, std::source_location at = std::source_location::current()) {
  if (error != cudaSuccess) [[unlikely]]
    internal::check_failed("the GPU and its driver work", at.file_name(), static_cast<int>(at.line()),
                           fmt::format(" {}: {}", cudaGetErrorName(error), cudaGetErrorString(error)));
}

// As few as their places allow: each costs the bus a pause.
std::vector<HostCopy> joined(std::span<const HostCopy> copies) {
  std::vector<HostCopy> result;
  for (const HostCopy& copy : copies) {
    if (!result.empty() && result.back().to + result.back().size_bytes == copy.to &&
        result.back().from + result.back().size_bytes == copy.from)
      result.back().size_bytes += copy.size_bytes;
    else
      result.push_back(copy);
  }
  return result;
}

[[noreturn]] void throw_unavailable(int index, const std::string& why) {
  throw Error(ErrorKind::kUnavailable, fmt::format("device cuda:{}: {}", index, why));
}

// Before the device is taken an error is the machine's, not a bug: others may hold the GPU for
// themselves or have filled it, and it may have failed.
void require_available(int index, cudaError_t error) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // forgets it
  throw_unavailable(index, fmt::format("cannot be taken: {}", cudaGetErrorString(error)));
}

class CudaDevice : public Device {
 public:
  // Throws Error{kUnavailable}.
  CudaDevice(int index, const cudaDeviceProp& properties) : index_(index), properties_(properties) {
    char bus_id[32] = "";
    require_available(index, cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), index));
    const std::int64_t free_before = cuda::free_bytes_by_driver(bus_id);
    require_available(index, cudaSetDevice(index));
    require_available(index, cudaFree(nullptr));  // makes the context, if that has not yet
    require_available(index, static_cast<cudaError_t>(cuda::loading_error()));
    if (free_before >= 0)
      own_bytes_ = std::max<std::int64_t>(0, free_before - cuda::free_bytes_by_driver(bus_id));
    cuda::wgmma_is_there = properties.major == 9 && properties.minor == 0;
    cuda::multiprocessors = properties.multiProcessorCount;
    try {
      // Before anyone plans with what is free.
      require_available(index, cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking));
      require_available(index, cudaEventCreateWithFlags(&before_beside_, cudaEventDisableTiming));
      require_available(index, graphs_.open());
    } catch (const Error&) {
      destroy_beside();
      throw;
    }
  }
  ~CudaDevice() override {
    finish_copies_beside();
    destroy_beside();
  }

  const KernelTable& kernels() const override { return cuda::kTable; }

  std::string describe() const override {
    return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} MiB",
                       properties_.name, properties_.major, properties_.minor,
                       properties_.multiProcessorCount, properties_.totalGlobalMem >> 20);
  }

  std::string arch() const override {
    return fmt::format("sm_{}{}, CUDA {}", properties_.major, properties_.minor, CUDART_VERSION);
  }

  int max_head_dim() const override { return kCudaMaxHeadDim; }

  std::size_t free_bytes() const override {
    bind();
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free - std::min(free, kRoundingBytes);
  }

  std::int64_t own_bytes() const override { return own_bytes_; }

  std::byte* allocate(std::size_t size_bytes) override {
    bind();
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, size_bytes);
    require_reserved(error, size_bytes, "its");
    check(cudaMemset(memory, 0, size_bytes));
    return static_cast<std::byte*>(memory);
  }

  void release(std::byte* memory) noexcept override {
    static_cast<void>(cudaSetDevice(index_));
    static_cast<void>(cudaFree(memory));
  }

  std::byte* allocate_host(std::size_t size_bytes) override {
    bind();
    void* memory = nullptr;
    require_reserved(cudaMallocHost(&memory, size_bytes), size_bytes, "the host's");
    return static_cast<std::byte*>(memory);
  }

  void release_host(std::byte* memory) noexcept override {
    static_cast<void>(cudaSetDevice(index_));
    static_cast<void>(cudaFreeHost(memory));
  }

  void copy_in(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    bind();
    check(cudaMemcpy(to, from, size_bytes, cudaMemcpyHostToDevice));
  }
  void copy_out(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    bind();
    check(cudaMemcpy(to, from, size_bytes, cudaMemcpyDeviceToHost));
  }
  void copy_in_beside(std::span<const HostCopy> copies, std::function<void()> done) override {
    copy_beside(copies, cudaMemcpyHostToDevice, std::move(done));
  }
  void copy_out_beside(std::span<const HostCopy> copies, std::function<void()> done) override {
    copy_beside(copies, cudaMemcpyDeviceToHost, std::move(done));
  }
  void finish_copies_beside() override {
    if (num_beside_ == 0) return;
    bind();
    check(cudaStreamSynchronize(beside_));
  }
  void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes) override {
    bind();
    check(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice));
  }
  void synchronize() override {
    bind();
    check(cudaStreamSynchronize(nullptr));  // not the device: what is copied beside may take long
  }

  void begin_step() override {
    static const bool graphs = cuda::is_on("LARDER_CUDA_GRAPHS");
    if (!graphs) return;
    bind();
    graphs_.begin();
    cuda::recording = &graphs_;
  }
  void end_step() override {
    if (cuda::recording == nullptr) return;
    cuda::recording = nullptr;
    bind();
    graphs_.end();
  }

 private:
  void destroy_beside() noexcept {
    if (before_beside_ != nullptr) static_cast<void>(cudaEventDestroy(before_beside_));
    if (beside_ != nullptr) static_cast<void>(cudaStreamDestroy(beside_));
  }

  void require_reserved(cudaError_t error, std::size_t size_bytes, const char* whose) const {
    if (error == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());  // forgets it
    throw_unavailable(index_, fmt::format("cannot reserve {} MiB of {} memory: {}",
                                          size_bytes >> 20, whose, cudaGetErrorString(error)));
  }
  void bind() const {
    CHECK(cuda::recording == nullptr, "the device is used within a step");
    check(cudaSetDevice(index_));
  }

  void copy_beside(std::span<const HostCopy> copies, cudaMemcpyKind kind, std::function<void()> done) {
    bind();
    check(cudaEventRecord(before_beside_));
    check(cudaStreamWaitEvent(beside_, before_beside_));
    for (const HostCopy& copy : joined(copies))
      check(cudaMemcpyAsync(copy.to, copy.from, copy.size_bytes, kind, beside_));
    ++num_beside_;
    check(cudaLaunchHostFunc(
        beside_,
        [](void* given) {
          const std::unique_ptr<Beside> beside(static_cast<Beside*>(given));
          beside->done();
          --beside->num_left;
        },
        std::make_unique<Beside>(num_beside_, std::move(done)).release()));
  }

  struct Beside {
    Beside(std::atomic<int>& left, std::function<void()> told) : num_left(left), done(std::move(told)) {}
    std::atomic<int>& num_left;
    std::function<void()> done;
  };

  int index_;
  cudaDeviceProp properties_;
  cudaStream_t beside_ = nullptr;
  cudaEvent_t before_beside_ = nullptr;
  std::atomic<int> num_beside_ = 0;  // whose done is still to be called
  std::int64_t own_bytes_ = 0;
  cuda::StepGraphs graphs_;
};

}  // namespace

std::unique_ptr<Device> open_cuda_device(int index) {
  // All kernels at once, before memory is planned: one that is loaded when it is first used wants
  // memory of a GPU that may be full by then, in the middle of a request.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int driver_version = 0;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaDriverGetVersion(&driver_version));
    if (driver_version == 0) throw_unavailable(index, "no NVIDIA driver on this machine");
    throw_unavailable(index, fmt::format("the driver knows CUDA {}.{}; this program needs {}.{}",
                                         driver_version / 1000, driver_version % 1000 / 10,
                                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  }
  if (error == cudaErrorNoDevice) throw_unavailable(index, "no NVIDIA GPU on this machine");
  if (error != cudaSuccess) throw_unavailable(index, cudaGetErrorString(error));
  if (index < 0 || index >= count)
    throw_unavailable(index, fmt::format("this machine has {} GPUs, counted from 0", count));
  cudaDeviceProp properties;
  require_available(index, cudaGetDeviceProperties(&properties, index));
  if (properties.major < kOldestMajor)
    throw_unavailable(index, fmt::format("{} has compute capability {}.{}; {}.0 is needed",
                                         properties.name, properties.major, properties.minor,
                                         kOldestMajor));
  // Newer ones of workstations have less than those of data centres.
  if (properties.sharedMemPerBlockOptin < kCudaMostSharedBytes)
    throw_unavailable(index, fmt::format("{} has {} KiB of shared memory for a block; {} KiB are needed",
                                         properties.name, properties.sharedMemPerBlockOptin >> 10,
                                         kCudaMostSharedBytes >> 10));
  return std::make_unique<CudaDevice>(index, properties);
}

}  // namespace larder
