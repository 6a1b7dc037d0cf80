#include "base/start_thread.h"

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

}  // namespace larder
