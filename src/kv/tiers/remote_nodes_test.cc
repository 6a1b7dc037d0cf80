// A cluster of real servers, and single ones that say where keys are.
#include "kv/tiers/remote_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/remote_value.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

using Action = ScriptedServer::Action;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kBlockBytes = 50'000;

// Three servers that have a third of the slots each, and one that repeats what the first one has.
class RedisCluster {
 public:
  static constexpr int kNumPrimaries = 3;

  // node_timeout_ms: for so long a server is silent before the others replace it.
  explicit RedisCluster(int node_timeout_ms = 60'000) {
    for (int i = 0; i <= kNumPrimaries; ++i) {
      ::close(bind_loopback(bus_ports_[i]));
      nodes_.push_back(std::make_unique<RedisServer>(std::vector<std::string>{
          "--cluster-enabled", "yes", "--cluster-port", std::to_string(bus_ports_[i]), "--cluster-node-timeout",
          std::to_string(node_timeout_ms), "--cluster-replica-validity-factor", "0"}));
    }
    for (int i = 0; i < kNumPrimaries; ++i) {
      const std::string first = std::to_string(kNumSlots * i / kNumPrimaries);
      const std::string last = std::to_string(kNumSlots * (i + 1) / kNumPrimaries - 1);
      EXPECT_EQ(node(i).ask({"CLUSTER", "ADDSLOTSRANGE", first, last}), "OK");
    }
    for (int i = 1; i <= kNumPrimaries; ++i)
      EXPECT_EQ(node(0).ask({"CLUSTER", "MEET", "127.0.0.1", port(i), std::to_string(bus_ports_[i])}), "OK");
    wait_until([&] { return replica().ask({"CLUSTER", "REPLICATE", node(0).ask({"CLUSTER", "MYID"})}) == "OK"; });
    wait_until([&] {
      return std::ranges::all_of(nodes_, [](const auto& one) {
        return one->ask({"CLUSTER", "INFO"}).starts_with("cluster_state:ok") &&
               one->ask({"CLUSTER", "NODES"}).find("slave") != std::string::npos;
      });
    });
  }

  RedisServer& node(int i) { return *nodes_[static_cast<std::size_t>(i)]; }
  RedisServer& replica() { return node(kNumPrimaries); }
  std::string port(int i) { return std::to_string(parse_remote_url(node(i).url()).port); }
  // Of a block's key.
  int slot(const TierBlock& block) { return slot_of(remote_key("larder", test_format(kBlockBytes), block)); }
  static int primary_of(int slot) { return (slot * kNumPrimaries + kNumPrimaries - 1) / kNumSlots; }

 private:
  int bus_ports_[kNumPrimaries + 1];
  std::vector<std::unique_ptr<RedisServer>> nodes_;
};

class RemoteNodesTest : public RedisTest {
 protected:
  static RemoteTierConfig config(const std::string& url) { return RedisTest::config(url, kBlockBytes); }
  static std::uint64_t num_faults(const TierStats& stats) {
    return stats.num_io_errors + stats.num_timeouts + stats.num_corrupt;
  }
};

TEST(RemoteSlots, AreTheClusters) {
  EXPECT_EQ(slot_of("123456789"), 0x31c3 % kNumSlots);
  EXPECT_EQ(slot_of(""), 0);
  EXPECT_EQ(slot_of("larder:1:\xff"), slot_of(std::string("larder:1:\xff")));
}

TEST_F(RemoteNodesTest, BlocksAreSpreadAndFound) {
  RedisCluster cluster;
  const auto blocks = test_chain(1, 60);
  EXPECT_EQ(cluster.node(0).ask({"CLUSTER", "KEYSLOT", "larder:1"}), std::to_string(slot_of("larder:1")));
  {
    RemoteTier tier(config(cluster.node(0).url()), test_format(kBlockBytes));
    put_all(tier, blocks, kBlockBytes);
    EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 60);
    EXPECT_EQ(tier.stats().num_written, 60u);
    EXPECT_EQ(num_faults(tier.stats()), 0u);
    // A touch finds each where it is, too.
    for (const TierBlock& block : blocks) EXPECT_TRUE(tier.touch(block));
    EXPECT_TRUE(tier.touch(test_block(2, 0)));
    wait_until([&] { return tier.has_lost(test_block(2, 0)); });
    EXPECT_TRUE(std::ranges::none_of(blocks, [&](const TierBlock& block) { return tier.has_lost(block); }));
  }
  int num_keys = 0;
  for (int i = 0; i < RedisCluster::kNumPrimaries; ++i) {
    const int num = std::stoi(cluster.node(i).ask({"DBSIZE"}));
    EXPECT_GT(num, 0);
    num_keys += num;
  }
  EXPECT_EQ(num_keys, 60);
  // Asked first at another node, and by one that repeats others.
  for (const RedisServer* entry : {&cluster.node(2), &cluster.replica()}) {
    RemoteTier other(config(entry->url()), test_format(kBlockBytes));
    EXPECT_EQ(count_right(other, blocks, kBlockBytes), 60);
    EXPECT_EQ(num_faults(other.stats()), 0u);
  }
}

