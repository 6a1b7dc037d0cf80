#include "kv/tiers/foreign_blocks.h"

#include <algorithm>

#include "kv/tiers/tier_record.h"

namespace larder {
namespace {

std::uint64_t short_of(const Digest& digest) { return DigestHash()(digest); }

}  // namespace

void ForeignBlocks::add_segment(const std::string& path, const SegmentShape& shape) {
  read_records(path, shape, [&](const TierRecord& record) {
    if (digests_.size() >= max_num_) return false;
    digests_.push_back(short_of(record.block.digest));
    return true;
  });
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
