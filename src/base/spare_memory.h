// Memory for what is small where the system has none left: only what asks for much fails then.
#pragma once

#include <cstddef>
#include <cstdint>

namespace larder {

// For the operations and coroutines of several hundred connections that are open when it happens.
inline constexpr std::size_t kSpareBytes = std::size_t{4} << 20;

// operator new (spare_new.cc) comes here where malloc() fails, and operator delete with every address. It is no
// std::new_handler that gives a reserve back to the C library: that keeps what is free for one group of threads from the
// others, and what was given back would have to be taken again.
// nullptr: too large, or there is none either. Thread: any.
void* take_spare(std::size_t size_bytes) noexcept;
// false: it is not of this memory.
bool give_spare(void* bytes) noexcept;

struct SpareStats {
  std::uint64_t num_taken = 0;  // ever
  std::size_t used_bytes = 0;   // now
};
SpareStats spare_stats();

}  // namespace larder
