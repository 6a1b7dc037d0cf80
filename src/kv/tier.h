// Where completed KV blocks live beyond the pool: a disk, a server that others share.
//
// A tier stores the bytes of one block (16 tokens of one layer group, exactly as KvStorage holds
// them) under what they are: TierBlock. What it gives back has been compared with all of that and,
// where it left the process's memory, with its checksum; anything else (absent, torn, of another
// model, late, a lie) is a miss. A tier never throws after construction, but for a get() without
// memory, and never stops the engine: its faults cost time, not answers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "base/types.h"
#include "kv/kv_events.h"

namespace larder {

// What every block of a store must have been made with. Blocks of another one are never used.
struct TierFormat {
  Digest fingerprint{};               // of weights, layout, KV types, instruction set, block size
  std::int64_t block_size_bytes = 0;  // KvLayout::block_size_bytes()

  bool operator==(const TierFormat&) const = default;
};

// A block's identity. digest alone names its content (a SHA-256 chain from the salt over all tokens
// up to and with these, see PrefixCache); the rest is stored beside it and compared.
struct TierBlock {
  Digest digest{};
  Digest parent{};  // digest of the 16 tokens before; the salt's for the first block
  Digest salt{};    // digest of the salt
  std::array<TokenId, kBlockSize> tokens{};
  int group = 0;

  bool operator==(const TierBlock&) const = default;
};

enum class TierPresence {
  kAbsent,
  kPresent,
  kUnknown,  // asking costs a round trip: get() finds out
};

// What a read is expected to take of a tier that is off.
inline constexpr double kOffSeconds = 1e9;

// So many blocks of a read, from the first on, are there. What ends the count is not in the tier or, where it is
// faulty, may be: it could not be read, was wrong, or was not asked for, since the tier is off or busy.
struct TierAnswer {
  int num_found = 0;
  bool is_faulty = false;
};

// Blocks to read, and who hears of it. Both spans stay valid until done has been called.
struct TierRead {
  std::span<const TierBlock> blocks;
  std::span<std::byte> bytes;  // [blocks.size() * block_size_bytes]
  // Called once, on a thread of the tier or within get(), with how many of the blocks are in bytes now.
  std::function<void(TierAnswer)> done;
};

// Since start, but for the gauges.
struct TierStats {
  std::uint64_t num_written = 0;  // blocks
  std::uint64_t num_read = 0;     // blocks that were found and right
  std::uint64_t num_missed = 0;   // reads, not blocks: ended by one that was not there, or not begun
  std::uint64_t num_refused = 0;  // given up: no room, or gone before it was taken
  std::uint64_t num_evicted = 0;  // for room, or expired
  std::uint64_t num_settled = 0;  // of those that it took: written, or there already; of a shared tier alone
  std::uint64_t num_io_errors = 0;
  std::uint64_t num_corrupt = 0;     // wrong checksum, length or identity
  std::uint64_t num_timeouts = 0;
  std::int64_t bytes_written = 0;
  std::int64_t bytes_read = 0;
  std::int64_t write_ns = 0;  // in the device
  std::int64_t read_ns = 0;
  // Gauges.
  std::int64_t bytes_stored = 0;  // 0 where unknown
  std::int64_t num_stored = 0;
  std::int64_t num_pending = 0;  // blocks in the queue of writes
  bool is_on = true;             // false while faults keep it out of use
};

// Thread: put, touch, presence and get from the engine's, which they never keep waiting for the device;
// stats from any. The end writes what is queued (within a bound), ends the threads and calls what is
// left of done.
class KvTier {
 public:
  virtual ~KvTier() = default;

  virtual const char* name() const = 0;  // "host", "disk", "remote"
  // Whether other processes read what it holds.
  virtual bool is_shared() const { return false; }
  // Copies bytes and writes them behind. A block that is stored already is done at once. false =
  // not now, the queue is full or the tier off; the caller may offer it again.
  [[nodiscard]] virtual bool put(const TierBlock& block, std::span<const std::byte> bytes) = 0;
  // A block that it took has been used again, beside it: it stays longer than what is not. false = it
  // has it no more; the caller may offer it again. No more often for a block than the interval.
  [[nodiscard]] virtual bool touch(const TierBlock&) { return true; }
  virtual std::int64_t touch_interval_ns() const { return 10'000'000'000; }
  [[nodiscard]] virtual TierPresence presence(const TierBlock& block) const = 0;
  // Whether it knows that it has not got the block: one that cannot be read now is not lost.
  virtual bool has_lost(const TierBlock&) const { return false; }
  // Where it throws std::bad_alloc it has taken nothing, and done is not called.
  virtual void get(TierRead read) = 0;

  // A tier in memory lets its blocks be copied from and to where they lie, by the engine's thread.
  virtual bool lends() const { return false; }
  // Instead of get(): take(where each lies) is called once, for as many as there are from the first on, if any.
  // They may be read behind the call, too. Returns how many.
  using Take = std::function<void(std::span<const std::byte* const> bytes)>;
  virtual int lend(std::span<const TierBlock>, const Take&) { return 0; }
  // So many that were lent have been read in this time.
  virtual void note_lent(std::int64_t /*num_blocks*/, std::int64_t /*ns*/) {}
  // Instead of put(), for fill to write what it would copy, perhaps behind the call: but not before what was lent
  // earlier has been read, and before it is read itself.
  using Fill = std::function<void(std::span<std::byte> bytes)>;
  [[nodiscard]] virtual bool put_filled(const TierBlock&, const Fill&) { return false; }
  // So many have been filled in this time.
  virtual void note_filled(std::int64_t /*num_blocks*/, std::int64_t /*ns*/) {}

  // From now on it keeps what becomes of its blocks, and tells in time of those that it has; take_events() takes that, in order. Of
  // what all servers share alike nothing is told.
  virtual void record_events() {}
  virtual KvEvents take_events() { return {}; }
  // Whether there will be some, or are, though nobody asks the tier for anything.
  virtual bool has_events() const { return false; }

  // Whether it held a block with this digest in another format when it was opened; false where that
  // is not known.
  virtual bool is_stored_for_another(const Digest&) const { return false; }
  // What reading num_blocks will take, by what was measured at start and since; kOffSeconds while off.
  virtual double estimate_read_seconds(std::int64_t num_blocks) const = 0;
  virtual TierStats stats() const = 0;
  // Does what the destructor would wait for; only that may follow. false: the device hangs, and a
  // thread with it. Then the tier and the spans of its reads must stay as long as the process.
  virtual bool end() { return true; }
  // Whether put() may succeed: no fault forbids it.
  virtual bool takes_writes() const { return stats().is_on; }
};

}  // namespace larder
