// The largest number that will do.
#pragma once

#include <cstdint>

namespace larder {

// The largest value in [0, limit] for which holds() is true, if it is for all below.
template <class Holds>
std::int64_t largest(std::int64_t limit, const Holds& holds) {
  std::int64_t low = 0, high = limit;
  while (low < high) {
    const std::int64_t middle = (low + high + 1) / 2;
    if (holds(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace larder
