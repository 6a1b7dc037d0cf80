// Which tokens another model, KV type or instruction set has stored: not to be used here, but why a
// tier that is full answers nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kv/tiers/disk_segment.h"

namespace larder {

// Digests of blocks in segments of other formats (they chain salt and tokens only, so that they are
// the same for every format), by their first 8 bytes. Thread: one at a time, const ones any.
class ForeignBlocks {
 public:
  // At most max_num are known, 8 bytes each.
  explicit ForeignBlocks(std::size_t max_num) : max_num_(max_num) {}

  // Reads the segment's table; what cannot be read is left out.
  void add_segment(const std::string& path, const SegmentShape& shape);
  // After the last segment, once.
  void sort();
  bool contains(const Digest& digest) const;
  std::size_t size() const { return digests_.size(); }

 private:
  const std::size_t max_num_;
  std::vector<std::uint64_t> digests_;
};

}  // namespace larder
