#include "kv/cache/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/heap_size.h"

namespace larder {
namespace {

int common_length(std::span<const TokenId> left, std::span<const TokenId> right) {
  const auto [end, other] = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<int>(end - left.begin());
}

// A node holds a block, and a root is there for a node or for a table that holds a block, but for
// those that have just been matched.
std::size_t max_nodes(int num_blocks) {
  constexpr std::size_t kNumMatched = 1024;
  return 2 * static_cast<std::size_t>(num_blocks) + kNumMatched;
}

}  // namespace

Digest salt_digest(std::string_view salt) { return sha256(std::as_bytes(std::span(salt))); }

Digest chain_digest(const Digest& parent, std::span<const TokenId> tokens) {
  CHECK(tokens.size() == kBlockSize, tokens.size());
  constexpr std::size_t kTokensBytes = kBlockSize * sizeof(TokenId);
  std::array<std::byte, sizeof(Digest) + kTokensBytes> bytes;
  std::memcpy(bytes.data(), parent.data(), sizeof(Digest));
  std::memcpy(bytes.data() + sizeof(Digest), tokens.data(), kTokensBytes);
  return sha256(bytes);
}

bool PrefixCache::Before::operator()(NodeId left, NodeId right) const {
  const Node& a = cache->node(left);
  const Node& b = cache->node(right);
  if (a.parent != b.parent) return a.parent < b.parent;
  const int num_common = common_length(a.span(), b.span());
  if (num_common < a.num_tokens && num_common < b.num_tokens) {
    const auto place = static_cast<std::size_t>(num_common);
    return a.tokens[place] < b.tokens[place];
  }
  return a.num_tokens != b.num_tokens ? a.num_tokens < b.num_tokens : left < right;
}

bool PrefixCache::Before::operator()(NodeId left, const Key& right) const {
  const Node& a = cache->node(left);
  if (a.parent != right.parent) return a.parent < right.parent;
  return std::ranges::lexicographical_compare(a.span(), right.tokens);
}

bool PrefixCache::Before::operator()(const Key& left, NodeId right) const {
  const Node& b = cache->node(right);
  if (left.parent != b.parent) return left.parent < b.parent;
  return !std::ranges::lexicographical_compare(b.span(), left.tokens);
}

PrefixCache::PrefixCache(const KvLayout& layout, BlockPool& pool, EvictionPolicy& policy)
    : layout_(layout),
      pool_(pool),
      order_(Before{this}),
      owners_(static_cast<std::size_t>(pool.num_blocks())),
      policy_(policy),
      pins_(pool.num_blocks()) {
  full_nodes_.reserve(owners_.size());
  // So that they never move. Pages are taken as they are first used.
  const std::size_t most_nodes = max_nodes(pool.num_blocks());
  nodes_.reserve(most_nodes);
  blocks_.reserve(most_nodes * static_cast<std::size_t>(layout.num_groups()));
  free_nodes_.reserve(most_nodes);
}

std::int64_t PrefixCache::size_bytes(int num_blocks) {
  return num_blocks * (std::int64_t{sizeof(Owner)} + kReservedBucketBytes) +
         Pins::size_bytes(num_blocks);
}

std::int64_t PrefixCache::growth_bytes(const KvLayout& layout, int num_blocks, int num_pinned) {
  const std::int64_t of_node = std::int64_t{sizeof(Node) + sizeof(NodeId)} +
                               layout.num_groups() * std::int64_t{sizeof(BlockId)};
  constexpr std::int64_t kIndexBytes =
      heap_bytes(kHashNodeBytes + sizeof(std::pair<const Digest, NodeId>)) +
      heap_bytes(kSetNodeBytes + sizeof(NodeId));
  constexpr std::int64_t kSaltBytes =
      heap_bytes(kHashNodeBytes + sizeof(std::pair<const std::string, NodeId>)) +
      heap_bytes(sizeof(Digest) + 1) + kGrowingBucketBytes;
  return static_cast<std::int64_t>(max_nodes(num_blocks)) * of_node +
         num_blocks * (kIndexBytes + kSaltBytes) + Pins::growth_bytes(num_pinned);
}

NodeId PrefixCache::find_root(std::string_view salt) const {
  const auto found = roots_.find(std::string(salt));
  return found == roots_.end() ? kNoNode : found->second;
}

NodeId PrefixCache::hold_root(std::string_view salt) {
  const auto [entry, is_new] = roots_.try_emplace(std::string(salt), kNoNode);
  if (is_new) {
    entry->second = allocate_node();
    node(entry->second).digest = salt_digest(salt);
    node(entry->second).salt = &entry->first;
    node(entry->second).root = entry->second;
  }
  hold_root(entry->second);
  return entry->second;
}

void PrefixCache::release_root(NodeId root) {
  Node& released = node(root);
  if (--released.num_users > 0 || released.num_children > 0) return;
  roots_.erase(roots_.find(*released.salt));
  free_node(root);
}

int PrefixCache::first_block_needed(int group, int num_computed) const {
  return is_kept(group) ? 0 : first_block_seen(num_computed, layout_.group(group).window);
}

int PrefixCache::last_gap(const std::vector<NodeId>& path, int num_path, int num_tokens) const {
  int gap = -1;
  for (int group = 0; group < layout_.num_groups(); ++group) {
    if (is_kept(group)) continue;
    const int first = std::max(first_block_needed(group, num_tokens), gap + 1);
    for (int index = num_path - 1; index >= first; --index) {
      if (block(path[static_cast<std::size_t>(index)], group) != BlockId::kNone) continue;
      gap = index;
      break;
    }
  }
  return gap;
}

void PrefixCache::find(NodeId root, std::span<const TokenId> tokens, int max_tokens,
                       PrefixMatch& match) const {
  const int num_usable = std::clamp(max_tokens, 0, static_cast<int>(tokens.size()));
  match.path.clear();
  match.tail = kNoNode;
  match.num_tokens = 0;
  if (root == kNoNode) return;
  const auto span_at = [&](int block_index) {
    const int begin = block_index * kBlockSize;
    return tokens.subspan(static_cast<std::size_t>(begin),
                          static_cast<std::size_t>(std::min(kBlockSize, num_usable - begin)));
  };
  NodeId parent = root;
  while (static_cast<int>(match.path.size() + 1) * kBlockSize <= num_usable) {
    parent = find_full(parent, span_at(static_cast<int>(match.path.size())));
    if (parent == kNoNode) break;
    match.path.push_back(parent);
  }
  // From the longest candidate down: the path's first blocks, with or without a tail. Where a
  // window has a gap, every candidate that ends beyond the gap's block sees it, so the next one
  // ends there.
  int num_path = static_cast<int>(match.path.size());
  for (;;) {
    const int boundary = num_path * kBlockSize;
    if (boundary < num_usable) {
      parent = num_path == 0 ? root : match.path[static_cast<std::size_t>(num_path - 1)];
      const auto [child, num_shared] = closest_child(parent, span_at(num_path));
      if (num_shared > 0 && last_gap(match.path, num_path, boundary + num_shared) < 0) {
        match.tail = child;
        match.num_tokens = boundary + num_shared;
        break;
      }
    }
    const int gap = last_gap(match.path, num_path, boundary);
    if (gap < 0) {
      match.num_tokens = boundary;
      break;
    }
    num_path = gap;
  }
  match.path.resize(static_cast<std::size_t>(num_path));
}

NodeId PrefixCache::find_full(NodeId parent, std::span<const TokenId> tokens) const {
  const auto found = full_nodes_.find(chain_digest(digest(parent), tokens));
  if (found == full_nodes_.end()) return kNoNode;
  const Node& candidate = node(found->second);
  if (candidate.parent != parent || !std::ranges::equal(candidate.span(), tokens)) return kNoNode;
  return found->second;
}

std::pair<NodeId, int> PrefixCache::closest_child(NodeId parent,
                                                  std::span<const TokenId> tokens) const {
  const auto after = order_.lower_bound(Key{parent, tokens});
  std::pair<NodeId, int> closest{kNoNode, 0};
  const auto consider = [&](NodeId id) {
    if (node(id).parent != parent) return;
    const int num_shared = common_length(node(id).span(), tokens);
    if (num_shared > closest.second) closest = {id, num_shared};
  };
  // The one before it first: a node that is wholly a prefix of tokens may be taken without a copy.
  if (after != order_.begin()) consider(*std::prev(after));
  if (after != order_.end()) consider(*after);
  return closest;
}

// Of several the first in order: siblings that are longer than what they share stand behind those that are not.
void PrefixCache::continuation(NodeId parent, std::span<const TokenId> begin, std::size_t num_most,
                               std::vector<TokenId>& next) const {
  while (num_most > 0) {
    auto child = order_.lower_bound(Key{parent, begin});
    const auto begins_alike = [&] {
      return child != order_.end() && node(*child).parent == parent &&
             common_length(node(*child).span(), begin) == std::ssize(begin);
    };
    // Equal nodes: the sequence's own one, and those of others that have got no further.
    constexpr int kMostEqual = 8;
    for (int i = 0; i < kMostEqual && begins_alike() && node(*child).span().size() == begin.size() && !node(*child).is_full; ++i)
      ++child;
    if (!begins_alike()) return;
    const auto behind = node(*child).span().subspan(begin.size());
    const std::size_t num = std::min(num_most, behind.size());
    next.insert(next.end(), behind.begin(), behind.begin() + static_cast<std::ptrdiff_t>(num));
    num_most -= num;
    if (!node(*child).is_full) return;
    parent = *child;
    begin = {};
  }
}

NodeId PrefixCache::insert(NodeId parent, std::span<const TokenId> tokens,
                           std::span<const BlockId> blocks) {
  CHECK(!tokens.empty() && tokens.size() <= kBlockSize, tokens.size());
  const NodeId id = allocate_node();
  Node& added = node(id);
  added.parent = parent;
  added.root = node(parent).root;
  added.depth = node(parent).depth + 1;
  added.num_tokens = static_cast<int>(tokens.size());
  std::ranges::copy(tokens, added.tokens.begin());
  ++node(parent).num_children;
  for (int group = 0; group < layout_.num_groups(); ++group) {
    const BlockId block = blocks[static_cast<std::size_t>(group)];
    CHECK(block != BlockId::kNone || !is_kept(group), group);
    if (block != BlockId::kNone) add_block(id, group, block);
  }
  follow_parent(id);
  if (added.num_tokens == kBlockSize) become_full(id);
  return id;
}

// Where many go on from one place, they have less in common with it.
void PrefixCache::follow_parent(NodeId id) {
  constexpr int kMostSiblings = 2;
  const NodeId parent = node(id).parent;
  if (node(parent).parent == kNoNode || node(parent).num_children > kMostSiblings) return;
  for (int group = 0; group < layout_.num_groups(); ++group) {
    const BlockId own = block(id, group), before = block(parent, group);
    if (own != BlockId::kNone && before != BlockId::kNone) policy_.follow(own, before);
  }
}

void PrefixCache::grow(NodeId id, std::span<const TokenId> tokens) {
  Node& grown = node(id);
  CHECK(static_cast<int>(tokens.size()) > grown.num_tokens && tokens.size() <= kBlockSize);
  const auto begin = static_cast<std::size_t>(grown.num_tokens);
  CHECK(std::ranges::equal(grown.span(), tokens.first(begin)));
  // Out and in again, unless the next one in order stays the next one: the usual case.
  bool moves = grown.is_ordered;
  if (grown.is_ordered) {
    const auto next = order_.upper_bound(id);
    moves = next != order_.end() && node(*next).parent == grown.parent &&
            common_length(node(*next).span(), grown.span()) == grown.num_tokens;
  }
  if (moves) take_from_order(id);
  std::ranges::copy(tokens.subspan(begin), grown.tokens.begin() + grown.num_tokens);
  grown.num_tokens = static_cast<int>(tokens.size());
  if (moves) put_in_order(id);
  if (grown.num_tokens == kBlockSize) become_full(id);
}

void PrefixCache::become_full(NodeId id) {
  Node& full = node(id);
  full.digest = chain_digest(digest(full.parent), full.span());
  full.is_full = true;
  full_nodes_.try_emplace(full.digest, id);
  for (int group = 0; group < layout_.num_groups(); ++group) {
    if (block(id, group) == BlockId::kNone) continue;
    name_block(id, group);
    record(KvEvent::Kind::kStored, id, group);
  }
}

void PrefixCache::record(KvEvent::Kind kind, NodeId id, int group) {
  const Node& full = node(id);
  if (!records_events_ || !full.is_full) return;
  // Nobody finds a second one with the same tokens, which is there until its sequence has taken the first.
  const auto found = full_nodes_.find(full.digest);
  if (found == full_nodes_.end() || found->second != id) return;
  events_.push_back({.kind = kind,
                     .is_first = node(full.parent).parent == kNoNode,
                     .group = group,
                     .window = layout_.group(group).window,
                     .digest = full.digest,
                     .parent = digest(full.parent),
                     .salt = digest(full.root),
                     .tokens = full.tokens});
}

void PrefixCache::name_block(NodeId id, int group) {
  std::uint64_t key;
  std::memcpy(&key, node(id).digest.data(), sizeof key);
  policy_.name(block(id, group), key + static_cast<std::uint64_t>(group));
}

bool PrefixCache::is_redundant(NodeId id) const {
  const Node& candidate = node(id);
  if (!candidate.is_ordered || candidate.num_children > 0) return false;
  const auto covers = [&](NodeId other) {
    return node(other).parent == candidate.parent &&
           common_length(node(other).span(), candidate.span()) == candidate.num_tokens;
  };
  const auto place = order_.find(id);
  return (std::next(place) != order_.end() && covers(*std::next(place))) ||
         (place != order_.begin() && covers(*std::prev(place)));
}

TierBlock PrefixCache::identity(NodeId id, int group) const {
  const Node& full = node(id);
  CHECK(full.num_tokens == kBlockSize, id, full.num_tokens);
  return {full.digest, digest(full.parent), digest(full.root), full.tokens, group};
}

void PrefixCache::add_block(NodeId id, int group, BlockId block) {
  CHECK(block != BlockId::kNone && node_of(block) == kNoNode, to_index(block));
  CHECK(this->block(id, group) == BlockId::kNone, id, group);
  blocks_[place_of(id, group)] = block;
  owners_[index_of(block)] = {.node = id, .group = group};
  move(block, State::kUsed);
  if (node(id).is_full) {
    name_block(id, group);
    record(KvEvent::Kind::kStored, id, group);
  }
  if (is_complete(id)) put_in_order(id);
}

void PrefixCache::remove_block(NodeId id, int group) {
  record(KvEvent::Kind::kRemoved, id, group);
  move(std::exchange(blocks_[place_of(id, group)], BlockId::kNone), State::kOutside);
}

void PrefixCache::remove(NodeId id) {
  Node& removed = node(id);
  CHECK(removed.num_children == 0, id, removed.num_children);
  take_from_order(id);
  for (int group = 0; group < layout_.num_groups(); ++group) {
    if (block(id, group) != BlockId::kNone) remove_block(id, group);
  }
  const auto found = full_nodes_.find(removed.digest);
  if (found != full_nodes_.end() && found->second == id) full_nodes_.erase(found);
  const NodeId parent = removed.parent;
  free_node(id);
  --node(parent).num_children;
  if (node(parent).parent != kNoNode) {
    for (int group = 0; group < layout_.num_groups(); ++group) {
      if (is_kept(group) && is_idle(block(parent, group))) settle(block(parent, group));
    }
  } else {
    ++node(parent).num_users;
    release_root(parent);
  }
}

bool PrefixCache::is_complete(NodeId id) const {
  for (int group = 0; group < layout_.num_groups(); ++group) {
    if (block(id, group) == BlockId::kNone) return false;
  }
  return true;
}

void PrefixCache::put_in_order(NodeId id) {
  order_.insert(id);
  node(id).is_ordered = true;
}

void PrefixCache::take_from_order(NodeId id) {
  if (!node(id).is_ordered) return;
  order_.erase(id);
  node(id).is_ordered = false;
}

NodeId PrefixCache::allocate_node() {
  if (!free_nodes_.empty()) {
    const NodeId id = free_nodes_.back();
    free_nodes_.pop_back();
    return id;
  }
  nodes_.emplace_back();
  blocks_.resize(nodes_.size() * static_cast<std::size_t>(layout_.num_groups()), BlockId::kNone);
  return static_cast<NodeId>(nodes_.size()) - 1;
}

void PrefixCache::free_node(NodeId id) {
  node(id) = Node{};
  free_nodes_.push_back(id);
}

void PrefixCache::hold(BlockId block, bool borrows) {
  const bool is_lent = owners_[index_of(block)].state == State::kLent;
  if (is_idle(block) || (is_lent && !borrows)) move(block, borrows ? State::kLent : State::kUsed);
  pool_.hold(block);
}

void PrefixCache::release(BlockId block, bool keeps_longer) {
  pool_.release(block);
  const Owner& owner = owners_[index_of(block)];
  if (owner.state == State::kOutside || num_users(block) > 0) return;
  settle(block, keeps_longer);
}

void PrefixCache::settle(BlockId block, bool keeps_longer) {
  const Owner& owner = owners_[index_of(block)];
  const bool is_needed = is_kept(owner.group) && node(owner.node).num_children > 0;
  move(block, is_needed || pins_.is_pinned(block) ? State::kStaying : State::kOffered, keeps_longer);
}

void PrefixCache::move(BlockId block, State to, bool keeps_longer) {
  using enum State;
  Owner& owner = owners_[index_of(block)];
  const State from = std::exchange(owner.state, to);
  CHECK(from == kOutside ? to == kUsed : to != kLent || is_idle(from), to_index(block));
  num_idle_ += int{is_idle(to)} - int{is_idle(from)};
  if (from == kOutside) pool_.hold(block);
  if (to == kOutside) {
    pins_.unpin(block);
    policy_.forget(block);
    owner = {};
    return pool_.release(block);
  }
  if (pins_.is_pinned(block)) pins_.set_idle(block, is_idle(to));
  if (from >= kLent && to == kUsed) policy_.take(block);
  if (from == kOffered && (to == kLent || to == kStaying)) policy_.withdraw(block);
  if (from == kUsed && is_idle(to)) policy_.give_back(block, {node(owner.node).num_children == 0, keeps_longer});
  if (from != kOffered && to == kOffered) policy_.offer(block);
}

BlockId PrefixCache::next_to_evict() const {
  const BlockId block = policy_.next();
  return block != BlockId::kNone ? block : pins_.first_idle();
}

void PrefixCache::pin(BlockId block, std::int64_t until_ns) {
  const Owner& owner = owners_[index_of(block)];
  CHECK(owner.node != kNoNode, to_index(block));
  pins_.pin(block, until_ns, node(owner.node).depth);
  if (is_idle(block)) settle(block);
}

void PrefixCache::expire_pins(std::int64_t now_ns) {
  for (;;) {
    const BlockId block = pins_.first_expired(now_ns);
    if (block == BlockId::kNone) return;
    pins_.unpin(block);
    if (is_idle(block)) settle(block);
  }
}

int PrefixCache::evict(BlockId block) {
  const NodeId id = node_of(block);
  const int group = group_of(block);
  const int num_free = pool_.num_free();
  if (is_kept(group)) {
    remove(id);
  } else {
    take_from_order(id);
    for (int other = 1; other < layout_.num_groups(); ++other) {
      const BlockId beside = this->block(id, other);
      if (goes_with(group, other) && beside != BlockId::kNone && is_idle(beside)) remove_block(id, other);
    }
  }
  return pool_.num_free() - num_free;
}

// Blocks of sliding groups with one window are needed together, or not at all.
bool PrefixCache::goes_with(int group, int other) const {
  return is_kept(group) ||
         (!is_kept(other) && layout_.group(other).window == layout_.group(group).window);
}

}  // namespace larder
