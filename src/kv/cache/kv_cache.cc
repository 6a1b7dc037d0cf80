#include "kv/cache/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace larder {
namespace {

// vLLM's, which its dashboards' quantiles are made for.
constexpr double kSecondBounds[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,  1,   2,
                                    5,     10,    20,    30,   60,   120,  300, 600, 1200, 1800};

int num_blocks_of(int num_tokens) { return (num_tokens + kBlockSize - 1) / kBlockSize; }

double seconds(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

}  // namespace

KvHistograms::KvHistograms()
    : lifetime(kSecondBounds), idle_before_evict(kSecondBounds), reuse_gap(kSecondBounds) {}

KvCache::KvCache(const KvLayout& layout, KvStorage& storage, const Clock& clock,
                 const KvCacheConfig& config)
    : layout_(layout),
      storage_(storage),
      clock_(clock),
      tiers_(config.tiers),
      pool_(config.num_blocks),
      policy_(make_eviction_policy(config.eviction, config.num_blocks)),
      max_pinned_(max_pinned(config)),
      cache_(layout, pool_, *policy_),
      lives_(static_cast<std::size_t>(config.num_blocks)),
      blocks_(static_cast<std::size_t>(layout.num_groups()), BlockId::kNone),
      pins_(blocks_.size()),
      evicted_(config.num_blocks),
      unsaved_(tiers_ == nullptr ? 0 : static_cast<std::size_t>(tiers_->num_tiers())),
      tier_uses_(lives_.size() * unsaved_.size()),
      leaving_(storage) {
  CHECK(config.num_blocks <= storage.num_blocks(), config.num_blocks, storage.num_blocks());
}

KvBookkeeping KvCache::bookkeeping(const KvLayout& layout, const KvCacheConfig& config,
                                   int num_tiers) {
  const int num_blocks = config.num_blocks;
  KvBookkeeping size;
  size.fixed_bytes = BlockPool::size_bytes(num_blocks) +
                     eviction_policy_size_bytes(config.eviction, num_blocks) +
                     PrefixCache::size_bytes(num_blocks) +
                     num_blocks * std::int64_t{sizeof(BlockLife)} +
                     num_tiers * (num_blocks * std::int64_t{sizeof(TierUse)}) +
                     EvictedBlocks::size_bytes(num_blocks);
  size.growth_bytes =
      PrefixCache::growth_bytes(layout, num_blocks, max_pinned(config)) +
      num_tiers * static_cast<std::int64_t>(max_unsaved(static_cast<std::size_t>(num_blocks)) *
                                            sizeof(Unsaved));
  return size;
}

int KvCache::match(BlockTable& table, std::span<const TokenId> tokens, std::string_view salt,
                   int max_tokens, AttentionSpan span) {
  CHECK(table.empty());
  CHECK(span.window % kBlockSize == 0 && span.num_sinks % kBlockSize == 0, span.window);
  max_tokens = std::min(max_tokens, span.num_shareable());
  table.span_ = span;
  table.root_ = cache_.hold_root(salt);
  table.groups_.resize(static_cast<std::size_t>(num_groups()));
  for (;;) {
    cache_.find(table.root_, tokens, max_tokens, match_);
    take_path(table);
    if (match_.tail == kNoNode || take_tail(table)) break;
    // No block for the shared part: end where a block does. That may need blocks further back.
    max_tokens = static_cast<int>(match_.path.size()) * kBlockSize;
    drop_blocks(table);
  }
  table.num_computed_ = match_.num_tokens;
  return match_.num_tokens;
}

int KvCache::peek(std::span<const TokenId> tokens, std::string_view salt, int max_tokens) const {
  PrefixMatch found;
  cache_.find(cache_.find_root(salt), tokens, max_tokens, found);
  return found.num_tokens;
}

void KvCache::foresee(const BlockTable& table, std::span<const TokenId> tokens, std::size_t num_most,
                      std::vector<TokenId>& next) const {
  const auto num_full = static_cast<std::size_t>(table.num_computed_ / kBlockSize);
  CHECK(tokens.size() >= num_full * kBlockSize && tokens.size() <= (num_full + 1) * kBlockSize, tokens.size(), num_full);
  NodeId parent = table.root_;
  if (num_full > 0) {
    const BlockId last = table.blocks(0)[num_full - 1];
    parent = last == BlockId::kNone ? kNoNode : cache_.node_of(last);
  }
  if (parent != kNoNode) cache_.continuation(parent, tokens.subspan(num_full * kBlockSize), num_most, next);
}

void KvCache::take_path(BlockTable& table) {
  for (int group = 0; group < num_groups(); ++group) {
    BlockTable::Group& entries = table.groups_[static_cast<std::size_t>(group)];
    entries.first_live = cache_.first_block_needed(group, match_.num_tokens);
    for (std::size_t index = 0; index < match_.path.size(); ++index) {
      const bool is_seen = static_cast<int>(index) >= entries.first_live;
      entries.blocks.push_back(is_seen ? cache_.block(match_.path[index], group) : BlockId::kNone);
      if (is_seen) hold(entries.blocks.back(), table.borrows_);
    }
  }
}

bool KvCache::take_tail(BlockTable& table) {
  const int num_shared = match_.num_tokens - static_cast<int>(match_.path.size()) * kBlockSize;
  bool is_idle = true;
  for (int group = 0; group < num_groups(); ++group) {
    is_idle = is_idle && cache_.is_idle(cache_.block(match_.tail, group));
  }
  const bool is_whole = cache_.num_tokens(match_.tail) == num_shared;
  // Nobody writes into a wholly matched idle block: the sequence may go on in it. So it may in a
  // full one.
  const bool is_taken = is_whole && (is_idle || num_shared == kBlockSize);
  const bool is_written = is_taken && num_shared < kBlockSize;
  // Held, the sources of the copies cannot be evicted for their targets.
  for (int group = 0; group < num_groups(); ++group) hold(cache_.block(match_.tail, group), table.borrows_ && !is_written);
  const bool can_copy = num_blocks_available() >= num_groups();
  for (int group = 0; group < num_groups(); ++group) {
    std::vector<BlockId>& entries = table.groups_[static_cast<std::size_t>(group)].blocks;
    const BlockId source = cache_.block(match_.tail, group);
    if (is_taken) {
      entries.push_back(source);
      continue;
    }
    if (can_copy) {
      entries.push_back(allocate());
      storage_.copy_block(source, entries.back());
      set_num_used(entries.back(), num_shared);
    }
  }
  if (is_taken) return true;
  // Not before the last copy: an idle source might go for the next target.
  for (int group = 0; group < num_groups(); ++group) {
    drop(cache_.block(match_.tail, group), table);
  }
  return can_copy;
}

bool KvCache::extend(BlockTable& table, int num_tokens) {
  CHECK(!table.empty() && num_tokens >= table.num_computed_, num_tokens, table.num_computed_);
  if (num_blocks_needed(table, num_tokens) > num_blocks_available()) return false;
  const int open = num_tokens > table.num_computed_ ? open_block(table) : -1;
  for (BlockTable::Group& group : table.groups_) {
    if (open >= 0) {
      BlockId& written = group.blocks[static_cast<std::size_t>(open)];
      if (cache_.num_users(written) > 1) {
        const BlockId copy = allocate();
        storage_.copy_block(written, copy);
        set_num_used(copy, table.num_computed_ - open * kBlockSize);
        drop(written, table);
        written = copy;
        ++num_copied_on_write_;
      }
    }
    while (static_cast<int>(group.blocks.size()) < num_blocks_of(num_tokens)) {
      group.blocks.push_back(allocate());
    }
  }
  return true;
}

int KvCache::open_block(const BlockTable& table) const {
  return table.num_computed_ % kBlockSize == 0 ? -1 : table.num_computed_ / kBlockSize;
}

int KvCache::num_blocks_needed(const BlockTable& table, int num_tokens) const {
  const int open = num_tokens > table.num_computed_ ? open_block(table) : -1;
  int num_needed = 0;
  for (const BlockTable::Group& group : table.groups_) {
    num_needed += std::max(0, num_blocks_of(num_tokens) - static_cast<int>(group.blocks.size()));
    if (open >= 0 && cache_.num_users(group.blocks[static_cast<std::size_t>(open)]) > 1)
      ++num_needed;
  }
  return num_needed;
}

std::int64_t KvCache::num_blocks_to_reach(const BlockTable& table, int num_tokens,
                                          int max_step_tokens) const {
  std::int64_t num_live = 0;
  for (const BlockTable::Group& group : table.groups_) {
    num_live += std::ssize(group.blocks) - std::ranges::count(group.blocks, BlockId::kNone);
  }
  return std::max<std::int64_t>(
      num_blocks_at_once(table.span_, num_tokens, max_step_tokens) - num_live, 0);
}

// By a continuation of the match, in its full blocks.
std::vector<BlockId> KvCache::blocks_seen(const PrefixMatch& match) const {
  std::vector<BlockId> blocks;
  for (int group = 0; group < num_groups(); ++group) {
    const int first = cache_.first_block_needed(group, match.num_tokens);
    for (std::size_t index = static_cast<std::size_t>(first); index < match.path.size(); ++index) {
      blocks.push_back(cache_.block(match.path[index], group));
    }
  }
  return blocks;
}

// Of a sequence that computes so many tokens, at most.
std::int64_t KvCache::num_blocks_at_once(const AttentionSpan& span, std::int64_t num_tokens,
                                         int max_step_tokens) const {
  if (span.window > 0) num_tokens = std::min(num_tokens, num_endless_tokens(span, max_step_tokens));
  return layout_.num_blocks_for(num_tokens, max_step_tokens);
}

std::int64_t KvCache::num_blocks_to_admit(std::span<const TokenId> tokens, std::string_view salt,
                                          int max_tokens, AttentionSpan span,
                                          int max_step_tokens) const {
  PrefixMatch found;
  cache_.find(cache_.find_root(salt), tokens, std::min(max_tokens, span.num_shareable()), found);
  // A part of a block is copied, or the block is idle: either takes an available one.
  const int num_of_tail = found.tail == kNoNode ? 0 : num_groups();
  const std::vector<BlockId> seen = blocks_seen(found);
  const auto num_idle = std::ranges::count_if(seen, [&](BlockId block) { return cache_.is_idle(block); });
  const std::int64_t num_live = num_of_tail + std::ssize(seen);
  const std::int64_t num_most = num_blocks_at_once(span, std::ssize(tokens), max_step_tokens);
  return num_of_tail + num_idle + std::max<std::int64_t>(num_most - num_live, 0);
}

void KvCache::publish(BlockTable& table, std::span<const TokenId> tokens, int num_computed) {
  CHECK(num_computed >= table.num_computed_ && num_computed <= static_cast<int>(tokens.size()),
        num_computed, table.num_computed_, tokens.size());
  CHECK(num_blocks_of(num_computed) <= static_cast<int>(table.groups_[0].blocks.size()));
  if (num_computed == table.num_computed_) return;
  const int first = table.num_computed_ / kBlockSize;
  for (int index = first; index < num_blocks_of(num_computed); ++index) {
    const int begin = index * kBlockSize;
    if (begin >= table.span_.num_shareable()) {
      for (const BlockTable::Group& group : table.groups_) {
        set_num_used(group.blocks[static_cast<std::size_t>(index)],
                     std::min(kBlockSize, num_computed - begin));
      }
      continue;
    }
    const int num_tokens = std::min(kBlockSize, num_computed - begin);
    publish_block(
        table,
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(num_tokens)),
        index);
  }
  table.num_computed_ = num_computed;
  give_back_passed(table);
  if (table.span_.window > 0) give_back_unseen(table);
  touch_tiers(table);
}

