// A server and its workers over real sockets: the same bits, and what faults cost.
#include "cluster/worker_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "cluster/worker_test_support.h"
#include "model/forward/exactness.h"
#include "model/forward/test_model.h"

namespace larder {
namespace {

using ::testing::HasSubstr;

const std::string kPath = LARDER_SOURCE_DIR "/tests/golden/model/tiny_gemma3.gguf";
constexpr int kNumTokens = 50;

WorkerLinksConfig config_of(const std::vector<int>& ports, std::int64_t patience_ns = 20 * kNsPerSecond) {
  WorkerLinksConfig config;
  for (const int port : ports) config.workers.push_back({"127.0.0.1", port});
  config.hello = {.kernels = select_kernels().name, .activations = "int8", .model = "m", .proof = ""};
  config.patience_ns = patience_ns;
  config.own_bytes_per_second = 1e9;
  return config;
}

class WorkerLinksTest : public testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }
};

// A server's side: connected, loaded, ready to compute.
class TestServer {
 public:
  explicit TestServer(const WorkerLinksConfig& config) : links_(config), model_(kPath) {
    limits_.split = links_.split();
    links_.assign({limits_.max_batch_tokens, limits_.max_logit_rows});
    const MappedFile file(kPath);
    ThreadPool pool(1);
    model_.weights = std::make_unique<Weights>(model_.config, GgufFile(file.bytes()), pool, LoadProgress(), nullptr,
                                               model_.config.num_layers(), MachineShare{limits_.split, 0});
    links_.await_ready();
    runner_.emplace(model_, select_kernels(), 1, limits_, blocks_for(model_, kNumTokens + 1, 4), nullptr, &links_);
  }

  WorkerLinks& links() { return links_; }
  std::vector<float> logits(int chunk = 20) { return logits_in_chunks(*runner_, tokens_of(model_), chunk); }

  // Of one machine alone.
  static std::vector<float> expected() {
    const TestModel model(kPath);
    const TransformerLimits limits{.max_batch_tokens = 64, .max_logit_rows = 8, .max_context_len = 100};
    TestRunner runner(model, select_kernels(), 1, limits, blocks_for(model, kNumTokens + 1, 4));
    return logits_in_chunks(runner, tokens_of(model), 20);
  }

 private:
  static std::vector<TokenId> tokens_of(const TestModel& model) {
    return arbitrary_tokens(kNumTokens, model.config.vocab_size, 1);
  }

  TransformerLimits limits_{.max_batch_tokens = 64, .max_logit_rows = 8, .max_context_len = 100};
  WorkerLinks links_;
  TestModel model_;
  std::optional<TestRunner> runner_;
};

std::string error_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(WorkerLinksTest, OneAndThreeWorkersGiveTheSameBits) {
  for (const std::size_t num_workers : {1U, 3U}) {
    std::vector<std::unique_ptr<TestWorker>> workers;
    std::vector<int> ports;
    for (std::size_t i = 0; i < num_workers; ++i) {
      workers.push_back(std::make_unique<TestWorker>(kPath));
      ports.push_back(workers.back()->port());
    }
    TestServer server(config_of(ports));
    for (const int chunk : {50, 7, 1}) EXPECT_TRUE(same_bits(TestServer::expected(), server.logits(chunk))) << chunk;
    for (const WorkerStats& stats : server.links().stats()) {
      EXPECT_TRUE(stats.is_up);
      EXPECT_EQ(stats.num_losses, 0U);
      EXPECT_GT(stats.sent_bytes, 1000U);
      EXPECT_GT(stats.received_bytes, 1000U);
    }
  }
}

