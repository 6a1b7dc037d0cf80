// A stable sort that stays within its bounds whatever the comparison says: nan has no place in an
// order, and std::sort may run past the end when it meets one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace larder::jinja {

// Merge sort, from short runs up. is_less may throw.
template <class T, class Less>
void merge_sort(std::vector<T>& items, Less is_less) {
  std::vector<T> merged(items.size());
  for (std::size_t width = 1; width < items.size(); width *= 2) {
    for (std::size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, items.size());
      const std::size_t end = std::min(begin + 2 * width, items.size());
      std::size_t left = begin, right = middle;
      for (std::size_t at = begin; at < end; ++at) {
        const bool takes_right =
            left == middle || (right < end && is_less(items[right], items[left]));
        merged[at] = takes_right ? items[right++] : items[left++];
      }
    }
    std::swap(items, merged);
  }
}

}  // namespace larder::jinja
