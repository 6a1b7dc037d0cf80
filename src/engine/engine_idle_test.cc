// Prompts that are computed while nobody waits.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "kv/tiers/fake_tier.h"

namespace larder {
namespace {

constexpr int kMaxModelLen = 400;

class IdleEngine {
 public:
  explicit IdleEngine(const EngineConfig& config = of_pool(200), FakeTier* tier = nullptr)
      : storage_(model_.layout, config.num_blocks),
        tiers_(borrow_tiers(tier == nullptr ? std::vector<KvTier*>() : std::vector<KvTier*>{tier}, storage_, model_.layout)),
        transformer_(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                     {.max_batch_tokens = 64, .max_logit_rows = 16, .max_context_len = kMaxModelLen}),
        engine_(config, transformer_, storage_, model_.layout, {}, clock_, tiers_.get()) {}

  static EngineConfig of_pool(int num_blocks) {
    return {.num_blocks = num_blocks, .max_model_len = kMaxModelLen, .max_batch_tokens = 64, .max_sequences = 16};
  }

  // What it hears once it has ended, which is when its answer has `num` tokens.
  struct Asked {
    std::vector<TokenId> tokens;
    RequestUsage usage;
    bool has_ended = false;
    int place = 0;  // among those that have ended
  };
  std::uint64_t ask(std::vector<TokenId> prompt, Asked& asked, int num = 3, std::string salt = "") {
    Request request;
    request.prompt = std::move(prompt);
    request.salt = std::move(salt);
    request.sampling = greedy(num);
    return ask(std::move(request), asked);
  }
  std::uint64_t ask(Request request, Asked& asked) {
    request.on_update = [this, &asked](RequestUpdate&& update) {
      for (const OutputToken& token : update.tokens) asked.tokens.push_back(token.token);
      asked.usage = update.usage;
      asked.has_ended = update.finish != FinishReason::kNone;
      if (asked.has_ended) asked.place = ++num_ended_;
    };
    return engine_.submit(std::move(request));
  }
  int run() {
    int num_steps = 0;
    while (engine_.step()) ++num_steps;
    return num_steps;
  }
  int num_cached(std::vector<TokenId> prompt, const std::string& salt = "") {
    Asked asked;
    ask(std::move(prompt), asked, 1, salt);
    run();
    EXPECT_TRUE(asked.has_ended);
    return asked.usage.num_cached_tokens;
  }

  // A chat whose template leaves the prompt's last tokens out when it prints the answer.
  struct Chat {
    std::vector<TokenId> prompt;
    std::vector<TokenId> answer;

    Anticipated next() const {
      const auto after = [&](std::vector<TokenId> tokens) {
        tokens.insert(tokens.end(), answer.begin(), answer.end());
        return tokens;
      };
      return {.prompt = after({prompt.begin(), prompt.end() - 4}), .answered = after(prompt)};
    }
  };
  // See TickingClock.
  void on_look(std::function<bool()> look) { clock_.on_look = std::move(look); }
  Chat talk(int num_prompt, std::uint32_t seed) {
    Asked asked;
    ask(random_tokens(num_prompt, seed), asked, 40);
    run();
    return {random_tokens(num_prompt, seed), asked.tokens};
  }

 protected:
  TinyModel model_{"tiny_llama"};
  TickingClock clock_;
  KvStorage storage_;
  std::unique_ptr<KvTiers> tiers_;
  Transformer transformer_;
  int num_ended_ = 0;

 public:
  Engine engine_;
};

class EngineIdleTest : public ::testing::Test, protected IdleEngine {};

TEST_F(EngineIdleTest, WhatComesIsThere) {
  const std::vector<TokenId> prompt = random_tokens(200, 1);
  std::vector<TokenId> longer = prompt;
  longer.push_back(7);
  Asked before, after;
  ask(longer, before, 5, "alone");
  run();
  const EngineStats stats = engine_.stats();
  engine_.anticipate({.prompt = prompt});
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 200u);
  ask(longer, after, 5);
  run();
  EXPECT_EQ(after.usage.num_cached_tokens, 200);
  EXPECT_EQ(after.tokens, before.tokens);
  // To whoever looks at numbers there were two requests.
  EXPECT_EQ(engine_.stats().num_prompt_tokens, 2 * stats.num_prompt_tokens);
  EXPECT_EQ(engine_.stats().num_prefix_queries, 2 * stats.num_prefix_queries);
  EXPECT_EQ(engine_.stats().num_prompt_tokens_cached, 200u);
}

TEST_F(EngineIdleTest, UnderItsSaltAlone) {
  engine_.anticipate({.prompt = random_tokens(100, 1), .salt = "a"});
  run();
  EXPECT_EQ(num_cached(random_tokens(100, 1), "b"), 0);
  EXPECT_EQ(num_cached(random_tokens(100, 1), "a"), 99);
}

TEST_F(EngineIdleTest, WhatIsThereIsNotComputedAgain) {
  num_cached(random_tokens(100, 1));
  engine_.anticipate({.prompt = random_tokens(100, 1)});
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 0u);
}

