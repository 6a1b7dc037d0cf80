// Faults 36 and 37: servers that hang, lie, die in the middle of an answer.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/remote_url.h"
#include "kv/tiers/remote_value.h"
#include "kv/tiers/tier_test_support.h"

namespace {

constexpr const char* kTwoAddresses = "two.test";
constexpr const char* kSlowName = "slow.test";
std::atomic<bool> resolver_hangs = false;
std::atomic<int> num_slow_lookups = 0;
constexpr const char* kMovingName = "moving.test";
std::atomic<int> moving_port = 0;

}  // namespace

// In place of the library's: one name has the addresses 127.0.0.2 and 127.0.0.1, in this order;
// another is 127.0.0.1, once the resolver hangs no more; a third one's server is at moving_port.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (host != nullptr && std::string_view(host) == kSlowName) {
    if ((hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
    ++num_slow_lookups;
    while (resolver_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return real("127.0.0.1", port, hints, found);
  }
  if (host != nullptr && std::string_view(host) == kMovingName) {
    if ((hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
    return real("127.0.0.1", std::to_string(moving_port).c_str(), hints, found);
  }
  if (host == nullptr || std::string_view(host) != kTwoAddresses)
    return real(host, port, hints, found);
  if (const int error = real("127.0.0.2", port, hints, found)) return error;
  return real("127.0.0.1", port, hints, &(*found)->ai_next);
}

namespace larder {
namespace {

constexpr std::int64_t kBlockBytes = 50'000;
using Action = ScriptedServer::Action;

std::string value_of(const TierBlock& block, const TierFormat& format = test_format(kBlockBytes)) {
  const auto bytes = test_bytes(block, format.block_size_bytes);
  const RemoteValue value = encode_remote_value(format, block, bytes, 0);
  std::string text(reinterpret_cast<const char*>(value.header.data()), value.header.size());
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text;
}

class RemoteFaultsTest : public testing::Test {
 protected:
  RemoteFaultsTest() { spdlog::set_level(spdlog::level::off); }
  ~RemoteFaultsTest() override { spdlog::set_level(spdlog::level::info); }

  static RemoteTierConfig config(const std::string& url) {
    RemoteTierConfig config;
    config.url = url;
    config.connect_timeout_ms = config.batch_timeout_ms = 20'000;
    config.first_retry_ms = config.max_retry_ms = kNeverMs;
    config.drain_ms = 100;
    return config;
  }

  // What is found of three blocks where the server answers GETRANGE number i with answers[i].
  struct Seen {
    int num_found;
    TierStats stats;
  };
  static Seen ask(const std::vector<Action>& answers, int batch_timeout_ms = 20'000) {
    std::atomic<std::size_t> next = 0;
    const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
      if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
      return next < answers.size() ? answers[next++] : Action{.bytes = "$-1\r\n"};
    });
    RemoteTierConfig setup = config(server.url());
    setup.batch_timeout_ms = batch_timeout_ms;
    RemoteTier tier(setup, test_format(kBlockBytes));
    const int num_found = count_right(tier, blocks(), kBlockBytes);
    return {num_found, tier.stats()};
  }
  static std::vector<TierBlock> blocks() { return test_chain(1, 3); }
  static Action right(int i) {
    return {.bytes = ScriptedServer::bulk(value_of(blocks()[static_cast<std::size_t>(i)]))};
  }
};

TEST_F(RemoteFaultsTest, TheScriptedServerCanBeRight) {
  const Seen seen = ask({right(0), right(1), right(2)});
  EXPECT_EQ(seen.num_found, 3);
  EXPECT_TRUE(seen.stats.is_on);
  const Seen gap = ask({right(0), {.bytes = "$-1\r\n"}, right(2)});
  EXPECT_EQ(gap.num_found, 1);
  EXPECT_EQ(gap.stats.num_missed, 1u);
}

TEST_F(RemoteFaultsTest, SaysWhetherAFaultEndedARead) {
  for (const auto& [bytes, is_faulty] : std::vector<std::pair<std::string, bool>>{
           {"$-1\r\n", false}, {"-WRONGTYPE of a list\r\n", true}, {"-LOADING the data\r\n", true}, {"!\r\n", true}}) {
    const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
      return {.bytes = command[0] == "PING" ? "+PONG\r\n" : bytes};
    });
    RemoteTier tier(config(server.url()), test_format(kBlockBytes));
    EXPECT_EQ(read_blocks(tier, blocks(), kBlockBytes).is_faulty, is_faulty) << bytes;
    EXPECT_EQ(read_blocks(tier, blocks(), kBlockBytes).is_faulty, is_faulty) << bytes << "or as it is off";
  }
}

// It cannot save its data: it takes no writes and no PING, but reads go on.
TEST_F(RemoteFaultsTest, AServerThatMayNotWriteIsRead) {
  std::atomic<std::size_t> next = 0;
  const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "-MISCONF Errors writing to the disk\r\n"};
    return right(static_cast<int>(next++ % 3));
  });
  RemoteTier tier(config(server.url()), test_format(kBlockBytes));
  EXPECT_TRUE(tier.stats().is_on);
  EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 3);
}

