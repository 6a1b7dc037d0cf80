// The KV cache as the scheduler sees it: match, extend, publish, release.
//
// A sequence's KV lives in blocks that its BlockTable holds. Completed positions are published into
// the PrefixCache, a tree of blocks keyed by a SHA-256 chain over (parent, tokens, salt), where any
// later sequence with the same tokens and salt finds them, also while the first still runs. A match
// is token-exact: where two sequences part inside a block, the shared part is copied into a block
// of its own. Released blocks stay findable until their room is needed: which of them goes is the
// EvictionPolicy's choice, leaves first; blocks in use are never evicted.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/types.h"
#include "kv/cache/block_pool.h"
#include "kv/cache/block_table.h"
#include "kv/cache/eviction.h"
#include "kv/cache/evicted_blocks.h"
#include "kv/kv_events.h"
#include "kv/kv_layout.h"
#include "kv/kv_storage.h"
#include "kv/cache/leaving_blocks.h"
#include "kv/tiers/kv_tiers.h"
#include "kv/cache/miss.h"
#include "kv/cache/prefix_cache.h"
#include "kv/share_mark.h"

namespace larder {

struct KvCacheConfig {
  int num_blocks = 0;        // those of the storage that the cache may use
  KvTiers* tiers = nullptr;  // must outlive the cache; null = none
  EvictionKind eviction = EvictionKind::kDensity;
  double max_pinned_share = 0.5;  // of num_blocks, [0, 1]
};

// What a cache takes beside the storage of its blocks, in bytes.
struct KvBookkeeping {
  std::int64_t fixed_bytes = 0;   // from the start
  std::int64_t growth_bytes = 0;  // more, at most, as the pool fills
};

struct KvStats {
  int num_blocks = 0;
  int num_held = 0;                 // in use by a running sequence
  int num_cached = 0;               // idle, but findable
  int num_pinned = 0;               // in use or idle
  std::int64_t num_slots_held = 0;  // held blocks * kBlockSize
  std::int64_t num_slots_used = 0;  // of those, slots that hold a computed token
  std::uint64_t num_evicted = 0;    // for room
  std::uint64_t num_copied_on_write = 0;
  std::uint64_t num_pins_refused = 0;     // calls of pin()
  std::uint64_t num_evicted_unsaved = 0;  // complete, and no tier had them or could take them in time
  std::int64_t num_unsaved = 0;           // complete blocks that wait for a tier
};

// Seconds in a block's life.
struct KvHistograms {
  Histogram lifetime;           // from allocation until it is evicted for room
  Histogram idle_before_evict;  // from its last use
  Histogram reuse_gap;          // from its last use until it is used again
  KvHistograms();
};

// What begin_load() found in the tiers.
struct LoadPlan {
  bool has_begun = false;  // the table is loading
  bool has_looked = false; // for a whole block
  int sure_end = 0;        // tokens that the pool and the tiers are known to have together

  explicit operator bool() const { return has_begun; }
};

// What a load brought.
struct LoadedTokens {
  int num_matched = 0;           // tokens that need not be computed now, as match() returns
  // Where it is beyond those: up to there only windows lack blocks; begin_load() again.
  int end = 0;
  std::vector<int> num_by_tier;  // of those that came from tiers
  // Tokens up to there were to come, and did not for a fault of the tier that had them; 0 = for none.
  int failed_end = 0;
};

// With tiers, complete blocks are also written behind, and a prefix that only a tier has can be
// loaded in place of computing it: match, then begin_load; the table's sequence waits, others go on,
// until poll_tiers() names the load and finish_load() makes its blocks known.
//
// Thread: engine only. Nothing throws; no allocation of block bytes after construction.
class KvCache {
 public:
  // References must outlive the cache.
  KvCache(const KvLayout& layout, KvStorage& storage, const Clock& clock,
          const KvCacheConfig& config);

  // Of a cache with that configuration; num_tiers: that it will have.
  static KvBookkeeping bookkeeping(const KvLayout& layout, const KvCacheConfig& config,
                                   int num_tiers);

  // Takes the longest computed prefix of tokens, at most max_tokens of it, into the empty table.
  // Returns the number of tokens that need not be computed. salt: prompts with other salts never
  // share. In sliding groups only the blocks that a continuation still sees are needed and taken.
  // span: what the sequence's tokens see; a match ends where they no longer see all.
  [[nodiscard]] int match(BlockTable& table, std::span<const TokenId> tokens, std::string_view salt,
                          int max_tokens, AttentionSpan span = {});
  // What match() would return now, if a block for a shared part can be had.
  int peek(std::span<const TokenId> tokens, std::string_view salt, int max_tokens) const;
  // And with what the tiers are sure to have behind it, in the first group.
  int peek_tiers(std::span<const TokenId> tokens, std::string_view salt, int max_tokens) const;