TEST_F(WorkerLinksTest, SharesGoBySpeedOrAsTheyAreGiven) {
  TestWorker worker(kPath);
  WorkerLinksConfig config = config_of({worker.port()});
  config.own_bytes_per_second = 3e9;
  {
    const WorkerLinks links(config);
    EXPECT_THAT(links.split().shares(), testing::ElementsAre(750, 250));
  }
  config.shares = {1, 5};
  // The session before has to be seen to end first.
  std::optional<WorkerLinks> links;
  for (int i = 0; i < 200 && !links; ++i) {
    try {
      links.emplace(config);
    } catch (const Error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ASSERT_TRUE(links);
  EXPECT_THAT(links->split().shares(), testing::ElementsAre(1, 5));
}

TEST_F(WorkerLinksTest, WhatWouldChangeABitIsRefusedInOneLine) {
  const TestWorker worker(kPath);
  const auto refusal = [&](const std::function<void(Hello&)>& change) {
    WorkerLinksConfig config = config_of({worker.port()});
    change(config.hello);
    std::string error;
    do error = error_of([&] { const WorkerLinks links(config); });
    while (error.find("another server") != std::string::npos);
    return error;
  };
  EXPECT_THAT(refusal([](Hello& hello) { hello.kernels = "other"; }),
              testing::AllOf(HasSubstr("with other kernels"), HasSubstr(select_kernels().name), HasSubstr("LARDER_ISA")));
  EXPECT_THAT(refusal([](Hello& hello) { hello.model = "n"; }), HasSubstr("another model (n) than this worker (m)"));
  EXPECT_THAT(refusal([](Hello& hello) { hello.protocol = 2; }), HasSubstr("the server speaks protocol 2"));
  EXPECT_THAT(refusal([](Hello& hello) { hello.activations = "int4"; }), HasSubstr("activations must be int8 or f32"));
  EXPECT_EQ(refusal([](Hello&) {}), "no error");
}

TEST_F(WorkerLinksTest, AKeyIsAskedForAndHeldAgainstItsOwn) {
  const TestWorker worker(kPath, 0, "secret");
  const auto error_with = [&](const std::string& key) {
    WorkerLinksConfig config = config_of({worker.port()});
    config.key = key;
    std::string error;
    do error = error_of([&] { const WorkerLinks links(config); });
    while (error.find("another server") != std::string::npos);
    return error;
  };
  EXPECT_THAT(error_with(""), HasSubstr("it wants a key; give it by --worker-key-file"));
  EXPECT_THAT(error_with("Secret"), HasSubstr("the server's key is another one"));
  EXPECT_EQ(error_with("secret"), "no error");
}

TEST_F(WorkerLinksTest, ASecondServerIsRefusedUntilTheFirstHasGone) {
  const TestWorker worker(kPath);
  auto first = std::make_unique<TestServer>(config_of({worker.port()}));
  EXPECT_THAT(error_of([&] { const WorkerLinks links(config_of({worker.port()})); }),
              HasSubstr("it computes for another server already"));
  EXPECT_TRUE(same_bits(TestServer::expected(), first->logits()));
  first.reset();
  const std::int64_t deadline_ns = steady_now_ns() + 20 * kNsPerSecond;
  std::unique_ptr<TestServer> second;
  while (!second && steady_now_ns() < deadline_ns) {
    try {
      second = std::make_unique<TestServer>(config_of({worker.port()}));
    } catch (const Error&) {
    }
  }
  ASSERT_TRUE(second);
  EXPECT_TRUE(same_bits(TestServer::expected(), second->logits()));
}

TEST_F(WorkerLinksTest, NobodyThereIsSaid) {
  int port = 0;
  {
    const TestWorker worker(kPath);
    port = worker.port();
  }
  EXPECT_THAT(error_of([&] { const WorkerLinks links(config_of({port})); }),
              testing::AllOf(HasSubstr(fmt::format("worker 127.0.0.1:{}", port)), HasSubstr("refused")));
}

// Ended and begun again at any moment, also in the middle of a stage.
TEST_F(WorkerLinksTest, AWorkerThatComesBackCostsNoBit) {
  auto worker = std::make_unique<TestWorker>(kPath);
  const int port = worker->port();
  TestServer server(config_of({port}));
  const std::vector<float> expected = TestServer::expected();
  std::atomic<bool> ends{false};
  std::thread restarts([&] {
    for (int i = 0; !ends; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20 + 13 * i % 30));
      worker.reset();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      worker = std::make_unique<TestWorker>(kPath, port);
    }
  });
  for (int i = 0; i < 400 && server.links().stats()[0].num_losses < 6; ++i)
    EXPECT_TRUE(same_bits(expected, server.logits()));
  ends = true;
  restarts.join();
  EXPECT_GE(server.links().stats()[0].num_losses, 6U);
  EXPECT_TRUE(same_bits(expected, server.logits()));
}

