#include "base/start_thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <exception>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace larder {

std::thread start_thread(const char* purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kUnavailable,
                fmt::format("cannot start the thread {}: {}; raise the user's limit of threads "
                            "(ulimit -u) or the control group's (pids.max)",
                            purpose, error.code().message()));
  }
}

namespace {

// The C library gives threads what the limit was at the process's start.
void lengthen_stacks(std::size_t min_bytes) {
  pthread_attr_t attributes;
  std::size_t size_bytes = 0;
  if (::pthread_getattr_default_np(&attributes) != 0) return;
  ::pthread_attr_getstacksize(&attributes, &size_bytes);
  if (size_bytes < min_bytes && ::pthread_attr_setstacksize(&attributes, min_bytes) == 0)
    ::pthread_setattr_default_np(&attributes);
  ::pthread_attr_destroy(&attributes);
}

}  // namespace

int run_with_stacks(std::size_t min_bytes, const std::function<int()>& body) {
  lengthen_stacks(min_bytes);
  rlimit limit = {};
  // The first thread's stack grows up to the limit.
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= min_bytes) return body();
  int result = 0;
  std::exception_ptr failure;
  start_thread("that has a longer stack", [&] {
    try {
      result = body();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return result;
}

}  // namespace larder
