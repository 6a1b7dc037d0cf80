#include "server/report/kv_event_publisher.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "base/error.h"
#include "base/thread_test_support.h"
#include "kv/cache/prefix_cache.h"
#include "kv/tiers/tier_test_support.h"
#include "server/report/kv_event_codec.h"
#include "server/report/kv_event_test_support.h"

#if defined(__SANITIZE_THREAD__)
// libzmq's own threads hand messages over by atomics that ThreadSanitizer does not see. With a long history it knows
// whose a write was.
extern "C" const char* __tsan_default_suppressions() { return "race:libzmq.so\n"; }
extern "C" const char* __tsan_default_options() { return "history_size=7"; }
#endif

namespace larder {
namespace {

using namespace kv_event_test;

constexpr std::size_t kMaxQueued = KvEventPublisher::kMaxQueuedEvents;
constexpr std::chrono::milliseconds kPatience{20'000};  // before a test fails

struct Received {
  std::uint64_t sequence = 0;
  Json events;

  bool operator==(const Received&) const = default;
};

std::uint64_t to_number(const std::string& bytes) {
  std::uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<std::uint8_t>(byte);
  return number;
}

std::string to_eight_bytes(std::uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

// Nothing: there came none in time.
std::optional<std::vector<std::string>> receive(zmq::socket_t& socket) {
  std::vector<std::string> frames;
  zmq::message_t frame;
  do {
    if (!socket.recv(frame)) return std::nullopt;
    frames.push_back(frame.to_string());
  } while (frame.more());
  return frames;
}

const Json kCleared = Json::array({{{"type", "AllBlocksCleared"}}});

class KvEventPublisherTest : public testing::Test {
 protected:
  static KvEventPublisherConfig config() {
    return {.endpoint = "tcp://127.0.0.1:0", .replay_endpoint = "tcp://127.0.0.1:0", .topic = "kv@pod@model",
            .return_time = std::chrono::milliseconds(0)};
  }

  // num_kept: messages that it takes before they are read; 0 = all.
  zmq::socket_t connect(zmq::socket_type type, const std::string& address, int num_kept = 0) {
    zmq::socket_t socket(context_, type);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::ipv6, true);
    socket.set(zmq::sockopt::rcvhwm, num_kept);
    socket.set(zmq::sockopt::rcvtimeo, static_cast<int>(kPatience.count()));
    if (type == zmq::socket_type::sub) socket.set(zmq::sockopt::subscribe, "kv@");
    socket.connect(address);
    return socket;
  }

  static void ask(zmq::socket_t& dealer, const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const auto flags = i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      dealer.send(zmq::buffer(frames[i]), flags);
    }
  }

  // Up to the end of one answer. has_topic: of events as maps.
  static std::vector<Received> read_replay(zmq::socket_t& dealer, bool has_topic = true) {
    std::vector<Received> all;
    for (;;) {
      auto frames = receive(dealer);
      if (has_topic && frames && frames->size() == 4) {
        const bool is_end = frames->at(2) == std::string(8, '\xFF');
        EXPECT_EQ(frames->at(1), is_end ? "" : "kv@pod@model");
        frames->erase(frames->begin() + 1);
      } else if (has_topic) {
        frames.reset();
      }
      if (!frames || frames->size() != 3 || !frames->at(0).empty()) {
        ADD_FAILURE() << "no end of a replay, behind messages: " << all.size();
        return all;
      }
      if (frames->at(1) == std::string(8, '\xFF')) {
        EXPECT_EQ(frames->at(2), "");
        return all;
      }
      all.push_back({to_number(frames->at(1)), Json::from_msgpack(frames->at(2)).at(1)});
    }
  }

  // What was pushed before is in it.
  std::vector<Received> replay(const KvEventPublisher& publisher, std::uint64_t begin, bool has_topic = true) {
    zmq::socket_t dealer = connect(zmq::socket_type::dealer, publisher.replay_endpoint());
    ask(dealer, {"", to_eight_bytes(begin)});
    return read_replay(dealer, has_topic);
  }

  static Received read(zmq::socket_t& subscriber) {
    const auto frames = receive(subscriber);
    if (!frames || frames->size() != 3 || frames->at(1).size() != 8) {
      ADD_FAILURE() << "no message";
      return {};
    }
    EXPECT_EQ(frames->at(0), "kv@pod@model");
    return {to_number(frames->at(1)), Json::from_msgpack(frames->at(2)).at(1)};
  }

  // Returns the next sequence number that it will.
  static std::uint64_t await_subscription(KvEventPublisher& publisher, zmq::socket_t& subscriber) {
    if (!publisher.replay_endpoint().empty()) {  // it is greeted, behind the message that clears
      while (read(subscriber).sequence == 0 && !HasFailure()) {
      }
      return 2;
    }
    zmq::pollitem_t item{subscriber.handle(), 0, ZMQ_POLLIN, 0};
    std::uint64_t num_pushed = 0;
    do {
      publisher.push({stored(0)});
      ++num_pushed;
    } while (zmq::poll(&item, 1, std::chrono::milliseconds(20)) == 0 && num_pushed < 1000);
    while (read(subscriber).sequence < num_pushed && !HasFailure()) {
    }
    return num_pushed + 1;
  }

  zmq::context_t context_;
};

TEST_F(KvEventPublisherTest, SubscribersHearAllInOrder) {
  KvEventPublisher publisher(config());
  zmq::socket_t subscriber = connect(zmq::socket_type::sub, publisher.endpoint());
  const std::uint64_t begin = await_subscription(publisher, subscriber);
  const KvEventPublisher::Stats before = publisher.stats();
  for (int i = 0; i < 500; ++i) publisher.push({stored(i % 8), removed(i % 8), removed(i % 8 + 1)});
  publisher.push({});  // tells nothing
  publisher.push({removed(3)});
  for (int i = 0; i < 500; ++i) {
    const Received right{begin + static_cast<std::uint64_t>(i),
                         decode({stored(i % 8), removed(i % 8), removed(i % 8 + 1)}, KvEventFormat::kMap)};
    ASSERT_EQ(read(subscriber), right);
  }
  EXPECT_EQ(read(subscriber), (Received{begin + 500, decode({removed(3)}, KvEventFormat::kMap)}));
  const KvEventPublisher::Stats after = publisher.stats();
  EXPECT_EQ(before.num_messages, begin);
  EXPECT_EQ(after.num_messages, begin + 501);
  EXPECT_EQ(after.num_events_stored - before.num_events_stored, 500u);
  EXPECT_EQ(after.num_events_removed - before.num_events_removed, 1001u);
  EXPECT_EQ(after.num_dropped, 0u);
}

// Whoever comes back soon after a start believes in what a former process had.
TEST_F(KvEventPublisherTest, SubscribersThatReturnAreToldToForget) {
  KvEventPublisherConfig late = config();
  late.return_time = std::chrono::hours(1);
  KvEventPublisher publisher(late);
  publisher.push({stored(0)});
  ASSERT_EQ(replay(publisher, 0).size(), 2u);
  zmq::socket_t first = connect(zmq::socket_type::sub, publisher.endpoint());
  EXPECT_EQ(read(first), (Received{2, kCleared}));
  zmq::socket_t second = connect(zmq::socket_type::sub, publisher.endpoint());
  EXPECT_EQ(read(second), (Received{3, kCleared}));
  publisher.push({stored(1)});
  EXPECT_EQ(read(second), (Received{4, decode({stored(1)}, KvEventFormat::kMap)}));
}

// What is stored behind a block that a router does not know counts for nothing, so who comes later is told all again.
TEST_F(KvEventPublisherTest, SubscribersThatComeLateAreToldAll) {
  KvEventPublisherConfig soon = config();
  soon.greet_interval = std::chrono::milliseconds(300);
  KvEventPublisher publisher(soon);
  publisher.push({stored(0)});
  publisher.push({stored(1), removed(0)});
  ASSERT_EQ(replay(publisher, 0).size(), 3u);
  const Json kFirst = decode({stored(0)}, KvEventFormat::kMap);
  const Json kSecond = decode({stored(1), removed(0)}, KvEventFormat::kMap);
  zmq::socket_t first = connect(zmq::socket_type::sub, publisher.endpoint());
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Received> again = {{3, kCleared}, {4, kFirst}, {5, kSecond}};
  for (const Received& right : again) EXPECT_EQ(read(first), right);
  EXPECT_EQ(replay(publisher, 0), again);  // in place of what was kept
  publisher.push({removed(1)});
  EXPECT_EQ(read(first), (Received{6, decode({removed(1)}, KvEventFormat::kMap)}));
  // The second one, too, but not at once.
  zmq::socket_t second = connect(zmq::socket_type::sub, publisher.endpoint());
  EXPECT_EQ(read(second), (Received{7, kCleared}));
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
  for (const std::uint64_t sequence : {8u, 9u, 10u}) EXPECT_EQ(read(second).sequence, sequence);
}

// Where not all is kept any more, a message without events shows the gap.
TEST_F(KvEventPublisherTest, SubscribersThatComeTooLateSeeTheGap) {
  KvEventPublisherConfig small = config();
  small.buffer_bytes = encode_kv_events(KvEvents{removed(0)}, kNow, small.format, salt_digest({})).size();
  KvEventPublisher publisher(small);
  publisher.push({removed(0)});
  ASSERT_EQ(replay(publisher, 0).size(), 1u);
  zmq::socket_t subscriber = connect(zmq::socket_type::sub, publisher.endpoint());
  EXPECT_EQ(read(subscriber), (Received{2, Json::array()}));
}

TEST_F(KvEventPublisherTest, CountsFromWhereItIsTold) {
  KvEventPublisherConfig later = config();
  later.first_sequence = 1'800'000'000'000'000;
  KvEventPublisher publisher(later);
  publisher.push({stored(0)});
  const Json kStored = decode({stored(0)}, KvEventFormat::kMap);
  const std::vector<Received> right = {{later.first_sequence, kCleared}, {later.first_sequence + 1, kStored}};
  EXPECT_EQ(replay(publisher, 0), right);  // from before it, too: what a former process had is gone
  EXPECT_EQ(replay(publisher, later.first_sequence + 1).size(), 1u);
  EXPECT_EQ(publisher.stats().num_messages, 2u);
}

TEST_F(KvEventPublisherTest, TellsArrays) {
  KvEventPublisherConfig arrays = config();
  arrays.format = KvEventFormat::kArray;
  KvEventPublisher publisher(arrays);
  publisher.push({removed(1)});
  const std::vector<Received> right = {{0, Json::array({Json::array({"AllBlocksCleared"})})},
                                       {1, decode({removed(1)}, KvEventFormat::kArray)}};
  EXPECT_EQ(replay(publisher, 0, false), right);
}

TEST_F(KvEventPublisherTest, ReplaysFromAnywhere) {
  KvEventPublisher publisher(config());
  std::vector<Received> right = {{0, kCleared}};
  EXPECT_EQ(replay(publisher, 0), right);  // before anything was stored
  for (int i = 0; i < 5; ++i) {
    publisher.push({stored(i)});
    right.push_back({static_cast<std::uint64_t>(i) + 1, decode({stored(i)}, KvEventFormat::kMap)});
  }
  EXPECT_EQ(replay(publisher, 0), right);
  EXPECT_EQ(replay(publisher, 3), std::vector(right.begin() + 3, right.end()));
  EXPECT_EQ(replay(publisher, 5), std::vector(right.begin() + 5, right.end()));
  EXPECT_EQ(replay(publisher, 6), std::vector<Received>());
  EXPECT_EQ(replay(publisher, ~std::uint64_t{0}), std::vector<Received>());
}

// One client, so that what it asks is read in its order: an answer to one of the first would come first.
TEST_F(KvEventPublisherTest, IgnoresOtherRequests) {
  KvEventPublisher publisher(config());
  zmq::socket_t dealer = connect(zmq::socket_type::dealer, publisher.replay_endpoint());
  const std::string zero = to_eight_bytes(0);
  ask(dealer, {zero});
  ask(dealer, {"", "1234567"});
  ask(dealer, {"", zero + "9"});
  ask(dealer, {"", ""});
  ask(dealer, {"", zero, ""});
  ask(dealer, {"", zero, "4", "5", "6"});
  ask(dealer, {"x", zero});
  ask(dealer, {"", to_eight_bytes(1)});
  EXPECT_EQ(read_replay(dealer), std::vector<Received>());  // those of the last
  ask(dealer, {"", zero});
  EXPECT_EQ(read_replay(dealer), (std::vector<Received>{{0, kCleared}}));
}

TEST_F(KvEventPublisherTest, ReplaySurvivesWhoAsksAndGoes) {
  KvEventPublisher publisher(config());
  for (int i = 0; i < 100; ++i) {
    zmq::socket_t dealer = connect(zmq::socket_type::dealer, publisher.replay_endpoint());
    dealer.set(zmq::sockopt::linger, 1000);
    ask(dealer, {"", to_eight_bytes(0)});
  }
  EXPECT_EQ(replay(publisher, 0), (std::vector<Received>{{0, kCleared}}));
}

TEST_F(KvEventPublisherTest, KeepsTheLatestBytes) {
  KvEventPublisherConfig small = config();
  const std::size_t message_bytes = encode_kv_events(KvEvents{removed(0)}, kNow, small.format, salt_digest({})).size();
  small.buffer_bytes = 4 * message_bytes + message_bytes / 2;  // a round number takes 4 bytes less as the time
  KvEventPublisher publisher(small);
  std::vector<Received> right;
  for (int i = 0; i < 10; ++i) {
    publisher.push({removed(i)});
    if (i >= 6) right.push_back({static_cast<std::uint64_t>(i) + 1, decode({removed(i)}, KvEventFormat::kMap)});
  }
  EXPECT_EQ(replay(publisher, 0), right);
  // One that is larger than all of it is not kept, nor what was before it.
  publisher.push(KvEvents(100, stored(0)));
  EXPECT_EQ(replay(publisher, 0), std::vector<Received>());
  publisher.push({removed(1)});
  EXPECT_EQ(replay(publisher, 0), (std::vector<Received>{{12, decode({removed(1)}, KvEventFormat::kMap)}}));
}

TEST_F(KvEventPublisherTest, KeepsTheLatestMessages) {
  KvEventPublisher publisher(config());
  constexpr std::uint64_t kMost = KvEventPublisher::kMaxBufferedMessages;
  for (std::uint64_t i = 0; i < kMost + 50; ++i) publisher.push({removed(0)});
  const std::vector<Received> kept = replay(publisher, 0);
  ASSERT_EQ(kept.size(), kMost);
  for (std::uint64_t i = 0; i < kMost; ++i) ASSERT_EQ(kept[i].sequence, i + 51);
}

// Stands still on request, and with it the thread that logs.
class StuckSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void let_go() {
    is_stuck_ = false;
    is_stuck_.notify_all();
  }
  void await_caller() { is_waited_for_.wait(false); }
  int num_lines() {
    const std::lock_guard lock(mutex_);
    return num_lines_;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& /*message*/) override {
    ++num_lines_;
    is_waited_for_ = true;
    is_waited_for_.notify_all();
    is_stuck_.wait(true);
  }
  void flush_() override {}

