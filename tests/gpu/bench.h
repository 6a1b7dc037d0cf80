#pragma once

#include "kernels/device.h"

namespace larder {

// Prints a table of bytes per second: copies, products, attention, a step of a tiny model.
void run_gpu_bench(Device& device, bool quick);
// The last of these alone.
void run_gpu_step(Device& device, bool quick);

}  // namespace larder
