// How deep a thread's stack is in memory.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace larder {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kStackIsKnown = false;
#else
inline constexpr bool kStackIsKnown = true;
#endif

// Down to the deepest page that a thread has in memory once it has run the body; the thread's own few included.
inline std::int64_t stack_bytes_of(std::function<void()> body) {
  constexpr std::size_t kStackBytes = std::size_t{8} << 20;
  void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  EXPECT_NE(stack, MAP_FAILED);
  ::madvise(stack, kStackBytes, MADV_NOHUGEPAGE);
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstack(&attributes, stack, kStackBytes);
  pthread_t thread;
  const auto run = [](void* function) -> void* {
    (*static_cast<std::function<void()>*>(function))();
    return nullptr;
  };
  EXPECT_EQ(::pthread_create(&thread, &attributes, run, &body), 0);
  ::pthread_join(thread, nullptr);
  ::pthread_attr_destroy(&attributes);
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> is_there(kStackBytes / page_bytes);
  EXPECT_EQ(::mincore(stack, kStackBytes, is_there.data()), 0);
  const auto deepest = std::find_if(is_there.begin(), is_there.end(), [](unsigned char page) { return (page & 1) != 0; });
  ::munmap(stack, kStackBytes);
  return static_cast<std::int64_t>(page_bytes) * (is_there.end() - deepest);
}

}  // namespace larder
