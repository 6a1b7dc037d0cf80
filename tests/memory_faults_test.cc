// Fault 39: memory that runs out outside the pool of KV blocks costs what asked for it, and nothing else.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kv/tiers/disk_tier.h"
#include "kv/tiers/remote_test_server.h"
#include "kv/tiers/remote_tier.h"
#include "kv/tiers/tier_test_support.h"
#include "server/http/http_connection.h"
#include "server/mailbox.h"
#include "server/server_test_support.h"

namespace {

std::atomic<std::size_t> least_refused = SIZE_MAX;
std::atomic<std::size_t> most_refused = 0;
std::atomic<int> num_to_pass = 0;
std::atomic<int> num_to_refuse = 0;
std::atomic<int> num_refused = 0;
std::atomic<pthread_t> only_thread = 0;  // 0 = any
thread_local bool is_spared = false;

// Allocations of these sizes fail, so many of them once others have passed, but on threads that are spared.
class Refusing {
 public:
  Refusing(std::size_t least, std::size_t most, int count = 1 << 30, int num_before = 0) {
    num_refused = 0;
    num_to_pass = num_before;
    num_to_refuse = count;
    most_refused = most;
    least_refused = least;
  }
  ~Refusing() { least_refused = SIZE_MAX; }
};

// And those of one thread.
class RefusingThread {
 public:
  explicit RefusingThread(pthread_t thread) { only_thread = thread; }
  ~RefusingThread() { only_thread = 0; }
};

bool is_refused(std::size_t size) {
  if (size < least_refused || size > most_refused || is_spared) return false;
  if (only_thread != 0 && only_thread != ::pthread_self()) return false;
  if (num_to_pass-- > 0 || num_to_refuse-- <= 0) return false;
  ++num_refused;
  return true;
}

}  // namespace

// Not inlined: GCC 12 takes one of a pair that it sees without the other for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (is_refused(size)) throw std::bad_alloc();
  if (void* const bytes = std::malloc(size)) return bytes;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* bytes) noexcept { std::free(bytes); }
[[gnu::noinline]] void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }

namespace larder {
namespace {

// An engine that does one thing, for ever, on a thread that is spared, as the test's own is: requests wait in
// line.
class MemoryFaults : public ::testing::Test {
 protected:
  MemoryFaults() : server_(quick_to_end(), one_at_a_time()) {
    is_spared = true;
    expect_service();  // the start wants memory, too; once its one thread has answered, it waits for clients
    Request endless;
    endless.prompt = {1};
    endless.attention_window = 32;
    endless.sampling.ignore_eos = true;
    endless.sampling.max_tokens = 10'000'000;
    endless.on_update = [](RequestUpdate&&) { is_spared = true; };
    server_.engine().submit(std::move(endless));
    EXPECT_TRUE(eventually([&] { return server_.engine().stats().num_generated_tokens > 0; }));
  }

  static ServerConfig quick_to_end() {
    ServerConfig config;
    config.drain_timeout = std::chrono::milliseconds(1);
    return config;
  }
  static EngineConfig one_at_a_time() {
    EngineConfig config = TestServer::default_engine();
    config.max_sequences = 1;
    return config;
  }
  bool waits_in_line() { return server_.engine().stats().num_waiting > 0; }
  void expect_service() { EXPECT_EQ(server_.get("/version").status, 200); }

