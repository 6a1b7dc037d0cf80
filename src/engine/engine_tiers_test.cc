// The engine's thread, a disk tier's threads and clients' threads together, across restarts.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "kernels/cuda/test_device.h"
#include "kv/tiers/disk_tier.h"
#include "kv/tiers/fake_tier.h"
#include "kv/tiers/host_tier.h"
#include "kv/tiers/tier_test_support.h"

namespace larder {
namespace {

using namespace std::chrono_literals;

// A model with an engine over a disk; short of blocks, so that the disk is used all the time.
class Process {
 public:
  Process(TinyModel& model, const TempDir* dir) : Process(model, open_disk(model, dir)) {}
  Process(TinyModel& model, std::unique_ptr<KvTier> tier)
      : storage_(model.layout, num_blocks(model)),
        tiers_(make_tiers(model, std::move(tier))),
        transformer_(model.config, model.weights, model.layout, select_kernels(), model.pool,
                     {.max_batch_tokens = 64, .max_logit_rows = 16, .max_context_len = 512}),
        engine_(config(model), transformer_, storage_, model.layout, {}, clock_, tiers_.get()) {
    engine_.start();
  }

  std::future<std::vector<TokenId>> ask(const std::vector<TokenId>& prompt,
                                        std::uint64_t* id = nullptr) {
    struct Heard {
      std::vector<TokenId> tokens;
      std::promise<std::vector<TokenId>> done;
    };
    auto heard = std::make_shared<Heard>();
    Request request;
    request.prompt = prompt;
    request.sampling.max_tokens = 6;
    request.sampling.ignore_eos = true;
    request.sampling.seed = 3;
    request.on_update = [heard](RequestUpdate&& update) {
      for (const OutputToken& token : update.tokens) heard->tokens.push_back(token.token);
      if (update.finish != FinishReason::kNone) heard->done.set_value(heard->tokens);
    };
    std::future<std::vector<TokenId>> future = heard->done.get_future();
    const std::uint64_t given = engine_.submit(std::move(request));
    if (id != nullptr) *id = given;
    return future;
  }

  Engine& engine() { return engine_; }

 private:
  static int num_blocks(const TinyModel& model) {
    return static_cast<int>(model.layout.num_blocks_for(300, 64)) + 20;
  }
  static EngineConfig config(const TinyModel& model) {
    EngineConfig config;
    config.num_blocks = num_blocks(model);
    config.max_model_len = 300;
    config.max_batch_tokens = 64;
    config.max_prefill_tokens = 32;
    config.max_step_slowdown = 0;  // no step depends on how long others took
    return config;
  }
  static std::unique_ptr<KvTier> open_disk(const TinyModel& model, const TempDir* dir) {
    if (dir == nullptr) return nullptr;
    DiskTierConfig config;
    config.directory = dir->path();
    config.size_bytes = std::int64_t{64} << 20;
    return std::make_unique<DiskTier>(config, test_format(model.layout.block_size_bytes()));
  }
  std::unique_ptr<KvTiers> make_tiers(const TinyModel& model, std::unique_ptr<KvTier> tier) {
    if (tier == nullptr) return nullptr;
    std::vector<std::unique_ptr<KvTier>> tiers;
    tiers.push_back(std::move(tier));
    return std::make_unique<KvTiers>(std::move(tiers), storage_, model.layout.block_size_bytes(), 0);
  }