// Between the sinks and the window of a span, in kept groups. Blocks with a node are given back
// together, deepest first, as eviction wants them.
void KvCache::give_back_unseen(BlockTable& table) {
  const AttentionSpan& span = table.span_;
  const int first_seen = first_block_seen(table.num_computed_, span.window);
  const int first_own = span.window / kBlockSize;
  const int first_after_sinks = span.num_sinks / kBlockSize;
  if (first_seen < first_own) return;
  for (int index = 0; index < num_groups(); ++index) {
    if (!cache_.is_kept(index)) continue;
    BlockTable::Group& group = table.groups_[static_cast<std::size_t>(index)];
    const auto give_back_at = [&](int place) {
      give_back(group.blocks[static_cast<std::size_t>(place)], table);
    };
    // first_live counts what is given back beyond the sinks.
    int& first_live = group.first_live;
    if (first_live == 0) {
      for (int place = first_own; place-- > first_after_sinks;) give_back_at(place);
      first_live = std::max(first_own, first_after_sinks);
    }
    for (; first_live < first_seen; ++first_live) give_back_at(first_live);
  }
}

void KvCache::publish_block(BlockTable& table, std::span<const TokenId> tokens, int index) {
  const auto place = static_cast<std::size_t>(index);
  const std::vector<BlockId>& kept = table.groups_[0].blocks;
  const NodeId parent = index == 0 ? table.root_ : cache_.node_of(kept[place - 1]);
  CHECK(parent != kNoNode, index);
  const NodeId own = cache_.node_of(kept[place]);
  if (tokens.size() == kBlockSize) {
    const NodeId known = cache_.find_full(parent, tokens);
    if (known != kNoNode) {
      return own == kNoNode || own == known ? adopt(table, known, index)
                                            : replace(table, own, known, index);
    }
  }
  for (int group = 0; group < num_groups(); ++group) {
    const BlockId block = table.groups_[static_cast<std::size_t>(group)].blocks[place];
    blocks_[static_cast<std::size_t>(group)] = block;
    if (block != BlockId::kNone) set_num_used(block, static_cast<int>(tokens.size()));
  }
  if (own == kNoNode) {
    queue_save(cache_.insert(parent, tokens, blocks_));
  } else if (cache_.num_tokens(own) < static_cast<int>(tokens.size())) {
    cache_.grow(own, tokens);
    queue_save(own);
  }
}

