// The device that the CUDA kernels' tests run on: an emulated one in the ordinary build, a GPU in
// tests/gpu. And arrays in its memory.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/tables.h"
#include "kernels/device.h"

namespace larder {

std::unique_ptr<Device> open_test_device();

namespace test {

// What a device's results are compared with.
inline const KernelTable& host() { return isa_generic::kTable; }

template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, const std::vector<T>& values)
      : OnDevice(device, values.data(), values.size()) {}
  OnDevice(Device& device, const T* values, std::size_t count)
      : device_(device), count_(count), memory_(&device, count * sizeof(T)) {
    device.copy_in(memory_.data(), reinterpret_cast<const std::byte*>(values), count * sizeof(T));
  }

  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    device_.copy_out(reinterpret_cast<std::byte*>(values.data()), memory_.data(),
                     count_ * sizeof(T));
    return values;
  }

 private:
  Device& device_;
  std::size_t count_;
  DeviceBuffer memory_;
};

}  // namespace test
}  // namespace larder
