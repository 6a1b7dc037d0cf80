// Arrays one after another in memory that is taken at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace larder {

// With base null it only counts.
class ScratchPlacer {
 public:
  explicit ScratchPlacer(std::byte* base) : base_(base) {}

  std::size_t size_bytes() const { return size_bytes_; }

  template <class T>
  T* place(std::size_t count) {
    constexpr std::size_t kAlignment = 64;
    // A vector's width beyond the end: kernels may load, though not use, what lies there.
    const std::size_t end = size_bytes_ + count * sizeof(T) + kAlignment;
    T* placed = base_ ? reinterpret_cast<T*>(base_ + size_bytes_) : nullptr;
    size_bytes_ = (end + kAlignment - 1) / kAlignment * kAlignment;
    return placed;
  }

  // For rows of up to num_cols values.
  QuantizedRows place_quantized(std::size_t rows, std::size_t num_cols) {
    return {.q = place<std::int8_t>(rows * num_cols),
            .scale = place<float>(rows * (num_cols / kActivationGroup + 1)),
            .sum = place<std::int32_t>(rows * (num_cols / 16 + 1))};
  }

 private:
  std::byte* base_;
  std::size_t size_bytes_ = 0;
};

}  // namespace larder
