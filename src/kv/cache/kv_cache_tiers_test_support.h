// A cache over tiers that answer when they are told to.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/kv_test_support.h"
#include "kv/tiers/fake_tier.h"

namespace larder {

using Tokens = std::vector<TokenId>;

// One full layer; or one full and two that slide over 20 tokens, in groups of one layer.
inline std::vector<KvLayerShape> full_layer() { return {KvLayerShape{1, 4, 0}}; }
inline std::vector<KvLayerShape> sliding_layers() {
  return {KvLayerShape{1, 4, 0}, KvLayerShape{1, 4, 20}, KvLayerShape{1, 4, 20}};
}

// A cache over stores that outlive it.
struct Server {
  Server(std::vector<KvLayerShape> shapes, int num_blocks, std::vector<FakeStore*> stores)
      : test(std::move(shapes), num_blocks, make_tiers(stores)) {}
  ~Server() {
    for (FakeTier* tier : fakes) tier->answer();
  }

  std::vector<std::unique_ptr<KvTier>> make_tiers(const std::vector<FakeStore*>& stores) {
    std::vector<std::unique_ptr<KvTier>> tiers;
    for (FakeStore* store : stores) {
      tiers.push_back(std::make_unique<FakeTier>(*store));
      fakes.push_back(static_cast<FakeTier*>(tiers.back().get()));
    }
    return tiers;
  }

  // Matches, loads what there is, computes the rest. Returns how much was computed.
  int run(const Tokens& tokens, std::string_view salt = {}) {
    BlockTable table;
    const int most = static_cast<int>(tokens.size()) - 1;
    int num_known = test.cache.match(table, tokens, salt, most);
    EXPECT_TRUE(test.holds(table, tokens, num_known));
    for (int end = most; end > num_known && test.cache.begin_load(table, tokens, end);) {
      const LoadedTokens loaded = finish(table, tokens, salt);
      EXPECT_LT(loaded.end, end + kBlockSize);
      end = loaded.end;
      num_known = loaded.num_matched;
      EXPECT_EQ(table.num_computed(), num_known);
      EXPECT_TRUE(test.holds(table, tokens, num_known));
    }
    compute(table, tokens);
    test.cache.poll_tiers();
    test.cache.release(table);
    return static_cast<int>(tokens.size()) - num_known;
  }

  LoadedTokens finish(BlockTable& table, const Tokens& tokens, std::string_view salt = {}) {
    for (int round = 0; round < 1000; ++round) {
      for (FakeTier* tier : fakes) tier->answer();
      for (const EndedLoad& ended : test.cache.poll_tiers()) {
        EXPECT_EQ(ended.id, table.load_id());
        return test.cache.finish_load(table, tokens, salt, ended);
      }
    }
    ADD_FAILURE() << "the load does not end";
    return {};
  }

  void compute(BlockTable& table, const Tokens& tokens) {
    const int begin = table.num_computed();
    const int end = static_cast<int>(tokens.size());
    ASSERT_TRUE(test.cache.extend(table, end));
    test.write(table, tokens, begin, end);
    test.cache.publish(table, tokens, end);
    EXPECT_TRUE(test.holds(table, tokens, end));
  }

  std::vector<FakeTier*> fakes;
  TestCache test;
};

}  // namespace larder
