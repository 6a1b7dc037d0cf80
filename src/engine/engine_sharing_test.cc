// Prompts computed for another server: the last word waits until that one can load them.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_test_support.h"

namespace larder {
namespace {

// Takes blocks when it may, and has written them when it is told to.
class SharedTier final : public KvTier {
 public:
  const char* name() const override { return "shared"; }
  bool is_shared() const override { return true; }
  bool put(const TierBlock&, std::span<const std::byte>) override {
    if (!takes) return false;
    ++num_pending;
    return true;
  }
  TierPresence presence(const TierBlock&) const override { return TierPresence::kAbsent; }
  void get(TierRead read) override { read.done({}); }
  bool has_lost(const TierBlock&) const override { return has_lost_all; }
  double estimate_read_seconds(std::int64_t) const override { return kOffSeconds; }
  TierStats stats() const override {
    return {.num_settled = num_settled, .num_pending = num_pending, .is_on = is_on};
  }
  void write(std::int64_t num) {
    num_settled += static_cast<std::uint64_t>(num);
    num_pending -= num;
  }

  bool takes = true;
  bool is_on = true;
  bool has_lost_all = false;
  std::uint64_t num_settled = 0;
  std::int64_t num_pending = 0;
};

class EngineSharingTest : public testing::Test {
 protected:
  EngineSharingTest() {
    auto owned = std::make_unique<SharedTier>();
    tier_ = owned.get();
    std::vector<std::unique_ptr<KvTier>> list;
    list.push_back(std::move(owned));
    tiers_ = std::make_unique<KvTiers>(std::move(list), storage_, model_.layout.block_size_bytes(), 0);
    engine_ = std::make_unique<Engine>(
        EngineConfig{.num_blocks = 400, .max_model_len = 240, .max_batch_tokens = 64, .max_step_slowdown = 0,
                     .records_kv_events = true},
        transformer_, storage_, model_.layout, std::vector<TokenId>{}, clock_, tiers_.get());
  }

  std::uint64_t ask(const std::string& name, int num_prompt, bool waits, int max_tokens = 1) {
    Request request;
    request.prompt = random_tokens(num_prompt, static_cast<std::uint32_t>(name[0]));
    request.sampling.max_tokens = max_tokens;
    request.waits_until_shared = waits;
    request.on_update = [this, name](RequestUpdate&& update) {
      num_tokens_[name] += static_cast<int>(update.tokens.size());
      if (update.finish != FinishReason::kNone) finished_[name] = update.finish;
    };
    return engine_->submit(std::move(request));
  }
  void run() {
    while (engine_->step()) {
    }
  }