// The node's blocks hold the same bits as the table's: one of the two is enough.
void KvCache::adopt(BlockTable& table, NodeId node, int index) {
  for (int group = 0; group < num_groups(); ++group) {
    BlockId& own =
        table.groups_[static_cast<std::size_t>(group)].blocks[static_cast<std::size_t>(index)];
    if (own == BlockId::kNone) continue;  // loaded past it: no query sees it any more
    const BlockId known = cache_.block(node, group);
    if (known == BlockId::kNone) {
      set_num_used(own, kBlockSize);
      cache_.add_block(node, group, own);
      queue_save(node);
    } else if (known != own) {
      hold(known, table.borrows_);
      drop(own, table);
      own = known;
    }
  }
}

// The table's node, which became equal to another one, goes; its pins stay.
void KvCache::replace(BlockTable& table, NodeId own, NodeId known, int index) {
  for (int group = 0; group < num_groups(); ++group) {
    const BlockId block = cache_.block(own, group);
    pins_[static_cast<std::size_t>(group)] =
        block == BlockId::kNone ? 0 : cache_.pinned_until_ns(block);
  }
  cache_.remove(own);
  adopt(table, known, index);
  for (int group = 0; group < num_groups(); ++group) {
    const BlockId block = cache_.block(known, group);
    const std::int64_t until_ns = pins_[static_cast<std::size_t>(group)];
    if (until_ns == 0 || block == BlockId::kNone) continue;
    cache_.pin(block, until_ns);
    life(block).was_pinned = true;
  }
}