TEST_F(RemoteNodesTest, ASlotThatMovesIsFollowed) {
  RedisCluster cluster;
  RemoteTier tier(config(cluster.node(0).url()), test_format(kBlockBytes));
  put_all(tier, test_chain(1, 20), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 20), kBlockBytes), 20);
  const TierBlock block = test_block(2, 0);
  const std::string slot = std::to_string(cluster.slot(block));
  const int from = RedisCluster::primary_of(cluster.slot(block));
  const int to = (from + 1) % RedisCluster::kNumPrimaries;
  const std::string from_id = cluster.node(from).ask({"CLUSTER", "MYID"});
  const std::string to_id = cluster.node(to).ask({"CLUSTER", "MYID"});
  ASSERT_EQ(cluster.node(to).ask({"CLUSTER", "SETSLOT", slot, "IMPORTING", from_id}), "OK");
  ASSERT_EQ(cluster.node(from).ask({"CLUSTER", "SETSLOT", slot, "MIGRATING", to_id}), "OK");
  // What is not there yet is asked for where the slot goes (ASK), and written there.
  put_all(tier, std::vector{block}, kBlockBytes);
  EXPECT_EQ(cluster.node(to).ask({"CLUSTER", "COUNTKEYSINSLOT", slot}), "1");
  EXPECT_EQ(count_right(tier, std::vector{block}, kBlockBytes), 1);
  for (RedisServer* node : {&cluster.node(to), &cluster.node(from)})
    ASSERT_EQ(node->ask({"CLUSTER", "SETSLOT", slot, "NODE", to_id}), "OK");
  EXPECT_EQ(count_right(tier, std::vector{block}, kBlockBytes), 1);
  EXPECT_EQ(num_faults(tier.stats()), 0u);
}

// The first one that was asked, too: another one of those that are known says where its slots are now.
TEST_F(RemoteNodesTest, AfterAFailoverBlocksAreFoundAtTheNewPrimary) {
  RedisCluster cluster(1000);
  const auto blocks = test_chain(1, 60);
  RemoteTier tier(config(cluster.node(0).url()), test_format(kBlockBytes));
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 60);
  const std::string num_keys = cluster.node(0).ask({"DBSIZE"});
  wait_until([&] { return cluster.replica().ask({"DBSIZE"}) == num_keys; });
  cluster.node(0).kill();
  wait_until([&] { return cluster.replica().ask({"INFO", "replication"}).find("role:master") != std::string::npos; });
  wait_until([&] { return count_right(tier, blocks, kBlockBytes) == 60; });
  put_all(tier, test_chain(2, 20), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(2, 20), kBlockBytes), 20);
}

// Says where a key is by what `where` makes of its slot.
std::unique_ptr<ScriptedServer> liar(std::function<std::string(int slot)> where) {
  return std::make_unique<ScriptedServer>([where = std::move(where)](const std::vector<std::string>& command) -> Action {
    if (command.size() == 1) return {.bytes = command[0] == "PING" ? "+PONG\r\n" : "+OK\r\n"};
    return {.bytes = "-" + where(slot_of(command.at(1))) + "\r\n"};
  });
}

TEST_F(RemoteNodesTest, WhatLeadsNowhereIsAMiss) {
  std::atomic<int> own_port = 0;
  for (const auto& where : std::vector<std::function<std::string(int)>>{
           [&](int slot) { return fmt::format("MOVED {} 127.0.0.1:{}", slot, own_port.load()); },
           [&](int slot) { return fmt::format("MOVED {} :{}", slot, own_port.load()); },
           [&](int slot) { return fmt::format("ASK {} 127.0.0.1:{}", slot, own_port.load()); },
           [&](int slot) { return fmt::format("MOVED {} 127.0.0.1:{}", (slot + 1) % kNumSlots, own_port.load()); },
           [](int slot) { return fmt::format("MOVED {} 127.0.0.1:70000", slot); },
           [](int slot) { return fmt::format("MOVED {} 127.0.0.1", slot); },
           [](int slot) { return fmt::format("MOVED {} a b:1", slot); },
           [](int slot) { return fmt::format("MOVED {} ?:1", slot); },
           [](int) { return std::string("MOVED -1 127.0.0.1:1"); },
           [](int) { return std::string("MOVED 16384 127.0.0.1:1"); },
           [](int) { return std::string("MOVED"); },
           [](int) { return std::string("ASK "); },
       }) {
    const auto server = liar(where);
    own_port = parse_remote_url(server->url()).port;
    RemoteTierConfig never = config(server->url());
    never.first_retry_ms = never.max_retry_ms = kNeverMs;
    RemoteTier tier(never, test_format(kBlockBytes));
    EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 0) << where(1);
    EXPECT_FALSE(tier.stats().is_on) << where(1);
    EXPECT_LE(server->num_commands(), 2 + 4 * 2 * 3) << where(1);
  }
}