  TestServer server_;
};

// While it reads what a client pipelines, beside the request that is worked on.
TEST_F(MemoryFaults, AConnectionWithoutMemoryEndsAlone) {
  RawClient other(server_.port());
  RawClient client(server_.port());
  client.send(TestServer::request("/v1/completions", R"({"prompt":"abc"})"));
  ASSERT_TRUE(eventually([&] { return waits_in_line(); }));
  {
    const Refusing refusing(20'000, 200'000);
    client.send(std::string(40'000, 'x'));
    EXPECT_TRUE(eventually([&] { return !waits_in_line(); }, 10));
    EXPECT_GT(num_refused, 0);
  }
  EXPECT_TRUE(eventually([&] { return !client.send("x"); }));
  other.send("GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(TestServer::split(other.receive()).status, 200);
  expect_service();
}

TEST_F(MemoryFaults, ConnectionsAreTakenAgainOnceThereIsMemory) {
  {
    const Refusing refusing(sizeof(HttpConnection), sizeof(HttpConnection) + 64);
    const RawClient refused(server_.port());
    ASSERT_TRUE(eventually([] { return num_refused > 0; }));
  }
  expect_service();
}

// asio drops the coroutine itself where it has no memory for the socket. What the clock needs is smaller.
TEST_F(MemoryFaults, ConnectionsAreTakenAgainThoughAcceptingWasDropped) {
  {
    const Refusing refusing(2 * sizeof(Socket), SIZE_MAX, 1);
    const RawClient refused(server_.port());
    ASSERT_TRUE(eventually([] { return num_refused > 0; }));
  }
  expect_service();
}

// One allocation of the thread that listens fails, each in turn. But for Boost 1.74's mutexes of strands: where there is
// no memory for one of these 193, it destroys what it has not yet made.
TEST_F(MemoryFaults, ClientsAreTakenAgainWhateverTheListenerLacked) {
  const RefusingThread of_listener(server_.thread());
  for (int num_before = 0; num_before < 40; ++num_before) {
    {
      const Refusing refusing(sizeof(asio::detail::mutex) + 1, SIZE_MAX, 1, num_before);
      ASSERT_TRUE(eventually([&] {
        const RawClient other(server_.port());
        return num_refused > 0;
      })) << num_before;
    }
    expect_service();
  }
}

// It is the clock that ends what waits in line, after the time to drain.
TEST_F(MemoryFaults, TheClockGoesOnWithoutMemory) {
  RawClient client(server_.port());
  client.send(TestServer::request("/v1/completions", R"({"prompt":"abc"})"));
  ASSERT_TRUE(eventually([&] { return waits_in_line(); }));
  {
    const RefusingThread of_listener(server_.thread());
    const Refusing refusing(0, SIZE_MAX);
    const RawClient refused(server_.port());
    ASSERT_TRUE(eventually([&] { return num_refused > 3; }));  // it tries again, and the clock ticks meanwhile
  }
  expect_service();
  server_.server().shutdown(true);
  server_.join();
  EXPECT_EQ(TestServer::split(client.receive()).status, 503);
}

struct Asked {
  int n = 1;
  int num_prompt_logprobs = -1;
  float presence_penalty = 0;
};

// An engine with a request that goes on meanwhile, and one of 1,000 tokens.
class MemoryFaultsOfARequest : public ::testing::Test {
 protected:
  static constexpr std::size_t kNumPrompt = 1000;
  static constexpr EngineConfig kConfig = {.num_blocks = 600, .max_model_len = 3000, .max_batch_tokens = 64};

  MemoryFaultsOfARequest()
      : storage_(model_.layout, kConfig.num_blocks),
        transformer_(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                     {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 3000}),
        engine_(kConfig, transformer_, storage_, model_.layout, {}, clock_) {
    is_spared = false;
  }

  void submit(std::size_t num_prompt, const Asked& asked, std::vector<FinishReason>& ends) {
    Request request;
    request.prompt = random_tokens(static_cast<int>(num_prompt), 1);
    request.n = asked.n;
    request.sampling.max_tokens = 30;
    request.sampling.num_prompt_logprobs = asked.num_prompt_logprobs;
    request.sampling.presence_penalty = asked.presence_penalty;
    request.on_update = [&](RequestUpdate&& update) {
      if (update.finish != FinishReason::kNone) ends.push_back(update.finish);
    };
    engine_.submit(std::move(request));
  }

  // Of an allocation of that size, the one behind so many.
  void expect_to_end_alone(const Asked& asked, std::size_t size, int num_before = 0) {
    std::vector<FinishReason> others, ends;
    submit(20, {.n = 2}, others);
    EXPECT_TRUE(engine_.step());
    submit(kNumPrompt, asked, ends);
    {
      const Refusing refusing(size, size, 1, num_before);
      while (engine_.step()) {
      }
      EXPECT_EQ(num_refused, 1);
    }
    EXPECT_EQ(others, std::vector(2, FinishReason::kLength));
    EXPECT_EQ(ends, std::vector(static_cast<std::size_t>(asked.n), FinishReason::kNoMemory));
    EXPECT_EQ(engine_.stats().kv.num_held, 0);
    ends.clear();
    submit(kNumPrompt, asked, ends);
    while (engine_.step()) {
    }
    EXPECT_EQ(ends, std::vector(static_cast<std::size_t>(asked.n), FinishReason::kLength));
  }

  TinyModel model_{"tiny_llama"};
  SteadyClock clock_;
  KvStorage storage_;
  Transformer transformer_;
  Engine engine_;
};

TEST_F(MemoryFaultsOfARequest, ThatForks) {
  for (const int num_before : {0, 1}) expect_to_end_alone({.n = 3}, (kNumPrompt + 1) * sizeof(TokenId), num_before);
}

TEST_F(MemoryFaultsOfARequest, WhoseListOfTokensGrows) { expect_to_end_alone({}, 2 * kNumPrompt * sizeof(TokenId)); }

TEST_F(MemoryFaultsOfARequest, WhosePromptIsScored) {
  expect_to_end_alone({.n = 2, .num_prompt_logprobs = 1}, (kNumPrompt - 1) * sizeof(OutputToken));
}

// Its 120 tokens take 256 places of 8 bytes.
TEST_F(MemoryFaultsOfARequest, ThatIsPenalized) { expect_to_end_alone({.presence_penalty = 1}, 256 * 8); }

TEST(MemoryFaultsOfReplies, AnAnswerWithoutMemoryIsToldSo) {
  is_spared = true;
  EngineConfig engine = TestServer::default_engine();
  engine.max_model_len = 3000;
  engine.num_blocks = 600;
  const TestServer server({}, engine);
  Json ask = {{"max_tokens", 3}, {"n", 3}};
  ask["prompt"] = random_tokens(1000, 1);
  {
    const Refusing refusing(1001 * sizeof(TokenId), 1001 * sizeof(TokenId), 1);
    const auto answer = server.post("/v1/completions", ask.dump());
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.json()["error"]["code"], "unavailable");
    EXPECT_EQ(num_refused, 1);
  }
  EXPECT_EQ(server.post("/v1/completions", ask.dump()).status, 200);
}

// What the engine tells goes on for others where there is no memory to keep it until it is read.
TEST(MemoryFaultsOfReplies, NothingFollowsWhatIsLost) {
  is_spared = false;
  int num_wakes = 0;
  Mailbox mailbox([&] { ++num_wakes; }, 1 << 20);
  mailbox.push(0, {});
  EXPECT_TRUE(mailbox.pop());
  EXPECT_FALSE(mailbox.pop());
  EXPECT_FALSE(mailbox.has_lost());
  mailbox.push(1, {});
  {
    const Refusing refusing(0, SIZE_MAX);
    mailbox.push(2, {});
    EXPECT_GT(num_refused, 0);
  }
  mailbox.push(3, {});
  EXPECT_EQ(mailbox.pop()->prompt, 1);
  EXPECT_FALSE(mailbox.pop());
  EXPECT_TRUE(mailbox.has_lost());
  EXPECT_EQ(num_wakes, 2);
}

// On any of the threads that draw tokens.
TEST(MemoryFaultsOfTheEngine, ADrawWithoutMemoryEndsTheEngineOnly) {
  is_spared = true;
  TinyModel model("tiny_llama", 3);
  std::promise<void> cancelled;
  std::atomic<int> num_open = 12;
  SteadyClock clock;
  const EngineConfig config{.num_blocks = 200, .max_model_len = 200, .max_batch_tokens = 64};
  KvStorage storage(model.layout, config.num_blocks);
  Transformer transformer(model.config, model.weights, model.layout, select_kernels(), model.pool,
                          {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 200});
  Engine engine(config, transformer, storage, model.layout, {}, clock);
  Request request;
  request.prompt = {1, 2, 3};
  request.n = num_open;
  request.sampling.max_tokens = 100;
  request.sampling.num_logprobs = 100;  // a list of 1024 bytes
  request.on_update = [&](RequestUpdate&& update) {
    if (update.finish == FinishReason::kCancelled && --num_open == 0) cancelled.set_value();
  };
  const Refusing refusing(1024, 1024);
  engine.submit(std::move(request));
  engine.start();
  EXPECT_EQ(cancelled.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_GT(num_refused, 0);
  EXPECT_FALSE(engine.alive());
}

constexpr std::int64_t kBlockBytes = 4096;

// Its threads have none; the test's own, in the engine's place, does.
void expect_to_survive(KvTier& tier) {
  spdlog::set_level(spdlog::level::info);  // there is a log, as in a server
  const auto before = test_chain(1, 20);
  const auto meanwhile = test_chain(2, 20);
  const auto after = test_chain(3, 20);
  put_all(tier, before, kBlockBytes);
  EXPECT_EQ(count_right(tier, before, kBlockBytes), 20);
  {
    const Refusing refusing(0, SIZE_MAX);
    EXPECT_EQ(count_right(tier, before, kBlockBytes), 0);
    const int of_reads = num_refused;
    EXPECT_GT(of_reads, 0);
    for (const TierBlock& block : meanwhile) static_cast<void>(put_block(tier, block, kBlockBytes));
    EXPECT_TRUE(eventually([&] { return num_refused > of_reads; }));
  }
  EXPECT_TRUE(eventually([&] { return tier.stats().is_on && tier.stats().num_pending == 0; }));
  EXPECT_TRUE(eventually([&] { return count_right(tier, before, kBlockBytes) == 20; }));
  EXPECT_TRUE(eventually([&] {
    put_all(tier, after, kBlockBytes);
    return count_right(tier, after, kBlockBytes) == 20;
  }));
}

// One allocation fails, each in turn, and costs no more than what it was for; what waits to be written is
// not lost if it can wait.
void expect_to_survive_any(KvTier& tier, bool may_wait) {
  spdlog::set_level(spdlog::level::off);
  for (int num_before = 0, num_passed = 0; num_passed < 5; ++num_before) {
    ASSERT_LT(num_before, 2000);
    const auto blocks = test_chain(num_before + 2, 20);
    {
      const Refusing refusing(0, SIZE_MAX, 1, num_before);
      for (const TierBlock& block : blocks) wait_until([&] { return put_block(tier, block, kBlockBytes); });
      wait_until([&] { return tier.stats().num_pending == 0; });
      static_cast<void>(count_right(tier, blocks, kBlockBytes));
      num_passed += num_refused == 0 ? 1 : 0;
    }
    wait_until([&] { return tier.stats().is_on; });
    if (!may_wait) put_all(tier, blocks, kBlockBytes);
    EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 20) << num_before;
  }
}

// What was not taken is not counted among what waits.
void expect_to_count_reads(KvTier& tier) {
  const auto blocks = test_chain(1, 20);
  put_all(tier, blocks, kBlockBytes);
  EXPECT_EQ(count_right(tier, blocks, kBlockBytes), 20);
  const double seconds = tier.estimate_read_seconds(0);
  std::vector<std::byte> bytes(20 * kBlockBytes);
  int num_taken = 0;
  for (int i = 0; i < 600; ++i) {
    std::promise<void> answered;
    try {
      const RefusingThread of_test(::pthread_self());
      const Refusing refusing(0, SIZE_MAX, i % 3 == 0 ? 1 : 0);  // it goes on once there is some
      is_spared = false;
      tier.get({.blocks = blocks, .bytes = bytes, .done = [&](TierAnswer) { answered.set_value(); }});
      is_spared = true;
    } catch (const std::bad_alloc&) {
      is_spared = true;
      continue;
    }
    answered.get_future().wait();
    ++num_taken;
  }
  EXPECT_GT(num_taken, 400);
  EXPECT_LT(num_taken, 600);
  EXPECT_LE(tier.estimate_read_seconds(0), seconds);
}

DiskTierConfig disk_config(const TempDir& dir) {
  DiskTierConfig config;
  config.directory = dir.path();
  config.size_bytes = std::int64_t{4} << 20;
  config.first_retry_ms = config.max_retry_ms = 1;
  return config;
}

RemoteTierConfig remote_config(const RedisServer& server) {
  RemoteTierConfig config;
  config.url = server.url();
  config.first_retry_ms = config.max_retry_ms = 1;
  return config;
}

TEST(MemoryFaultsOfTiers, OfADisk) {
  is_spared = true;
  const TempDir dir;
  DiskTier tier(disk_config(dir), test_format(kBlockBytes));
  expect_to_survive(tier);
}

TEST(MemoryFaultsOfTiers, AtAnyPlaceOfADisk) {
  is_spared = true;
  const TempDir dir;
  DiskTier tier(disk_config(dir), test_format(kBlockBytes));
  expect_to_survive_any(tier, false);
}

TEST(MemoryFaultsOfTiers, OfARedisServer) {
  is_spared = true;
  const RedisServer server;
  RemoteTier tier(remote_config(server), test_format(kBlockBytes));
  expect_to_survive(tier);
}

TEST(MemoryFaultsOfTiers, AtAnyPlaceOfARedisServer) {
  is_spared = true;
  const RedisServer server;
  RemoteTier tier(remote_config(server), test_format(kBlockBytes));
  wait_until([&] { return tier.stats().is_on; });
  expect_to_survive_any(tier, true);
}

TEST(MemoryFaultsOfTiers, ReadsThatAreNotTaken) {
  is_spared = true;
  const TempDir dir;
  DiskTier disk(disk_config(dir), test_format(kBlockBytes));
  expect_to_count_reads(disk);
  const RedisServer server;
  RemoteTier remote(remote_config(server), test_format(kBlockBytes));
  wait_until([&] { return remote.stats().is_on; });
  expect_to_count_reads(remote);
}

}  // namespace
}  // namespace larder