  std::atomic<bool> is_stuck_ = true;
  std::atomic<bool> is_waited_for_ = false;
  int num_lines_ = 0;
};

class KvEventOverflowTest : public KvEventPublisherTest {
 protected:
  KvEventOverflowTest() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("stuck", log_)); }
  ~KvEventOverflowTest() override { spdlog::set_default_logger(before_); }

  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  const std::shared_ptr<StuckSink> log_ = std::make_shared<StuckSink>();
};

TEST_F(KvEventOverflowTest, ClearsInsteadAndGoesOn) {
  log_->let_go();
  KvEventPublisher publisher(config());
  ASSERT_EQ(replay(publisher, 0).size(), 1u);
  publisher.push({stored(0)});
  ASSERT_EQ(replay(publisher, 1).size(), 1u);
  for (const std::uint64_t sequence : {2u, 4u}) {
    publisher.push(KvEvents(kMaxQueued + 1, stored(0)));
    publisher.push({stored(1)});
    const std::vector<Received> right = {{sequence, kCleared},
                                         {sequence + 1, decode({stored(1)}, KvEventFormat::kMap)}};
    EXPECT_EQ(replay(publisher, sequence), right);
  }
  EXPECT_EQ(log_->num_lines(), 1);
  EXPECT_EQ(publisher.stats().num_dropped, 2 * (kMaxQueued + 1));
  EXPECT_EQ(publisher.stats().num_events_stored, 3u);
}

