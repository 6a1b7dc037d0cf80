// A thread that is allowed to be refused, and stacks that are long enough.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>

namespace larder {

// purpose: "that ...". Throws Error{kUnavailable} with it where a limit forbids the thread; whoever has
// started others ends them then.
[[nodiscard]] std::thread start_thread(const char* purpose, std::function<void()> body);

// body's result. It and all threads that are started from now on have stacks of so many bytes at least, whatever the
// user's limit (ulimit -s) is. Throws Error{kUnavailable} as start_thread() does. Before any other thread is started.
int run_with_stacks(std::size_t min_bytes, const std::function<int()>& body);

}  // namespace larder
