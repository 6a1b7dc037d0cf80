// Gives back what a peak of requests has left of the heap.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstddef>

namespace larder {

// Thread: one. The C library keeps what was freed below its highest block in use, and a few stored bytes there hold
// hundreds of megabytes: the process would stay as large as its largest moment.
class HeapTrim {
 public:
  // To be called now and then while something is done: what was given back may be in use again.
  void note_use() { num_known_ = 0; }
  // And while nothing is: takes some milliseconds where there is much to give back.
  void run() {
#ifdef __GLIBC__
    const std::size_t num_free = ::mallinfo2().fordblks;
    num_known_ = std::min(num_known_, num_free);
    if (num_free - num_known_ < kLeastBytes) return;
    ::malloc_trim(0);
    num_known_ = ::mallinfo2().fordblks;  // counts as free what has been given back
#endif
  }

 private:
  static constexpr std::size_t kLeastBytes = std::size_t{16} << 20;

  std::size_t num_known_ = 0;  // free at the last time, and so given back
};

}  // namespace larder