TEST_F(WorkerLinksTest, OneThatStaysAwayEndsTheStepAndIsFoundWhenItIsBack) {
  auto lasting = std::make_unique<TestWorker>(kPath);
  auto worker = std::make_unique<TestWorker>(kPath);
  const int port = worker->port();
  TestServer server(config_of({port, lasting->port()}, kNsPerSecond));
  worker.reset();
  std::int64_t begin_ns = steady_now_ns();
  EXPECT_THAT(error_of([&] { server.logits(); }), HasSubstr(fmt::format("worker 127.0.0.1:{}", port)));
  EXPECT_LT(steady_now_ns() - begin_ns, 15 * kNsPerSecond);
  EXPECT_FALSE(server.links().stats()[0].is_up);
  EXPECT_TRUE(server.links().stats()[1].is_up);
  EXPECT_THROW(server.logits(), PartnerLost);
  worker = std::make_unique<TestWorker>(kPath, port);
  EXPECT_TRUE(same_bits(TestServer::expected(), server.logits()));
  EXPECT_TRUE(server.links().stats()[0].is_up);

  // Who is to end does not wait.
  worker.reset();
  server.links().stop();
  begin_ns = steady_now_ns();
  EXPECT_THROW(server.logits(), PartnerLost);
  EXPECT_LT(steady_now_ns() - begin_ns, kNsPerSecond);
}

// Speaks the handshake, and answers stages as it is told.
class LyingWorker {
 public:
  using Answer = std::function<void(MessageStream& stream, MessageHeader header)>;

  explicit LyingWorker(Answer answer, int num_busy = 0)
      : answer_(std::move(answer)), num_busy_(num_busy), thread_([this] { run(); }) {}
  ~LyingWorker() {
    stops_ = true;
    thread_.join();
    ::close(listener_);
  }
  int port() const { return port_of_socket(listener_); }
  int num_asked() const { return num_asked_; }

 private:
  void run() {
    while (!stops_) {
      pollfd entry{.fd = listener_, .events = POLLIN, .revents = 0};
      if (::poll(&entry, 1, 20) <= 0) continue;
      MessageStream stream(::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK), stops_);
      serve(stream);
    }
  }
  void serve(MessageStream& stream) {
    constexpr std::int64_t kPatienceNs = 5 * kNsPerSecond;
    const auto say = [&](MessageType type, const std::string& text) { return stream.send_text(type, text, kPatienceNs); };
    if (!say(MessageType::kWelcome, write_text(Welcome{.nonce = "n"})) ||
        !stream.expect_text(MessageType::kHello, kPatienceNs))
      return;
    if (num_busy_-- > 0) {
      say(MessageType::kRefusal, write_text(Refusal{kBusyMessage}));
      return;
    }
    if (!say(MessageType::kOffer, write_text(Offer{1e9})) ||
        !stream.expect_text(MessageType::kAssign, kPatienceNs) || !say(MessageType::kReady, "{}"))
      return;
    MessageHeader header;
    if (!stream.wait_for_message() || !stream.receive_header(header, kPatienceNs)) return;
    std::vector<std::byte> input(header.payload_bytes);
    if (!stream.receive(input, kPatienceNs)) return;
    ++num_asked_;
    header.type = MessageType::kStageOutputs;
    answer_(stream, header);
  }

  const Answer answer_;
  int num_busy_;  // times that it is busy first; of its thread
  const int listener_ = listen_at("127.0.0.1", 0);
  std::atomic<bool> stops_{false};
  std::atomic<int> num_asked_{0};
  std::thread thread_;
};

