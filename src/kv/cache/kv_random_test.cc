// Random operations against a naive reference: which token prefixes have been computed, and what
// every slot must hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kv/cache/kv_cache.h"
#include "kv/kv_test_support.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

struct Setup {
  std::vector<KvLayerShape> shapes;
  int num_blocks = 0;
  bool evicts = false;  // the pool is too small to keep everything
  std::uint32_t seed = 0;
  EvictionKind eviction = EvictionKind::kDensity;
  bool pins = false;
};

class Simulation {
 public:
  explicit Simulation(const Setup& setup)
      : setup_(setup),
        test_(setup.shapes, setup.num_blocks, setup.eviction),
        random_(setup.seed) {
    test_.cache.record_events();
  }

  void run(int num_operations) {
    for (int operation = 0; operation < num_operations; ++operation) {
      const auto dice = random_() % 100;
      if (sequences_.empty() || (dice < 12 && sequences_.size() < 6)) {
        start();
      } else if (dice < 18) {
        fork();
      } else if (dice < 30) {
        release(random_() % sequences_.size());
      } else if (dice == 30 && setup_.evicts) {
        test_.cache.clear();
      } else if (dice < 36 && setup_.pins) {
        pin();
      } else {
        step(sequences_[random_() % sequences_.size()]);
      }
      check_counts();
      follow_events();
      if (operation % 8 == 0) check_contents();
      if (testing::Test::HasFatalFailure()) return;
    }
    while (!sequences_.empty()) release(0);
    const KvStats stats = test_.cache.stats();
    EXPECT_EQ(stats.num_held, 0);
    EXPECT_EQ(stats.num_slots_used, 0);
    EXPECT_EQ(test_.cache.num_blocks_available(), setup_.num_blocks);
    test_.cache.clear();
    EXPECT_EQ(test_.cache.stats().num_cached, 0);
    follow_events();
    EXPECT_TRUE(told_.empty()) << told_.size();
    EXPECT_GT(num_told_, 20);
    EXPECT_GT(num_matched_, 0);
    EXPECT_GT(num_refused_, setup_.evicts ? 0 : -1);
    EXPECT_EQ(stats.num_evicted > 0, setup_.evicts);
    EXPECT_EQ(num_pinned_ > 0, setup_.pins);
  }

 private:
  static constexpr int kStepTokens = 40;  // at most

  struct Sequence {
    Tokens tokens;
    std::string salt;
    BlockTable table;
  };

  // Few distinct tokens in a few long runs, so that prefixes meet and part anywhere.
  Tokens random_tokens(int num_tokens) {
    Tokens tokens;
    if (!past_.empty() && random_() % 3 > 0) {
      const Tokens& source = past_[random_() % past_.size()];
      tokens.assign(source.begin(), source.begin() + static_cast<long>(random_() % source.size()));
    }
    while (static_cast<int>(tokens.size()) < num_tokens) {
      tokens.push_back(static_cast<TokenId>(random_() % 2));
    }
    tokens.resize(static_cast<std::size_t>(num_tokens));
    return tokens;
  }

  void start() {
    Sequence sequence;
    sequence.salt = random_() % 4 == 0 ? "other" : "";
    if (random_() % 4 == 0) sequence.table.keep_longer();
    sequence.tokens = random_tokens(40 + static_cast<int>(random_() % 120));
    past_.push_back(sequence.tokens);
    const int max_tokens = random_() % 3 == 0 ? static_cast<int>(random_() % 160)
                                              : static_cast<int>(sequence.tokens.size());
    const int expected = known_length(sequence, max_tokens);
    const int peeked = test_.cache.peek(sequence.tokens, sequence.salt, max_tokens);
    const bool has_room = test_.cache.num_blocks_available() >=
                          test_.layout.num_groups() * 2 + expected;  // sources count as well
    const auto num_tokens = static_cast<int>(sequence.tokens.size());
    const auto num_wanted = test_.cache.num_blocks_to_admit(sequence.tokens, sequence.salt,
                                                            max_tokens, {}, kStepTokens);
    const int num_available = test_.cache.num_blocks_available();
    const int got = test_.cache.match(sequence.table, sequence.tokens, sequence.salt, max_tokens);
    ASSERT_TRUE(!has_room || got == peeked) << got << " " << peeked;
    const auto num_taken =
        num_available - test_.cache.num_blocks_available() +
        test_.cache.num_blocks_to_reach(sequence.table, num_tokens, kStepTokens);
    ASSERT_TRUE(!has_room || num_taken == num_wanted) << num_taken << " " << num_wanted;
    ASSERT_TRUE(got == expected || (setup_.evicts && got < expected)) << got << " " << expected;
    ASSERT_TRUE(test_.holds(sequence.table, sequence.tokens, got));
    num_matched_ += got;
    follow_events();
    check_told(sequence, peeked);
    sequences_.push_back(std::move(sequence));
  }

