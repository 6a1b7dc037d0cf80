// The KV cache as the scheduler sees it: match, extend, publish, release.
//
// A sequence's KV lives in blocks that its BlockTable holds. Completed positions are published into
// the PrefixCache, a tree of blocks keyed by a SHA-256 chain over (parent, tokens, salt), where any
// later sequence with the same tokens and salt finds them, also while the first still runs. A match
// is token-exact: where two sequences part inside a block, the shared part is copied into a block
// of its own. Released blocks stay findable until their room is needed: least recently used first,
// leaves first; blocks in use are never evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/types.h"
#include "kv/kv_layout.h"
#include "kv/kv_storage.h"

namespace larder {

class BlockPool;
class PrefixCache;

// The blocks of one sequence: for each group, entry i holds positions [16 i, 16 i + 16), or kNone
// where the window has passed it. Filled and emptied by KvCache only. Move-only; must be released
// before it dies.
class BlockTable;

struct KvStats {
  int num_blocks = 0;
  int num_held = 0;                 // in use by a running sequence
  int num_cached = 0;               // free, but findable
  std::int64_t num_slots_held = 0;  // held blocks * kBlockSize
  std::int64_t num_slots_used = 0;  // of those, slots that hold a computed token
  std::uint64_t num_evicted = 0;
  std::uint64_t num_copied_on_write = 0;
};

// Thread: engine only. Nothing throws.
class KvCache {
 public:
  KvCache(const KvLayout& layout, KvStorage& storage, const Clock& clock, int num_blocks);
  ~KvCache();

  // Takes the longest computed prefix of tokens, at most max_tokens of it, into the empty table.
  // Returns the number of tokens that need not be computed. salt: prompts with other salts never
  // share. In sliding groups only the blocks that a continuation still sees are needed and taken.
  [[nodiscard]] int match(BlockTable& table, std::span<const TokenId> tokens, std::string_view salt,
                          int max_tokens);

  // Room for positions up to num_tokens, evicting what is not in use; shared blocks that would be
  // written are copied first. false = not enough, and nothing has changed: the caller preempts or
  // waits.
  [[nodiscard]] bool extend(BlockTable& table, int num_tokens);

  // Positions [0, num_computed) of tokens are in storage now: makes them findable, and gives back
  // blocks that no later position of a sliding group sees.
  void publish(BlockTable& table, std::span<const TokenId> tokens, int num_computed);

  // Another table over the same blocks (n > 1); the first to write a shared block copies it.
  [[nodiscard]] BlockTable fork(const BlockTable& table);

  // Gives all blocks back, deepest first. The table is empty afterwards.
  void release(BlockTable& table);

  // Blocks that extend(table, num_tokens) would take, and those that it could have.
  int num_blocks_needed(const BlockTable& table, int num_tokens) const;
  int num_blocks_available() const;

  // Forgets everything that is not in use (/reset_prefix_cache).
  void clear();

  KvStats stats() const;
};

}  // namespace larder