TEST_F(EngineIdleTest, WhoComesWaitsForALayerAtMost) {
  engine_.anticipate({.prompt = random_tokens(200, 1)});
  ASSERT_TRUE(engine_.step());
  Asked asked;
  int num_looks = 0;
  clock_.on_look = [&] {
    if (++num_looks < 3) return false;  // where the step begins, and where its work is planned
    ask(random_tokens(20, 2), asked, 2);
    return true;
  };
  ASSERT_TRUE(engine_.step());
  ASSERT_EQ(num_looks, 3);
  EXPECT_EQ(engine_.stats().num_running, 0);  // nobody's is running
  ASSERT_TRUE(engine_.step());
  EXPECT_EQ(asked.tokens.size(), 1u) << "its prompt came next";
  ASSERT_TRUE(engine_.step());
  EXPECT_TRUE(asked.has_ended);
  // What was broken off goes on.
  run();
  EXPECT_GE(engine_.stats().num_anticipated_tokens, 200u);
  EXPECT_EQ(num_cached(random_tokens(200, 1)), 199);
}

TEST_F(EngineIdleTest, WaitsWhileOthersAreAnswered) {
  Asked asked;
  ask(random_tokens(20, 2), asked, 30);
  ASSERT_TRUE(engine_.step());
  engine_.anticipate({.prompt = random_tokens(100, 1)});
  while (!asked.has_ended) {
    EXPECT_EQ(engine_.stats().num_anticipated_tokens, 0u);
    ASSERT_TRUE(engine_.step());
  }
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 100u);
}

TEST_F(EngineIdleTest, IsDoneWhileAnswersWaitForTheirReaders) {
  Asked asked;
  const std::uint64_t id = ask(random_tokens(20, 2), asked, 30);
  while (asked.tokens.size() < 3) ASSERT_TRUE(engine_.step());
  engine_.pause(id, true);
  engine_.anticipate({.prompt = random_tokens(200, 1)});
  ASSERT_TRUE(engine_.step());
  const EngineStats begun = engine_.stats();
  EXPECT_EQ(begun.num_paused, 1);
  EXPECT_GT(begun.kv.num_cached, 2) << "more than what waits: of the prompt that may come";
  EXPECT_EQ(begun.kv.num_held, 0) << "no load";
  EXPECT_EQ(begun.kv.num_slots_held, 0);
  EXPECT_EQ(begun.kv.num_slots_used, 0);
  EXPECT_EQ(begun.num_anticipated_tokens, 0u) << "a layer at a time";
  // Who is read again waits for it no longer than who comes.
  engine_.pause(id, false);
  ASSERT_TRUE(engine_.step());
  EXPECT_EQ(asked.tokens.size(), 4u);
  EXPECT_GT(engine_.stats().kv.num_held, 0);
  while (!asked.has_ended) {
    ASSERT_TRUE(engine_.step());
    EXPECT_EQ(engine_.stats().num_anticipated_tokens, 0u);
  }
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 200u);
}

TEST_F(EngineIdleTest, TheLatestAreKept) {
  const auto prompt = [](int number) {
    std::vector<TokenId> tokens = random_tokens(32, 1);
    tokens.front() = number;
    return tokens;
  };
  for (int i = 0; i < 20; ++i) engine_.anticipate({.prompt = prompt(i)});
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, IdleLine::kMostRequests * 32);
  EXPECT_EQ(num_cached(prompt(3)), 0);
  EXPECT_EQ(num_cached(prompt(4)), 31);
}

