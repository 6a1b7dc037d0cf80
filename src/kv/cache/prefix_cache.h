// Which computed token prefixes are in which blocks, and which of those blocks goes first.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/types.h"
#include "kv/cache/block_pool.h"
#include "kv/cache/eviction.h"
#include "kv/cache/pins.h"
#include "kv/kv_events.h"
#include "kv/kv_layout.h"
#include "kv/tier.h"

namespace larder {

using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

// What find() found: full blocks, then perhaps the beginning of one more.
struct PrefixMatch {
  std::vector<NodeId> path;  // nodes of full blocks, from the root down
  NodeId tail = kNoNode;     // a node that begins with the tokens after them
  int num_tokens = 0;        // 16 * path.size(), and those shared with tail
};

// The address of a salt's root.
Digest salt_digest(std::string_view salt);
// The address of a full block that follows the one with that digest.
Digest chain_digest(const Digest& parent, std::span<const TokenId> tokens);

// A tree: each node is a span of at most kBlockSize tokens that follows its parent's, with one
// block per layer group (kNone where a sliding group has none). Roots stand for salts. Full nodes
// are found by a SHA-256 chain over (salt, tokens) and compared token by token, so that a collision
// does no harm; those with all blocks, full or not, are also kept in lexicographic order under
// their parent, where the one that shares most tokens with a continuation is next to its place.
//
// The cache holds one reference on every block of its nodes, tables the others. What a block is, move() alone changes:
//
//     kOutside ---> kUsed <---> kStaying <---> kLent        each of these ---> kOutside
//                     ^            ^             ^
//                     +-----> kOffered <---------+
//
// kOutside: it has no node. kUsed: tables hold it. kLent: the same, but who took it borrows it; the policy sees it idle.
// Nobody holds the others, which are idle. kStaying: it may not go, since it is pinned, or of a kept group and nodes
// below need it. kOffered: it may, and the policy chooses; where there is none left, what is pinned goes. Who holds a
// node's block of group 0 holds those of all its ancestors, so what hangs on an idle node is idle. Thread: engine only.
class PrefixCache {
 public:
  // References must outlive the cache.
  PrefixCache(const KvLayout& layout, BlockPool& pool, EvictionPolicy& policy);

  // What one takes from the start, and what more in a pool that is full of nodes, each a prompt of
  // its own salt (of 32 bytes), with so many blocks pinned.
  static std::int64_t size_bytes(int num_blocks);
  static std::int64_t growth_bytes(const KvLayout& layout, int num_blocks, int num_pinned);

  // The root of a salt; it lives as long as it has users or children.
  NodeId hold_root(std::string_view salt);
  void hold_root(NodeId root) { ++node(root).num_users; }
  void release_root(NodeId root);

  // The longest prefix of tokens, at most max_tokens, whose continuation sees all that it must:
  // every block of kept groups, those inside the window of sliding ones. Exact.
  void find(NodeId root, std::span<const TokenId> tokens, int max_tokens, PrefixMatch& match) const;
  NodeId find_root(std::string_view salt) const;
  NodeId find_full(NodeId parent, std::span<const TokenId> tokens) const;

  // Appends tokens that stand behind `begin`, less than a block of them or all, below parent, at most num_most.
  void continuation(NodeId parent, std::span<const TokenId> begin, std::size_t num_most,
                    std::vector<TokenId>& next) const;

  // A new node with these blocks, [num_groups], none of which has a node yet; kNone where a sliding
  // group has no block.
  NodeId insert(NodeId parent, std::span<const TokenId> tokens, std::span<const BlockId> blocks);
  // The node's span is now tokens, of which what it had is a prefix.
  void grow(NodeId id, std::span<const TokenId> tokens);
  // Gives the node a block where it had none.
  void add_block(NodeId id, int group, BlockId block);
  // Forgets the node, which has no children; blocks without another holder are free.
  void remove(NodeId id);
  // Whether a sibling begins with all tokens of the node.
  bool is_redundant(NodeId id) const;
  // What a tier knows the block of a full node by.
  TierBlock identity(NodeId id, int group) const;

  // The node of a block, kNoNode if it has none.
  NodeId node_of(BlockId block) const { return owners_[index_of(block)].node; }
  int group_of(BlockId block) const { return owners_[index_of(block)].group; }
  int num_tokens(NodeId id) const { return node(id).num_tokens; }
  BlockId block(NodeId id, int group) const { return blocks_[place_of(id, group)]; }
  // SHA-256 over everything up to and with a full node's tokens: the address of its content. A
  // root's: over its salt.
  const Digest& digest(NodeId id) const { return node(id).digest; }
  NodeId parent(NodeId id) const { return node(id).parent; }
  bool is_kept(int group) const { return group == 0 || layout_.group(group).window == 0; }
  // First block of a group that a query at position num_computed sees.
  int first_block_needed(int group, int num_computed) const;

  // See KvCache. Of what find_full() finds.
  void record_events() { records_events_ = true; }
  KvEvents take_events() { return std::exchange(events_, {}); }

