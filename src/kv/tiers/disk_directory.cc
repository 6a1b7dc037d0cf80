#include "kv/tiers/disk_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <tuple>

#include "base/error.h"

namespace larder {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::string_view kPrefix = "segment-";
constexpr std::string_view kSuffix = ".kv";
constexpr std::size_t kDigits = 8;
constexpr std::size_t kMaxForeignBlocks = std::size_t{1} << 18;  // 4 million tokens in 2 MiB
constexpr std::uint32_t kMaxNumber = 99'999'999;
constexpr int kMostTried = 10'000;  // numbers that may be taken, once they start over
// More is taken for this much; the sum of many files that claim to be longer does not overflow.
constexpr std::int64_t kMaxSizeBytes = std::int64_t{1} << 50;

std::optional<std::uint32_t> number_of(std::string_view name) {
  if (name.size() != kPrefix.size() + kDigits + kSuffix.size() || !name.starts_with(kPrefix) ||
      !name.ends_with(kSuffix))
    return std::nullopt;
  const char* digits = name.data() + kPrefix.size();
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits, digits + kDigits, number);
  if (error != std::errc{} || end != digits + kDigits) return std::nullopt;
  return number;
}

[[noreturn]] void throw_unavailable(const std::string& path, std::string_view what) {
  throw Error(ErrorKind::kUnavailable, fmt::format("disk tier: {}: {}", path, what));
}

// At most 64 segments, so that few files are open, each of at least 64 MiB, so that few are made;
// at least 4 where the whole is smaller, so that a lower limit or another model costs only a part.
std::int32_t slots_per_segment(std::int64_t limit_bytes, std::int64_t block_size_bytes) {
  const std::int64_t target_bytes =
      std::max(limit_bytes / 64, std::min(64 * kMiB, limit_bytes / 4));
  const std::int32_t num_slots = slots_within(target_bytes, block_size_bytes);
  return num_slots > 0 ? num_slots : std::min(1, slots_within(limit_bytes, block_size_bytes));
}

std::uint64_t last_record_of(const std::string& path, const SegmentShape& shape) {
  std::uint64_t last = 0;
  read_records(path, shape, [&](const TierRecord& record) {
    last = std::max(last, record.sequence);
    return true;
  });
  return last;
}

}  // namespace

struct DiskDirectory::Listed {
  std::string path;
  std::uint32_t number = 0;
  std::int64_t size_bytes = 0;
  std::uint64_t last_record = 0;  // the highest sequence, of ours where some must go
  std::optional<SegmentShape> shape{};  // nullopt: no header that can be read
  bool is_foreign = true;
  int error = 0;  // it could not be opened; nothing is known of it
};

DiskDirectory::DiskDirectory(std::string path, const TierFormat& format, std::int64_t size_bytes)
    : path_(std::move(path)), format_(format), limit_bytes_(std::min(size_bytes, kMaxSizeBytes)) {
  slots_per_segment_ = slots_per_segment(limit_bytes_, format_.block_size_bytes);
  if (slots_per_segment_ == 0)
    throw_invalid("disk tier: its size of {} bytes does not hold one KV block of {} bytes and its header; give "
                  "more with --kv-disk-size",
                  limit_bytes_, format_.block_size_bytes);
  lock();
  try {
    std::vector<Listed> listed = list_segments();
    for (const Listed& segment : listed) total_bytes_ += segment.size_bytes;
    if (total_bytes_ > limit_bytes_) {
      for (Listed& segment : listed) {
        if (!segment.is_foreign && segment.shape) segment.last_record = last_record_of(segment.path, *segment.shape);
      }
    }
    // In the order in which they are given up: first what the others would go for in vain. Not by the files' times: a
    // clock may be set back.
    const auto turn = [this](const Listed& segment) {
      return std::tuple(segment.size_bytes <= limit_bytes_, !segment.is_foreign, segment.last_record, segment.number);
    };
    std::ranges::sort(listed, {}, turn);
    for (const Listed& segment : listed) {
      last_number_ = std::max(last_number_, segment.number);
      if (total_bytes_ > limit_bytes_ && ::unlink(segment.path.c_str()) == 0) {
        total_bytes_ -= segment.size_bytes;
      } else {
        open_segment(segment);
      }
    }
  } catch (...) {
    ::close(lock_fd_);
    throw;
  }
}

DiskDirectory::~DiskDirectory() { ::close(lock_fd_); }

