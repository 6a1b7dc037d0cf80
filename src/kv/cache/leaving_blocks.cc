#include "kv/cache/leaving_blocks.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"

namespace larder {

LeavingBlocks::~LeavingBlocks() {
  if (num_copying_ > 0) storage_.finish_copies();
}

void LeavingBlocks::tell() {
  if (num_copying_ > 0 || !to_.empty() || blocks_.empty()) return;
  tier_->note_filled(static_cast<std::int64_t>(blocks_.size()), end_ns_ - begin_ns_);
  blocks_.clear();
}

bool LeavingBlocks::have_left() {
  if (num_copying_ > 0) return false;
  tell();
  return true;
}

void LeavingBlocks::add(BlockId block, std::span<std::byte> to) {
  blocks_.push_back(block);
  to_.push_back(to.data());
}

void LeavingBlocks::start(KvTier& tier) {
  if (to_.empty()) return;
  if (blocks_.size() == to_.size()) begin_ns_ = steady_now_ns();
  tier_ = &tier;
  ++num_copying_;
  storage_.read_blocks(std::span(blocks_).last(to_.size()), to_, [this] {
    end_ns_ = steady_now_ns();
    --num_copying_;
  });
  to_.clear();
}

void LeavingBlocks::wait_for(BlockId block) {
  CHECK(to_.empty());
  if (num_copying_ == 0 || std::ranges::find(blocks_, block) == blocks_.end()) return;
  storage_.finish_copies();
}

}  // namespace larder
