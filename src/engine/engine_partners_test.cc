// An engine whose model other machines compute a part of, and loses them: requests end, and what the cache has stays.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "model/forward/local_partners.h"

namespace larder {
namespace {

struct Said {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::kNone;
  int num_cached = 0;
};

class EnginePartnersTest : public testing::Test {
 protected:
  EnginePartnersTest() {
    spdlog::set_level(spdlog::level::off);
    model_.weights = Weights(model_.config, model_.gguf, model_.pool, {}, nullptr, model_.config.num_layers(),
                             MachineShare{limits_.split, 0});
    transformer_ = std::make_unique<Transformer>(model_.config, model_.weights, model_.layout, select_kernels(),
                                                 model_.pool, limits_, nullptr, &partners_);
    // Its slowdown has long prompts go layer by layer beside who decodes.
    engine_ = std::make_unique<Engine>(EngineConfig{.num_blocks = 400,
                                                    .max_model_len = 240,
                                                    .max_batch_tokens = 64,
                                                    .max_sequences = 6,
                                                    .max_step_slowdown = 2,
                                                    .max_draft_tokens = 4},
                                       *transformer_, storage_, model_.layout, std::vector<TokenId>{}, clock_);
  }
  ~EnginePartnersTest() override { spdlog::set_level(spdlog::level::info); }

  void ask(int name, int num_prompt, const std::string& salt = "") {
    Request request;
    request.prompt = random_tokens(num_prompt, static_cast<std::uint32_t>(num_prompt));
    request.sampling = greedy(12);
    request.sampling.ignore_eos = true;
    request.sampling.num_logprobs = 0;
    request.salt = salt;
    request.on_update = [this, name](RequestUpdate&& update) {
      Said& said = said_[name];
      for (const OutputToken& token : update.tokens) {
        said.tokens.push_back(token.token);
        said.logprobs.push_back(token.logprob);
      }
      said.finish = update.finish;
      said.num_cached = update.usage.num_cached_tokens;
    };
    engine_->submit(std::move(request));
  }

  void run() {
    while (engine_->step()) {
    }
  }

  TinyModel model_{"tiny_llama"};
  TransformerLimits limits_{.max_batch_tokens = 64,
                            .max_logit_rows = 32,
                            .max_context_len = 240,
                            .split = OutputSplit(std::vector<std::uint32_t>{1, 1})};
  LocalPartners partners_{model_.gguf, limits_.split, select_kernels(), limits_};
  SteadyClock clock_;
  KvStorage storage_{model_.layout, 400};
  std::unique_ptr<Transformer> transformer_;
  std::map<int, Said> said_;
  std::unique_ptr<Engine> engine_;  // the first to go: it has last words for what has not ended
};

TEST_F(EnginePartnersTest, ALostStepEndsItsRequestsAndLaterOnesSayWhatTheyWouldHave) {
  const std::vector<int> lengths = {20, 37, 150, 64, 5, 90, 33, 48};
  const auto ask_all = [&](const std::string& salt) {
    said_.clear();
    for (const int length : lengths) ask(length, length, salt);
  };
  ask_all("expected");
  run();
  const std::map<int, Said> expected = said_;
  for (const auto& [name, said] : expected) ASSERT_EQ(said.tokens.size(), 12U) << name;
  const auto expect_same = [&](const char* what) {
    for (const auto& [name, said] : said_) {
      EXPECT_EQ(said.tokens, expected.at(name).tokens) << what << " " << name;
      EXPECT_EQ(said.logprobs, expected.at(name).logprobs) << what << " " << name;
    }
  };
  int num_ended = 0;
  for (int lost_at = 0; lost_at < 300; lost_at += 23) {
    ask_all("another " + std::to_string(lost_at));
    partners_.lose_after(lost_at);
    run();
    for (const auto& [name, said] : said_) {
      // What was said before is right.
      const std::vector<TokenId>& tokens = expected.at(name).tokens;
      EXPECT_TRUE(std::equal(said.tokens.begin(), said.tokens.end(), tokens.begin())) << name;
      EXPECT_TRUE(said.finish == FinishReason::kLost || said.finish == FinishReason::kLength) << name;
      num_ended += said.finish == FinishReason::kLost;
    }
    EXPECT_TRUE(engine_->alive());
    EXPECT_EQ(engine_->stats().kv.num_held, 0) << "blocks of nobody";
    EXPECT_EQ(engine_->stats().num_running, 0);
    EXPECT_EQ(engine_->stats().num_waiting, 0);
    partners_.lose_after(-1);
    // The same requests again: what was computed before the loss is found, and right.
    ask_all("another " + std::to_string(lost_at));
    run();
    expect_same("after a loss");
  }
  EXPECT_GT(num_ended, 40);
  ask_all("expected");
  run();
  expect_same("from the cache");
  EXPECT_GT(said_.at(150).num_cached, 140);
}

}  // namespace
}  // namespace larder
