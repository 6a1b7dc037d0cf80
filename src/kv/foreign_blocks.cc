#include "kv/foreign_blocks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "kv/tier_record.h"

namespace larder {
namespace {

constexpr std::size_t kChunkRecords = 4096;

std::uint64_t short_of(const Digest& digest) { return DigestHash()(digest); }

}  // namespace

void ForeignBlocks::add_segment(const std::string& path, const SegmentShape& shape) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  std::vector<std::byte> chunk(kChunkRecords * kRecordHeaderSizeBytes);
  for (std::int32_t slot = 0; slot < shape.num_slots && digests_.size() < max_num_;) {
    const std::size_t num_left = static_cast<std::size_t>(shape.num_slots - slot);
    const std::size_t wanted = std::min(num_left, kChunkRecords) * kRecordHeaderSizeBytes;
    const ssize_t size_bytes = ::pread(fd, chunk.data(), wanted, shape.header_offset(slot));
    const std::size_t num_read =
        size_bytes > 0 ? static_cast<std::size_t>(size_bytes) / kRecordHeaderSizeBytes : 0;
    if (num_read == 0) break;  // the file was cut there
    for (std::size_t i = 0; i < num_read && digests_.size() < max_num_; ++i) {
      const auto record =
          decode_record(std::span(chunk).subspan(i * kRecordHeaderSizeBytes, kRecordHeaderSizeBytes));
      if (record) digests_.push_back(short_of(record->block.digest));
    }
    slot += static_cast<std::int32_t>(num_read);
  }
  ::close(fd);
}

void ForeignBlocks::sort() {
  std::ranges::sort(digests_);
  // The groups of a block have one digest.
  digests_.erase(std::ranges::unique(digests_).begin(), digests_.end());
  digests_.shrink_to_fit();
}

bool ForeignBlocks::contains(const Digest& digest) const {
  return std::ranges::binary_search(digests_, short_of(digest));
}

}  // namespace larder
