// --device: where to compute.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/device.h"

namespace larder {

class ThreadPool;
struct PlannedModel;
struct RuntimeOptions;

// N of "cuda:N"; -1 for any other text.
int cuda_index(const std::string& text);

// Of a device that these options open: "cuda:N".
std::string name_of_device(const RuntimeOptions& options);

// What a plan may share out of a device's memory, null = the host's: free, and taken for this program
// already.
std::int64_t plannable_bytes(const Device* device);

// The device that the options name; null = the CPU, which "auto" takes with a line that says why.
// Throws Error{kUnavailable} when there is none of that number.
std::unique_ptr<Device> open_device(const RuntimeOptions& options);

// The model's plan on that device, null = the CPU. Where the options say "auto" and the model is not
// for the device, device becomes null, with a line that says why. Throws what plan_model_into() throws,
// and Error{kInvalidArgument} when the model is not for a device that the options name.
PlannedModel plan_on(const RuntimeOptions& options, ThreadPool& pool,
                     std::unique_ptr<Device>& device);
// The same; planned.file is there where only memory falls short.
void plan_on_into(PlannedModel& planned, const RuntimeOptions& options, ThreadPool& pool,
                  std::unique_ptr<Device>& device);

}  // namespace larder