RemoteOutcome ask_for(RemoteNodes& nodes, int num_keys) {
  RemoteRequest request;
  for (int key = 0; key < num_keys; ++key) request.add({"STRLEN", std::to_string(key)});
  return nodes.exchange(request, 1024, [](int, const RemoteReply&) {});
}

// Each word names another server that is not there: no more are kept than a cluster has, and not for ever.
TEST_F(RemoteNodesTest, AServerThatNamesEverMoreOthersIsBounded) {
  std::atomic<int> next = 0;
  const auto server = liar([&](int slot) { return fmt::format("ASK {} 127.0.0.1:{}", slot, 1 + next++ % 60'000); });
  const std::atomic<bool> stop = false;
  RemoteNodes nodes(parse_remote_url(server->url()), nullptr, {.connect_ms = 2000, .batch_ms = 2000, .max_idle_ms = 60'000}, stop);
  std::size_t most = 0;
  for (int i = 0; i < 8; ++i) {
    EXPECT_NE(ask_for(nodes, 200), RemoteOutcome::kOk);
    most = std::max(most, nodes.num_nodes());
  }
  EXPECT_EQ(most, 1024u);
  EXPECT_LT(nodes.num_nodes(), 1024u);
  for (int i = 0; i < 20; ++i) EXPECT_NE(ask_for(nodes, 1), RemoteOutcome::kOk);
  EXPECT_LT(nodes.num_nodes(), 1024u);
}

TEST_F(RemoteNodesTest, WhoFailsIsForgotten) {
  std::atomic<int> next = 0;
  const auto server = liar([&](int slot) { return fmt::format("MOVED {} 127.0.0.1:{}", slot, 1 + next++); });
  const std::atomic<bool> stop = false;
  RemoteNodes nodes(parse_remote_url(server->url()), nullptr, {.connect_ms = 2000, .batch_ms = 2000, .max_idle_ms = 60'000}, stop);
  for (int i = 0; i < 20; ++i) EXPECT_NE(ask_for(nodes, 1), RemoteOutcome::kOk);
  EXPECT_EQ(nodes.num_nodes(), 2u);  // it and the last that it named
}

// Three that take most of the time each.
TEST_F(RemoteNodesTest, OneDeadlineIsThatOfAllNodes) {
  const auto slow = [] {
    return std::make_unique<ScriptedServer>([](const std::vector<std::string>& command) -> Action {
      if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return {.bytes = ":0\r\n"};
    });
  };
  const std::vector<std::unique_ptr<ScriptedServer>> servers = [&] {
    std::vector<std::unique_ptr<ScriptedServer>> made;
    for (int i = 0; i < 3; ++i) made.push_back(slow());
    return made;
  }();
  std::atomic<int> next = 0;
  const auto entry = liar([&](int slot) {
    return fmt::format("MOVED {} 127.0.0.1:{}", slot, parse_remote_url(servers[static_cast<std::size_t>(next++ % 3)]->url()).port);
  });
  const std::atomic<bool> stop = false;
  RemoteNodes nodes(parse_remote_url(entry->url()), nullptr, {.connect_ms = 20'000, .batch_ms = 500, .max_idle_ms = 60'000}, stop);
  EXPECT_EQ(ask_for(nodes, 3), RemoteOutcome::kTimeout);
}

// One that is gone costs what it has, until it is back; who was asked first goes on being asked.
TEST_F(RemoteNodesTest, ANodeThatIsGoneTurnsTheTierOffUntilItIsBack) {
  std::atomic<int> gone_port = 0;
  auto gone = std::make_unique<StoringServer>(std::vector<Action>{});
  gone_port = parse_remote_url(gone->url()).port;
  const auto entry = liar([&](int slot) { return fmt::format("MOVED {} 127.0.0.1:{}", slot, gone_port.load()); });
  RemoteTier tier(config(entry->url()), test_format(kBlockBytes));
  put_all(tier, test_chain(1, 3), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 3);
  gone = nullptr;
  EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 0);
  StoringServer other({});
  gone_port = parse_remote_url(other.url()).port;
  wait_until([&] { return tier.stats().is_on && count_right(tier, test_chain(1, 1), kBlockBytes) == 0 && tier.stats().is_on; });
  put_all(tier, test_chain(2, 3), kBlockBytes);
  EXPECT_EQ(count_right(tier, test_chain(2, 3), kBlockBytes), 3);
  EXPECT_EQ(other.stored().size(), 3u);
}

}  // namespace
}  // namespace larder
