#include "server/upstream/upstream_connection.h"

#include <gtest/gtest.h>

#include <boost/asio/write.hpp>
#include <chrono>
#include <utility>

#include "server/server_test_support.h"
#include "server/upstream/upstream.h"

namespace larder {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Listener = asio::ip::tcp::acceptor;

class UpstreamConnectionsTest : public testing::Test {
 protected:
  // Two ends of a connection; the other one is the upstream's.
  std::pair<std::unique_ptr<UpstreamConnection>, asio::ip::tcp::socket> connect() {
    auto near = std::make_unique<UpstreamConnection>(Strand(io_.get_executor()));
    near->socket.connect(listener_.local_endpoint());
    return {std::move(near), listener_.accept()};
  }

  asio::io_context io_;
  Listener listener_{io_, {asio::ip::address_v4::loopback(), 0}};
  UpstreamConnections connections_{milliseconds(1000), 2};
  const Clock::time_point now_ = Clock::now();
};

TEST_F(UpstreamConnectionsTest, TheLatestIsTaken) {
  auto [first, first_end] = connect();
  auto [second, second_end] = connect();
  const UpstreamConnection* const latest = second.get();
  EXPECT_EQ(connections_.take(now_), nullptr);
  connections_.keep(std::move(first), now_);
  connections_.keep(std::move(second), now_);
  EXPECT_EQ(connections_.take(now_).get(), latest);
  EXPECT_EQ(connections_.size(), 1u);
}

TEST_F(UpstreamConnectionsTest, NoMoreThanPlannedAreKept) {
  for (int i = 0; i < 2; ++i) connections_.keep(connect().first, now_);
  auto [one, end] = connect();
  connections_.keep(std::move(one), now_);
  EXPECT_EQ(connections_.size(), 2u);
}

TEST_F(UpstreamConnectionsTest, OldOnesGo) {
  auto [one, one_end] = connect();
  auto [other, other_end] = connect();
  connections_.keep(std::move(one), now_);
  connections_.keep(std::move(other), now_ + milliseconds(500));
  connections_.close_old(now_ + milliseconds(999));
  EXPECT_EQ(connections_.size(), 2u);
  connections_.close_old(now_ + milliseconds(1000));
  EXPECT_EQ(connections_.size(), 1u);
  connections_.close_all();
  EXPECT_EQ(connections_.size(), 0u);
}

TEST_F(UpstreamConnectionsTest, WhatHasEndedOrSpokenUnaskedIsNotTaken) {
  auto [ended, ended_end] = connect();
  auto [speaks, speaks_end] = connect();
  EXPECT_TRUE(ended->is_quiet());
  ended_end.close();
  asio::write(speaks_end, asio::buffer("HTTP", 4));
  EXPECT_TRUE(eventually([&] { return !ended->is_quiet(); }));
  EXPECT_TRUE(eventually([&] { return !speaks->is_quiet(); }));
  connections_.keep(std::move(ended), now_);
  connections_.keep(std::move(speaks), now_);
  EXPECT_EQ(connections_.take(now_), nullptr);
  EXPECT_EQ(connections_.size(), 0u);
}

TEST(UpstreamMemoryTest, MemoryIsThatOfAllConnections) {
  UpstreamConfig config;
  config.url = parse_upstream_url("http://a");
  const std::int64_t in_the_clear = Upstream::most_bytes(config);
  EXPECT_EQ(in_the_clear, std::int64_t{64} * (64 << 10));
  config.url = parse_upstream_url("https://a");
  EXPECT_GT(Upstream::most_bytes(config), 2 * in_the_clear);
  config.max_connections *= 4;
  EXPECT_EQ(Upstream::most_bytes(config), std::int64_t{4 * 64} * (160 << 10));
}

}  // namespace
}  // namespace larder
