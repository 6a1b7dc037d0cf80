// What a block is to the tree, to the pins and to the policy, whatever tables do with it.
#include "kv/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <ranges>
#include <utility>
#include <vector>

namespace larder {
namespace {

constexpr int kNumBlocks = 24;
constexpr int kNumGroups = 2;

std::size_t at(BlockId block) { return static_cast<std::size_t>(to_index(block)); }

// Allows nothing but what EvictionPolicy promises.
class StrictPolicy : public EvictionPolicy {
 public:
  enum class State { kInUse, kIdle, kOffered };

  void follow(BlockId block, BlockId) override { EXPECT_EQ(state(block), State::kInUse); }
  void name(BlockId block, std::uint64_t) override { EXPECT_EQ(state(block), State::kInUse); }
  void give_back(BlockId block, BlockUse use) override {
    move(block, State::kInUse, State::kIdle);
    last_use = use;
    ++num_given_back;
  }
  void take(BlockId block) override {
    EXPECT_NE(state(block), State::kInUse);
    states_[at(block)] = State::kInUse;
  }
  void offer(BlockId block) override { move(block, State::kIdle, State::kOffered); }
  void withdraw(BlockId block) override { move(block, State::kOffered, State::kIdle); }
  void forget(BlockId block) override { states_[at(block)] = State::kInUse; }
  BlockId next() const override {
    const auto found = std::ranges::find(states_, State::kOffered);
    return found == states_.end() ? BlockId::kNone : BlockId{static_cast<std::int32_t>(found - states_.begin())};
  }

  State state(BlockId block) const { return states_[at(block)]; }

  int num_given_back = 0;
  BlockUse last_use;

 private:
  void move(BlockId block, State from, State to) {
    EXPECT_EQ(state(block), from);
    states_[at(block)] = to;
  }

  std::vector<State> states_ = std::vector(kNumBlocks, State::kInUse);
};

// Tables over one tree, of a kept group and a sliding one; and what each block should be, by what has been done to it.
class Walk {
 public:
  explicit Walk(unsigned seed) : random_(seed), root_(cache_.hold_root("")) {}

  void step() {
    switch (below(8)) {
      case 0:
      case 1:
        if (tables_.size() < 5) open();
        break;
      case 2:
      case 3:
        if (!tables_.empty()) grow(one_of(tables_));
        break;
      case 4:
        if (!tables_.empty()) close(below(static_cast<int>(tables_.size())));
        break;
      case 5:
        if (!tables_.empty()) slide(one_of(tables_));
        break;
      case 6:
        pin();
        break;
      default:
        now_ns_ += below(40);
        cache_.expire_pins(now_ns_);
        std::erase_if(pinned_until_ns_, [&](const auto& pin) { return pin.second <= now_ns_; });
        if (below(3) == 0) evict();
    }
    check();
  }

  int num_times(bool is_lent, bool is_pinned) const { return num_times_[is_lent][is_pinned]; }

 private:
  struct Table {
    bool borrows = false;
    NodeId end = kNoNode;
    std::vector<std::array<BlockId, kNumGroups>> blocks;  // from the root down
  };

  int below(int end) { return static_cast<int>(random_() % static_cast<unsigned>(end)); }
  template <class T>
  T& one_of(std::vector<T>& items) {
    return items[static_cast<std::size_t>(below(static_cast<int>(items.size())))];
  }
  static std::vector<BlockId> all_blocks() {
    std::vector<BlockId> blocks;
    for (int index = 0; index < kNumBlocks; ++index) blocks.push_back(BlockId{index});
    return blocks;
  }
  // From the root, which is not one of them, down to a node of any block; empty: there is none.
  std::vector<NodeId> random_path() {
    std::vector<NodeId> path;
    NodeId node = cache_.node_of(BlockId{below(kNumBlocks)});
    for (; node != kNoNode && node != root_; node = cache_.parent(node)) path.insert(path.begin(), node);
    return path;
  }

  void hold(const Table& table, BlockId block) {
    if (block == BlockId::kNone) return;
    const bool is_first = num_users_[at(block)]++ == 0;
    is_lent_[at(block)] = table.borrows && (is_first || is_lent_[at(block)]);
    cache_.hold(block, table.borrows);
  }
  void release(BlockId& entry) {
    const BlockId block = std::exchange(entry, BlockId::kNone);
    if (block == BlockId::kNone) return;
    const int num_given_back = policy_.num_given_back;
    const bool keeps_longer = below(2) == 0;
    cache_.release(block, keeps_longer);
    const bool is_given_back = --num_users_[at(block)] == 0 && cache_.node_of(block) != kNoNode &&
                               !std::exchange(is_lent_[at(block)], false);
    ASSERT_EQ(policy_.num_given_back - num_given_back, is_given_back ? 1 : 0);
    if (!is_given_back) return;
    EXPECT_EQ(policy_.last_use.keeps_longer, keeps_longer);
    EXPECT_EQ(policy_.last_use.is_end, !has_children(cache_.node_of(block)));
  }

  void open() {
    Table table{.borrows = below(2) == 0, .end = root_, .blocks = {}};
    for (const NodeId node : random_path()) {
      table.end = node;
      table.blocks.push_back({cache_.block(node, 0), cache_.block(node, 1)});
      for (const BlockId block : table.blocks.back()) hold(table, block);
    }
    tables_.push_back(std::move(table));
  }

