// Many positioned reads or writes at once: io_uring, or threads with pread and pwrite where the
// kernel or a container forbids it. An interface, so that tests can put a failing disk in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace larder {

enum class IoDirection { kRead, kWrite };

struct IoRequest {
  int fd = -1;
  std::int64_t offset_bytes = 0;
  // Where to read to or write from: a write leaves it as it is.
  std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
  std::int64_t result = 0;  // bytes moved, perhaps fewer than asked for, or -errno
};

// Thread: one at a time.
class BlockIo {
 public:
  virtual ~BlockIo() = default;

  virtual const char* name() const = 0;
  // Tries each request once, in any order, and sets every result. Returns when all have ended, so
  // that no buffer is in use any more.
  virtual void transfer(IoDirection direction, std::span<IoRequest> requests) = 0;
};

enum class BlockIoKind {
  kAuto,  // io_uring where there is one
  kUring,
  kThreads,
};

// num_in_flight: how many requests the device is given at once. Throws Error{kUnavailable} for
// kUring where the kernel has none.
std::unique_ptr<BlockIo> make_block_io(BlockIoKind kind, int num_in_flight);

// Repeats what was moved in part or interrupted until each request is done or failed: then result
// is size_bytes or -errno (-EIO for a read beyond the file's end).
void transfer_all(BlockIo& io, IoDirection direction, std::span<IoRequest> requests);

// What an errno of it tells of.
enum class IoFault {
  kPlace,    // the place on the device: it would fail there again
  kFull,     // the device, which has no room left: what has its bytes already may still be written over
  kTooLong,  // the place in the file, which may not be so long (ulimit -f): no room there, whatever goes
  kSystem,   // none of these
};
IoFault fault_of(int error);

}  // namespace larder