void DiskDirectory::lock() {
  std::error_code error;
  if (std::filesystem::create_directories(path_, error))
    ::chmod(path_.c_str(), 0700);  // prompts can be read off the tokens in it
  if (error) throw_unavailable(path_, error.message());
  const std::string file = path_ + "/lock";
  lock_fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd_ < 0)
    throw_unavailable(file, fmt::format("{}; give a directory that this user may write to", std::strerror(errno)));
  if (::flock(lock_fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(lock_fd_);
  if (reason != EWOULDBLOCK) throw_unavailable(file, std::strerror(reason));
  throw_unavailable(path_, "another process uses this directory; give each process its own");
}

std::vector<DiskDirectory::Listed> DiskDirectory::list_segments() {
  std::vector<Listed> listed;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto number = number_of(entry->path().filename().native());
    std::error_code ignored;
    if (!number || !entry->is_regular_file(ignored) || entry->is_symlink(ignored)) continue;
    Listed segment{.path = entry->path(), .number = *number};
    segment.size_bytes = static_cast<std::int64_t>(entry->file_size(ignored));
    SegmentHeader header{};
    const int fd = ::open(segment.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      segment.error = errno;
      segment.is_foreign = false;
      segment.size_bytes = std::min(segment.size_bytes, limit_bytes_);
      listed.push_back(std::move(segment));
      continue;
    }
    const ssize_t size = ::pread(fd, header.data(), header.size(), 0);
    ::close(fd);
    if (size == static_cast<ssize_t>(header.size())) segment.shape = decode_segment_header(header);
    segment.is_foreign = !segment.shape || segment.shape->format != format_;
    if (!segment.is_foreign) segment.size_bytes = segment.shape->file_size_bytes();
    segment.size_bytes = std::min(segment.size_bytes, limit_bytes_ + 1);  // too much by itself
    listed.push_back(std::move(segment));
  }
  if (error) throw_unavailable(path_, error.message());
  return listed;
}

void DiskDirectory::open_segment(const Listed& listed) {
  const bool is_ours = !listed.is_foreign && listed.size_bytes <= limit_bytes_;
  if (!is_ours) {
    foreign_.push_back({.path = listed.path, .size_bytes = listed.size_bytes, .shape = listed.shape});
    return;
  }
  const int fd = listed.error == 0 ? ::open(listed.path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  // A file that was cut gets its length back; what it lacks reads as free slots.
  struct stat now {};
  if (fd >= 0 && ::fstat(fd, &now) == 0 &&
      (now.st_size == listed.size_bytes || ::ftruncate(fd, listed.size_bytes) == 0)) {
    found_.push_back(std::make_unique<SegmentFile>(listed.path, fd, *listed.shape));
    return;
  }
  unopened_ = {unopened_.num_segments + 1, listed.error != 0 ? listed.error : errno};
  if (fd >= 0) ::close(fd);
}

ForeignBlocks DiskDirectory::read_foreign() const {
  ForeignBlocks blocks(kMaxForeignBlocks);
  for (auto segment = foreign_.rbegin(); segment != foreign_.rend(); ++segment) {
    if (segment->shape) blocks.add_segment(segment->path, *segment->shape);
  }
  blocks.sort();
  return blocks;
}

std::unique_ptr<SegmentFile> DiskDirectory::create_segment(BlockIo& io, int& error) {
  error = 0;
  const SegmentShape shape{.format = format_, .num_slots = slots_per_segment_};
  while (total_bytes_ + shape.file_size_bytes() > limit_bytes_) {
    if (!delete_oldest_foreign()) return nullptr;
  }
  std::string path;
  int fd = -1;
  for (int num_tried = 0; fd < 0; ++num_tried) {
    has_started_over_ = has_started_over_ || last_number_ >= kMaxNumber;
    last_number_ = last_number_ % kMaxNumber + 1;
    path = segment_path(last_number_);
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno == EEXIST && has_started_over_ && num_tried < kMostTried)) continue;
    error = errno;
    return nullptr;
  }
  auto segment = std::make_unique<SegmentFile>(path, fd, shape);
  SegmentHeader header = encode_segment_header(shape);
  IoRequest request{.fd = fd, .data = header.data(), .size_bytes = kSegmentPageBytes};
  if (::ftruncate(fd, shape.file_size_bytes()) != 0) {
    error = errno;
  } else {
    transfer_all(io, IoDirection::kWrite, {&request, 1});
    if (request.result < 0) error = static_cast<int>(-request.result);
  }
  if (error != 0) {
    ::unlink(path.c_str());
    return nullptr;
  }
  total_bytes_ += shape.file_size_bytes();
  return segment;
}

bool DiskDirectory::delete_oldest_foreign() {
  while (!foreign_.empty()) {
    const Foreign oldest = std::move(foreign_.front());
    foreign_.pop_front();
    if (::unlink(oldest.path.c_str()) != 0 && errno != ENOENT) continue;
    total_bytes_ -= oldest.size_bytes;
    return true;
  }
  return false;
}

std::string DiskDirectory::segment_path(std::uint32_t number) const {
  return fmt::format("{}/{}{:08}{}", path_, kPrefix, number, kSuffix);
}

}  // namespace larder
