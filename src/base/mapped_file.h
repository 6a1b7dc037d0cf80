// A whole file, mapped read-only. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace larder {

// Two that differ are of different files, or of one that was written to between.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t changed_ns = 0;  // of content or attributes
};

class MappedFile {
 public:
  // Throws Error{kNotFound} naming the path and the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }  // when it was opened
  // Takes the pages out of this process's resident set; they come back when read.
  void drop_pages() const;

 private:
  std::string path_;
  FileIdentity identity_;
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace larder
