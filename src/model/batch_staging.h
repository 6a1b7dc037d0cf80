// A step's arrays in a device's memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/forward_batch.h"

namespace larder {

// Collects the arrays of a batch, block tables included, and copies them over at once.
// Grows to the largest batch that it has seen. Thread: one at a time.
class BatchStaging {
 public:
  explicit BatchStaging(Device& device) : device_(device) {}

  // The same batch with every pointer into the device's memory; valid until the next call. May be
  // called while kernels still read the last one's.
  ForwardBatch stage(const ForwardBatch& batch);

 private:
  template <class T>
  std::size_t append(std::span<const T> values);
  template <class T>
  std::span<const T> staged(std::size_t offset, std::size_t count) const;
  Device& device_;
  std::vector<std::byte> bytes_;
  DeviceBuffer memory_;
  std::vector<GroupBatch> groups_;
};

}  // namespace larder
