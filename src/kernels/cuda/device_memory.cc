#include "kernels/cuda/device_memory.h"

#include <dlfcn.h>

#include <memory>

namespace larder::cuda {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

// NVML's own, of which a build has no header.
struct Memory {
  unsigned long long total, free, used;
};
using Call = int();
using FindDevice = int(const char* pci_bus_id, void** device);
using GetMemory = int(void* device, Memory* memory);

struct Close {
  void operator()(void* library) const noexcept { dlclose(library); }
};

template <class Function>
Function* function_of(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

std::int64_t free_bytes_by_driver(const char* pci_bus_id) {
  const std::unique_ptr<void, Close> library(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) return -1;
  auto* const start = function_of<Call>(library.get(), "nvmlInit_v2");
  auto* const stop = function_of<Call>(library.get(), "nvmlShutdown");
  auto* const find_device = function_of<FindDevice>(library.get(), "nvmlDeviceGetHandleByPciBusId_v2");
  auto* const get_memory = function_of<GetMemory>(library.get(), "nvmlDeviceGetMemoryInfo");
  if (start == nullptr || stop == nullptr || find_device == nullptr || get_memory == nullptr) return -1;
  if (start() != 0) return -1;
  void* device = nullptr;
  Memory memory = {};
  const bool found = find_device(pci_bus_id, &device) == 0 && get_memory(device, &memory) == 0;
  stop();
  return found ? static_cast<std::int64_t>(memory.free) : -1;
}

}  // namespace larder::cuda