// The blocks before it have arrived and been verified: they count.
TEST_F(RemoteFaultsTest, APeerThatDiesInATransferEndsIt) {
  const std::string whole = right(1).bytes;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{5}, std::size_t{200}, std::size_t{300},
        std::size_t{40'000}, whole.size() - 2, whole.size() - 1}) {
    const Seen seen = ask({right(0), {.bytes = whole.substr(0, size), .then_close = true}});
    EXPECT_EQ(seen.num_found, 1) << size;
    EXPECT_FALSE(seen.stats.is_on);
    EXPECT_EQ(seen.stats.num_io_errors, 1u);
    EXPECT_EQ(seen.stats.num_corrupt, 0u);
  }
}

TEST_F(RemoteFaultsTest, AServerThatHangsInATransferTimesOut) {
  const std::string whole = right(1).bytes;
  const Seen seen = ask({right(0), {.bytes = whole.substr(0, 30'000), .then_hang = true}}, 500);
  EXPECT_EQ(seen.num_found, 1);
  EXPECT_FALSE(seen.stats.is_on);
  EXPECT_EQ(seen.stats.num_timeouts, 1u);
  EXPECT_EQ(seen.stats.num_missed, 0u) << "it has not said so";
}

TEST_F(RemoteFaultsTest, NonsenseTurnsItOff) {
  for (const std::string& text : std::vector<std::string>{
           "HTTP/1.1 400 Bad Request\r\n\r\n", std::string(1000, '\0'), "$abc\r\n", "$-5\r\n",
           "*2\r\n$1\r\na\r\n$1\r\nb\r\n", "*1000000000\r\n", "*-1000\r\n",
           ":99999999999999999999\r\n", std::string(300'000, '+')}) {
    const Seen seen = ask({{.bytes = text, .then_hang = true}, {}});
    EXPECT_EQ(seen.num_found, 0) << text.substr(0, 40);
    EXPECT_FALSE(seen.stats.is_on) << text.substr(0, 40);
    EXPECT_EQ(seen.stats.num_timeouts, 0u) << text.substr(0, 40);
  }
  // As far as it goes this is an answer: the rest may be on its way.
  const Seen begun = ask({{.bytes = "$9223372036854775807\r\n", .then_hang = true}, {}}, 500);
  EXPECT_EQ(begun.num_found, 0);
  EXPECT_FALSE(begun.stats.is_on);
}

// More than any answer may be: cut off, not kept in memory.
TEST_F(RemoteFaultsTest, AnEndlessAnswerIsCutOff) {
  const std::string endless = "$500000000\r\n" + std::string(4'000'000, 'x');
  const Seen seen = ask({{.bytes = endless, .then_hang = true}});
  EXPECT_EQ(seen.num_found, 0);
  EXPECT_FALSE(seen.stats.is_on);
  EXPECT_EQ(seen.stats.num_timeouts, 0u);
}

TEST_F(RemoteFaultsTest, WrongValuesAreMisses) {
  const std::string good = value_of(blocks()[0]);
  std::string flipped = good;
  flipped[33'333] ^= 1;
  std::string header = good;
  header[60] ^= 1;
  for (const std::string& value : std::vector<std::string>{
           "x", good.substr(0, 255), good.substr(0, 256), good.substr(0, good.size() - 1),
           good + "x", flipped, header, value_of(blocks()[1]),
           value_of(blocks()[0], test_format(kBlockBytes, 2)),
           value_of(blocks()[0], test_format(kBlockBytes - 1))}) {
    const Seen seen = ask({{.bytes = ScriptedServer::bulk(value)}, right(1), right(2)});
    EXPECT_EQ(seen.num_found, 0) << value.size();
    EXPECT_EQ(seen.stats.num_corrupt, 1u) << value.size();
    EXPECT_TRUE(seen.stats.is_on);
  }
}

TEST_F(RemoteFaultsTest, ErrorsForAnswersAreMisses) {
  const Seen wrong = ask({right(0), {.bytes = "-WRONGTYPE not a string\r\n"}, right(2)});
  EXPECT_EQ(wrong.num_found, 1);
  EXPECT_TRUE(wrong.stats.is_on);
  const Seen loading = ask({{.bytes = "-LOADING wait\r\n"}, {.bytes = "-LOADING wait\r\n"}});
  EXPECT_EQ(loading.num_found, 0);
  EXPECT_FALSE(loading.stats.is_on);
}

// Each answer comes one late. Nothing wrong is served, and the connection is given up.
TEST_F(RemoteFaultsTest, AnswersOutOfStepAreMisses) {
  const Seen seen = ask({{.bytes = "$-1\r\n" + right(0).bytes}, right(1), right(2)});
  EXPECT_EQ(seen.num_found, 0);
}

TEST_F(RemoteFaultsTest, AServerThatHangsAtOnceStartsOff) {
  const ScriptedServer server(
      [](const auto&) -> Action { return {.bytes = "", .then_hang = true}; });
  RemoteTierConfig setup = config(server.url());
  setup.connect_timeout_ms = 100;
  const RemoteTier tier(setup, test_format(kBlockBytes));
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_EQ(tier.stats().num_timeouts, 1u);
}

// Far away or busy: slow, but as fast as a batch has to be.
TEST_F(RemoteFaultsTest, AServerThatTakesItsTimeIsUsed) {
  const ScriptedServer server([](const std::vector<std::string>& command) -> Action {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return {.bytes = command[0] == "PING" ? "+PONG\r\n" : "-ERR\r\n"};
  });
  RemoteTierConfig setup;
  setup.url = server.url();
  const RemoteTier tier(setup, test_format(kBlockBytes));
  wait_until([&] { return tier.stats().is_on; });
}

// The PING that put it on came at a slow moment: what is quick afterwards says so.
TEST_F(RemoteFaultsTest, AServerThatWasSlowOnceIsNotTakenForSlow) {
  std::atomic<bool> is_first = true;
  const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
    if (is_first.exchange(false)) std::this_thread::sleep_for(std::chrono::milliseconds(800));
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    return {.bytes = command[0] == "STRLEN" ? ":0\r\n" : "+OK\r\n"};
  });
  RemoteTier tier(config(server.url()), test_format(kBlockBytes));
  EXPECT_GE(tier.estimate_read_seconds(1), 0.8);
  int next = 0;
  wait_until([&] {
    put_all(tier, std::vector{test_block(1, next++)}, kBlockBytes);
    return tier.estimate_read_seconds(1) < 0.4;
  });
}

// It takes what is sent, answers a PING, and does not when it is read. Writes that end well are no sign that reads
// would.
TEST_F(RemoteFaultsTest, AServerThatHangsWhenItIsReadIsLeftAloneForLonger) {
  const ScriptedServer server([](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    if (command[0] == "GETRANGE") return {.bytes = "", .then_hang = true};
    return {.bytes = command[0] == "STRLEN" ? ":0\r\n" : "+OK\r\n"};
  });
  RemoteTierConfig setup = config(server.url());
  setup.batch_timeout_ms = 50;
  setup.first_retry_ms = 10;
  RemoteTier tier(setup, test_format(kBlockBytes));
  constexpr int kRounds = 6;
  std::int64_t off_ns = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t start_ns = steady_now_ns();
    EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 0);
    wait_until([&] { return tier.stats().is_on; });
    off_ns = steady_now_ns() - start_ns;
    put_all(tier, std::vector{test_block(2, round)}, kBlockBytes);
    wait_until([&] { return tier.stats().is_on; });
  }
  EXPECT_GE(tier.stats().num_timeouts, std::uint64_t{kRounds});
  EXPECT_GE(off_ns, (setup.first_retry_ms << (kRounds - 1)) * kNsPerMs);
}

// A server that dies at every block: each time one short failure, then a pause.
TEST_F(RemoteFaultsTest, AServerThatDiesAtEveryWriteIsLeftAlone) {
  const ScriptedServer server([](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    return {.bytes = "", .then_close = true};
  });
  RemoteTier tier(config(server.url()), test_format(kBlockBytes));
  EXPECT_TRUE(put_block(tier, test_block(1, 0), kBlockBytes));
  wait_until([&] { return !tier.stats().is_on; });
  const int num_commands = server.num_commands();
  for (int i = 1; i < 100; ++i) EXPECT_FALSE(put_block(tier, test_block(1, i), kBlockBytes));
  EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 0);
  EXPECT_EQ(server.num_commands(), num_commands);
}

RemoteTierConfig retrying_config(const std::string& url) {
  RemoteTierConfig config;
  config.url = url;
  config.batch_size_bytes = 3 * (kBlockBytes + 1000);
  config.batch_timeout_ms = 1000;
  config.first_retry_ms = config.max_retry_ms = 20;
  return config;
}

// What a put() took arrives, once.
TEST_F(RemoteFaultsTest, WhatWasNotTakenIsSentAgain) {
  const Action hung{.bytes = "", .then_hang = true};
  const Action closed{.bytes = "", .then_close = true};
  const Action refused{.bytes = "-OOM command not allowed\r\n"};
  for (const std::vector<Action>& fault : std::vector<std::vector<Action>>{
           {hung}, {closed}, {refused}, {refused, refused, refused, closed}}) {
    const StoringServer server(fault);
    RemoteTier tier(retrying_config(server.url()), test_format(kBlockBytes));
    std::vector<std::string> keys;
    for (const TierBlock& block : test_chain(1, 10)) {
      // Refused while the tier leaves the server alone: these are the caller's to offer again.
      wait_until([&] { return put_block(tier, block, kBlockBytes); });
      keys.push_back(remote_key("larder", test_format(kBlockBytes), block));
    }
    wait_until([&] { return tier.stats().num_pending == 0; });
    EXPECT_THAT(server.stored(), testing::UnorderedElementsAreArray(keys));
    EXPECT_EQ(count_right(tier, test_chain(1, 10), kBlockBytes), 10);
  }
}

// A link that brings but a part of what it is asked for in time.
TEST_F(RemoteFaultsTest, WhatComesLateIsSlow) {
  StoringServer server({});
  RemoteTierConfig setup = retrying_config(server.url());
  setup.batch_timeout_ms = 200;
  RemoteTier tier(setup, test_format(kBlockBytes));
  const std::vector<TierBlock> chain = test_chain(1, 3);
  put_all(tier, chain, kBlockBytes);
  const auto seconds_for_bytes = [&] { return tier.estimate_read_seconds(1000) - tier.estimate_read_seconds(0); };
  const double seconds_before = seconds_for_bytes();
  server.hang_after_reads(1);
  EXPECT_EQ(count_right(tier, chain, kBlockBytes), 1);
  wait_until([&] { return tier.stats().is_on; });
  EXPECT_GT(seconds_for_bytes(), 10 * seconds_before);
}

// The length alone would call a wrong value right.
TEST_F(RemoteFaultsTest, AWrongValueIsReplacedThoughTheFirstAttemptFails) {
  StoringServer server({});
  RemoteTier tier(retrying_config(server.url()), test_format(kBlockBytes));
  const std::vector<TierBlock> chain = test_chain(1, 3);
  put_all(tier, chain, kBlockBytes);
  server.break_value(remote_key("larder", test_format(kBlockBytes), chain[0]));
  EXPECT_EQ(count_right(tier, chain, kBlockBytes), 0);
  server.answer_next({{.bytes = "-OOM command not allowed\r\n"}});
  put_all(tier, chain, kBlockBytes);
  EXPECT_EQ(count_right(tier, chain, kBlockBytes), 3);
}

TEST_F(RemoteFaultsTest, AUserOfAnAccessListIsNamed) {
  std::mutex mutex;
  std::vector<std::string> auth;
  const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    if (command[0] != "AUTH") return {.bytes = "-ERR\r\n"};
    const std::lock_guard lock(mutex);
    auth = command;
    return {.bytes = "+OK\r\n"};
  });
  RemoteTierConfig setup = config(server.url());
  setup.url.insert(setup.url.find("//") + 2, "larder:pw@");
  const RemoteTier tier(setup, test_format(kBlockBytes));
  wait_until([&] { return tier.stats().is_on; });
  const std::lock_guard lock(mutex);
  EXPECT_THAT(auth, testing::ElementsAre("AUTH", "larder", "pw"));
}

