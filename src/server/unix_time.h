// The time as replies tell it.
#pragma once

#include <chrono>
#include <cstdint>

namespace larder {

inline std::int64_t unix_time_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace larder
