// What the CUDA kernels do not take.
#pragma once

namespace larder {

// The largest head of attention.
inline constexpr int kCudaMaxHeadDim = 512;
// Blocks of a grid in y and in z: heads are y of attention's.
inline constexpr unsigned kCudaMaxGrid = 65535;

// Shared memory of a block on Hopper.
inline constexpr int kCudaMostSharedBytes = 227 << 10;

}  // namespace larder
