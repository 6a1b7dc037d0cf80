#pragma once

#include <string>

#include "kernels/device.h"

namespace larder {

// Prints a table of bytes per second: copies, products, attention, a step of a tiny model; and what draws take. only:
// of lines such as "attention   1 x   8K, f16 ", "product Q4_0" and "draws" those that have it in them.
void run_gpu_bench(Device& device, bool quick, const std::string& only);
// The last of these alone.
void run_gpu_step(Device& device, bool quick);

}  // namespace larder