  void step(Sequence& sequence) {
    const int begin = sequence.table.num_computed();
    const int room = static_cast<int>(sequence.tokens.size()) - begin;
    if (room == 0) return;
    const int end =
        begin + 1 + static_cast<int>(random_() % static_cast<unsigned>(std::min(room, kStepTokens)));
    const int num_needed = test_.cache.num_blocks_needed(sequence.table, end);
    const int num_available = test_.cache.num_blocks_available();
    const KvStats before = test_.cache.stats();
    if (!test_.cache.extend(sequence.table, end)) {
      ++num_refused_;
      ASSERT_GT(num_needed, num_available);
      ASSERT_EQ(test_.cache.stats().num_held, before.num_held);
      ASSERT_EQ(test_.cache.stats().num_evicted, before.num_evicted);
      return;
    }
    ASSERT_LE(num_needed, num_available);
    ASSERT_LE(num_available - test_.cache.num_blocks_available(), num_needed);
    test_.write(sequence.table, sequence.tokens, begin, end);
    test_.cache.publish(sequence.table, sequence.tokens, end);
    learn(sequence, begin, end);
  }

  // Counts right, within the share; and what is pinned keeps nobody from running (step()).
  void pin() {
    if (random_() % 4 == 0) test_.clock.advance_ns(40);
    const Tokens& tokens = past_[past_.size() - 1 - random_() % std::min<std::size_t>(past_.size(), 6)];
    const std::string salt = random_() % 4 == 0 ? "other" : "";
    const KvStats before = test_.cache.stats();
    const std::size_t num_tokens = 1 + random_() % tokens.size();
    const auto ttl_ns = 1 + static_cast<int>(random_() % 200);
    const bool pinned = test_.cache.pin(std::span(tokens).first(num_tokens), salt, ttl_ns);
    num_pinned_ += pinned ? 1 : 0;
    const KvStats after = test_.cache.stats();
    ASSERT_LE(after.num_pinned, setup_.num_blocks / 2);
    if (!pinned) {
      ASSERT_LE(after.num_pinned, before.num_pinned);
    }
    ASSERT_EQ(after.num_held, before.num_held);
    ASSERT_EQ(after.num_cached, before.num_cached);
  }

  void fork() {
    const Sequence& source = sequences_[random_() % sequences_.size()];
    Sequence copy;
    copy.salt = source.salt;
    copy.tokens.assign(source.tokens.begin(), source.tokens.begin() + source.table.num_computed());
    const Tokens rest = random_tokens(60);
    copy.tokens.insert(copy.tokens.end(), rest.begin(), rest.end());
    copy.table = test_.cache.fork(source.table);
    sequences_.push_back(std::move(copy));
  }

  void release(std::size_t index) {
    test_.cache.release(sequences_[index].table);
    sequences_.erase(sequences_.begin() + static_cast<long>(index));
  }

  void check_contents() {
    for (const Sequence& sequence : sequences_) {
      ASSERT_TRUE(test_.holds(sequence.table, sequence.tokens, sequence.table.num_computed()));
    }
  }