  // What another sequence of the salt went on with behind tokens, those of the table and perhaps one that is not
  // computed yet: appends at most num_most tokens. Nothing of it is taken, or counts as used.
  void foresee(const BlockTable& table, std::span<const TokenId> tokens, std::size_t num_most,
               std::vector<TokenId>& next) const;

  // Begins to load what the tiers have beyond the matched part of tokens, at most to max_tokens, if
  // that is cheaper than computing it.
  [[nodiscard]] LoadPlan begin_load(BlockTable& table, std::span<const TokenId> tokens,
                                    int max_tokens);
  // Appends what is known of tokens [table.num_computed(), tokens.size()) of a prompt that was just
  // matched, in order and without overlap; what is not covered is unknown. Before begin_load: it
  // may change what the tiers are asked. Costs a SHA-256 per block that it can tell about.
  void explain_miss(const BlockTable& table, std::span<const TokenId> tokens,
                    std::vector<MissedSpan>& missed) const;
  // Takes what the tiers have brought and gives them what is complete; returns the loads that have
  // ended, valid until the next call. Each must be finished.
  std::span<const EndedLoad> poll_tiers();
  LoadedTokens finish_load(BlockTable& table, std::span<const TokenId> tokens,
                           std::string_view salt, const EndedLoad& ended);
  // Whether complete blocks wait for a tier to take them.
  bool has_unsaved() const;
  // And no fault keeps that tier from it.
  bool can_save() const;
  // Offers the table's whole blocks to the tier that others share, also those that it took some time ago, and may have
  // lost since: it stores again what it has not got.
  ShareMark share(const BlockTable& table);
  // Whether others can load all that was complete then, or no longer will be able to: the tier takes no writes now, or
  // there is none. Each call may move the mark on.
  [[nodiscard]] bool is_shared(ShareMark& mark) const;

  // From now on what becomes of full blocks, of the pool and of tiers, is kept until it is taken: at least after every step.
  void record_events();
  // Those of the pool first: a tier's blocks were there before it got them.
  KvEvents take_events();
  // Whether tiers will have some though nobody asks for anything.
  bool has_tier_events() const { return tiers_ != nullptr && tiers_->has_events(); }

  // Room for positions up to num_tokens, evicting what is not in use; a shared block that would be
  // written is copied first. false = not enough, and nothing has changed: the caller preempts or
  // waits.
  [[nodiscard]] bool extend(BlockTable& table, int num_tokens);

  // Positions [0, num_computed) of tokens are in storage now: makes them findable, and gives back
  // blocks that no later position of a sliding group sees. Where an equal full block is known
  // already, the table takes that one and its own is free.
  void publish(BlockTable& table, std::span<const TokenId> tokens, int num_computed);

  // Another table over the same blocks (n > 1); the first to write a shared block copies it.
  [[nodiscard]] BlockTable fork(const BlockTable& table);

  // Gives all blocks back, deepest first. The table is empty afterwards.
  void release(BlockTable& table);

  // What a sequence that begins with all of tokens needs to go on after them shall stay for ttl_ns
  // from now, or for as long as it is pinned already. Only where nothing else is left is it evicted
  // earlier, what would have expired first before the rest. false = nothing was pinned, as more than
  // the share of the pool would be, or as not all of it is there: what windows have given back is,
  // until the next block is taken.
  [[nodiscard]] bool pin(std::span<const TokenId> tokens, std::string_view salt,
                         std::int64_t ttl_ns);

  // Ends the pins whose time is up, which are counted until then.
  void expire_pins() { cache_.expire_pins(clock_.now_ns()); }
  // When that has something to do; the end of time = never.
  std::int64_t next_pin_expiry_ns() const { return cache_.next_pin_expiry_ns(); }

  // Blocks that extend(table, num_tokens) would take, and those that it could have.
  int num_blocks_needed(const BlockTable& table, int num_tokens) const;
  int num_blocks_available() const { return pool_.num_free() + cache_.num_idle(); }
  // Blocks that the sequence will take at most, beyond those that it has, until num_tokens are
  // computed, at most max_step_tokens in a step: windows give blocks back on the way.
  // With a span's window no more than num_endless_tokens() are ever held at once.
  std::int64_t num_blocks_to_reach(const BlockTable& table, int num_tokens,
                                   int max_step_tokens) const;