void KvCache::give_back_passed(BlockTable& table) {
  for (int index = 1; index < num_groups(); ++index) {
    BlockTable::Group& group = table.groups_[static_cast<std::size_t>(index)];
    if (cache_.is_kept(index)) continue;
    int first_needed = cache_.first_block_needed(index, table.num_computed_);
    // The narrower window counts.
    if (const int window = table.span_.window; window > 0)
      first_needed = std::max(first_needed, first_block_seen(table.num_computed_, window));
    for (; group.first_live < first_needed; ++group.first_live)
      give_back(group.blocks[static_cast<std::size_t>(group.first_live)], table);
  }
}

BlockTable KvCache::fork(const BlockTable& table) {
  CHECK(!table.empty() && !table.is_loading());
  BlockTable copy;
  copy.groups_ = table.groups_;
  copy.root_ = table.root_;
  copy.num_computed_ = table.num_computed_;
  copy.span_ = table.span_;
  copy.keeps_longer_ = table.keeps_longer_;
  cache_.hold_root(copy.root_);
  for (const BlockTable::Group& group : copy.groups_) {
    for (const BlockId block : group.blocks) {
      if (block != BlockId::kNone) hold(block, false);
    }
  }
  return copy;
}

void KvCache::release(BlockTable& table) {
  if (table.empty()) return;
  cancel_load(table);
  const int open = open_block(table);
  // Of a table that a failure left half released it may have gone.
  const BlockId last = open < 0 ? BlockId::kNone : table.groups_[0].blocks[static_cast<std::size_t>(open)];
  const NodeId open_node = last == BlockId::kNone ? kNoNode : cache_.node_of(last);
  drop_blocks(table);
  if (open_node != kNoNode) forget_if_redundant(open_node);
  table.groups_.clear();
  cache_.release_root(table.root_);
  table.root_ = kNoNode;
  table.num_computed_ = 0;
  table.num_short_loads_ = 0;
  table.span_ = {};
  table.keeps_longer_ = table.borrows_ = false;
  table.touch_at_ns_ = 0;
  expire_pins();
}

bool KvCache::pin(std::span<const TokenId> tokens, std::string_view salt, std::int64_t ttl_ns) {
  CHECK(!tokens.empty() && ttl_ns > 0, ttl_ns);
  const std::int64_t now_ns = clock_.now_ns();
  cache_.expire_pins(now_ns);
  const auto num_tokens = static_cast<int>(tokens.size());
  cache_.find(cache_.find_root(salt), tokens, num_tokens, match_);
  if (match_.tail != kNoNode) match_.path.push_back(match_.tail);
  const std::vector<BlockId> blocks = blocks_seen(match_);
  const auto num_new =
      std::ranges::count_if(blocks, [&](BlockId block) { return !cache_.is_pinned(block); });
  if (match_.num_tokens < num_tokens || cache_.num_pinned() + num_new > max_pinned_) {
    ++num_pins_refused_;
    return false;
  }
  for (const BlockId block : blocks) {
    cache_.pin(block, now_ns + ttl_ns);
    life(block).was_pinned = true;
  }
  return true;
}

// Deepest first: the order that eviction relies on.
void KvCache::drop_blocks(BlockTable& table) {
  for (std::size_t index = table.groups_[0].blocks.size(); index-- > 0;) {
    for (BlockTable::Group& group : table.groups_) give_back(group.blocks[index], table);
  }
  for (BlockTable::Group& group : table.groups_) group = {};
}

// A partial node that another one covers is of no use once its sequence has gone, unless it is
// pinned: the other one may go before.
void KvCache::forget_if_redundant(NodeId node) {
  const BlockId block = cache_.block(node, 0);
  if (cache_.is_idle(block) && !cache_.is_pinned(block) && cache_.is_redundant(node)) cache_.remove(node);
}

void KvCache::clear() {
  while (cache_.num_idle() > 0) evict(cache_.next_to_evict(), Leave::kCleared);
}

void KvCache::give_up(std::span<const TokenId> tokens, std::string_view salt, int num_kept, std::int64_t num_free) {
  cache_.expire_pins(clock_.now_ns());
  cache_.find(cache_.find_root(salt), tokens, static_cast<int>(tokens.size()), match_);
  std::vector<NodeId>& path = match_.path;
  const auto num_in_tail = match_.num_tokens - std::ssize(path) * kBlockSize;
  if (match_.tail != kNoNode && cache_.num_tokens(match_.tail) == num_in_tail) path.push_back(match_.tail);
  const auto may_go = [&](NodeId node) {
    for (int group = 0; group < num_groups(); ++group) {
      const BlockId block = cache_.block(node, group);
      if (block != BlockId::kNone && !cache_.may_go(block)) return false;
    }
    return true;
  };
  while (pool_.num_free() < num_free && std::ssize(path) > num_blocks_of(num_kept) && may_go(path.back())) {
    evict(cache_.block(path.back(), 0), Leave::kGivenUp);
    path.pop_back();
  }
}

BlockId KvCache::allocate() {
  std::optional<BlockId> block = pool_.allocate();
  while (!block) {
    cache_.expire_pins(clock_.now_ns());
    evict(cache_.next_to_evict(), Leave::kForRoom);
    block = pool_.allocate();
  }
  leaving_.wait_for(*block);
  const std::uint32_t ticket = life(*block).ticket + 1;
  life(*block) = {.allocated_ns = clock_.now_ns(), .ticket = ticket};
  for (int tier = 0; tier < num_tiers(); ++tier) tier_use(*block, tier) = {};
  return *block;
}

void KvCache::evict(BlockId block, Leave why) {
  const std::int64_t now_ns = clock_.now_ns();
  CHECK(block != BlockId::kNone);
  if (tiers_ != nullptr) save_before_eviction(block);
  remember_evicted(block, why == Leave::kCleared);
  // What goes on demand, or as nobody will ask for it, says nothing of how scarce room is.
  const bool is_for_room = why == Leave::kForRoom;
  for_each_evicted_with(block, [&](BlockId evicted) {
    if (!is_for_room) return;
    histograms_.lifetime.observe(seconds(life(evicted).allocated_ns, now_ns));
    histograms_.idle_before_evict.observe(seconds(life(evicted).last_used_ns, now_ns));
  });
  const int num_evicted = cache_.evict(block);
  if (is_for_room) num_evicted_ += static_cast<std::uint64_t>(num_evicted);
}

void KvCache::hold(BlockId block, bool borrows) {
  if (cache_.is_idle(block)) {
    num_slots_used_ += life(block).num_used;
    if (!borrows) histograms_.reuse_gap.observe(seconds(life(block).last_used_ns, clock_.now_ns()));
  }
  cache_.hold(block, borrows);
}

void KvCache::drop(BlockId block, const BlockTable& table) {
  cache_.release(block, table.keeps_longer_);
  if (cache_.num_users(block) > 0) return;
  num_slots_used_ -= life(block).num_used;
  if (!table.borrows_ || life(block).last_used_ns == 0) life(block).last_used_ns = clock_.now_ns();
}

// What a table's entry holds.
void KvCache::give_back(BlockId& entry, const BlockTable& table) {
  if (entry != BlockId::kNone) drop(std::exchange(entry, BlockId::kNone), table);
}

// Of a block that a table holds.
void KvCache::set_num_used(BlockId block, int num_used) {
  num_slots_used_ += num_used - life(block).num_used;
  life(block).num_used = num_used;
}

KvStats KvCache::stats() const {
  KvStats stats;
  stats.num_blocks = pool_.num_blocks();
  stats.num_cached = cache_.num_idle();
  stats.num_pinned = cache_.num_pinned();
  stats.num_pins_refused = num_pins_refused_;
  stats.num_held = pool_.num_held() - stats.num_cached;
  stats.num_slots_held = std::int64_t{stats.num_held} * kBlockSize;
  stats.num_slots_used = num_slots_used_;
  stats.num_evicted = num_evicted_;
  stats.num_copied_on_write = num_copied_on_write_;
  stats.num_evicted_unsaved = num_evicted_unsaved_;
  for (const auto& queue : unsaved_) stats.num_unsaved += static_cast<std::int64_t>(queue.size());
  return stats;
}

}  // namespace larder