TEST_F(WorkerLinksTest, WhatIsNoAnswerEndsTheStepAndGivesNoToken) {
  const auto send = [](MessageStream& stream, const MessageHeader& header, std::size_t size_bytes) {
    const std::vector<std::byte> bytes(size_bytes);
    static_cast<void>(stream.send({encode_header(header), bytes}, kNsPerSecond));
  };
  const std::vector<std::pair<const char*, LyingWorker::Answer>> lies = {
      {"outputs of 3 bytes", [&](MessageStream& stream, MessageHeader header) {
         header.payload_bytes = 3;
         send(stream, header, 3);
       }},
      {"outputs of 1152921504606846976 bytes", [&](MessageStream& stream, MessageHeader header) {
         header.payload_bytes = std::uint64_t{1} << 60;
         send(stream, header, 100);
       }},
      {"an answer to something else", [&](MessageStream& stream, MessageHeader header) {
         header.exchange += 1;
         send(stream, header, 100);
       }},
      {"an answer to something else", [&](MessageStream& stream, MessageHeader header) {
         header.type = MessageType::kLoading;
         header.payload_bytes = 2;
         send(stream, header, 2);
       }},
      {"not a message of Larder's workers", [&](MessageStream& stream, MessageHeader) {
         const std::vector<std::byte> zeros(1000);
         static_cast<void>(stream.send({zeros}, kNsPerSecond));
       }},
      {"closed by the other end", [](MessageStream&, MessageHeader) {}},
  };
  for (const auto& [expected, answer] : lies) {
    LyingWorker worker(answer);
    TestServer server(config_of({worker.port()}, 700 * kNsPerMs));
    EXPECT_THAT(error_of([&] { server.logits(); }), testing::AnyOf(HasSubstr(expected), HasSubstr("no answer in time")));
    EXPECT_GE(worker.num_asked(), 1) << expected;
  }
}

TEST_F(WorkerLinksTest, OneThatSaysNothingIsNotWaitedForForEver) {
  LyingWorker worker([](MessageStream& stream, MessageHeader) { static_cast<void>(stream.wait_for_message()); });
  TestServer server(config_of({worker.port()}, kNsPerSecond));
  const std::int64_t begin_ns = steady_now_ns();
  EXPECT_THROW(server.logits(), PartnerLost);
  EXPECT_LT(steady_now_ns() - begin_ns, 15 * kNsPerSecond);
}

TEST_F(WorkerLinksTest, AStartAsksABusyWorkerAgain) {
  LyingWorker worker([](MessageStream&, MessageHeader) {}, 2);
  EXPECT_EQ(error_of([&] { const WorkerLinks links(config_of({worker.port()})); }), "no error");
}

// Somebody who connects, and is told who the worker is.
class Stranger {
 public:
  explicit Stranger(int port) : host_("127.0.0.1", port), stream_(-1, stops_) {
    EXPECT_TRUE(stream_.connect(host_, steady_now_ns() + kPatienceNs)) << stream_.error();
    EXPECT_TRUE(stream_.expect_text(MessageType::kWelcome, kPatienceNs)) << stream_.error();
    if (stream_.is_open()) nonce_ = read_welcome(stream_.text()).nonce;
  }

  std::vector<std::byte> hello(const std::string& key) const {
    Hello hello = config_of({}).hello;
    hello.proof = key_proof(nonce_, key);
    const std::string text = write_text(hello);
    const HeaderBytes header = encode_header({.type = MessageType::kHello, .payload_bytes = text.size()});
    std::vector<std::byte> bytes(header.begin(), header.end());
    std::ranges::copy(std::as_bytes(std::span(text)), std::back_inserter(bytes));
    return bytes;
  }
  void say(std::span<const std::byte> bytes) { EXPECT_TRUE(stream_.send({bytes}, kPatienceNs)) << stream_.error(); }
  std::string answer() {
    return stream_.expect_text(MessageType::kOffer, kPatienceNs) ? "an offer" : stream_.error();
  }