// The thread hangs in its log: pushes wait for nothing, and their sum is bounded.
TEST_F(KvEventOverflowTest, DropsAllThatIsQueued) {
  KvEventPublisher publisher(config());
  ASSERT_EQ(replay(publisher, 0).size(), 1u);
  publisher.push(KvEvents(kMaxQueued + 1, stored(0)));
  log_->await_caller();
  publisher.push(KvEvents(kMaxQueued - 1, stored(0)));
  publisher.push({removed(2)});  // just fits
  EXPECT_EQ(publisher.stats().num_dropped, kMaxQueued + 1);
  publisher.push({removed(3)});
  EXPECT_EQ(publisher.stats().num_dropped, 2 * (kMaxQueued + 1));
  publisher.push({removed(4)});
  publisher.push({removed(5)});
  log_->let_go();
  const std::vector<Received> right = {{1, kCleared},
                                       {2, kCleared},
                                       {3, decode({removed(4)}, KvEventFormat::kMap)},
                                       {4, decode({removed(5)}, KvEventFormat::kMap)}};
  EXPECT_EQ(replay(publisher, 1), right);
  EXPECT_EQ(log_->num_lines(), 1);
}

bool has_ipv6() {
  const int file = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool is_bound = file >= 0 && ::bind(file, reinterpret_cast<sockaddr*>(&loopback), sizeof loopback) == 0;
  if (file >= 0) ::close(file);
  return is_bound;
}