  // References of tables.
  int num_users(BlockId block) const {
    return pool_.ref_count(block) - (node_of(block) == kNoNode ? 0 : 1);
  }
  // A table's, of any block; the last one frees a block without a node. Who borrows an idle one does not use it: if nobody
  // else has meanwhile, its place among the idle ones is the one that it had.
  void hold(BlockId block, bool borrows);
  void release(BlockId block, bool keeps_longer);
  bool is_idle(BlockId block) const { return is_idle(owners_[index_of(block)].state); }
  int num_idle() const { return num_idle_; }
  // Whether the policy has the block on offer: nobody needs it, nor is it to stay.
  bool may_go(BlockId block) const { return owners_[index_of(block)].state == State::kOffered; }
  // The next block to go; kNone when none is idle.
  BlockId next_to_evict() const;
  // Forgets it and what is of no use without it. Returns the number of blocks freed.
  int evict(BlockId block);
  // Whether with a block of the group goes that of the other one, unless it is in use.
  bool goes_with(int group, int other) const;

  // The block, which has a node, and whose ancestors are pinned as long, stays until then.
  void pin(BlockId block, std::int64_t until_ns);
  bool is_pinned(BlockId block) const { return pins_.is_pinned(block); }
  std::int64_t pinned_until_ns(BlockId block) const { return pins_.until_ns(block); }
  int num_pinned() const { return pins_.num_pinned(); }
  // Ends what is over.
  void expire_pins(std::int64_t now_ns);
  std::int64_t next_pin_expiry_ns() const { return pins_.next_expiry_ns(); }

 private:
  struct Node {
    NodeId parent = kNoNode;
    NodeId root = kNoNode;  // of a root: itself
    int num_children = 0;
    int num_users = 0;                  // of a root: tables
    const std::string* salt = nullptr;  // of a root: its key in roots_
    int num_tokens = 0;
    int depth = 0;            // of a root: 0
    bool is_full = false;     // its digest is known
    bool is_ordered = false;  // stands in order_
    std::array<TokenId, kBlockSize> tokens{};
    Digest digest{};

    std::span<const TokenId> span() const {
      return {tokens.data(), static_cast<std::size_t>(num_tokens)};
    }
  };
  // To the policy a block is idle from kLent on.
  enum class State : std::uint8_t { kOutside, kUsed, kLent, kStaying, kOffered };
  struct Owner {
    NodeId node = kNoNode;
    int group = 0;
    State state = State::kOutside;
  };
  struct Key {
    NodeId parent;
    std::span<const TokenId> tokens;
  };
  // By parent, then by tokens; equal ones by id, and before them a Key.
  struct Before {
    using is_transparent = void;
    const PrefixCache* cache;
    bool operator()(NodeId left, NodeId right) const;
    bool operator()(NodeId left, const Key& right) const;
    bool operator()(const Key& left, NodeId right) const;
  };
  Node& node(NodeId id) { return nodes_[static_cast<std::size_t>(id)]; }
  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  static std::size_t index_of(BlockId block) { return static_cast<std::size_t>(to_index(block)); }
  std::size_t place_of(NodeId id, int group) const {
    return static_cast<std::size_t>(id) * static_cast<std::size_t>(layout_.num_groups()) +
           static_cast<std::size_t>(group);
  }
  NodeId allocate_node();
  void free_node(NodeId id);
  void become_full(NodeId id);
  void put_in_order(NodeId id);
  void take_from_order(NodeId id);
  void remove_block(NodeId id, int group);
  void follow_parent(NodeId id);
  void name_block(NodeId id, int group);
  void record(KvEvent::Kind kind, NodeId id, int group);
  static bool is_idle(State state) { return state >= State::kStaying; }
  // Counts, references, pins and the policy follow.
  void move(BlockId block, State to, bool keeps_longer = false);
  // A block that is idle, or becomes so: on offer, if it may go.
  void settle(BlockId block, bool keeps_longer = false);
  bool is_complete(NodeId id) const;
  // The child that shares most tokens, and how many.
  std::pair<NodeId, int> closest_child(NodeId parent, std::span<const TokenId> tokens) const;
  // The last of the path's blocks that a query at num_tokens must see and that is not there; -1 =
  // none.
  int last_gap(const std::vector<NodeId>& path, int num_path, int num_tokens) const;

  const KvLayout& layout_;
  BlockPool& pool_;
  std::vector<Node> nodes_;
  std::vector<BlockId> blocks_;  // [nodes, num_groups]
  std::vector<NodeId> free_nodes_;
  std::unordered_map<std::string, NodeId> roots_;
  std::unordered_map<Digest, NodeId, DigestHash> full_nodes_;
  std::set<NodeId, Before> order_;
  std::vector<Owner> owners_;  // [num_blocks]
  EvictionPolicy& policy_;
  Pins pins_;
  int num_idle_ = 0;
  bool records_events_ = false;
  KvEvents events_;
};

}  // namespace larder
