#include "base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace larder {

AlignedBuffer::AlignedBuffer(std::size_t size_bytes, bool touch) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  void* data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ErrorKind::kUnavailable, fmt::format("cannot reserve {} MiB of memory: {}",
                                                     size_bytes >> 20, std::strerror(errno)));
  data_ = static_cast<std::byte*>(data);
  if (size_bytes >= (std::size_t{4} << 20)) ::madvise(data, size_bytes, MADV_HUGEPAGE);
  if (touch) std::memset(data_, 0, size_bytes);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_) ::munmap(data_, size_bytes_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace larder
