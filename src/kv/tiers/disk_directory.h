// The disk tier's directory: who may use it, which segments are in it, and its size.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/tier.h"
#include "kv/tiers/block_io.h"
#include "kv/tiers/disk_segment.h"
#include "kv/tiers/foreign_blocks.h"

namespace larder {

// Holds DIR/lock, so that one process uses the directory. Files named segment-NNNNNNNN.kv are the
// tier's; all others are left alone. A segment of another format (model, KV type, instruction set,
// version) or with a damaged header is kept, never read, and the first to go when room is needed,
// the one that was made first before others. Together they never pass size_bytes; what does so by itself goes before
// all others. Thread: one at a time.
class DiskDirectory {
 public:
  // Makes the directory, locks it, and deletes what is over the limit. Throws
  // Error{kInvalidArgument} for a size that holds no block, Error{kUnavailable} for a directory
  // that cannot be used or that another process uses.
  DiskDirectory(std::string path, const TierFormat& format, std::int64_t size_bytes);
  ~DiskDirectory();
  DiskDirectory(const DiskDirectory&) = delete;
  DiskDirectory& operator=(const DiskDirectory&) = delete;

  // The segments of this format that were there at construction; once.
  std::vector<std::unique_ptr<SegmentFile>> take_segments() { return std::move(found_); }
  // A new, empty segment; what is foreign makes room for it. nullptr: the limit is reached
  // (error 0) or the file cannot be made (error is errno).
  std::unique_ptr<SegmentFile> create_segment(BlockIo& io, int& error);
  // false: there is none.
  bool delete_oldest_foreign();

  // Segments that were there and could not be opened. They count towards the limit, and none is deleted
  // but for it.
  struct Unopened {
    int num_segments = 0;
    int error = 0;  // the last one's
  };
  const Unopened& unopened() const { return unopened_; }

  // What the segments of other formats hold, the newest first, as far as it can be told.
  ForeignBlocks read_foreign() const;

  const std::string& path() const { return path_; }

 private:
  struct Foreign {
    std::string path;
    std::int64_t size_bytes;
    std::optional<SegmentShape> shape;  // nullopt: not even its header can be read
  };
  struct Listed;

  void lock();
  std::vector<Listed> list_segments();
  void open_segment(const Listed& listed);
  std::string segment_path(std::uint32_t number) const;

  const std::string path_;
  const TierFormat format_;
  const std::int64_t limit_bytes_;
  int lock_fd_ = -1;
  std::int32_t slots_per_segment_ = 0;
  std::vector<std::unique_ptr<SegmentFile>> found_;
  Unopened unopened_;
  std::deque<Foreign> foreign_;   // by number, which is the order in which they were made
  std::int64_t total_bytes_ = 0;  // of all segments, full
  std::uint32_t last_number_ = 0;
  bool has_started_over_ = false;  // at 1, since some file has the last number there is
};

}  // namespace larder
