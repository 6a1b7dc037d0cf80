// Blocks that leave to the host's memory and come back from there, against a device whose copies come late.
#include "kv/cache/leaving_blocks.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kv/kv_test_support.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/late_device.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int kNumBlocks = 8;

// A pool behind which the host has room for that many blocks.
struct Gpu {
  explicit Gpu(int num_host_blocks) : test({KvLayerShape{1, 4, 0}}, kNumBlocks, make_tiers(num_host_blocks), &device) {
    test.tiers->set_seconds_per_token(1);
  }

  std::vector<std::unique_ptr<KvTier>> make_tiers(int num_host_blocks) {
    const std::int64_t size_bytes = KvLayout(std::vector{KvLayerShape{1, 4, 0}}).block_size_bytes();
    std::vector<std::unique_ptr<KvTier>> tiers;
    tiers.push_back(std::make_unique<HostTier>(num_host_blocks * size_bytes, size_bytes, &device));
    host = static_cast<HostTier*>(tiers.back().get());
    return tiers;
  }

  // `copies`: how many of those under way have run before each poll. Returns how many tokens were known.
  template <class Copies>
  int run(const Tokens& tokens, Copies copies) {
    BlockTable table;
    const int most = static_cast<int>(tokens.size()) - 1;
    int num_known = test.cache.match(table, tokens, {}, most);
    EXPECT_TRUE(test.holds(table, tokens, num_known));
    if (test.cache.begin_load(table, tokens, most).has_begun) {
      num_known = load(table, tokens, copies);
      EXPECT_TRUE(test.holds(table, tokens, num_known));
    }
    EXPECT_TRUE(test.cache.extend(table, static_cast<int>(tokens.size())));
    test.write(table, tokens, num_known, static_cast<int>(tokens.size()));
    test.cache.publish(table, tokens, static_cast<int>(tokens.size()));
    EXPECT_TRUE(test.holds(table, tokens, static_cast<int>(tokens.size())));
    run_copies(copies());
    EXPECT_TRUE(test.cache.poll_tiers().empty());
    test.cache.release(table);
    return num_known;
  }
  template <class Copies>
  int load(BlockTable& table, const Tokens& tokens, Copies copies) {
    for (int round = 0; round < 100; ++round) {
      for (const EndedLoad& ended : test.cache.poll_tiers())
        return test.cache.finish_load(table, tokens, {}, ended).num_matched;
      run_copies(round < 10 ? copies() : 1);
    }
    ADD_FAILURE() << "the load does not end";
    return 0;
  }
  void run_copies(int count) {
    for (; count > 0 && device.num_late() > 0; --count) device.copy_next();
  }

  LateDevice device;
  HostTier* host = nullptr;
  TestCache test;
};

int none() { return 0; }
int all() { return 1000; }

TEST(LeavingBlocks, AreWaitedForBeforeTheyAreOverwritten) {
  Gpu gpu(32);
  const Tokens first = counting(100), second = counting(100, 1000);
  gpu.run(first, none);
  EXPECT_EQ(gpu.device.num_late(), 1u);
  gpu.test.cache.poll_tiers();
  EXPECT_EQ(gpu.device.num_late(), 1u) << "no more while they are on their way";
  EXPECT_EQ(gpu.host->stats().num_written, 0u);
  gpu.run(second, none);  // takes the first one's blocks
  EXPECT_GE(gpu.host->stats().num_written, 6u);
  EXPECT_EQ(gpu.run(first, all), 96) << "from the host, as they were";
}

TEST(LeavingBlocks, LeaveWithWhatIsEvictedBehindThem) {
  Gpu gpu(32);
  const Tokens first = counting(60), second = counting(60, 1000), third = counting(120, 2000);
  gpu.run(first, none);
  gpu.run(second, none);  // its blocks wait while the first one's are on their way
  EXPECT_EQ(gpu.device.num_late(), 1u);
  gpu.run(third, none);  // evicts both
  EXPECT_EQ(gpu.run(first, all), 48);
  EXPECT_EQ(gpu.run(second, all), 48);
}

TEST(LeavingBlocks, EndBeforeTheirStorage) {
  Gpu gpu(32);
  gpu.run(counting(100), none);
  EXPECT_EQ(gpu.device.num_late(), 1u);
}

// Whatever comes when: every block that is used has the bytes that were computed for it.
TEST(LeavingBlocks, AreRightWheneverCopiesRun) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    Gpu gpu(seed % 2 == 0 ? 24 : 11);
    std::mt19937 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
    int num_known = 0;
    for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
      const Tokens tokens = counting(17 + below(100), 1000 * below(6));
      num_known += gpu.run(tokens, [&] { return below(3) == 0 ? 0 : below(4); });
      for (int poll = below(3); poll > 0; --poll) {
        gpu.run_copies(below(3));
        gpu.test.cache.poll_tiers();
      }
      if (below(40) == 0) gpu.test.cache.clear();
    }
    EXPECT_GT(num_known, 400) << seed;
    EXPECT_GT(gpu.host->stats().num_read, 100u) << seed;
    EXPECT_EQ(gpu.host->stats().num_corrupt, 0u);
  }
}

}  // namespace
}  // namespace larder