// It waits between its attempts, and does not when it ends.
TEST_F(RemoteFaultsTest, AServerThatRefusesForEverIsAskedNowAndThen) {
  const ScriptedServer server([](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    if (command[0] == "STRLEN") return {.bytes = ":0\r\n"};
    return {.bytes = "-OOM command not allowed\r\n"};
  });
  RemoteTierConfig setup = config(server.url());
  setup.drain_ms = kNeverMs;
  {
    RemoteTier tier(setup, test_format(kBlockBytes));
    EXPECT_TRUE(put_block(tier, test_block(1, 0), kBlockBytes));
    wait_until([&] { return !tier.stats().is_on; });
    EXPECT_EQ(tier.stats().num_pending, 1);
    EXPECT_FALSE(put_block(tier, test_block(1, 1), kBlockBytes));
  }
  EXPECT_EQ(server.num_commands(), 3);
}

// A full server would forget what is used, too, if nobody told.
TEST_F(RemoteFaultsTest, AServerThatRefusesBlocksIsStillToldWhichAreUsed) {
  std::atomic<bool> was_told = false;
  const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    if (command[0] == "STRLEN") return {.bytes = ":0\r\n"};
    if (command[0] != "EXPIRE") return {.bytes = "-OOM command not allowed\r\n"};
    was_told = true;
    return {.bytes = ":1\r\n"};
  });
  RemoteTierConfig setup = config(server.url());
  setup.ttl_seconds = 60;
  setup.drain_ms = 0;
  RemoteTier tier(setup, test_format(kBlockBytes));
  EXPECT_TRUE(put_block(tier, test_block(1, 0), kBlockBytes));
  wait_until([&] { return !tier.stats().is_on; });
  EXPECT_TRUE(tier.touch(test_block(2, 0)));
  wait_until([&] { return was_told.load(); });
  EXPECT_EQ(tier.stats().num_pending, 1) << "the block waits on";
}