  // Blocks of the available ones that a sequence of those tokens would take at most, by match() and
  // then until all are computed. Changes nothing, nor counts as a use of what it looks at.
  std::int64_t num_blocks_to_admit(std::span<const TokenId> tokens, std::string_view salt,
                                   int max_tokens, AttentionSpan span, int max_step_tokens) const;

  static std::int64_t num_endless_tokens(const AttentionSpan& span, int max_step_tokens) {
    // What was published is given back as a whole, once the window has left all of it.
    return 2 * std::int64_t{span.window} + span.num_sinks + max_step_tokens + kBlockSize;
  }

  // Blocks that a sequence takes from num_found tokens on, which are there, to num_tokens; what windows give back on the
  // way stays where it is. And how many tokens it can come to so in blocks that are free.
  std::int64_t num_blocks_to_go_on(int num_found, int num_tokens) const {
    return ((std::int64_t{num_tokens} + kBlockSize - 1) / kBlockSize - num_found / kBlockSize) * num_groups();
  }
  int num_tokens_for_free(int num_found) const {
    return (num_found / kBlockSize + pool_.num_free() / num_groups()) * kBlockSize;
  }
  // Makes free what nobody is expected to ask for: blocks of tokens behind the first num_kept, the last first, until
  // num_free are. It ends at one that is in use, pinned, or followed by another one.
  void give_up(std::span<const TokenId> tokens, std::string_view salt, int num_kept, std::int64_t num_free);

  // Forgets everything that is not in use (/reset_prefix_cache).
  void clear();

  int num_groups() const { return layout_.num_groups(); }
  const KvLayout& layout() const { return layout_; }
  KvStats stats() const;
  const KvHistograms& histograms() const { return histograms_; }

 private:
  // What happened to a block, for stats.
  struct BlockLife {
    int num_used = 0;  // computed slots
    std::int64_t allocated_ns = 0;
    std::int64_t last_used_ns = 0;
    std::int64_t shared_ns = 0;  // when the tier that others read took it last
    std::uint32_t ticket = 0;  // counts the block's lives
    bool was_pinned = false;
  };
  // Of a block and a tier.
  struct TierUse {
    // kQueued: the block waits for the tier to take it. kSaved: it has it, as far as is known. kLost: it has it no more, and
    // is to be given it again.
    enum class State : std::uint8_t { kNotOffered, kQueued, kSaved, kLost };
    State state = State::kNotOffered;
    int num_lost = 0;  // times that it had it no more
    std::int64_t due_ns = 0;  // kSaved: when it hears next that the block is in use; kLost: when it is given it

    bool is_due(std::int64_t now_ns) const {
      return (state == State::kSaved || state == State::kLost) && now_ns >= due_ns;
    }
  };
  // A block of a certain life that a tier has not got yet.
  struct Unsaved {
    BlockId block;
    std::uint32_t ticket;
    std::uint64_t number;  // counted through all tiers
  };
  // Blocks that follow a table's, by their tokens.
  struct LoadPath {
    struct Step {
      TierBlock block;
      NodeId node;  // kNoNode: not in the pool
    };
    int begin = 0;       // index of the first
    int max_tokens = 0;  // that may be loaded, whole blocks or not
    std::vector<Step> steps;
  };
  struct Missing {
    int index;
    LoadBlock load;
    bool is_sure;  // the tier has it
  };
  struct Wanted {
    std::vector<Missing> missing;  // from the pool; a tier may have them
    int num_idle = 0;  // others are in the pool, and nobody holds them
    int hole = -1;     // index of a block that is nowhere
    int sure_end = 0;  // index of the first that a tier only may have, or the end
    int end = 0;
  };
  // A load in flight: its blocks in order.
  struct Loading {
    struct Block {
      int index, group, tier;
      bool was_there;  // the tier had it, or had taken it from this cache
    };
    int begin = 0;
    int end = 0;  // indices
    int max_tokens = 0;  // the path's
    std::vector<Block> blocks;
  };

