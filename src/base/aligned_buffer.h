// Anonymous memory for weights, KV blocks and scratch: page-aligned, zeroed, huge pages where
// offered.
#pragma once

#include <cstddef>
#include <span>

namespace larder {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Reserves and zeroes size_bytes; throws Error{kUnavailable} when the machine has not got it.
  // touch: take the pages now, so that a later page fault can neither slow nor kill the process.
  explicit AlignedBuffer(std::size_t size_bytes, bool touch = false);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace larder