// As where a router on the way has forgotten an idle connection: what is sent on it goes nowhere.
TEST_F(RemoteFaultsTest, AConnectionThatWasIdleForLongIsOpenedAnew) {
  for (const bool is_idle_for_long : {false, true}) {
    std::atomic<std::size_t> num_opened = 0, num_read = 0;
    const ScriptedServer server([&](const std::vector<std::string>& command) -> Action {
      if (command[0] == "PING") return ++num_opened, Action{.bytes = "+PONG\r\n"};
      const std::size_t i = num_read++ % 3;
      return {.bytes = right(static_cast<int>(i)).bytes, .then_hang = i == 2};
    });
    RemoteTierConfig setup = config(server.url());
    setup.batch_timeout_ms = is_idle_for_long ? 20'000 : 1000;
    setup.max_idle_ms = is_idle_for_long ? 0 : kNeverMs;
    RemoteTier tier(setup, test_format(kBlockBytes));
    EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 3);
    EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), is_idle_for_long ? 3 : 0);
    EXPECT_EQ(tier.stats().num_timeouts, is_idle_for_long ? 0u : 1u);
    EXPECT_EQ(num_opened, is_idle_for_long ? 3u : 2u);
  }
}

TEST_F(RemoteFaultsTest, IdleConnectionsAreKeptAlive) {
  const ScriptedServer server([](const std::vector<std::string>&) -> Action { return {.bytes = "+PONG\r\n"}; });
  const RemoteTier tier(config(server.url()), test_format(kBlockBytes));
  int num_connections = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sin_family != AF_INET ||
        ntohs(peer.sin_port) != parse_remote_url(server.url()).port)
      continue;
    ++num_connections;
    int is_kept = 0, idle_seconds = 0;
    size = sizeof is_kept;
    ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &is_kept, &size), 0);
    ASSERT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, &size), 0);
    EXPECT_TRUE(is_kept);
    EXPECT_LT(idle_seconds, 60);
  }
  EXPECT_EQ(num_connections, 1);
}

