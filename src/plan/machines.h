// What a machine can do at most: named ones by their datasheets, this one measured.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "model/forward/transformer.h"
#include "plan/model_shape.h"

namespace larder {

struct Machine {
  std::string name;
  std::int64_t memory_bytes = 0;  // of one device
  double read_bytes_per_s = 0;
  std::array<double, kNumOpsKinds> ops_per_s = {};  // by OpsKind, dense; two a multiplication
  bool is_measured = false;

  double peak(OpsKind kind) const { return ops_per_s[static_cast<std::size_t>(kind)]; }
};

// NVIDIA's datasheets; what has no units of its own counts as what it is converted to: codes of 4
// bits to BF16, and on the A100 FP8, too.
const std::vector<Machine>& named_machines();
// "H100", "h100-sxm", "rtx 4090". Throws Error{kInvalidArgument} that names them all.
const Machine& find_machine(std::string_view name);

// Reads memory and multiplies matrices on all threads of the pool, as the forward pass does with such
// activations, for about half a second. The figures are the best of several tries. memory_bytes is left to the
// caller.
Machine measure_machine(const KernelTable& kernels, ThreadPool& pool, ActivationType activations);

// Of that, only how fast the pool's threads read memory together, in bytes a second: what bounds decode.
double measure_read_rate(ThreadPool& pool);

// What a device is measured with: enough to keep a large GPU busy for some 100 us.
struct DeviceProbe {
  std::int64_t copied_bytes = std::int64_t{512} << 20;  // taken twice
  int matrix_size = 8192;
  int num_rows = 512;
};

// The same of a device, bytes copied within its memory counting as read and as written. Throws
// Error{kUnavailable} when it has no room for that.
Machine measure_device(Device& device, ThreadPool& pool, ActivationType activations, const DeviceProbe& probe = {});

}  // namespace larder
