// A whole file, mapped read-only. Thread: any.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace larder {

class MappedFile {
 public:
  // Throws Error{kNotFound} naming the path and the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }
  // Takes the pages out of this process's resident set; they come back when read.
  void drop_pages() const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace larder
