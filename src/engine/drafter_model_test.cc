// When a draft model is asked, and when it is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_test_support.h"

namespace larder {
namespace {

constexpr std::int64_t kStepNs = 1'000'000;
constexpr TokenId kRight = 50, kWrong = 51, kEnd = 99;

// Takes its time, and counts what it computes. It guesses kRight, or whatever is said.
class FakeModel final : public GuessingModel {
 public:
  explicit FakeModel(ManualClock& clock) : clock_(clock) {}

  void settle(Sequence& sequence) override { num_computed_.try_emplace(&sequence); }
  int num_missing(const Sequence& sequence) const override {
    return is_full ? -1 : std::max(1, sequence.num_tokens() - num_computed_.at(&sequence));
  }
  void compute(Sequence& sequence, int num_tokens) override {
    const int num = std::min(num_tokens, num_missing(sequence) - 1);
    clock_.advance_ns(num * token_ns);
    num_computed_[&sequence] += num;
    num_caught_up += num;
  }
  void guess(std::span<Sequence* const> sequences, std::span<ModelGuess> guesses) override {
    ++num_passes;
    clock_.advance_ns(pass_ns);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      EXPECT_LE(num_missing(*sequences[i]), kMostMissing);
      num_computed_[sequences[i]] = sequences[i]->num_tokens() + static_cast<int>(sequences[i]->draft.tokens.size());
      guesses[i] = {next, probability};
    }
  }
  void release(Sequence& sequence) override { num_computed_.erase(&sequence); }

  std::int64_t pass_ns = kStepNs / 10, token_ns = 20'000;
  TokenId next = kRight;
  double probability = 0.95;
  bool is_full = false;
  int num_passes = 0, num_caught_up = 0;

 private:
  ManualClock& clock_;
  std::map<const Sequence*, int> num_computed_;
};

// Sequences that decode together, of which nothing is known but what the model says.
class DrafterModelTest : public testing::Test {
 protected:
  void add(int num_prompt = 5, int num = 1) {
    for (int i = 0; i < num; ++i) {
      requests_.push_back(std::make_unique<ActiveRequest>());
      requests_.back()->request.id = requests_.size();
      requests_.back()->request.sampling.max_tokens = 1'000'000;
      requests_.back()->num_prompt = num_prompt;
      sequences_.push_back(std::make_unique<Sequence>());
      sequences_.back()->request = requests_.back().get();
      sequences_.back()->tokens.resize(static_cast<std::size_t>(num_prompt));
      std::iota(sequences_.back()->tokens.begin(), sequences_.back()->tokens.end(), 1000 * static_cast<TokenId>(requests_.size()));
      (void)cache_.match(sequences_.back()->table, sequences_.back()->tokens, std::to_string(requests_.size()), 0);
      compute(*sequences_.back());
    }
  }
  void remove_last() {
    drafter_.forget(*sequences_.back());
    cache_.release(sequences_.back()->table);
    sequences_.pop_back();
  }
  void compute(Sequence& sequence) {
    ASSERT_TRUE(cache_.extend(sequence.table, sequence.num_tokens()));
    cache_.publish(sequence.table, sequence.tokens, sequence.num_tokens() - 1);
  }
  ~DrafterModelTest() override {
    for (const auto& sequence : sequences_) {
      drafter_.forget(*sequence);
      cache_.release(sequence->table);
    }
  }

  // One step for all, of which guesses that are kRight come true with those odds. Returns its time.
  std::int64_t step(double odds = 1) {
    std::vector<Sequence*> all;
    for (const auto& sequence : sequences_) all.push_back(sequence.get());
    drafter_.begin_step();
    drafter_.draft(all, {.num_tokens = 64 - static_cast<int>(all.size()), .num_per_draft = 8}, ends_);
    const std::int64_t model_ns = drafter_.step_model_ns();
    most_model_ns_ = std::max(most_model_ns_, model_ns);
    int num_guesses = 0;
    for (Sequence* sequence : all) {
      const std::vector<DraftToken> draft = sequence->draft.tokens;
      num_guesses += static_cast<int>(draft.size());
      std::size_t num_true = 0;
      while (num_true < draft.size() && draft[num_true].token == kRight && unit_(random_) < odds) ++num_true;
      drafter_.observe_result(*sequence, static_cast<int>(num_true));
      for (std::size_t i = 0; i <= num_true; ++i) sequence->tokens.push_back(unknown_++);  // so that no lookup helps
      compute(*sequence);
      sequence->num_output += static_cast<int>(num_true) + 1;
      num_tokens_ += static_cast<int>(num_true) + 1;
    }
    const std::int64_t step_ns = kStepNs + num_guesses * guess_ns_;
    drafter_.observe_step(static_cast<int>(all.size()), num_guesses, step_ns);
    num_guesses_ += num_guesses;
    return step_ns + model_ns;
  }
  // Time of a token, of that without guesses.
  double time_of(int num_steps, double odds = 1) {
    std::int64_t duration_ns = 0;
    num_tokens_ = num_guesses_ = 0;
    for (int i = 0; i < num_steps; ++i) duration_ns += step(odds);
    return static_cast<double>(duration_ns) * static_cast<double>(sequences_.size()) / (1.0 * kStepNs * num_tokens_);
  }