  static int max_pinned(const KvCacheConfig& config) {
    return static_cast<int>(config.max_pinned_share * config.num_blocks);
  }
  // Blocks that may wait for a tier; with one that takes nothing for long, most have gone from the
  // pool by then.
  static std::size_t max_unsaved(std::size_t num_blocks) { return 2 * num_blocks; }
  BlockLife& life(BlockId block) { return lives_[static_cast<std::size_t>(to_index(block))]; }
  const BlockLife& life(BlockId block) const {
    return lives_[static_cast<std::size_t>(to_index(block))];
  }
  int num_tiers() const { return static_cast<int>(unsaved_.size()); }
  std::size_t use_index(BlockId block, int tier) const {
    return static_cast<std::size_t>(to_index(block)) * unsaved_.size() + static_cast<std::size_t>(tier);
  }
  TierUse& tier_use(BlockId block, int tier) { return tier_uses_[use_index(block, tier)]; }
  bool has_saved(BlockId block, int tier) const {
    return tier_uses_[use_index(block, tier)].state == TierUse::State::kSaved;
  }
  enum class Leave { kForRoom, kGivenUp, kCleared };
  BlockId allocate();
  void hold(BlockId block, bool borrows);
  void drop(BlockId block, const BlockTable& table);
  void give_back(BlockId& entry, const BlockTable& table);
  void drop_blocks(BlockTable& table);
  void evict(BlockId block, Leave why);
  // Calls function(BlockId) for each block that goes when this one, whose turn it is, does.
  template <class Function>
  void for_each_evicted_with(BlockId block, const Function& function) const {
    const NodeId node = cache_.node_of(block);
    for (int group = 0; group < num_groups(); ++group) {
      const BlockId own = cache_.block(node, group);
      if (own != BlockId::kNone && cache_.is_idle(own) && cache_.goes_with(cache_.group_of(block), group))
        function(own);
    }
  }
  void remember_evicted(BlockId block, bool is_cleared);
  bool tier_is_off(std::uint8_t saved) const;
  void set_num_used(BlockId block, int num_used);
  std::vector<BlockId> blocks_seen(const PrefixMatch& match) const;
  std::int64_t num_blocks_at_once(const AttentionSpan& span, std::int64_t num_tokens,
                                  int max_step_tokens) const;
  void take_path(BlockTable& table);
  bool take_tail(BlockTable& table);
  void publish_block(BlockTable& table, std::span<const TokenId> tokens, int index);
  void adopt(BlockTable& table, NodeId node, int index);
  void replace(BlockTable& table, NodeId own, NodeId known, int index);
  void give_back_passed(BlockTable& table);
  void give_back_unseen(BlockTable& table);
  void forget_if_redundant(NodeId node);
  void queue_save(NodeId node);
  bool is_gone(const Unsaved& unsaved) const;
  bool save(BlockId block, int tier);
  void queue_for(BlockId block, int tier);
  void note_saved(BlockId block, int tier, std::int64_t touch_at_ns);
  void touch_tiers(BlockTable& table);
  void touch_tiers(BlockId block, std::int64_t now_ns);
  bool is_saved(BlockId block, int tier) const;
  void save_some();
  void save_before_eviction(BlockId block);
  LoadPath load_path(const BlockTable& table, std::span<const TokenId> tokens, int begin) const;
  Wanted wanted_blocks(const LoadPath& path, int end) const;
  bool may_load(const LoadPath::Step& step, int group, bool if_sure) const;
  int last_whole_end(const LoadPath& path, int end, bool if_sure) const;
  Wanted wanted_to_a_hole(const LoadPath& path, int end, bool if_sure) const;
  bool has_room_for(const Wanted& wanted) const;
  bool is_worth_loading(const BlockTable& table, const Wanted& wanted) const;
  void start_load(BlockTable& table, const LoadPath& path, std::vector<Missing> missing, int end);
  void give_back_after(BlockTable& table, int num_blocks);
  void cancel_load(BlockTable& table);
  // Index of the table's last block if it is partly computed and thus written next, else -1.
  int open_block(const BlockTable& table) const;

  const KvLayout& layout_;
  KvStorage& storage_;
  const Clock& clock_;
  KvTiers* const tiers_;
  BlockPool pool_;
  const std::unique_ptr<EvictionPolicy> policy_;
  const int max_pinned_;  // blocks
  PrefixCache cache_;
  std::vector<BlockLife> lives_;    // [num_blocks]
  PrefixMatch match_;               // scratch
  std::vector<BlockId> blocks_;     // scratch, [num_groups]
  std::vector<std::int64_t> pins_;  // scratch, [num_groups]
  std::int64_t num_slots_used_ = 0;
  std::uint64_t num_evicted_ = 0;
  std::uint64_t num_copied_on_write_ = 0;
  std::uint64_t num_pins_refused_ = 0;
  KvHistograms histograms_;
  EvictedBlocks evicted_;
  std::vector<std::deque<Unsaved>> unsaved_;  // [num_tiers], oldest first
  std::vector<TierUse> tier_uses_;            // [num_blocks, num_tiers]
  std::unordered_map<std::uint64_t, Loading> loads_;
  std::vector<EndedLoad> ended_;  // scratch
  std::uint64_t num_evicted_unsaved_ = 0;
  std::uint64_t num_queued_ = 0;  // for tiers, since start
  LeavingBlocks leaving_;
};

}  // namespace larder
