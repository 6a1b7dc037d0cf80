// How products are cut into tasks. Decides no bit.
#pragma once

#include <cstdint>

namespace larder {

// A task of matrix work takes at least this many bytes of weights times rows, so that handing it
// out costs little beside it.
inline constexpr std::int64_t kMinTaskBytes = 16 * 1024;
// And of many rows, which each task puts in order for itself, so many panels.
inline constexpr int kManyRows = 8;
inline constexpr int kMinPanelsOfManyRows = 16;
// Tiles multiply rows that were rounded for them so fast that the rounding counts.
inline constexpr int kMinPanelsOfRoundedRows = 64;
inline constexpr int kMatmulTasksPerThread = 8;

}  // namespace larder