TEST_F(EngineIdleTest, TheEndAndAClearedCacheLeaveNoneOfIt) {
  engine_.anticipate({.prompt = random_tokens(200, 1)});
  engine_.anticipate({.prompt = random_tokens(200, 2)});
  ASSERT_TRUE(engine_.step());
  engine_.reset_prefix_cache();
  EXPECT_FALSE(engine_.step());
  EXPECT_EQ(num_cached(random_tokens(200, 2)), 0);
  engine_.anticipate({.prompt = random_tokens(200, 3)});
  ASSERT_TRUE(engine_.step());
  engine_.stop(true);
  EXPECT_LT(engine_.stats().num_anticipated_tokens, 400u);
  engine_.anticipate({.prompt = random_tokens(200, 4)});
  EXPECT_FALSE(engine_.step());
  EXPECT_EQ(engine_.stats().kv.num_held, 0);
}

TEST_F(EngineIdleTest, WithoutMemoryForItThereIsNone) {
  engine_.anticipate({.prompt = random_tokens(100, 1)});
  int num_looks = 0;
  clock_.on_look = [&] {
    if (++num_looks == 2) throw std::bad_alloc();  // where room is made for it
    return false;
  };
  EXPECT_FALSE(engine_.step());
  EXPECT_GE(num_looks, 2);
  clock_.on_look = nullptr;
  EXPECT_EQ(run(), 0);
  engine_.anticipate({.prompt = random_tokens(100, 1)});
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 100u);
}

TEST_F(EngineIdleTest, WhatNobodyCouldAskForIsRefused) {
  EXPECT_THROW(engine_.anticipate({.prompt = {}}), Error);
  EXPECT_THROW(engine_.anticipate({.prompt = {1 << 30}}), Error);
  EXPECT_THROW(engine_.anticipate({.prompt = random_tokens(kMaxModelLen, 1)}), Error);
}

// Six chats in a pool for four and a half: what each finds of its next turn, in order from the last one.
std::vector<int> found_by_chats(bool anticipates, std::uint64_t* num_evicted = nullptr) {
  IdleEngine idle(IdleEngine::of_pool(60));
  std::vector<IdleEngine::Chat> chats;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) chats.push_back(idle.talk(160, seed));
  const std::uint64_t num_before = idle.engine_.stats().kv.num_evicted;
  for (const IdleEngine::Chat& chat : chats) {
    if (anticipates) idle.engine_.anticipate(chat.next());
  }
  idle.run();
  if (num_evicted != nullptr) *num_evicted = idle.engine_.stats().kv.num_evicted - num_before;
  std::vector<int> found;
  for (auto chat = chats.rbegin(); chat != chats.rend(); ++chat) found.push_back(idle.num_cached(chat->next().prompt));
  return found;
}

TEST(EngineIdlePool, NothingElseGoesForIt) {
  std::uint64_t num_evicted = 0;
  const std::vector<int> with = found_by_chats(true, &num_evicted), without = found_by_chats(false);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_GE(with[i], without[i]) << i;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_GE(with[i], without[i] + 20) << i;
  EXPECT_EQ(num_evicted, 0u) << "only the answers that were printed anew make room";
}

TEST(EngineIdlePool, InAFullOneAnAnswerMakesRoomForItself) {
  IdleEngine idle(IdleEngine::of_pool(30));
  idle.num_cached(random_tokens(270, 7));
  const IdleEngine::Chat chat = idle.talk(160, 8);
  ASSERT_EQ(idle.engine_.stats().kv.num_cached, 30);
  const std::uint64_t num_evicted = idle.engine_.stats().kv.num_evicted;
  idle.engine_.anticipate(chat.next());
  idle.run();
  // Three blocks lie wholly behind what the prompt has of it, and twelve tokens of another one were there.
  EXPECT_EQ(idle.engine_.stats().kv.num_evicted, num_evicted) << "nothing else";
  EXPECT_EQ(idle.engine_.stats().num_anticipated_tokens, 36u);
  EXPECT_EQ(idle.num_cached(chat.next().prompt), 160 + 32);
  EXPECT_EQ(idle.num_cached(random_tokens(270, 7)), 269);
}

TEST(EngineIdlePool, WhatIsPinnedStaysAndWhatHasGoneIsNotComputed) {
  IdleEngine idle(IdleEngine::of_pool(30));
  const IdleEngine::Chat chat = idle.talk(250, 1);
  Request kept;
  kept.prompt = random_tokens(200, 2);
  kept.sampling = greedy(1);
  kept.pins = {{.num_tokens = 200, .ttl_s = 1'000'000}};
  IdleEngine::Asked asked;
  idle.ask(std::move(kept), asked);
  idle.run();
  idle.num_cached(random_tokens(250, 3));
  ASSERT_EQ(idle.engine_.stats().kv.num_pinned, 13);
  idle.engine_.anticipate(chat.next());
  EXPECT_EQ(idle.run(), 0);
  EXPECT_EQ(idle.engine_.stats().kv.num_pinned, 13);
  EXPECT_EQ(idle.num_cached(random_tokens(250, 3)), 249);
}