  TestCache test_{{{.num_kv_heads = 1, .head_dim = 8}}, 20'000};
  KvCache& cache_ = test_.cache;
  ManualClock clock_;
  FakeModel model_{clock_};
  std::vector<std::unique_ptr<ActiveRequest>> requests_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  Drafter drafter_{cache_, clock_, &model_};
  std::vector<TokenId> ends_ = {kEnd};
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> unit_{0, 1};
  TokenId unknown_ = 100'000;
  int num_tokens_ = 0, num_guesses_ = 0;
  std::int64_t guess_ns_ = kStepNs / 50, most_model_ns_ = 0;
};

TEST_F(DrafterModelTest, AnswersComeFasterByIt) {
  add();
  EXPECT_LT(time_of(300, 0.95), 0.5);
  EXPECT_EQ(drafter_.stats().model_ns, model_.num_passes * model_.pass_ns + model_.num_caught_up * model_.token_ns);
  add(5, 3);
  EXPECT_LT(time_of(300, 0.95), 0.6);
}

// As many tokens as pay: hardly any where a pass takes half a step.
TEST_F(DrafterModelTest, AsManyPassesAsPay) {
  add();
  time_of(200, 0.95);
  const int num_of_cheap = std::exchange(model_.num_passes, 0);
  model_.pass_ns = kStepNs / 2;
  EXPECT_LT(time_of(600, 0.95), 1.0);
  EXPECT_LT(model_.num_passes / 600.0, 0.6 * num_of_cheap / 200.0);
  model_.pass_ns = 2 * kStepNs;
  EXPECT_LT(time_of(3000, 0.95), 1.05);
}

// What it costs is bounded, whatever it guesses, and whoever asks.
TEST_F(DrafterModelTest, NotWhereNothingComesTrue) {
  add();
  model_.next = kWrong;
  EXPECT_LT(time_of(2000), 1.03);
  const int num_passes = std::exchange(model_.num_passes, 0);
  EXPECT_GT(num_passes, 3);
  for (int i = 0; i < 50; ++i) {
    remove_last();
    add(300);
    EXPECT_LT(time_of(40), 1.05) << i;
  }
  EXPECT_LT(model_.num_caught_up, 1000) << "for nothing";
  // It is found out in the end when it gets better.
  model_.next = kRight;
  time_of(1000);
  EXPECT_LT(time_of(300), 0.5);
}

TEST_F(DrafterModelTest, NotBesideManyWhoseRowsTakeTime) {
  add(5, 16);
  guess_ns_ = kStepNs / 10;
  EXPECT_LT(time_of(1000, 0.9), 1.03);
}

// A long prompt is computed in pieces, between which steps go on.
TEST_F(DrafterModelTest, CatchesUpInPieces) {
  model_.token_ns = 5'000;
  add(2000);
  int num_steps = 0;
  for (; num_guesses_ == 0 && num_steps < 200; ++num_steps) step();
  EXPECT_GT(num_steps, 20);
  EXPECT_LT(num_steps, 100);
  EXPECT_LT(most_model_ns_, 2 * kStepNs);
  EXPECT_GE(model_.num_caught_up, 1990);
  EXPECT_LT(time_of(300), 0.5);
}

// Its time would not come back from a short answer; from a long one it does.
TEST_F(DrafterModelTest, ALongPromptIsForLongAnswers) {
  add();
  time_of(300);
  const int num_before = model_.num_caught_up;
  remove_last();
  model_.token_ns = 15'000;  // thirty steps for all
  add(2000);
  requests_.back()->request.sampling.max_tokens = 40;
  EXPECT_LT(time_of(38), 1.05);
  EXPECT_LT(model_.num_caught_up - num_before, 100);
  requests_.back()->request.sampling.max_tokens = 1'000'000;
  time_of(200);
  EXPECT_LT(time_of(300), 0.5);
}

TEST_F(DrafterModelTest, NothingForWhomItHasNoRoom) {
  add();
  model_.is_full = true;
  EXPECT_EQ(time_of(100), 1);
  EXPECT_EQ(model_.num_passes, 0);
}

TEST_F(DrafterModelTest, NoEnds) {
  add();
  model_.next = kEnd;
  time_of(200);
  EXPECT_EQ(num_guesses_, 0);
}

// Where the sequence repeats itself that costs nothing.
TEST_F(DrafterModelTest, LookupsGoFirst) {
  add();
  std::vector<TokenId>& tokens = sequences_.front()->tokens;
  model_.probability = 0.5;
  int num_by_model = 0, num_by_lookup = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<Sequence*> one = {sequences_.front().get()};
    drafter_.begin_step();
    drafter_.draft(one, {.num_tokens = 8, .num_per_draft = 8}, ends_);
    const std::vector<DraftToken> draft = one[0]->draft.tokens;
    for (const DraftToken& token : draft) ++(is_by_model(token.kind) ? num_by_model : num_by_lookup);
    // A loop of ten.
    std::size_t num_true = 0;
    while (num_true < draft.size() && draft[num_true].token == kRight + static_cast<TokenId>((tokens.size() + num_true) % 10)) ++num_true;
    drafter_.observe_result(*one[0], static_cast<int>(num_true));
    for (std::size_t j = 0; j <= num_true; ++j) tokens.push_back(kRight + static_cast<TokenId>(tokens.size() % 10));
    compute(*one[0]);
    drafter_.observe_step(1, static_cast<int>(draft.size()), kStepNs + 10'000 * static_cast<std::int64_t>(draft.size()));
  }
  EXPECT_GT(num_by_lookup, 1500);
  EXPECT_LT(num_by_model, 40);
}

}  // namespace
}  // namespace larder