TEST_F(RemoteFaultsTest, CallsWhatIsLeftOfDone) {
  const ScriptedServer server([](const std::vector<std::string>& command) -> Action {
    if (command[0] == "PING") return {.bytes = "+PONG\r\n"};
    return {.bytes = "", .then_hang = true};
  });
  const auto chain = blocks();
  std::vector<std::vector<std::byte>> bytes(20, std::vector<std::byte>(3 * kBlockBytes));
  std::atomic<int> num_done = 0;
  {
    RemoteTier tier(config(server.url()), test_format(kBlockBytes));
    for (auto& destination : bytes)
      tier.get({.blocks = chain, .bytes = destination, .done = [&](TierAnswer) { ++num_done; }});
  }
  EXPECT_EQ(num_done, 20);
}

// Takes connections until its queue is full, and then answers none.
class SilentListener {
 public:
  explicit SilentListener(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::inet_addr("127.0.0.2");
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    fds_.push_back(::socket(AF_INET, SOCK_STREAM, 0));
    CHECK(::bind(fds_[0], name, sizeof address) == 0 && ::listen(fds_[0], 0) == 0);
    for (int i = 0; i < 3; ++i) {
      fds_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      (void)::connect(fds_.back(), name, sizeof address);
    }
  }
  ~SilentListener() {
    for (const int fd : fds_) ::close(fd);
  }

