// What a GPU's memory holds, as its driver tells it (NVML, which comes with the driver): also before this
// program has a context there.
#pragma once

#include <cstdint>

namespace larder::cuda {

// Bytes that nobody holds; -1 where there is no NVML or it does not know the GPU. pci_bus_id: as
// cudaDeviceGetPCIBusId() has it. Thread: any.
std::int64_t free_bytes_by_driver(const char* pci_bus_id);

}  // namespace larder::cuda