  TinyModel model_{"tiny_llama"};
  ManualClock clock_;
  KvStorage storage_{model_.layout, 400};
  SharedTier* tier_ = nullptr;
  std::unique_ptr<KvTiers> tiers_;
  Transformer transformer_{model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                           {.max_batch_tokens = 64, .max_logit_rows = 64, .max_context_len = 240}};
  std::map<std::string, int> num_tokens_;
  std::map<std::string, FinishReason> finished_;
  std::unique_ptr<Engine> engine_;  // the first to go: it has last words for what waits
};

TEST_F(EngineSharingTest, TheLastWordWaitsForTheBlocks) {
  EXPECT_TRUE(engine_->has_shared_tier());
  ask("waits", 100, true, 3);
  ask("hurries", 50, false);
  run();
  EXPECT_EQ(finished_.at("hurries"), FinishReason::kLength);
  EXPECT_EQ(num_tokens_["waits"], 2) << "all but the last";
  EXPECT_FALSE(finished_.contains("waits"));
  ASSERT_GT(tier_->num_pending, 1);
  tier_->write(tier_->num_pending - 1);
  run();
  EXPECT_FALSE(finished_.contains("waits"));
  // What comes later is not waited for.
  ask("later", 90, false);
  run();
  EXPECT_EQ(finished_.at("later"), FinishReason::kLength);
  tier_->write(1);
  run();
  EXPECT_EQ(finished_.at("waits"), FinishReason::kLength);
  EXPECT_EQ(num_tokens_["waits"], 3);
}

TEST_F(EngineSharingTest, WhatIsStoredAlreadyIsNotWaitedFor) {
  ask("a", 100, false);
  run();
  tier_->write(tier_->num_pending);
  ask("a", 100, true);
  run();
  EXPECT_EQ(num_tokens_["a"], 2);
}

// After some time it may have lost them: it is asked again, and stores what it has not got.
TEST_F(EngineSharingTest, WhatWasStoredLongAgoIsOfferedAgain) {
  ask("a", 100, true);
  run();
  const std::int64_t num_blocks = tier_->num_pending;
  tier_->write(num_blocks);
  run();
  EXPECT_EQ(num_tokens_["a"], 1);
  clock_.advance_ns(20'000'000'000);
  ask("a", 100, true);
  run();
  EXPECT_EQ(tier_->num_pending, num_blocks);
  EXPECT_EQ(num_tokens_["a"], 1);
  tier_->write(num_blocks);
  run();
  EXPECT_EQ(num_tokens_["a"], 2);
  // One that the tier knows to have lost is offered at once.
  tier_->has_lost_all = true;
  ask("a", 100, true);
  run();
  EXPECT_EQ(tier_->num_pending, num_blocks);
}

TEST_F(EngineSharingTest, BlocksThatTheTierHasNotTakenAreWaitedFor) {
  tier_->takes = false;
  ask("waits", 100, true);
  run();
  EXPECT_EQ(tier_->num_pending, 0);
  EXPECT_FALSE(finished_.contains("waits"));
  tier_->takes = true;
  run();
  EXPECT_GT(tier_->num_pending, 0);
  EXPECT_FALSE(finished_.contains("waits"));
  tier_->write(tier_->num_pending);
  run();
  EXPECT_TRUE(finished_.contains("waits"));
}

TEST_F(EngineSharingTest, NotForATierThatIsOff) {
  ask("waits", 100, true);
  run();
  EXPECT_FALSE(finished_.contains("waits"));
  tier_->is_on = false;
  run();
  EXPECT_EQ(finished_.at("waits"), FinishReason::kLength);
}

TEST_F(EngineSharingTest, NorForEver) {
  ask("waits", 100, true);
  run();
  clock_.advance_ns(2'900'000'000);
  run();
  EXPECT_FALSE(finished_.contains("waits"));
  clock_.advance_ns(200'000'000);
  run();
  EXPECT_EQ(finished_.at("waits"), FinishReason::kLength);
}

TEST_F(EngineSharingTest, TheEndOfTheEngineSaysIt) {
  ask("waits", 100, true);
  run();
  engine_->stop(true);
  EXPECT_EQ(finished_.at("waits"), FinishReason::kLength);
}

TEST_F(EngineSharingTest, EventsComeBehindEachStep) {
  KvEvents heard;
  ask("a", 50, false);
  run();
  // What happened before somebody listened is told then.
  engine_->set_on_kv_events([&](KvEvents&& events) { heard.insert(heard.end(), events.begin(), events.end()); });
  run();
  ASSERT_EQ(heard.size(), 3u);
  EXPECT_TRUE(heard[0].is_first && !heard[1].is_first);
  EXPECT_EQ(heard[1].parent, heard[0].digest);
  const std::vector<TokenId> prompt = random_tokens(50, 'a');
  EXPECT_TRUE(std::ranges::equal(heard[2].tokens, std::span(prompt).subspan(32, 16)));
  engine_->reset_prefix_cache();
  run();
  ASSERT_EQ(heard.size(), 6u);
  EXPECT_EQ(heard[3].kind, KvEvent::Kind::kRemoved);
}

}  // namespace
}  // namespace larder