 private:
  std::vector<int> fds_;
};

TEST_F(RemoteFaultsTest, AnAddressThatDoesNotAnswerLeavesTheNextItsTime) {
  const ScriptedServer server(
      [](const std::vector<std::string>&) -> Action { return {.bytes = "+PONG\r\n"}; });
  const int port = parse_remote_url(server.url()).port;
  const SilentListener silent(port);
  const std::atomic<bool> stop = false;
  const auto deadline_ns = [] { return SteadyClock().now_ns() + 2'000'000'000; };
  RemoteHost first("127.0.0.2", port);
  RemoteConnection alone({.host = "127.0.0.2", .port = port, .user = "", .password = "", .db = 0}, first, stop);
  ASSERT_EQ(alone.open(deadline_ns()), RemoteOutcome::kTimeout);
  RemoteHost two(kTwoAddresses, port);
  RemoteConnection both({.host = kTwoAddresses, .port = port, .user = "", .password = "", .db = 0}, two, stop);
  EXPECT_EQ(both.open(deadline_ns()), RemoteOutcome::kOk) << both.error();
}

// The old server goes on answering; its name leads to the new one.
TEST_F(RemoteFaultsTest, AfterAFailoverTheServersNameIsLookedUpAnew) {
  const auto key = [](const TierBlock& block) { return remote_key("larder", test_format(kBlockBytes), block); };
  for (const char* error : {"-READONLY You can't write against a read only replica.\r\n",
                            "-MASTERDOWN Link with MASTER is down\r\n"}) {
    StoringServer demoted({}), promoted({});
    moving_port = parse_remote_url(demoted.url()).port;
    RemoteTier tier(retrying_config(fmt::format("redis://{}:{}", kMovingName, moving_port.load())),
                    test_format(kBlockBytes));
    put_all(tier, test_chain(1, 3), kBlockBytes);
    EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 3);
    moving_port = parse_remote_url(promoted.url()).port;
    demoted.answer_next(std::vector<Action>(1000, {.bytes = error}));
    put_all(tier, test_chain(2, 3), kBlockBytes);
    EXPECT_THAT(promoted.stored(), testing::Contains(key(test_block(2, 2)))) << error;
    EXPECT_EQ(count_right(tier, test_chain(2, 3), kBlockBytes), 3) << "both connections";
    EXPECT_EQ(count_right(tier, test_chain(1, 3), kBlockBytes), 0);
  }
}

