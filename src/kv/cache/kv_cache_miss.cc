// The part of KvCache that says why something is not there.
#include "base/check.h"
#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

// The table of evicted blocks forgets some before others. A block whose successor is known was known
// itself, so that a few missing ones do not end the tale.
constexpr int kMostForgotten = 4;

}  // namespace

// The block of a node that goes: a prefix is not there any more from the first such block on.
void KvCache::remember_evicted(BlockId block, bool is_cleared) {
  const NodeId node = cache_.node_of(block);
  if (!cache_.is_kept(cache_.group_of(block)) || cache_.num_tokens(node) < kBlockSize) return;
  const int num_held = pool_.num_held() - cache_.num_idle();
  const BlockLife& of_block = life(block);
  std::uint8_t saved = 0;
  for (int tier = 0; tier < num_tiers(); ++tier) saved |= static_cast<std::uint8_t>(has_saved(block, tier) << tier);
  evicted_.add({.key = evicted_key(cache_.digest(node)),
                .evicted_ns = clock_.now_ns(),
                .pool_in_use = static_cast<float>(num_held) / static_cast<float>(pool_.num_blocks()),
                .pin_had_expired = of_block.was_pinned && !cache_.is_pinned(block),
                .was_cleared = is_cleared,
                .saved = saved});
}

// Whether one of the tiers that took the block cannot be read now.
bool KvCache::tier_is_off(std::uint8_t saved) const {
  for (int tier = 0; tier < num_tiers(); ++tier) {
    if ((saved >> tier & 1) && tiers_->read_seconds(tier, 1) >= kOffSeconds) return true;
  }
  return false;
}

void KvCache::explain_miss(const BlockTable& table, std::span<const TokenId> tokens,
                           std::vector<MissedSpan>& missed) const {
  CHECK(!table.empty());
  const int num_tokens = static_cast<int>(tokens.size());
  int index = table.num_computed_ / kBlockSize;
  NodeId node = index == 0 ? table.root_
                           : cache_.node_of(table.blocks(0)[static_cast<std::size_t>(index) - 1]);
  CHECK(node != kNoNode, index);
  Digest digest = cache_.digest(node);
  int num_forgotten = 0;
  for (int begin = table.num_computed_; (index + 1) * kBlockSize <= num_tokens; ++index) {
    const auto span = tokens.subspan(static_cast<std::size_t>(index) * kBlockSize, kBlockSize);
    digest = chain_digest(digest, span);
    if (node != kNoNode) node = cache_.find_full(node, span);
    MissedSpan found{.begin = begin, .end = (index + 1) * kBlockSize};
    if (node != kNoNode) {
      // It is here, and yet the match ended before it: not all of its groups are.
      found.cause = MissCause::kWindowSlid;
    } else if (const EvictedBlock* evicted = evicted_.find(evicted_key(digest))) {
      found.cause = evicted->pin_had_expired ? MissCause::kExpired : MissCause::kEvicted;
      if (tier_is_off(evicted->saved)) found.cause = MissCause::kTierFailed;
      found.evicted_ns = evicted->evicted_ns;
      found.pool_in_use = evicted->pool_in_use;
      found.was_cleared = evicted->was_cleared;
    } else if (tiers_ != nullptr && tiers_->are_stored_for_another(digest)) {
      found.cause = MissCause::kOtherModel;
    } else {
      if (++num_forgotten > kMostForgotten) return;
      continue;
    }
    num_forgotten = 0;
    begin = found.end;
    if (!missed.empty() && missed.back().cause == found.cause && missed.back().end == found.begin) {
      missed.back().end = found.end;
    } else {
      missed.push_back(found);
    }
  }
}

}  // namespace larder
