// A tier in memory that answers when it is told to, and lies if asked.
#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "kv/tier.h"

namespace larder {

// What outlives a tier, as a disk does.
struct FakeStore {
  std::map<std::pair<Digest, int>, std::vector<std::byte>> blocks;
};

class FakeTier final : public KvTier {
 public:
  explicit FakeTier(FakeStore& store) : store_(store) {}
  ~FakeTier() override { answer(); }

  const char* name() const override { return "fake"; }
  bool is_shared() const override { return others_read; }
  bool put(const TierBlock& block, std::span<const std::byte> bytes) override {
    ++num_offers;
    if (refuses) return false;
    ++num_puts;
    store_.blocks[key(block)].assign(bytes.begin(), bytes.end());
    return true;
  }
  bool touch(const TierBlock& block) override {
    ++num_touches;
    return store_.blocks.contains(key(block));
  }
  std::int64_t touch_interval_ns() const override { return interval_ns; }
  TierPresence presence(const TierBlock& block) const override {
    ++num_asked;
    if (is_out) return TierPresence::kAbsent;
    if (is_vague) return TierPresence::kUnknown;
    return store_.blocks.contains(key(block)) ? TierPresence::kPresent : TierPresence::kAbsent;
  }
  bool has_lost(const TierBlock& block) const override {
    return !store_.blocks.contains(key(block));
  }
  void get(TierRead read) override {
    ++num_gets;
    if (lacks_memory) throw std::bad_alloc();
    waiting_.push_back(std::move(read));
    if (answers_at_once) answer();
  }
  double estimate_read_seconds(std::int64_t) const override { return is_out ? kOffSeconds : read_seconds; }
  TierStats stats() const override {
    return {.num_corrupt = num_corrupt, .is_on = !is_out && !pauses_writes};
  }

  // Answers what was asked, last question first.
  void answer() {
    while (!waiting_.empty()) {
      const TierRead read = std::move(waiting_.back());
      waiting_.pop_back();
      const std::size_t size = read.bytes.size() / read.blocks.size();
      TierAnswer given;
      for (const TierBlock& block : read.blocks) {
        const auto found = store_.blocks.find(key(block));
        if (found == store_.blocks.end()) break;
        if (lost.contains(found->first)) {
          num_corrupt += lies ? 1 : 0;
          given.is_faulty = lies;
          break;
        }
        std::memcpy(read.bytes.data() + static_cast<std::size_t>(given.num_found) * size,
                    found->second.data(), size);
        ++given.num_found;
      }
      read.done(given);
    }
  }

  static std::pair<Digest, int> key(const TierBlock& block) { return {block.digest, block.group}; }

  bool others_read = false;      // what it stores
  bool is_out = false;           // of use, as stats() say
  bool pauses_writes = false;    // as stats() say
  bool refuses = false;          // put() finds the queue full
  bool is_vague = false;         // presence() does not know
  bool answers_at_once = false;  // within get()
  bool lacks_memory = false;     // get() throws
  bool lies = false;             // about what is lost: a fault
  double read_seconds = 0;
  std::int64_t interval_ns = 10'000'000'000;
  std::set<std::pair<Digest, int>> lost;  // present, but get() finds them gone
  int num_offers = 0;
  int num_puts = 0;
  int num_touches = 0;
  int num_gets = 0;
  std::uint64_t num_corrupt = 0;
  mutable int num_asked = 0;

 private:
  FakeStore& store_;
  std::vector<TierRead> waiting_;
};

}  // namespace larder
