// What this process has allocated.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <vector>

namespace larder {

inline std::int64_t heap_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// false: another allocator, such as a sanitizer's, stands in for glibc's.
inline bool is_heap_known() {
  const std::int64_t before = heap_in_use();
  const std::vector<char> some(1 << 20);
  return heap_in_use() - before >= static_cast<std::int64_t>(some.size());
}

}  // namespace larder