TEST_F(KvEventPublisherTest, BindsToAnyKindOfAddress) {
  std::vector<std::string> addresses = {"tcp://*:0", "tcp://127.0.0.1:0", "ipc://*"};
  if (has_ipv6()) addresses.emplace_back("tcp://[::1]:0");
  for (const std::string& address : addresses) {
    KvEventPublisherConfig other = config();
    other.endpoint = other.replay_endpoint = address;
    KvEventPublisher publisher(other);
    EXPECT_NE(publisher.endpoint(), publisher.replay_endpoint());
    if (address.find('*') == std::string::npos) {
      EXPECT_EQ(publisher.endpoint().substr(0, publisher.endpoint().rfind(':')), address.substr(0, address.rfind(':')));
    }
    zmq::socket_t subscriber = connect(zmq::socket_type::sub, publisher.endpoint());
    await_subscription(publisher, subscriber);
    EXPECT_EQ(replay(publisher, 0).front(), (Received{1, kCleared})) << address;
  }
}

TEST_F(KvEventPublisherTest, AllAddressesAreIpv4ToAnyone) {
  KvEventPublisherConfig all = config();
  all.endpoint = "tcp://*:0";
  KvEventPublisher publisher(all);
  const std::string bound = publisher.endpoint();
  zmq::socket_t subscriber = connect(zmq::socket_type::sub, "tcp://127.0.0.1" + bound.substr(bound.rfind(':')));
  EXPECT_GT(await_subscription(publisher, subscriber), 1u);
}

