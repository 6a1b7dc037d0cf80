// --device: where to compute.
#pragma once

#include <memory>
#include <string>

#include "kernels/device.h"

namespace larder {

struct PlannedModel;
struct RuntimeOptions;

// N of "cuda:N"; -1 for any other text.
int cuda_index(const std::string& text);

// The device that the options name; null = the CPU, which "auto" takes with a line that says why.
// Throws Error{kUnavailable} when there is none of that number, Error{kInvalidArgument} when an
// option asks for what a GPU does not do yet.
std::unique_ptr<Device> open_device(const RuntimeOptions& options);

// Throws Error{kInvalidArgument} when the model is not for that device.
void check_device(const Device& device, const PlannedModel& planned);

}  // namespace larder
