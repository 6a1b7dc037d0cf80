// Prompts that are computed while nobody waits.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_test_support.h"

namespace larder {
namespace {

constexpr int kMaxModelLen = 400;

class EngineIdleTest : public ::testing::Test {
 protected:
  explicit EngineIdleTest(int num_blocks = 200)
      : storage_(model_.layout, num_blocks),
        transformer_(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                     {.max_batch_tokens = 64, .max_logit_rows = 16, .max_context_len = kMaxModelLen}),
        engine_({.num_blocks = num_blocks, .max_model_len = kMaxModelLen, .max_batch_tokens = 64, .max_sequences = 16},
                transformer_, storage_, model_.layout, {}, clock_) {}

  // What it hears once it has ended, which is when its answer has `num` tokens.
  struct Asked {
    std::vector<TokenId> tokens;
    RequestUsage usage;
    bool has_ended = false;
  };
  void ask(std::vector<TokenId> prompt, Asked& asked, int num = 3, std::string salt = "") {
    Request request;
    request.prompt = std::move(prompt);
    request.salt = std::move(salt);
    request.sampling.temperature = 0;
    request.sampling.max_tokens = num;
    request.on_update = [&asked](RequestUpdate&& update) {
      for (const OutputToken& token : update.tokens) asked.tokens.push_back(token.token);
      asked.usage = update.usage;
      asked.has_ended = update.finish != FinishReason::kNone;
    };
    engine_.submit(std::move(request));
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

  TinyModel model_{"tiny_llama"};
  TickingClock clock_;
  KvStorage storage_;
  Transformer transformer_;
  Engine engine_;
};

TEST_F(EngineIdleTest, WhatComesIsThere) {
  const std::vector<TokenId> prompt = random_tokens(200, 1);
  std::vector<TokenId> longer = prompt;
  longer.push_back(7);
  Asked before, after;
  ask(longer, before, 5, "alone");
  run();
  const EngineStats stats = engine_.stats();
  engine_.anticipate(prompt, "");
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
  engine_.anticipate(random_tokens(100, 1), "a");
  run();
  EXPECT_EQ(num_cached(random_tokens(100, 1), "b"), 0);
  EXPECT_EQ(num_cached(random_tokens(100, 1), "a"), 99);
}

TEST_F(EngineIdleTest, WhatIsThereIsNotComputedAgain) {
  num_cached(random_tokens(100, 1));
  engine_.anticipate(random_tokens(100, 1), "");
  EXPECT_EQ(run(), 0);
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 0u);
}

TEST_F(EngineIdleTest, WhoComesWaitsForALayerAtMost) {
  engine_.anticipate(random_tokens(200, 1), "");
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
  engine_.anticipate(random_tokens(100, 1), "");
  while (!asked.has_ended) {
    EXPECT_EQ(engine_.stats().num_anticipated_tokens, 0u);
    ASSERT_TRUE(engine_.step());
  }
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, 100u);
}

TEST_F(EngineIdleTest, TheLatestAreKept) {
  const auto prompt = [](int number) {
    std::vector<TokenId> tokens = random_tokens(32, 1);
    tokens.front() = number;
    return tokens;
  };
  for (int i = 0; i < 20; ++i) engine_.anticipate(prompt(i), "");
  run();
  EXPECT_EQ(engine_.stats().num_anticipated_tokens, IdleLine::kMostRequests * 32);
  EXPECT_EQ(num_cached(prompt(3)), 0);
  EXPECT_EQ(num_cached(prompt(4)), 31);
}

TEST_F(EngineIdleTest, TheEndAndAClearedCacheLeaveNoneOfIt) {
  engine_.anticipate(random_tokens(200, 1), "");
  engine_.anticipate(random_tokens(200, 2), "");
  ASSERT_TRUE(engine_.step());
  engine_.reset_prefix_cache();
  EXPECT_FALSE(engine_.step());
  EXPECT_EQ(num_cached(random_tokens(200, 2)), 0);
  engine_.anticipate(random_tokens(200, 3), "");
  ASSERT_TRUE(engine_.step());
  engine_.stop(true);
  EXPECT_LT(engine_.stats().num_anticipated_tokens, 400u);
  engine_.anticipate(random_tokens(200, 4), "");
  EXPECT_FALSE(engine_.step());
  EXPECT_EQ(engine_.stats().kv.num_held, 0);
}

TEST_F(EngineIdleTest, WhatNobodyCouldAskForIsRefused) {
  EXPECT_THROW(engine_.anticipate({}, ""), Error);
  EXPECT_THROW(engine_.anticipate({1 << 30}, ""), Error);
  EXPECT_THROW(engine_.anticipate(random_tokens(kMaxModelLen, 1), ""), Error);
}

}  // namespace
}  // namespace larder