// It answers PING so, too.
TEST_F(RemoteFaultsTest, AReplicaThatHasLostItsMasterIsNotAskedForEver) {
  std::atomic<bool> is_down = false;
  const ScriptedServer replica([&](const std::vector<std::string>& command) -> Action {
    if (is_down) return {.bytes = "-MASTERDOWN Link with MASTER is down\r\n"};
    return {.bytes = command[0] == "PING" ? "+PONG\r\n" : "$-1\r\n"};
  });
  StoringServer promoted({});
  moving_port = parse_remote_url(replica.url()).port;
  RemoteTier tier(retrying_config(fmt::format("redis://{}:{}", kMovingName, moving_port.load())),
                  test_format(kBlockBytes));
  EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 0);
  EXPECT_TRUE(tier.stats().is_on);
  is_down = true;
  EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 0);
  const std::uint64_t num_faults = tier.stats().num_io_errors;
  wait_until([&] { return tier.stats().num_io_errors > num_faults; });  // it looked, and the name led there still
  moving_port = parse_remote_url(promoted.url()).port;
  wait_until([&] { return tier.stats().is_on; });
  put_all(tier, blocks(), kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks(), kBlockBytes), 3);
}

// Neither the start nor the end waits for the resolver; what it says late is used.
TEST_F(RemoteFaultsTest, ASlowResolverDelaysNothingButTheTier) {
  const ScriptedServer server(
      [](const std::vector<std::string>&) -> Action { return {.bytes = "+PONG\r\n"}; });
  RemoteTierConfig setup = config(
      fmt::format("redis://{}:{}", kSlowName, parse_remote_url(server.url()).port));
  setup.connect_timeout_ms = 20;
  setup.first_retry_ms = setup.max_retry_ms = 5;
  resolver_hangs = true;
  num_slow_lookups = 0;
  { const RemoteTier tier(setup, test_format(kBlockBytes)); }
  const RemoteTier tier(setup, test_format(kBlockBytes));
  wait_until([&] { return tier.stats().num_timeouts > 3; });
  EXPECT_FALSE(tier.stats().is_on);
  EXPECT_EQ(num_slow_lookups, 2);  // not one for each time that it looked
  resolver_hangs = false;
  wait_until([&] { return tier.stats().is_on; });
}

}  // namespace
}  // namespace larder
