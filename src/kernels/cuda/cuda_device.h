// NVIDIA GPUs as devices.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace larder {

// The index-th GPU that the driver shows. Throws Error{kUnavailable} with one line that says why
// there is none: not compiled in, no driver or one too old, no such GPU, one older than the kernels.
std::unique_ptr<Device> open_cuda_device(int index);

}  // namespace larder