  void check_counts() {
    const KvStats stats = test_.cache.stats();
    ASSERT_LE(stats.num_slots_used, stats.num_slots_held);
    ASSERT_EQ(stats.num_held + test_.cache.num_blocks_available(), setup_.num_blocks);
    std::set<BlockId> held;
    for (const Sequence& sequence : sequences_) {
      for (int group = 0; group < test_.layout.num_groups(); ++group) {
        for (const BlockId block : sequence.table.blocks(group)) {
          if (block != BlockId::kNone) held.insert(block);
        }
      }
    }
    ASSERT_EQ(stats.num_held, static_cast<int>(held.size()));
  }

  // What a router makes of them: nothing twice, nothing gone that was not there, and every block behind its parent.
  void follow_events() {
    for (const KvEvent& event : test_.cache.take_events()) {
      const std::pair key(event.digest, event.group);
      if (event.kind == KvEvent::Kind::kRemoved) {
        ASSERT_EQ(told_.erase(key), 1u);
        continue;
      }
      ++num_told_;
      ASSERT_TRUE(told_.insert(key).second);
      ASSERT_EQ(event.digest, chain_digest(event.parent, event.tokens));
      ASSERT_TRUE(event.is_first ? event.parent == event.salt : told_.contains({event.parent, 0}));
    }
  }

  // The first num_found tokens can be found, and the router knows.
  void check_told(const Sequence& sequence, int num_found) {
    Digest digest = salt_digest(sequence.salt);
    for (int end = kBlockSize; end <= num_found; end += kBlockSize) {
      digest = chain_digest(digest, std::span(sequence.tokens).subspan(static_cast<std::size_t>(end - kBlockSize), kBlockSize));
      ASSERT_TRUE(told_.contains({digest, 0})) << end;
    }
  }

  void learn(const Sequence& sequence, int begin, int end) {
    const auto hashes = prefix_hashes(sequence.tokens);
    for (int position = begin; position < end; ++position) {
      known_.insert({sequence.salt, hashes[static_cast<std::size_t>(position)]});
    }
  }

  int known_length(const Sequence& sequence, int max_tokens) const {
    const auto hashes = prefix_hashes(sequence.tokens);
    int length = 0;
    const int most = std::min(max_tokens, static_cast<int>(sequence.tokens.size()));
    while (length < most &&
           known_.contains({sequence.salt, hashes[static_cast<std::size_t>(length)]})) {
      ++length;
    }
    return length;
  }

  const Setup setup_;
  TestCache test_;
  std::mt19937 random_;
  std::vector<Sequence> sequences_;
  std::vector<Tokens> past_;
  std::set<std::pair<std::string, std::uint64_t>> known_;  // computed prefixes, ever
  std::set<std::pair<Digest, int>> told_;  // blocks and groups, by events
  int num_told_ = 0;
  std::int64_t num_matched_ = 0;
  int num_refused_ = 0;
  int num_pinned_ = 0;  // calls
};

const std::vector<KvLayerShape> kFull = {{1, 2, 0}, {1, 2, 0}};
const std::vector<KvLayerShape> kSliding = {{1, 2, 0}, {1, 2, 20}, {1, 2, 20}, {1, 2, 48}};

TEST(KvRandom, NothingIsForgottenWhileThereIsRoom) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    Simulation({kFull, 4000, false, seed}).run(1500);
    if (HasFatalFailure()) FAIL() << seed;
  }
}

TEST(KvRandom, WindowsWithRoom) {
  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    Simulation({kSliding, 16000, false, seed}).run(1000);
    if (HasFatalFailure()) FAIL() << seed;
  }
}

// Seeds with both policies, without pins and with them.
void run_evictions(const std::vector<KvLayerShape>& shapes, int num_blocks) {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    const EvictionKind eviction = seed % 2 == 0 ? EvictionKind::kDensity : EvictionKind::kLru;
    SCOPED_TRACE(seed);
    Simulation({shapes, num_blocks, true, seed, eviction, seed % 4 >= 2}).run(2000);
    if (testing::Test::HasFatalFailure()) FAIL() << seed;
  }
}

TEST(KvRandom, EvictionServesNoWrongByte) { run_evictions(kFull, 24); }

TEST(KvRandom, EvictionWithWindowsServesNoWrongByte) { run_evictions(kSliding, 72); }

}  // namespace
}  // namespace larder