TEST_F(KvEventPublisherTest, NeedsNoReplay) {
  KvEventPublisherConfig none = config();
  none.replay_endpoint.clear();
  KvEventPublisher publisher(none);
  EXPECT_EQ(publisher.replay_endpoint(), "");
  zmq::socket_t subscriber = connect(zmq::socket_type::sub, publisher.endpoint());
  const std::uint64_t next = await_subscription(publisher, subscriber);
  publisher.push({stored(7)});
  EXPECT_EQ(read(subscriber), (Received{next, decode({stored(7)}, KvEventFormat::kMap)}));
}

std::string error_of(const KvEventPublisherConfig& config, ErrorKind kind) {
  try {
    KvEventPublisher publisher(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(error.message().find('\n'), std::string::npos);
    return error.message();
  }
  return "none";
}

TEST_F(KvEventPublisherTest, AddressInUse) {
  const KvEventPublisher publisher(config());
  KvEventPublisherConfig second = config();
  second.endpoint = publisher.endpoint();
  EXPECT_EQ(error_of(second, ErrorKind::kUnavailable),
            "--kv-events " + second.endpoint + ": cannot listen there: Address already in use; choose another port");
  second = config();
  second.replay_endpoint = publisher.endpoint();
  EXPECT_EQ(error_of(second, ErrorKind::kUnavailable),
            "--kv-events-replay " + second.replay_endpoint +
                ": cannot listen there: Address already in use; choose another port");
}

// libzmq takes a path from whoever listens there.
TEST_F(KvEventPublisherTest, PathInUse) {
  const TempDir dir;
  KvEventPublisherConfig first = config();
  first.endpoint = "ipc://" + dir.path() + "/events";
  first.replay_endpoint = "ipc://@" + dir.path() + "/replay";
  KvEventPublisher publisher(first);
  for (const std::string& taken : {first.endpoint, first.replay_endpoint}) {
    KvEventPublisherConfig second = config();
    second.replay_endpoint = taken;
    EXPECT_EQ(error_of(second, ErrorKind::kUnavailable),
              "--kv-events-replay " + taken + ": cannot listen there: Address already in use; choose another address");
  }
  zmq::socket_t subscriber = connect(zmq::socket_type::sub, first.endpoint);
  EXPECT_LT(await_subscription(publisher, subscriber), 1000u);
  EXPECT_EQ(replay(publisher, 0).front(), (Received{1, kCleared}));
}

// As one that was killed does.
void leave_socket(const std::string& path) {
  const int file = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(::bind(file, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(file, 1), 0);
  ::close(file);
}

TEST_F(KvEventPublisherTest, PathThatAServerHasLeft) {
  const TempDir dir;
  KvEventPublisherConfig again = config();
  again.replay_endpoint = "ipc://" + dir.path() + "/replay";
  leave_socket(dir.path() + "/replay");
  for (int start = 0; start < 2; ++start) {
    const KvEventPublisher publisher(again);
    EXPECT_EQ(replay(publisher, 0), (std::vector<Received>{{0, kCleared}}));
  }
}

TEST_F(KvEventPublisherTest, AddressThatIsNone) {
  for (const char* address : {"", "5557", "*:5557", "udp://127.0.0.1:5557", "inproc://events"}) {
    KvEventPublisherConfig wrong = config();
    wrong.endpoint = address;
    const std::string text = error_of(wrong, ErrorKind::kInvalidArgument);
    EXPECT_TRUE(text.starts_with(std::string("--kv-events ") + address + ": is no address")) << text;
  }
  for (const char* address :
       {"tcp://no-such-host:5557", "tcp://192.0.2.1:0"}) {
    KvEventPublisherConfig wrong = config();
    wrong.replay_endpoint = address;
    const std::string text = error_of(wrong, ErrorKind::kInvalidArgument);
    EXPECT_TRUE(text.starts_with(std::string("--kv-events-replay ") + address + ": cannot listen there")) << text;
  }
}

// libzmq would listen on another port.
TEST_F(KvEventPublisherTest, PortThatIsNone) {
  for (const char* address :
       {"tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:5557x",
        "tcp://127.0.0.1:-1", "tcp://127.0.0.1: 5557", "tcp://127.0.0.1:+5557", "tcp://127.0.0.1:0x15B5",
        "tcp://127.0.0.1:99999999999999999999", "tcp://*:*", "tcp://[::1]"}) {
    KvEventPublisherConfig wrong = config();
    wrong.endpoint = address;
    const std::string expected = std::string(" ") + address + ": must end with a port, a whole number up to 65535, as in tcp://*:5557";
    EXPECT_EQ(error_of(wrong, ErrorKind::kInvalidArgument), "--kv-events" + expected);
    wrong = config();
    wrong.replay_endpoint = address;
    EXPECT_EQ(error_of(wrong, ErrorKind::kInvalidArgument), "--kv-events-replay" + expected);
    EXPECT_THROW(KvEventPublisher::check(wrong), Error);
  }
  KvEventPublisher::check(config());
}

TEST_F(KvEventPublisherTest, EndsWithAllSent) {
  std::optional<KvEventPublisher> publisher(config());
  zmq::socket_t subscriber = connect(zmq::socket_type::sub, publisher->endpoint());
  const std::uint64_t begin = await_subscription(*publisher, subscriber);
  for (int i = 0; i < 50; ++i) publisher->push({stored(i)});
  publisher.reset();
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_EQ(read(subscriber).sequence, begin + i);
}

TEST_F(KvEventPublisherTest, EndsAtOnceWhereNobodyListens) {
  std::optional<KvEventPublisher> publisher(config());
  publisher->push(KvEvents(1000, stored(0)));
  const auto begin = std::chrono::steady_clock::now();
  publisher.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(KvEventPublisherTest, EndsWhereNobodyReads) {
  std::optional<KvEventPublisher> publisher(config());
  zmq::socket_t silent = connect(zmq::socket_type::sub, publisher->endpoint(), 1);
  await_subscription(*publisher, silent);
  // Some 12 MiB: more than the kernel takes of it.
  for (int i = 0; i < 30; ++i) {
    publisher->push(KvEvents(5000, stored(0)));
    static_cast<void>(replay(*publisher, ~std::uint64_t{0}));  // then it is sent
  }
  EXPECT_EQ(publisher->stats().num_dropped, 0u);
  const auto begin = std::chrono::steady_clock::now();
  publisher.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// libzmq would abort.
TEST(KvEventPublisherDeathTest, ThreadsThatAreRefused) {
  if (!kThreadLimitIsExact) GTEST_SKIP() << "no exact limit of threads here";
  const auto start = [] {
    KvEventPublisher publisher({.endpoint = "tcp://127.0.0.1:0", .replay_endpoint = "", .topic = "kv"});
  };
  for (int num_threads = 0; num_threads < 3; ++num_threads) {
    EXPECT_EXIT(run_with_threads(num_threads, start), testing::ExitedWithCode(3),
                "cannot start the thread that publishes KV events");
  }
  EXPECT_EXIT(run_with_threads(3, start), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder
