// In place of cuda_device.cc where there is no CUDA compiler.
#include "base/error.h"
#include "kernels/cuda/cuda_device.h"

namespace larder {

std::unique_ptr<Device> open_cuda_device(int index) {
  throw Error(ErrorKind::kUnavailable,
              fmt::format("device cuda:{}: this program was built without CUDA (see docs/gpu.md)",
                          index));
}

}  // namespace larder
