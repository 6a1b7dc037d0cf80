// Threads that the system refuses, for the child of a death test.
#pragma once

#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/error.h"

namespace larder {

// Whether allow_threads() is exact: ThreadSanitizer takes address space of its own for each thread.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadLimitIsExact = false;
#else
inline constexpr bool kThreadLimitIsExact = true;
#endif

// From now on this process gets so many more threads: there is address space for no more stacks.
inline void allow_threads(int num_threads) {
  constexpr rlim_t kStackBytes = rlim_t{256} << 20;
  ::mallopt(M_ARENA_MAX, 1);  // another one would take from that, whenever a thread happens to ask for memory
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_setattr_default_np(&attributes);
  std::size_t num_pages = 0;
  std::ifstream("/proc/self/statm") >> num_pages;
  const rlim_t limit = num_pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) +
                       static_cast<rlim_t>(num_threads) * kStackBytes + kStackBytes / 2;
  const rlimit address_space{limit, limit};
  ::setrlimit(RLIMIT_AS, &address_space);
}

// Ends the process: 3 with the error's text, 0 if there was none, by SIGALRM if it waits for ever.
template <class Body>
[[noreturn]] void run_with_threads(int num_threads, Body body) {
  allow_threads(num_threads);
  ::alarm(20);
  try {
    body();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(3);
  }
  std::_Exit(0);
}

}  // namespace larder