 private:
  static constexpr std::int64_t kPatienceNs = 60 * kNsPerSecond;

  const std::atomic<bool> stops_{false};
  RemoteHost host_;
  MessageStream stream_;
  std::string nonce_;
};

WorkerServerConfig with_key(std::int64_t handshake_ns) {
  return {.listen = {"127.0.0.1", 0}, .key = "secret", .model = "m", .bytes_per_second = 1e9, .handshake_ns = handshake_ns};
}

TEST_F(WorkerLinksTest, WhoDoesNotShowTheKeyKeepsNoServerOut) {
  const TestWorker worker(kPath, with_key(3600 * kNsPerSecond));
  WorkerLinksConfig config = config_of({worker.port()});
  config.key = "secret";
  std::vector<std::unique_ptr<Stranger>> strangers;  // in the middle of what they say
  for (const std::size_t num_said : {0U, 1U, 40U, 60U}) {
    strangers.push_back(std::make_unique<Stranger>(worker.port()));
    const std::vector<std::byte> hello = strangers.back()->hello("");
    strangers.back()->say(std::span(hello).first(num_said));
  }
  TestServer server(config);
  EXPECT_TRUE(same_bits(TestServer::expected(), server.logits()));
  strangers.push_back(std::make_unique<Stranger>(worker.port()));  // also while it computes
  EXPECT_TRUE(same_bits(TestServer::expected(), server.logits(7)));
  EXPECT_EQ(server.links().stats()[0].num_losses, 0U);
}

TEST_F(WorkerLinksTest, TheOldestOfManyWhoSayNothingGivesWay) {
  const TestWorker worker(kPath, with_key(3600 * kNsPerSecond));
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (std::size_t i = 0; i < WorkerServer::kMaxGuests + 1; ++i)
    strangers.push_back(std::make_unique<Stranger>(worker.port()));
  EXPECT_EQ(strangers[0]->answer(), "closed by the other end");
  for (const std::byte byte : strangers.back()->hello("secret")) strangers.back()->say({&byte, 1});
  EXPECT_EQ(strangers.back()->answer(), "an offer");
  // The others were left alone.
  strangers[1]->say(strangers[1]->hello("Secret"));
  EXPECT_THAT(strangers[1]->answer(), HasSubstr("the server's key is another one"));
  strangers[2]->say(strangers[2]->hello("secret"));
  EXPECT_EQ(strangers[2]->answer(), kBusyMessage);
}

TEST_F(WorkerLinksTest, WhoSaysNothingInTimeIsSentAway) {
  const TestWorker worker(kPath, with_key(kNsPerMs));
  EXPECT_EQ(Stranger(worker.port()).answer(), "closed by the other end");
}

// What no server sends ends its session; the worker serves the next.
TEST_F(WorkerLinksTest, AWorkerSurvivesWhatIsNoServer) {
  const TestWorker worker(kPath);
  const std::atomic<bool> stops{false};
  RemoteHost host("127.0.0.1", worker.port());
  for (int length = 0; length < 60; length += 3) {
    SocketStream stream(-1, stops);
    ASSERT_TRUE(stream.connect(host, steady_now_ns() + 5 * kNsPerSecond));
    const std::vector<std::byte> noise(static_cast<std::size_t>(length), std::byte{0x4c});
    static_cast<void>(stream.send({noise}, kNsPerSecond));
  }
  std::unique_ptr<TestServer> server;
  for (int i = 0; i < 1000 && !server; ++i) {
    try {
      server = std::make_unique<TestServer>(config_of({worker.port()}));
    } catch (const Error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ASSERT_TRUE(server);
  EXPECT_TRUE(same_bits(TestServer::expected(), server->logits()));
}

}  // namespace
}  // namespace larder
