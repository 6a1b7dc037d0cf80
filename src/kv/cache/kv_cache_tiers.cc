// The part of KvCache that deals with tiers: blocks written behind, and prefixes loaded.
#include <algorithm>
#include <cstddef>
#include <ranges>
#include <span>
#include <utility>

#include "base/check.h"
#include "kv/cache/kv_cache.h"

namespace larder {
namespace {

// Copied for the tiers between two steps, at most, so that no step waits long; and beside a step.
constexpr std::int64_t kMaxSaveBytes = std::int64_t{32} << 20;
constexpr std::int64_t kMaxSaveBesideBytes = 8 * kMaxSaveBytes;

// Doublings of the interval, at most, until a tier gets again what it lost more than once.
constexpr int kMaxDoublings = 6;

// What a shared tier has taken it is trusted to have for so long.
constexpr std::int64_t kTrustNs = 10'000'000'000;

// Loads of a sequence that come short, each followed by one for its end: the first tells how much a
// tier has of the prompt, the second where the windows' blocks before that end. So all is found that
// ends within a window of what the prompt shares. Where windows are missing further back, each load
// would tell of one more, for a round trip and a step: from then on the next one is for half as much,
// which finds windows that are there up to some place, in few loads.
constexpr int kMaxExactLoads = 2;

// From a block to the one that follows it, number `index` of tokens. Returns that one's tokens.
std::span<const TokenId> go_on(TierBlock& block, std::span<const TokenId> tokens, int index) {
  const auto span = tokens.subspan(static_cast<std::size_t>(index) * kBlockSize, kBlockSize);
  block.parent = block.digest;
  block.digest = chain_digest(block.parent, span);
  std::ranges::copy(span, block.tokens.begin());
  return span;
}

}  // namespace

// Blocks that are complete and that a tier has not got: their turn comes in poll_tiers().
void KvCache::queue_save(NodeId node) {
  if (tiers_ == nullptr || cache_.num_tokens(node) < kBlockSize) return;
  for (int group = 0; group < num_groups(); ++group) {
    const BlockId block = cache_.block(node, group);
    for (int tier = 0; block != BlockId::kNone && tier < num_tiers(); ++tier) {
      if (tier_use(block, tier).state == TierUse::State::kNotOffered) queue_for(block, tier);
    }
  }
}

void KvCache::queue_for(BlockId block, int tier) {
  tier_use(block, tier).state = TierUse::State::kQueued;
  std::deque<Unsaved>& queue = unsaved_[static_cast<std::size_t>(tier)];
  queue.push_back({block, life(block).ticket, ++num_queued_});
  if (queue.size() > max_unsaved(lives_.size()))
    std::erase_if(queue, [this](const Unsaved& unsaved) { return is_gone(unsaved); });
}

// A hit in the pool asks no tier for anything: told of none, they would give up first what is used
// most. As the table goes on, not when a block is idle again: one that many share may never be.
// Deepest first, since tiers shall give up a chain from its end.
void KvCache::touch_tiers(BlockTable& table) {
  if (tiers_ == nullptr || table.borrows_) return;
  const std::int64_t now_ns = clock_.now_ns();
  if (now_ns < table.touch_at_ns_) return;
  table.touch_at_ns_ = now_ns + tiers_->touch_interval_ns();
  for (const BlockTable::Group& group : table.groups_) {
    for (const BlockId block : std::views::reverse(group.blocks)) {
      if (block != BlockId::kNone) touch_tiers(block, now_ns);
    }
  }
}

void KvCache::touch_tiers(BlockId block, std::int64_t now_ns) {
  const NodeId node = cache_.node_of(block);
  if (node == kNoNode) return;
  for (int tier = 0; tier < tiers_->num_tiers(); ++tier) {
    TierUse& use = tier_use(block, tier);
    if (!use.is_due(now_ns)) continue;
    KvTier& taker = tiers_->tier(tier);
    if (use.state == TierUse::State::kSaved) {
      use.due_ns = now_ns + taker.touch_interval_ns();
      if (taker.touch(cache_.identity(node, cache_.group_of(block)))) continue;
      // A tier that holds less than what is in use loses it again and again: each time it is given
      // it later. Eviction from the pool offers it anyway, and so does a request whose prompt others are to load.
      if (const int num_before = use.num_lost++; num_before > 0) {
        use.state = TierUse::State::kLost;
        use.due_ns = now_ns + (taker.touch_interval_ns() << std::min(num_before, kMaxDoublings));
        continue;
      }
    }
    queue_for(block, tier);
  }
}

void KvCache::note_saved(BlockId block, int tier, std::int64_t touch_at_ns) {
  TierUse& use = tier_use(block, tier);
  use.state = TierUse::State::kSaved;
  use.due_ns = touch_at_ns;
}

bool KvCache::is_gone(const Unsaved& unsaved) const {
  return life(unsaved.block).ticket != unsaved.ticket || cache_.node_of(unsaved.block) == kNoNode;
}

bool KvCache::save(BlockId block, int tier) {
  const NodeId node = cache_.node_of(block);
  const TierBlock identity = cache_.identity(node, cache_.group_of(block));
  KvTier& taker = tiers_->tier(tier);
  leaving_.tell();
  const auto fill = [&](std::span<std::byte> bytes) { leaving_.add(block, bytes); };
  const bool is_taken = taker.lends() ? taker.put_filled(identity, fill)
                                      : taker.put(identity, storage_.read_block(block));
  if (!is_taken) return false;
  if (taker.is_shared()) life(block).shared_ns = clock_.now_ns();
  note_saved(block, tier, clock_.now_ns() + taker.touch_interval_ns());
  return true;
}

void KvCache::save_some() {
  for (int tier = 0; tier < tiers_->num_tiers(); ++tier) {
    // Of each tier: one that takes all it is offered must not keep the others from theirs.
    KvTier& taker = tiers_->tier(tier);
    std::deque<Unsaved>& queue = unsaved_[static_cast<std::size_t>(tier)];
    if ((taker.lends() && !leaving_.have_left()) || queue.empty() || !taker.takes_writes()) continue;
    const std::int64_t most_bytes = taker.lends() ? kMaxSaveBesideBytes : kMaxSaveBytes;
    std::int64_t num_left = std::max<std::int64_t>(1, most_bytes / layout_.block_size_bytes());
    for (; !queue.empty() && num_left > 0; queue.pop_front()) {
      const BlockId block = queue.front().block;
      if (is_gone(queue.front()) || has_saved(block, tier)) continue;
      if (!save(block, tier)) break;
      --num_left;
    }
    leaving_.start(taker);
  }
}

// What a tier took it may have lost since.
bool KvCache::is_saved(BlockId block, int tier) const {
  if (!has_saved(block, tier)) return false;
  const TierBlock identity = cache_.identity(cache_.node_of(block), cache_.group_of(block));
  return !tiers_->tier(tier).has_lost(identity);
}

// The last chance of what is about to be evicted. One that any tier has is none the worse for the others.
void KvCache::save_before_eviction(BlockId block) {
  if (cache_.num_tokens(cache_.node_of(block)) < kBlockSize) return;
  for_each_evicted_with(block, [&](BlockId own) {
    bool is_anywhere = false;
    for (int tier = 0; tier < tiers_->num_tiers(); ++tier) {
      if (!is_saved(own, tier)) {
        const bool is_taken = tiers_->tier(tier).takes_writes() && save(own, tier);
        leaving_.start(tiers_->tier(tier));
        if (!is_taken) tiers_->count_refused(tier);
      }
      is_anywhere = is_anywhere || is_saved(own, tier);  // what was taken may have found no room
    }
    if (!is_anywhere) ++num_evicted_unsaved_;
  });
}

bool KvCache::has_unsaved() const {
  return std::ranges::any_of(unsaved_, [](const auto& queue) { return !queue.empty(); });
}

bool KvCache::can_save() const {
  for (int tier = 0; tier < num_tiers(); ++tier) {
    if (!unsaved_[static_cast<std::size_t>(tier)].empty() && tiers_->tier(tier).takes_writes())
      return true;
  }
  return false;
}

ShareMark KvCache::share(const BlockTable& table) {
  const int tier = tiers_ == nullptr ? -1 : tiers_->shared_tier();
  for (int index = 0; tier >= 0 && index < table.num_computed_ / kBlockSize; ++index) {
    const BlockId kept = table.groups_[0].blocks[static_cast<std::size_t>(index)];
    const NodeId node = kept == BlockId::kNone ? kNoNode : cache_.node_of(kept);
    for (int group = 0; node != kNoNode && group < num_groups(); ++group) {
      const BlockId block = cache_.block(node, group);
      if (block == BlockId::kNone || tier_use(block, tier).state == TierUse::State::kQueued) continue;  // it is in line
      if (clock_.now_ns() - life(block).shared_ns < kTrustNs && is_saved(block, tier)) continue;
      queue_for(block, tier);
    }
  }
  return {.num_queued = num_queued_};
}

bool KvCache::is_shared(ShareMark& mark) const {
  const int tier = tiers_ == nullptr ? -1 : tiers_->shared_tier();
  if (tier < 0) return true;
  const TierStats stats = tiers_->tier(tier).stats();
  if (!stats.is_on) return true;
  if (!mark.num_settled) {
    // They are taken in order: later ones may still wait.
    const std::deque<Unsaved>& queue = unsaved_[static_cast<std::size_t>(tier)];
    if (!queue.empty() && queue.front().number <= mark.num_queued) return false;
    mark.num_settled = stats.num_settled + static_cast<std::uint64_t>(stats.num_pending);
  }
  return stats.num_settled >= *mark.num_settled;
}

void KvCache::record_events() {
  cache_.record_events();
  if (tiers_ != nullptr) tiers_->record_events();
}

KvEvents KvCache::take_events() {
  KvEvents events = cache_.take_events();
  if (tiers_ == nullptr) return events;
  const auto of_tiers = static_cast<std::ptrdiff_t>(events.size());
  tiers_->take_events(events);
  // A disk's headers may say anything.
  const auto is_foreign = [this](const KvEvent& event) { return event.group < 0 || event.group >= num_groups(); };
  events.erase(std::remove_if(events.begin() + of_tiers, events.end(), is_foreign), events.end());
  for (KvEvent& event : std::span(events).subspan(static_cast<std::size_t>(of_tiers)))
    event.window = layout_.group(event.group).window;
  return events;
}

std::span<const EndedLoad> KvCache::poll_tiers() {
  ended_.clear();
  if (tiers_ == nullptr) return ended_;
  tiers_->loader().poll(ended_);
  save_some();
  return ended_;
}

// What a continuation at block `end` sees of the path, by where it is: in order.
KvCache::Wanted KvCache::wanted_blocks(const LoadPath& path, int end) const {
  Wanted wanted;
  wanted.sure_end = wanted.end = end;
  for (int index = path.begin; index < end; ++index) {
    const auto& step = path.steps[static_cast<std::size_t>(index - path.begin)];
    for (int group = 0; group < num_groups(); ++group) {
      if (index < cache_.first_block_needed(group, end * kBlockSize)) continue;
      const BlockId known = step.node == kNoNode ? BlockId::kNone : cache_.block(step.node, group);
      if (known != BlockId::kNone) {
        wanted.num_idle += cache_.is_idle(known) ? 1 : 0;
        continue;
      }
      TierBlock block = step.block;
      block.group = group;
      const KvTiers::Place place = tiers_->find(block);
      if (place.tier < 0) {
        wanted.hole = index;
        return wanted;
      }
      if (!place.is_sure) wanted.sure_end = std::min(wanted.sure_end, index);
      wanted.missing.push_back({index, {block, BlockId::kNone, place.tier}, place.is_sure});
    }
  }
  return wanted;
}

// Whether the pool or a tier may have the block, or has it for sure.
bool KvCache::may_load(const LoadPath::Step& step, int group, bool if_sure) const {
  if (step.node != kNoNode && cache_.block(step.node, group) != BlockId::kNone) return true;
  TierBlock block = step.block;
  block.group = group;
  const KvTiers::Place place = tiers_->find(block);
  return place.tier >= 0 && (place.is_sure || !if_sure);
}

// The last one up to `end` from which no hole is seen. A hole is seen from every end between it and the one
// that saw it, so the next to be tried is at the hole; and of what is before that, all but what only the
// nearer end's windows see has been looked at.
int KvCache::last_whole_end(const LoadPath& path, int end, bool if_sure) const {
  std::vector<int> looked_from(static_cast<std::size_t>(num_groups()), end);
  for (int hole = end; hole >= 0;) {
    end = hole;
    hole = -1;
    int from = end;
    int until = path.begin;
    std::vector<int> needed_from(looked_from.size());
    for (int group = 0; group < num_groups(); ++group) {
      const auto at = static_cast<std::size_t>(group);
      needed_from[at] = std::max(path.begin, cache_.first_block_needed(group, end * kBlockSize));
      if (needed_from[at] >= looked_from[at]) continue;
      from = std::min(from, needed_from[at]);
      until = std::max(until, std::min(end, looked_from[at]));
    }
    for (int index = from; index < until && hole < 0; ++index) {
      const auto& step = path.steps[static_cast<std::size_t>(index - path.begin)];
      for (int group = 0; group < num_groups() && hole < 0; ++group) {
        const auto at = static_cast<std::size_t>(group);
        if (index >= needed_from[at] && index < looked_from[at] && !may_load(step, group, if_sure)) hole = index;
      }
    }
    for (std::size_t at = 0; at < looked_from.size(); ++at) looked_from[at] = std::min(looked_from[at], needed_from[at]);
  }
  return end;
}

KvCache::Wanted KvCache::wanted_to_a_hole(const LoadPath& path, int end, bool if_sure) const {
  Wanted wanted = wanted_blocks(path, last_whole_end(path, end, if_sure));
  // A tier may have lost some in between.
  while (wanted.hole >= 0) wanted = wanted_blocks(path, last_whole_end(path, wanted.hole, if_sure));
  return wanted;
}

// The blocks after the first `begin` of tokens, as far as the pool or a tier may have those of kept
// groups.
KvCache::LoadPath KvCache::load_path(const BlockTable& table, std::span<const TokenId> tokens,
                                     int begin) const {
  LoadPath path;
  path.begin = begin;
  path.max_tokens = static_cast<int>(tokens.size());
  const std::span<const BlockId> kept = table.blocks(0);
  NodeId node = begin == 0 ? table.root_ : cache_.node_of(kept[static_cast<std::size_t>(begin - 1)]);
  CHECK(node != kNoNode, begin);
  TierBlock block;
  block.digest = cache_.digest(node);
  block.salt = cache_.digest(table.root_);
  for (int index = begin; (index + 1) * kBlockSize <= static_cast<int>(tokens.size()); ++index) {
    const auto span = go_on(block, tokens, index);
    if (node != kNoNode) node = cache_.find_full(node, span);
    if (node == kNoNode && tiers_->find(block).tier < 0) break;
    path.steps.push_back({block, node});
  }
  return path;
}

int KvCache::peek_tiers(std::span<const TokenId> tokens, std::string_view salt,
                        int max_tokens) const {
  PrefixMatch found;
  cache_.find(cache_.find_root(salt), tokens, max_tokens, found);
  if (tiers_ == nullptr) return found.num_tokens;
  const int num_usable = std::clamp(max_tokens, 0, static_cast<int>(tokens.size()));
  TierBlock block;
  // After a restart the pool knows the salt no more, the tiers do.
  block.salt = salt_digest(salt);
  block.digest = found.path.empty() ? block.salt : cache_.digest(found.path.back());
  auto index = static_cast<int>(found.path.size());
  for (; (index + 1) * kBlockSize <= num_usable; ++index) {
    go_on(block, tokens, index);
    if (!tiers_->find(block).is_sure) break;
  }
  return std::max(found.num_tokens, index * kBlockSize);
}

bool KvCache::has_room_for(const Wanted& wanted) const {
  return static_cast<int>(wanted.missing.size()) + wanted.num_idle <= num_blocks_available();
}

// Reading is cheaper than computing.
bool KvCache::is_worth_loading(const BlockTable& table, const Wanted& wanted) const {
  std::vector<std::int64_t> num_blocks(static_cast<std::size_t>(tiers_->num_tiers()));
  for (const Missing& one : wanted.missing) ++num_blocks[static_cast<std::size_t>(one.load.tier)];
  double seconds = 0;
  for (int tier = 0; tier < tiers_->num_tiers(); ++tier) {
    seconds += tiers_->read_seconds(tier, num_blocks[static_cast<std::size_t>(tier)]);
  }
  const int num_tokens = wanted.end * kBlockSize - table.num_computed_;
  return seconds < num_tokens * tiers_->seconds_per_token();
}

LoadPlan KvCache::begin_load(BlockTable& table, std::span<const TokenId> tokens,
                             int max_tokens) {
  CHECK(table.load_ == 0 && !table.empty());
  if (tiers_ == nullptr) return {};
  const int begin = table.num_computed_ / kBlockSize;
  const int num_usable = std::clamp(std::min(max_tokens, table.span_.num_shareable()), 0,
                                    static_cast<int>(tokens.size()));
  LoadPlan plan{.has_looked = num_usable / kBlockSize > begin};
  const LoadPath path =
      load_path(table, tokens.first(static_cast<std::size_t>(num_usable)), begin);
  Wanted wanted = wanted_to_a_hole(path, begin + static_cast<int>(path.steps.size()), false);
  if (wanted.missing.empty() || wanted.end * kBlockSize <= table.num_computed_) return plan;
  // A continuation at a nearer end sees other blocks of windows, which may be nowhere.
  Wanted sure = wanted;
  while (sure.sure_end < sure.end) sure = wanted_to_a_hole(path, sure.sure_end, true);
  // What a tier only may have does not keep out what is there.
  if (begin < sure.end && sure.end < wanted.end &&
      !(has_room_for(wanted) && is_worth_loading(table, wanted)))
    wanted = sure;
  if (!has_room_for(wanted)) return plan;
  plan.sure_end = sure.end * kBlockSize;
  if (wanted.missing.empty() || !is_worth_loading(table, wanted)) return plan;
  start_load(table, path, std::move(wanted.missing), wanted.end);
  plan.has_begun = true;
  return plan;
}

// All but the first num_blocks of each group.
void KvCache::give_back_after(BlockTable& table, int num_blocks) {
  for (BlockTable::Group& group : table.groups_) {
    while (static_cast<int>(group.blocks.size()) > num_blocks) {
      give_back(group.blocks.back(), table);
      group.blocks.pop_back();
    }
  }
}

void KvCache::start_load(BlockTable& table, const LoadPath& path, std::vector<Missing> missing,
                         int end) {
  // A shared part of the next block, if any, makes way for the whole of it.
  give_back_after(table, path.begin);
  Loading loading;
  loading.begin = path.begin;
  loading.end = end;
  loading.max_tokens = path.max_tokens;
  table.num_computed_ = path.begin * kBlockSize;
  // What is in the pool is held first, so that it cannot be evicted for what is not.
  for (int index = path.begin; index < end; ++index) {
    const NodeId node = path.steps[static_cast<std::size_t>(index - path.begin)].node;
    for (int group = 0; group < num_groups(); ++group) {
      const bool is_seen = index >= cache_.first_block_needed(group, end * kBlockSize);
      const BlockId known =
          is_seen && node != kNoNode ? cache_.block(node, group) : BlockId::kNone;
      if (known != BlockId::kNone) hold(known, table.borrows_);
      table.groups_[static_cast<std::size_t>(group)].blocks.push_back(known);
    }
  }
  std::vector<LoadBlock> blocks;
  for (Missing& one : missing) {
    one.load.target = allocate();
    const auto group = static_cast<std::size_t>(one.load.block.group);
    table.groups_[group].blocks[static_cast<std::size_t>(one.index)] = one.load.target;
    const EvictedBlock* evicted = evicted_.find(evicted_key(one.load.block.digest));
    const bool was_saved = evicted != nullptr && (evicted->saved >> one.load.tier & 1);
    loading.blocks.push_back({one.index, one.load.block.group, one.load.tier, one.is_sure || was_saved});
    blocks.push_back(one.load);
  }
  table.load_ = tiers_->loader().start(std::move(blocks));
  loads_.emplace(table.load_, std::move(loading));
}

LoadedTokens KvCache::finish_load(BlockTable& table, std::span<const TokenId> tokens,
                                  std::string_view salt, const EndedLoad& ended) {
  CHECK(table.load_ == ended.id && ended.id != 0, ended.id);
  const Loading loading = std::move(loads_.extract(ended.id).mapped());
  table.load_ = 0;
  const bool is_whole = ended.num_loaded == static_cast<int>(loading.blocks.size());
  // Index of the first block that is not there in all groups.
  const int end = is_whole
                      ? loading.end
                      : loading.blocks[static_cast<std::size_t>(ended.num_loaded)].index;
  LoadedTokens loaded;
  loaded.end = end * kBlockSize;
  loaded.num_by_tier.resize(static_cast<std::size_t>(tiers_->num_tiers()));
  int num_counted = loading.begin;  // a token once, for whichever group of layers a tier brought it
  for (int i = 0; i < ended.num_loaded; ++i) {
    const auto& [index, group, tier, was_there] = loading.blocks[static_cast<std::size_t>(i)];
    const BlockId block =
        table.groups_[static_cast<std::size_t>(group)].blocks[static_cast<std::size_t>(index)];
    note_saved(block, tier, 0);  // reading it renews no time to live
    if (index < num_counted || index >= end) continue;
    loaded.num_by_tier[static_cast<std::size_t>(tier)] += kBlockSize;
    num_counted = index + 1;
  }
  if (end > loading.begin) publish(table, tokens, end * kBlockSize);
  if (!is_whole) {
    const Loading::Block& missing = loading.blocks[static_cast<std::size_t>(ended.num_loaded)];
    for (auto i = static_cast<std::size_t>(ended.num_loaded); ended.is_faulty && i < loading.blocks.size(); ++i) {
      const Loading::Block& block = loading.blocks[i];
      if (block.tier != missing.tier || !block.was_there) break;
      loaded.failed_end = (block.index + 1) * kBlockSize;
    }
    // Windows were loaded for another end: what is known now may match, and more be asked for. It is
    // held meanwhile, as nobody has used it once more.
    BlockTable before = std::move(table);
    give_back_after(before, end);
    table.keeps_longer_ = before.keeps_longer_;
    table.borrows_ = before.borrows_;
    loaded.num_matched = match(table, tokens, salt, loading.max_tokens, before.span_);
    table.num_short_loads_ = before.num_short_loads_ + 1;
    if (table.num_short_loads_ > kMaxExactLoads) loaded.end = end / 2 * kBlockSize;
    release(before);
    return loaded;
  }
  loaded.num_matched = table.num_computed_;
  return loaded;
}

void KvCache::cancel_load(BlockTable& table) {
  if (table.load_ == 0) return;
  tiers_->loader().cancel(table.load_);
  loads_.erase(table.load_);
  table.load_ = 0;
}

}  // namespace larder
