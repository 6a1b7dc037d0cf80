// A thread that is allowed to be refused.
#pragma once

#include <functional>
#include <thread>

namespace larder {

// purpose: "that ...". Throws Error{kUnavailable} with it where a limit forbids the thread; whoever has
// started others ends them then.
[[nodiscard]] std::thread start_thread(const char* purpose, std::function<void()> body);

}  // namespace larder
