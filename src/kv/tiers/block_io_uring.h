// BlockIo through io_uring.
#pragma once

#include <memory>

#include "kv/tiers/block_io.h"

namespace larder {

// Tried out first. nullptr where the kernel (before 5.6) or a container's rules forbid it, or,
// where required, Error{kUnavailable}.
std::unique_ptr<BlockIo> make_uring_io(int num_in_flight, bool required);

}  // namespace larder
