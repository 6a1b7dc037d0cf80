// Memory that kernels work on where it is not the host's: a GPU's. For the host itself a null
// Device* stands, and its memory is AlignedBuffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/aligned_buffer.h"
#include "kernels/kernels.h"

namespace larder {

// Between memory of Device::allocate_host() and a device's.
struct HostCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t size_bytes = 0;
};

// One device with its own memory. Kernels and copies run in the order in which they were called,
// none of them waits for the host; copy_out() and synchronize() wait for all before them.
// Thread: one at a time; every call binds its thread to the device, so that kernels launched after
// it from the same thread run there. An error of the device itself is a bug (CHECK).
class Device {
 public:
  virtual ~Device() = default;

  virtual const KernelTable& kernels() const = 0;
  virtual std::string describe() const = 0;     // one line for people
  virtual std::string arch() const = 0;         // with the kernels, what results' bits depend on: "sm_90, CUDA 12040"
  virtual int max_head_dim() const = 0;         // that attention takes
  virtual std::size_t free_bytes() const = 0;   // that allocate() could still give
  // That the device holds for this program besides what is allocated, its kernels for one; 0 if nobody knows.
  virtual std::int64_t own_bytes() const { return 0; }

  // Zeroed, aligned to 256 bytes. Throws Error{kUnavailable}.
  virtual std::byte* allocate(std::size_t size_bytes) = 0;
  virtual void release(std::byte* memory) noexcept = 0;
  // Of the host: to and from there copies run at the bus's speed. Throws Error{kUnavailable}.
  virtual std::byte* allocate_host(std::size_t size_bytes) = 0;
  virtual void release_host(std::byte* memory) noexcept = 0;

  // The host's side may be reused when they return.
  virtual void copy_in(std::byte* to, const std::byte* from, std::size_t size_bytes) = 0;
  virtual void copy_out(std::byte* to, const std::byte* from, std::size_t size_bytes) = 0;
  // Copies that begin when what was called before has ended, and then run beside the kernels, in order among
  // themselves. Both sides are left alone until done has been called: once, on any thread or within this call. It
  // may use no device.
  virtual void copy_in_beside(std::span<const HostCopy> copies, std::function<void()> done) {
    for (const HostCopy& copy : copies) copy_in(copy.to, copy.from, copy.size_bytes);
    done();
  }
  virtual void copy_out_beside(std::span<const HostCopy> copies, std::function<void()> done) {
    for (const HostCopy& copy : copies) copy_out(copy.to, copy.from, copy.size_bytes);
    done();
  }
  // Waits until done of all those has been called.
  virtual void finish_copies_beside() {}
  // From the device's memory to the device's; the two do not overlap.
  virtual void copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes) = 0;
  virtual void synchronize() = 0;

  // Kernels called between these two are a step: they may all be started when it ends. Nothing else of the
  // device is used meanwhile.
  virtual void begin_step() {}
  virtual void end_step() {}
};

// Ends it, also where an error leaves it.
class DeviceStep {
 public:
  // null: no step.
  explicit DeviceStep(Device* device) : device_(device) {
    if (device_ != nullptr) device_->begin_step();
  }
  ~DeviceStep() {
    if (device_ != nullptr) device_->end_step();
  }
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;

 private:
  Device* device_;
};

// Zeroed memory of a device, or of the host where device is null.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Throws Error{kUnavailable}. The device must outlive the buffer. touch: see AlignedBuffer.
  DeviceBuffer(Device* device, std::size_t size_bytes, bool touch = false);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }

 private:
  Device* device_ = nullptr;
  AlignedBuffer host_;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// A device's allocate_host().
struct HostRelease {
  Device* device = nullptr;
  void operator()(std::byte* memory) const noexcept { device->release_host(memory); }
};
using HostBuffer = std::unique_ptr<std::byte, HostRelease>;
inline HostBuffer host_buffer(Device& device, std::size_t size_bytes) {
  return {device.allocate_host(size_bytes), HostRelease{&device}};
}

// Memory of the host, all of it taken at once: for a device to copy from and to, null = for nobody.
class HostMemory {
 public:
  HostMemory() = default;
  // Throws Error{kUnavailable}. The device must outlive it.
  HostMemory(Device* device, std::size_t size_bytes) {
    if (device != nullptr)
      of_device_ = host_buffer(*device, size_bytes);
    else
      plain_ = AlignedBuffer(size_bytes, true);
  }

  std::byte* data() { return of_device_ ? of_device_.get() : plain_.data(); }

 private:
  HostBuffer of_device_;
  AlignedBuffer plain_;
};

}  // namespace larder
