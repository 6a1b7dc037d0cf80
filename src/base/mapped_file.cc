#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace larder {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const auto fail = [&] {
    throw Error(ErrorKind::kNotFound, fmt::format("{}: {}", path, std::strerror(errno)));
  };
  // Without waiting: a pipe opens only when somebody writes to it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail();
  struct stat status{};
  if (::fstat(fd, &status) != 0) {
    ::close(fd);
    fail();
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    throw_invalid("{}: is not a regular file", path);
  }
  size_bytes_ = static_cast<std::size_t>(status.st_size);
  identity_ = {.device = status.st_dev,
               .inode = status.st_ino,
               .size_bytes = size_bytes_,
               .changed_ns = status.st_ctim.tv_sec * kNsPerSecond + status.st_ctim.tv_nsec};
  if (size_bytes_ > 0) {
    void* data = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      ::close(fd);
      fail();
    }
    data_ = static_cast<const std::byte*>(data);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      identity_(other.identity_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

void MappedFile::drop_pages() const {
  if (data_) ::madvise(const_cast<std::byte*>(data_), size_bytes_, MADV_DONTNEED);
}

}  // namespace larder