TEST(EngineIdleTier, NobodyRunsOrWaitsWhileItIsLoaded) {
  FakeStore store;
  {
    FakeTier tier(store);
    IdleEngine before(IdleEngine::of_pool(200), &tier);
    before.num_cached(random_tokens(200, 1));
    before.engine_.stop(true);
  }
  FakeTier tier(store);
  IdleEngine idle(IdleEngine::of_pool(200), &tier);
  idle.engine_.anticipate({.prompt = random_tokens(200, 1)});
  EXPECT_FALSE(idle.engine_.step());
  ASSERT_GT(tier.num_gets, 0);
  const EngineStats stats = idle.engine_.stats();
  EXPECT_GT(stats.kv.num_cached, 0);
  EXPECT_EQ(stats.kv.num_held, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_loading, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_waiting_tokens, 0);
  tier.answers_at_once = true;
  tier.answer();
  idle.run();
  EXPECT_LE(idle.engine_.stats().num_anticipated_tokens, 2u * kBlockSize);
  EXPECT_EQ(idle.num_cached(random_tokens(200, 1)), 199);
}

// Wherever it breaks, blocks half taken or half given back: who comes then hears of it.
TEST(EngineIdleFailure, EndsTheEngineAndNothingElse) {
  int num_places = 0;
  {
    IdleEngine idle;
    idle.engine_.anticipate({.prompt = random_tokens(100, 1)});
    idle.on_look([&] { return ++num_places < 0; });
    idle.run();
    idle.on_look(nullptr);  // its end looks, too
  }
  ASSERT_GT(num_places, 20);
  for (int place = 1; place <= num_places; ++place) {
    IdleEngine idle;
    IdleEngine::Asked late;
    int num_looks = 0;
    idle.engine_.anticipate({.prompt = random_tokens(100, 1)});
    idle.on_look([&] {
      if (++num_looks != place) return false;
      idle.ask(random_tokens(20, 2), late);
      throw std::runtime_error("broken");
    });
    idle.engine_.start();
    while (idle.engine_.alive()) std::this_thread::yield();
    idle.engine_.stop(false);
    EXPECT_TRUE(late.has_ended) << place;
    EXPECT_TRUE(late.tokens.empty()) << place;
  }
}

// Else answers would seem to be short, and who asks for two of them would come too early.
TEST(EngineIdleTurns, ItIsNoAnswer) {
  EngineConfig config = IdleEngine::of_pool(200);
  config.max_sequences = 2;
  IdleEngine idle(config);
  for (std::uint32_t seed = 1; seed <= 10; ++seed) idle.engine_.anticipate({.prompt = random_tokens(32, seed)});
  idle.run();
  ASSERT_EQ(idle.engine_.stats().num_anticipated_tokens, 320u);
  std::array<IdleEngine::Asked, 5> asked;
  const auto ask = [&](std::size_t index, int num_prompt, int num_choices, std::uint64_t tenant) {
    Request request;
    request.prompt = random_tokens(num_prompt, 100 + static_cast<std::uint32_t>(index));
    request.sampling = greedy(3);
    request.n = num_choices;
    request.tenant = tenant;
    idle.ask(std::move(request), asked.at(index));
  };
  ask(0, 10, 2, 3);
  ASSERT_TRUE(idle.engine_.step());
  ask(1, 100, 1, 1);
  ask(2, 20, 1, 1);  // behind 100 tokens and an answer
  ask(3, 10, 2, 2);
  ask(4, 20, 1, 2);  // behind 10 tokens and two answers, which are of 128 tokens for all that is known
  idle.run();
  EXPECT_LT(asked[2].place, asked[4].place);
}

TEST(EngineIdleTurns, WhatIsOfHighPriorityStaysLonger) {
  for (const int priority : {-1, 0}) {
    EngineConfig config = IdleEngine::of_pool(60);
    config.eviction = EvictionKind::kLru;
    IdleEngine idle(config);
    idle.engine_.anticipate({.prompt = random_tokens(100, 1), .priority = priority});
    idle.run();
    for (std::uint32_t seed = 2; seed <= 7; ++seed) idle.talk(160, seed);
    EXPECT_EQ(idle.num_cached(random_tokens(100, 1)) == 99, priority < 0);
  }
}

}  // namespace
}  // namespace larder