  // By one node, which may be known.
  void grow(Table& table) {
    const std::vector<TokenId> tokens(kBlockSize, below(3));
    NodeId next = cache_.find_full(table.end, tokens);
    if (next != kNoNode) {
      table.blocks.push_back({cache_.block(next, 0), cache_.block(next, 1)});
      for (const BlockId block : table.blocks.back()) hold(table, block);
    } else {
      while (pool_.num_free() < kNumGroups && cache_.next_to_evict() != BlockId::kNone) evict();
      if (pool_.num_free() < kNumGroups) return;
      table.blocks.push_back({*pool_.allocate(), *pool_.allocate()});
      for (const BlockId block : table.blocks.back()) num_users_[at(block)] = 1;
      next = cache_.insert(table.end, tokens, table.blocks.back());
    }
    table.end = next;
  }

  void slide(Table& table) {
    if (!table.blocks.empty()) release(one_of(table.blocks)[1]);
  }

  void close(int index) {
    Table& table = tables_[static_cast<std::size_t>(index)];
    for (auto& blocks : std::views::reverse(table.blocks)) {
      for (BlockId& block : blocks) release(block);
    }
    tables_.erase(tables_.begin() + index);
  }

  void pin() {
    const std::int64_t until_ns = now_ns_ + 1 + below(100);
    for (const NodeId node : random_path()) {
      for (int group = 0; group < kNumGroups; ++group) {
        const BlockId block = cache_.block(node, group);
        if (block == BlockId::kNone) continue;
        cache_.pin(block, until_ns);
        std::int64_t& until = pinned_until_ns_[block];
        until = std::max(until, until_ns);
      }
    }
  }

  void evict() {
    const BlockId block = cache_.next_to_evict();
    if (block == BlockId::kNone) return;
    const int num_free = pool_.num_free();
    const int num_freed = cache_.evict(block);
    ASSERT_EQ(num_freed, pool_.num_free() - num_free);
    ASSERT_EQ(cache_.node_of(block), kNoNode);
    std::erase_if(pinned_until_ns_, [&](const auto& pin) { return cache_.node_of(pin.first) == kNoNode; });
  }

  bool has_children(NodeId node) const {
    return std::ranges::any_of(all_blocks(), [&](BlockId block) {
      return cache_.node_of(block) != kNoNode && cache_.parent(cache_.node_of(block)) == node;
    });
  }

  void check() {
    using Policy = StrictPolicy::State;
    int num_idle = 0, num_offered = 0;
    for (const BlockId block : all_blocks()) {
      const NodeId node = cache_.node_of(block);
      const bool is_known = node != kNoNode, is_pinned = pinned_until_ns_.contains(block);
      const bool is_idle = is_known && num_users_[at(block)] == 0, is_lent = is_lent_[at(block)];
      const bool may_go = is_idle && !is_pinned && !(cache_.group_of(block) == 0 && has_children(node));
      ASSERT_EQ(cache_.num_users(block), num_users_[at(block)]);
      ASSERT_EQ(pool_.ref_count(block), num_users_[at(block)] + (is_known ? 1 : 0));
      ASSERT_EQ(cache_.is_idle(block), is_idle);
      ASSERT_EQ(cache_.may_go(block), may_go);
      ASSERT_EQ(cache_.is_pinned(block), is_pinned);
      ASSERT_EQ(policy_.state(block), may_go ? Policy::kOffered : is_idle || is_lent ? Policy::kIdle : Policy::kInUse);
      num_idle += is_idle;
      num_offered += may_go;
      ++num_times_[is_lent][is_pinned];
    }
    ASSERT_EQ(cache_.num_idle(), num_idle);
    ASSERT_EQ(cache_.num_pinned(), std::ssize(pinned_until_ns_));
    const BlockId next = cache_.next_to_evict();
    ASSERT_EQ(next == BlockId::kNone, num_idle == 0);
    if (num_idle > 0) {
      ASSERT_TRUE(num_offered > 0 ? cache_.may_go(next) : cache_.is_idle(next) && cache_.is_pinned(next));
    }
  }

  const KvLayout layout_{std::vector<KvLayerShape>{{1, 2, 0}, {1, 2, 32}}};
  BlockPool pool_{kNumBlocks};
  StrictPolicy policy_;
  PrefixCache cache_{layout_, pool_, policy_};
  std::mt19937 random_;
  const NodeId root_;
  std::int64_t now_ns_ = 0;
  std::vector<Table> tables_;
  std::array<int, kNumBlocks> num_users_{};  // tables that hold it
  std::array<bool, kNumBlocks> is_lent_{};   // who took it idle borrows it, and nobody else has taken it but to borrow it, too
  std::map<BlockId, std::int64_t> pinned_until_ns_;
  int num_times_[2][2] = {};
};

TEST(PrefixCache, ABlockIsWhatTablesNodesAndPinsMakeOfIt) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    Walk walk(seed);
    for (int step = 0; step < 4000 && !testing::Test::HasFailure(); ++step) walk.step();
    if (testing::Test::HasFailure()) return;
    for (const bool is_lent : {false, true}) {
      for (const bool is_pinned : {false, true}) EXPECT_GT(walk.num_times(is_lent, is_pinned), 100);
    }
  }
}

}  // namespace
}  // namespace larder
