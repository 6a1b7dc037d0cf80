// The tests' device is the first GPU.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/test_device.h"

namespace larder {

std::unique_ptr<Device> open_test_device() { return open_cuda_device(0); }

}  // namespace larder
