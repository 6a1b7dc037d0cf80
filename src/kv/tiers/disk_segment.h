// A segment: one file of the disk tier, all of whose slots hold blocks of one format.
//
//   0                      segment header, 4096 bytes
//   4096                   table: one record header of 256 bytes a slot, zeros where it is free
//   payload_offset(0)      payloads, each at a multiple of 4096
//
// All headers lie together, so that a start reads a few MiB a GiB. A slot is replaced in place: its
// header is zeroed, the payload written, then the new header, so that a process killed in between
// leaves a free slot. Nothing is synced: after a power loss the checksums decide.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/hash.h"
#include "kv/tier.h"
#include "kv/tiers/tier_record.h"

namespace larder {

inline constexpr std::int64_t kSegmentPageBytes = 4096;
inline constexpr std::uint32_t kSegmentVersion = 1;

struct SegmentShape {
  TierFormat format;
  std::int32_t num_slots = 0;

  std::int64_t payload_stride_bytes() const;
  std::int64_t header_offset(std::int32_t slot) const;
  std::int64_t table_size_bytes() const { return num_slots * std::int64_t{kRecordHeaderSizeBytes}; }
  std::int64_t payload_offset(std::int32_t slot) const;
  std::int64_t file_size_bytes() const { return payload_offset(num_slots); }
};

using SegmentHeader = std::array<std::byte, kSegmentPageBytes>;

// The most slots that a file of size_bytes has room for; 0 if not even one.
std::int32_t slots_within(std::int64_t size_bytes, std::int64_t block_size_bytes);
SegmentHeader encode_segment_header(const SegmentShape& shape);
// Any bytes. nullopt: not a segment of this version, damaged, or of an impossible shape.
std::optional<SegmentShape> decode_segment_header(std::span<const std::byte> bytes);

// Of the segment at the path, in order; ends early where the function returns false or the file was cut.
// Damaged ones are left out.
void read_records(const std::string& path, const SegmentShape& shape, const std::function<bool(const TierRecord&)>& take);

// An open segment. Closes, does not delete. Thread: any, the offsets are the caller's.
class SegmentFile {
 public:
  SegmentFile(std::string path, int fd, const SegmentShape& shape)
      : path_(std::move(path)), fd_(fd), shape_(shape) {}
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  const SegmentShape& shape() const { return shape_; }

 private:
  std::string path_;
  int fd_;
  SegmentShape shape_;
};

}  // namespace larder
