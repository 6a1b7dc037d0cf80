// What the CUDA kernels do not take.
#pragma once

namespace larder {

// The largest head of attention.
inline constexpr int kCudaMaxHeadDim = 512;

}  // namespace larder