  SteadyClock clock_;
  KvStorage storage_;
  std::unique_ptr<KvTiers> tiers_;
  Transformer transformer_;
  Engine engine_;
};

std::vector<std::vector<TokenId>> prompts() {
  std::vector<std::vector<TokenId>> result;
  for (std::uint32_t i = 0; i < 12; ++i)
    result.push_back(joined(random_tokens(48 * static_cast<int>(i % 4), 1), random_tokens(90, i)));
  return result;
}

TEST(EngineTiers, ManyClientsHearTheSameAcrossRestarts) {
  for (const char* name : {"tiny_llama", "tiny_gemma3", "tiny_deepseek2"}) {
    TinyModel model(name, 2);
    std::vector<std::vector<TokenId>> expected;
    {
      Process plain(model, nullptr);
      for (const auto& prompt : prompts()) expected.push_back(plain.ask(prompt).get());
    }
    const TempDir dir;
    for (int restart = 0; restart < 3; ++restart) {
      Process process(model, &dir);
      std::vector<std::thread> clients;
      for (int client = 0; client < 3; ++client) {
        clients.emplace_back([&, client] {
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const std::size_t which = (i * 5 + static_cast<std::size_t>(client) * 3) % 12;
            auto answer = process.ask(prompts()[which]);
            ASSERT_EQ(answer.wait_for(60s), std::future_status::ready);
            EXPECT_EQ(answer.get(), expected[which]);
          }
        });
      }
      for (int i = 0; i < 40; ++i) {
        process.engine().reset_prefix_cache();
        // One that goes away again: in line, in a load or while it computes.
        std::uint64_t id = 0;
        auto own = process.ask(prompts()[static_cast<std::size_t>(i) % 12], &id);
        std::this_thread::sleep_for(std::chrono::microseconds(i * 50));
        process.engine().cancel(id);
        ASSERT_EQ(own.wait_for(60s), std::future_status::ready);
      }
      for (std::thread& client : clients) client.join();
      const EngineStats stats = process.engine().stats();
      if (restart > 0) {
        EXPECT_GT(stats.num_loaded_by_tier.at(0), 0u);
      }
      process.engine().stop(true);
      EXPECT_EQ(process.engine().stats().kv.num_held, 0);
      EXPECT_EQ(process.engine().stats().kv.num_unsaved, 0);
    }
  }
}

// Nor for one that is stopped already.
TEST(EngineTiers, AnEndWaitsForNoTierThatIsOff) {
  TinyModel model("tiny_llama", 2);
  FakeStore store;
  auto owned = std::make_unique<FakeTier>(store);
  FakeTier& tier = *owned;
  tier.refuses = true;
  tier.is_out = true;
  Process process(model, std::move(owned));
  process.ask(prompts()[0]).get();
  const auto begin = std::chrono::steady_clock::now();
  process.engine().stop(false);
  EXPECT_GT(process.engine().stats().kv.num_unsaved, 0);
  tier.is_out = false;
  tier.num_offers = 0;
  process.engine().stop(false);
  EXPECT_EQ(tier.num_offers, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
}

TEST(EngineTiers, AFailureCostsNoCompleteBlock) {
  TinyModel model("tiny_llama", 2);
  FakeStore store;
  auto owned = std::make_unique<FakeTier>(store);
  FakeTier& tier = *owned;
  tier.refuses = true;
  Process process(model, std::move(owned));
  process.ask(prompts()[0]).get();
  Request bad;
  bad.prompt = random_tokens(4, 99);
  bad.on_update = [&](RequestUpdate&&) {
    tier.refuses = false;
    throw std::bad_alloc();
  };
  process.engine().submit(std::move(bad));
  process.engine().stop(false);
  EXPECT_EQ(tier.num_puts, 90 / kBlockSize);
}

SamplingParams one_token() {
  SamplingParams params;
  params.max_tokens = 1;
  params.num_logprobs = 0;  // a device gives its logits
  return params;
}

// From a disk into a GPU's memory: exact as on the CPU.
TEST(SchedulerTiers, ADeviceHasAfterARestartWhatItHadBefore) {
  const auto device = open_test_device();
  TinyModel model("tiny_gemma3", 1, {}, device.get());
  RigConfig config{.num_blocks = 100, .kernels = &device->kernels(), .device = device.get()};
  Rig cold(model, config);
  cold.add(random_tokens(60, 1), one_token());
  cold.run();
  const TempDir dir;
  for (int restart = 0; restart < 2; ++restart) {
    DiskTierConfig of_disk;
    of_disk.directory = dir.path();
    of_disk.size_bytes = std::int64_t{64} << 20;
    DiskTier disk(of_disk, test_format(model.layout.block_size_bytes()));
    config.tiers = {&disk};
    Rig rig(model, config);
    rig.add(random_tokens(60, 1), one_token());
    rig.run();
    rig.scheduler.poll_tiers();
    EXPECT_EQ((rig.heard[{1, 0}]).usage.num_loaded_tokens, restart * 48);
    EXPECT_TRUE(same_bits(rig.heard[{1, 0}], cold.heard[{1, 0}])) << restart;
  }
}

TEST(SchedulerTiers, ADeviceGetsBackWhatTheHostKept) {
  const auto device = open_test_device();
  TinyModel model("tiny_llama", 1, {}, device.get());
  HostTier tier(64 * model.layout.block_size_bytes(), model.layout.block_size_bytes(), device.get());
  RigConfig config{.num_blocks = 50, .kernels = &device->kernels(), .device = device.get()};
  Rig cold(model, config);
  config.tiers = {&tier};
  Rig first(model, config), second(model, config);
  for (Rig* rig : {&cold, &first, &second}) {
    rig->add(random_tokens(60, 1), one_token());
    rig->run();
    rig->scheduler.poll_tiers();
    EXPECT_EQ((rig->heard[{1, 0}]).usage.num_loaded_tokens, rig == &second ? 48 : 0);
    EXPECT_TRUE(same_bits(rig->heard[{1, 0}], cold.heard[{1, 0}]));
  }
}

// Computes the prompt in a cache of its own, beside the tier.
void fill(FakeTier& tier, TinyModel& model, std::vector<TokenId> prompt) {
  tier.answers_at_once = true;
  Rig rig(model, {.tiers = {&tier}});
  rig.add(std::move(prompt), one_token());
  rig.run();
}

// A tier that lends under a lock of its own, and not before somebody wants to know its statistics.
class LendingTier final : public KvTier {
 public:
  const char* name() const override { return "lending"; }
  bool put(const TierBlock& block, std::span<const std::byte> bytes) override {
    blocks_[FakeTier::key(block)].assign(bytes.begin(), bytes.end());
    return true;
  }
  TierPresence presence(const TierBlock& block) const override {
    return blocks_.contains(FakeTier::key(block)) ? TierPresence::kPresent : TierPresence::kAbsent;
  }
  void get(TierRead) override { FAIL() << "it lends"; }
  bool lends() const override { return true; }
  int lend(std::span<const TierBlock> blocks, const Take& take) override {
    const std::lock_guard lock(mutex_);
    is_lending = true;
    for (int i = 0; i < 10'000 && !is_asked; ++i) std::this_thread::sleep_for(1ms);
    std::vector<const std::byte*> bytes;
    for (const TierBlock& block : blocks) bytes.push_back(blocks_.at(FakeTier::key(block)).data());
    take(bytes);
    return static_cast<int>(bytes.size());
  }
  double estimate_read_seconds(std::int64_t) const override { return 0; }
  TierStats stats() const override {
    if (is_lending) is_asked = true;
    const std::lock_guard lock(mutex_);
    return {};
  }

  mutable std::atomic<bool> is_lending = false, is_asked = false;

 private:
  std::map<std::pair<Digest, int>, std::vector<std::byte>> blocks_;
  mutable std::mutex mutex_;
};

TEST(EngineTiers, StatisticsKeepNoTierFromWakingTheEngine) {
  TinyModel model("tiny_llama");
  auto owned = std::make_unique<LendingTier>();
  LendingTier& tier = *owned;
  {
    Rig rig(model, {.tiers = {&tier}});
    rig.add(random_tokens(90, 1), one_token());
    rig.run();
    rig.scheduler.poll_tiers();
  }
  Process process(model, std::move(owned));
  auto answer = process.ask(random_tokens(90, 1));
  for (int i = 0; i < 10'000 && !tier.is_lending; ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(tier.is_lending);
  auto stats = std::async(std::launch::async, [&] { return process.engine().stats(); });
  CHECK(stats.wait_for(60s) == std::future_status::ready);  // nobody could end the threads
  CHECK(answer.wait_for(60s) == std::future_status::ready);
}

// What a tier brings is seen between the layers of others.
TEST(EngineTiers, ALoadsEndIsSeenBetweenALongPromptsLayers) {
  TinyModel model("tiny_llama");
  FakeStore store;
  auto owned = std::make_unique<FakeTier>(store);
  FakeTier& tier = *owned;
  fill(tier, model, random_tokens(200, 1));
  tier.answers_at_once = false;
  std::vector<std::unique_ptr<KvTier>> tier_list;
  tier_list.push_back(std::move(owned));
  EngineConfig config;
  config.max_model_len = 400;
  config.max_batch_tokens = 128;
  config.num_blocks = static_cast<int>(model.layout.num_blocks_for(400, 128)) * 3;
  KvStorage storage(model.layout, config.num_blocks);
  KvTiers tiers(std::move(tier_list), storage, model.layout.block_size_bytes(), 0);
  Transformer transformer(model.config, model.weights, model.layout, select_kernels(), model.pool,
                          {.max_batch_tokens = 128, .max_context_len = 400});
  const TickingClock clock;
  Engine engine(config, transformer, storage, model.layout, {}, clock, &tiers);
  int num_heard = 0;
  const auto submit = [&](int num_tokens, std::uint32_t seed) {
    Request request;
    request.prompt = random_tokens(num_tokens, seed);
    request.sampling.max_tokens = 1;
    request.on_update = [&](RequestUpdate&&) { ++num_heard; };
    engine.submit(std::move(request));
  };
  const auto num_in_step = [&] {
    const double before = engine.stats().step_tokens.sum();
    engine.step();
    return engine.stats().step_tokens.sum() - before;
  };
  submit(100, 2);  // tells what a token costs
  while (num_heard == 0) engine.step();
  submit(200, 1);
  submit(380, 3);
  clock.on_look = [&, before = tier.num_gets] {
    tier.answer();
    return tier.num_gets > before;
  };
  EXPECT_EQ(num_in_step(), 0) << "a chunk's tokens count at its end";
  EXPECT_EQ(num_in_step(), 200 - 192);
  EXPECT_EQ(num_heard, 2);
  while (engine.step()) {
  }
  EXPECT_EQ(num_heard, 3);
}

TEST(SchedulerTiers, WhatATierMightHaveHadIsNoFailureOfIt) {
  TinyModel model("tiny_llama");
  FakeStore store;
  FakeTier tier(store);
  tier.is_vague = tier.answers_at_once = true;
  for (const double read_seconds : {0.0, 1e12}) {
    tier.read_seconds = read_seconds;
    Rig rig(model, {.tiers = {&tier}});
    rig.add(random_tokens(100, 1), one_token());
    rig.run();
    const std::vector<MissedSpan>& missed = rig.heard[{1, 0}].cache.missed;
    ASSERT_EQ(missed.size(), 1u);
    EXPECT_EQ(missed[0].cause, MissCause::kTooShort);
    EXPECT_EQ(missed[0].begin, 99);
    store.blocks.clear();
  }
}

// The blocks may have gone for others' room while the load waited.
TEST(SchedulerTiers, WhatATierSaidItHadAndDidNotBringIsAFailureIfThereWasAFault) {
  TinyModel model("tiny_llama");
  for (const bool lies : {false, true}) {
    FakeStore store;
    FakeTier tier(store);
    tier.answers_at_once = true;
    tier.lies = lies;
    for (int run = 0; run < 2; ++run) {
      Rig rig(model, {.tiers = {&tier}});
      rig.add(random_tokens(100, 1), one_token());
      rig.run();
      if (run == 0) {
        for (const auto& [key, bytes] : store.blocks) tier.lost.insert(key);
        continue;
      }
      const std::vector<MissedSpan>& missed = rig.heard[{1, 0}].cache.missed;
      ASSERT_EQ(missed.size(), 2u);
      EXPECT_EQ(missed[0].cause, lies ? MissCause::kTierFailed : MissCause::kEvicted);
      EXPECT_EQ(missed[0].end, 96);
    }
  }
}

// It does not know what it has, but this cache does: what it took, and could not bring for a fault of its own.
TEST(SchedulerTiers, WhatATierTookAndCannotBringIsAFailureIfThereWasAFault) {
  TinyModel model("tiny_llama");
  for (const bool lies : {false, true}) {
    FakeStore store;
    FakeTier tier(store);
    tier.is_vague = tier.answers_at_once = true;
    tier.lies = lies;
    Rig rig(model, {.tiers = {&tier}});
    rig.add(random_tokens(100, 1), one_token());
    rig.run();
    for (const auto& [key, bytes] : store.blocks) tier.lost.insert(key);
    ASSERT_FALSE(tier.lost.empty());
    rig.cache.clear();
    const std::uint64_t id = rig.add(random_tokens(100, 1), one_token());
    rig.run();
    const std::vector<MissedSpan>& missed = rig.heard[std::pair(id, 0)].cache.missed;
    ASSERT_EQ(missed.size(), 2u);
    EXPECT_EQ(missed[0].cause, lies ? MissCause::kTierFailed : MissCause::kEvicted);
    EXPECT_EQ(missed[0].end, 96);
  }
}

// Its place went to a sequence before it: what the tier brought later is none the less cached.
TEST(SchedulerTiers, ALoadThatWasCutShortIsToldByTheNext) {
  TinyModel model("tiny_llama");
  FakeStore store;
  FakeTier tier(store);
  fill(tier, model, random_tokens(100, 2));
  tier.answers_at_once = false;
  Rig rig(model, {.num_blocks = 16, .tiers = {&tier}});
  SamplingParams many;
  many.max_tokens = 100;
  rig.add(random_tokens(100, 1), many);
  rig.step();
  const std::uint64_t id = rig.add(random_tokens(100, 2), one_token());
  while (rig.scheduler.stats().num_preemptions == 0) ASSERT_TRUE(rig.step());
  while (rig.step()) tier.answer();
  const Heard& heard = rig.heard[std::pair(id, 0)];
  EXPECT_EQ(heard.usage.num_cached_tokens, 96);
  EXPECT_EQ(heard.usage.num_loaded_tokens, 96);
  for (const MissedSpan& missed : heard.cache.missed)
    EXPECT_NE(missed.cause, MissCause::kTierFailed) << missed.begin;
}

TEST(SchedulerTiers, WhatATierHasOfALongPromptComesWhileABookIsComputed) {
  TinyModel model("tiny_llama");
  FakeStore store;
  FakeTier tier(store);
  fill(tier, model, random_tokens(200, 1));
  Rig rig(model, {.max_batch_tokens = 8, .tiers = {&tier}});
  const std::uint64_t book = rig.add(random_tokens(230, 2), one_token());
  rig.step();
  const std::uint64_t stored = rig.add(random_tokens(200, 1), one_token());
  const std::uint64_t unknown = rig.add(random_tokens(200, 3), one_token());
  std::vector<TokenId> part = random_tokens(200, 3);
  part.resize(20);
  const std::uint64_t short_one = rig.add(joined(part, random_tokens(4, 4)), one_token());
  rig.run();
  const auto first_step = [&](std::uint64_t id) { return rig.heard.at({id, 0}).steps.front(); };
  EXPECT_EQ((rig.heard[{stored, 0}]).usage.num_loaded_tokens, 192);
  EXPECT_LT(first_step(stored), 12);
  EXPECT_LT(first_step(book), first_step(unknown));
  EXPECT_LT(first_step(short_one), first_step(book)) << "though it begins as a long one";
}

TEST(SchedulerTiers, OnlyWhatIsLookedForInTiersIsAQueryToThem) {
  TinyModel model("tiny_llama");
  FakeStore store;
  FakeTier tier(store);
  fill(tier, model, random_tokens(100, 1));
  Rig rig(model, {.tiers = {&tier}});
  auto num_asked = [&, before = std::uint64_t{0}](std::vector<TokenId> prompt, SamplingParams params) mutable {
    rig.add(std::move(prompt), std::move(params));
    rig.run();
    const std::uint64_t now = rig.scheduler.stats().num_external_queries;
    return now - std::exchange(before, now);
  };
  SamplingParams all_rows = one_token();
  all_rows.num_prompt_logprobs = 0;
  EXPECT_EQ(num_asked(random_tokens(100, 1), all_rows), 0u) << "the request wants them computed";
  EXPECT_EQ(num_asked(random_tokens(60, 2), one_token()), 60u);
  EXPECT_EQ(num_asked(random_tokens(60, 2), one_token()), 0u) << "the pool has all that a tier could";
  EXPECT_EQ(num_asked(joined(random_tokens(60, 2), random_tokens(40, 3)), one_token()), 40u);
  EXPECT_EQ(num_asked(random_tokens(16, 4), one_token()), 0u) << "no block but that with the last token";
}

// Blocks came, but their windows did not: all that is used of the prompt the pool had before.
TEST(SchedulerTiers, WhatWasLoadedForNothingIsNotCounted) {
  TinyModel model("tiny_gemma3");
  FakeStore store;
  FakeTier tier(store);
  fill(tier, model, random_tokens(200, 1));
  Rig rig(model, {.tiers = {&tier}});
  std::vector<TokenId> part = random_tokens(200, 1);
  part.resize(57);
  rig.add(part, one_token());
  rig.run();
  const int num_before = tier.num_gets;
  for (const auto& [key, bytes] : store.blocks) {
    if (key.second > 0) tier.lost.insert(key);
  }
  rig.add(random_tokens(200, 1), one_token());
  rig.run();
  EXPECT_GT(tier.num_gets, num_before);
  EXPECT_EQ((rig.heard[{2, 0}]).usage.num_cached_tokens, 57);
  EXPECT_EQ((rig.heard[{2, 0}]).usage.num_loaded_tokens, 0);
  EXPECT_EQ(rig.scheduler.stats().num_loaded_by_tier[0], 48u) << "of the first request";
}

// Fault 31: in every state, a load among them.
TEST(SchedulerTiers, WhoLeavesDuringALoadHoldsNothing) {
  TinyModel model("tiny_llama");
  FakeStore store;
  FakeTier tier(store);
  fill(tier, model, random_tokens(100, 1));
  tier.answers_at_once = false;
  Rig rig(model, {.tiers = {&tier}});
  const std::uint64_t id = rig.add(random_tokens(100, 1), one_token());
  rig.step();
  ASSERT_EQ(rig.scheduler.num_loading(), 1);
  EXPECT_GT(rig.cache.stats().num_held, 0);
  rig.scheduler.cancel(id);
  EXPECT_EQ((rig.heard[{id, 0}]).finish, FinishReason::kCancelled);
  for (const bool has_answered : {false, true}) {
    if (has_answered) tier.answer();
    rig.scheduler.poll_tiers();
    EXPECT_EQ(rig.cache.stats().num_held, 0) << has_answered;
    EXPECT_EQ(rig.scheduler.num_loading(), 0) << has_answered;
    EXPECT_FALSE(rig.scheduler.has_work()) << has_answered;
  }
  tier.answers_at_once = true;
  const std::uint64_t again = rig.add(random_tokens(100, 1), one_token());
  rig.run();
  EXPECT_EQ((rig.heard[{again, 0}]).usage.num_loaded_tokens, 96);
}

// What was computed is prompts less what was cached: it may not fall while a load ends.
TEST(SchedulerTiers, NoCounterFallsWhileATierLoads) {
  TinyModel model("tiny_llama");
  FakeStore store;
  FakeTier tier(store);
  fill(tier, model, random_tokens(200, 1));
  Rig rig(model, {.tiers = {&tier}});
  std::vector<TokenId> part = random_tokens(200, 1);
  part.resize(57);
  tier.answers_at_once = true;
  rig.add(part, one_token());
  rig.run();
  tier.answers_at_once = false;
  rig.add(random_tokens(200, 1), one_token());
  const auto sums = [&] {
    const SchedulerStats& stats = rig.scheduler.stats();
    std::uint64_t num_loaded = 0;
    for (const std::uint64_t loaded : stats.num_loaded_by_tier) num_loaded += loaded;
    return std::pair(stats.num_prompt_tokens - stats.num_prompt_tokens_cached,
                     stats.num_prompt_tokens_cached - num_loaded);
  };
  std::pair before = sums();
  int most_loading = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool goes_on = rig.step();
    most_loading = std::max(most_loading, rig.scheduler.num_loading());
    const std::pair now = sums();
    EXPECT_GE(now.first, before.first);
    EXPECT_GE(now.second, before.second);
    before = now;
    if (!goes_on) break;
    tier.answer();
  }
  const RequestUsage& usage = rig.heard[{2, 0}].usage;
  EXPECT_EQ(usage.num_cached_tokens, 192);
  EXPECT_EQ(rig.scheduler.stats().num_prompt_tokens, 257u);
  EXPECT_GT(usage.num_loaded_tokens, 100);
  EXPECT_EQ(most_loading, 1);
  EXPECT_EQ(rig.scheduler.num_loading(), 0);
}

}  // namespace
}  // namespace larder
