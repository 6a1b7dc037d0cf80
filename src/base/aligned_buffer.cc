#include "base/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace larder {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kBytesPerThread = std::size_t{256} << 20;

// Pages come zeroed, so that to take one it is enough to write a byte of it.
void touch_pages(std::byte* data, std::size_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = 0; at < size_bytes; at += page) {
    *const_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

// What the kernel does for a page is most of the work, and threads share it.
void touch_all_pages(std::byte* data, std::size_t size_bytes) {
  const std::size_t num_cores = std::max(std::thread::hardware_concurrency(), 1U);
  const std::size_t num_threads = std::clamp<std::size_t>(size_bytes / kBytesPerThread, 1, num_cores);
  const std::size_t part = (size_bytes / num_threads / kHugePageBytes + 1) * kHugePageBytes;
  std::vector<std::jthread> threads;
  for (std::size_t begin = part; begin < size_bytes; begin += part) {
    const std::size_t size = std::min(part, size_bytes - begin);
    try {
      threads.emplace_back(touch_pages, data + begin, size);
    } catch (const std::system_error&) {  // refused
      touch_pages(data + begin, size);
    }
  }
  touch_pages(data, std::min(part, size_bytes));
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t size_bytes, bool touch) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  void* data =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ErrorKind::kUnavailable, fmt::format("cannot reserve {} MiB of memory: {}",
                                                     size_bytes >> 20, std::strerror(errno)));
  data_ = static_cast<std::byte*>(data);
  if (size_bytes >= (std::size_t{4} << 20)) ::madvise(data, size_bytes, MADV_HUGEPAGE);
  if (touch) touch_all_pages(data_, size_bytes);
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
