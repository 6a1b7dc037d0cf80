#include "kernels/device.h"

#include <utility>

namespace larder {

DeviceBuffer::DeviceBuffer(Device* device, std::size_t size_bytes, bool touch)
    : device_(device), size_bytes_(size_bytes) {
  if (device != nullptr) {
    if (size_bytes > 0) data_ = device->allocate(size_bytes);
    return;
  }
  host_ = AlignedBuffer(size_bytes, touch);
  data_ = host_.data();
}

DeviceBuffer::~DeviceBuffer() {
  if (device_ != nullptr && data_ != nullptr) device_->release(data_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      host_(std::move(other.host_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(host_, other.host_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace larder
