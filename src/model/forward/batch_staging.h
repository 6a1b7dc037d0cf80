// A step's arrays in a device's memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/forward/forward_batch.h"

namespace larder {

// What room is reserved for.
struct StagingLimits {
  int max_tokens = 0;
  int max_logit_rows = 0;
  int max_draws = 0;
  int max_sequences = 0;
  int max_context_len = 0;  // of one sequence
  int num_groups = 0;
};

// Collects the arrays of a batch, block tables included, and copies them over at once.
// Grows only for a batch over the limits, which an endless context is not: its table has what it
// sees.
// Thread: one at a time.
class BatchStaging {
 public:
  // Throws Error{kUnavailable}.
  BatchStaging(Device& device, const StagingLimits& limits)
      : device_(device),
        memory_(&device, size_bytes(limits)),
        host_(host_buffer(device, size_bytes(limits))) {}

  // What is reserved under these limits.
  static std::size_t size_bytes(const StagingLimits& limits);
  std::size_t size_bytes() const { return memory_.size_bytes(); }

  // The same batch with every pointer into the device's memory; valid until the next call. May be
  // called while kernels still read the last one's.
  ForwardBatch stage(const ForwardBatch& batch);

 private:
  // Room for so many bytes behind what is written, from its offset on.
  std::size_t extend(std::size_t size_bytes);
  template <class T>
  std::size_t append(std::span<const T> values);
  // Without its skipped_blocks.
  std::size_t append_table(const AttentionSequence& sequence);
  template <class T>
  std::span<const T> staged(std::size_t offset, std::size_t count) const;
  Device& device_;
  DeviceBuffer memory_;
  HostBuffer host_;  // what will lie there, as far as it is written
  std::size_t num_written_ = 0;
  std::vector<GroupBatch> groups_;
  std::vector<AttentionSequence> logit_sequences_;
};

}  // namespace larder
