// What is guessed ahead, and when nothing is.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_test_support.h"
#include "grammar/grammar_builder.h"

namespace larder {
namespace {

class DrafterTest : public testing::Test {
 protected:
  DrafterTest() {
    request_.request.sampling.max_tokens = 1000;
    request_.is_forked = true;
    sequence_.request = &request_;
    // A step's time has been measured, without guesses.
    drafter_.observe_step(1, 0, 1'000'000);
  }
  ~DrafterTest() override {
    if (!sequence_.table.empty()) cache_.release(sequence_.table);
  }

  // The sequence has computed all of those but the last.
  void begin(const std::vector<TokenId>& tokens) {
    if (!sequence_.table.empty()) cache_.release(sequence_.table);
    sequence_.tokens = tokens;
    request_.num_prompt = static_cast<int>(tokens.size());
    (void)cache_.match(sequence_.table, tokens, request_.request.salt, static_cast<int>(tokens.size()) - 1);
    ASSERT_TRUE(cache_.extend(sequence_.table, static_cast<int>(tokens.size())));
    cache_.publish(sequence_.table, tokens, static_cast<int>(tokens.size()) - 1);
  }

  // With them it hardly takes longer.
  void make_guesses_free() {
    for (int num_guesses = 1; num_guesses <= 8; ++num_guesses) drafter_.observe_step(1, num_guesses, 1'010'000);
  }

  std::vector<TokenId> guesses(int most = 8) {
    Sequence* sequence = &sequence_;
    drafter_.draft({&sequence, 1}, {.num_tokens = most, .num_per_draft = most}, end_tokens_);
    std::vector<TokenId> tokens;
    for (const DraftToken& guess : sequence_.draft.tokens) tokens.push_back(guess.token);
    return tokens;
  }

  // So many of them came true, and the step took that long.
  void observe(int num_accepted, std::int64_t duration_ns) {
    const auto num_guesses = static_cast<int>(sequence_.draft.tokens.size());
    drafter_.observe_result(sequence_, num_accepted);
    drafter_.observe_step(1, num_guesses, duration_ns);
  }

  TestCache test_{{{.num_kv_heads = 1, .head_dim = 8}}, 100};
  KvCache& cache_ = test_.cache;
  ActiveRequest request_;
  Sequence sequence_;
  ManualClock clock_;
  Drafter drafter_{cache_, clock_};
  std::vector<TokenId> end_tokens_ = {99};
};

using Tokens = std::vector<TokenId>;

TEST_F(DrafterTest, WhatFollowedTheLongestMatch) {
  make_guesses_free();
  // "7 8" was followed by 1, "6 7 8" by 2, and 8 last by 3.
  begin({6, 7, 8, 2, 4, 5, 5, 7, 8, 1, 8, 3, 6, 7, 8});
  EXPECT_EQ(guesses(3), (Tokens{2, 4, 5}));
}

TEST_F(DrafterTest, TheLastTimeOfSeveral) {
  begin({7, 8, 1, 7, 8, 2, 7, 8});
  EXPECT_EQ(guesses(1), (Tokens{2}));
}

TEST_F(DrafterTest, ALoopGoesOn) {
  make_guesses_free();
  begin({9, 1, 2, 3, 1, 2, 3, 1, 2});
  EXPECT_EQ(guesses(7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
}

TEST_F(DrafterTest, NothingWhereNothingWasSeen) {
  begin({1, 2, 3, 4, 5});
  EXPECT_EQ(guesses(), Tokens{});
  begin({6});
  EXPECT_EQ(guesses(), Tokens{});
}

TEST_F(DrafterTest, NoEndsNorMoreThanTheAnswerMayHave) {
  begin({1, 2, 3, 99, 4, 1, 2});
  EXPECT_EQ(guesses(), (Tokens{3}));
  sequence_.draft.tokens.clear();
  request_.request.sampling.max_tokens = 3;
  begin({9, 1, 2, 3, 1, 2, 3, 1, 2});
  EXPECT_EQ(guesses(), (Tokens{3, 1}));
  sequence_.draft.tokens.clear();
  sequence_.num_output = 2;
  EXPECT_EQ(guesses(), Tokens{});
}

// What an answer to the same prompt was.
TEST_F(DrafterTest, WhatTheCacheHasSeen) {
  make_guesses_free();
  Tokens answer;
  for (TokenId token = 10; token < 60; ++token) answer.push_back(token);
  begin(answer);
  for (const std::size_t num : {1U, 5U, 15U, 16U, 17U, 32U, 40U}) {
    begin(Tokens(answer.begin(), answer.begin() + num));
    const Tokens expected(answer.begin() + num, answer.begin() + num + 8);
    EXPECT_EQ(guesses(), expected) << num;
    sequence_.draft.tokens.clear();
  }
  // Its last token was never computed.
  begin(Tokens(answer.begin(), answer.end() - 3));
  EXPECT_EQ(guesses(), (Tokens{57, 58}));
  sequence_.draft.tokens.clear();
  request_.request.salt = "somebody else";
  begin(Tokens(answer.begin(), answer.begin() + 5));
  EXPECT_EQ(guesses(), Tokens{});
}

// The answer is 50, then what the client says from its second token on.
TEST_F(DrafterTest, WhatTheClientSays) {
  make_guesses_free();
  request_.request.prediction = std::make_shared<const Tokens>(Tokens{40, 41, 42, 43, 44, 41, 42, 45, 46});
  const auto guessed = [&](const Tokens& output) {
    Tokens tokens = {1, 2, 3};
    tokens.insert(tokens.end(), output.begin(), output.end());
    begin(tokens);
    request_.num_prompt = 3;
    const Tokens found = guesses(3);
    sequence_.draft.tokens.clear();
    return found;
  };
  EXPECT_EQ(guessed({50}), Tokens{});
  EXPECT_EQ(guessed({50, 41}), (Tokens{42, 43, 44}));
  EXPECT_EQ(guessed({50, 41, 42, 43}), (Tokens{44, 41, 42}));
  EXPECT_EQ(guessed({50, 41, 42, 43, 51, 41, 42}), (Tokens{45, 46})) << "the next one after the last time";
  sequence_.draft.predicted = 0;
  EXPECT_EQ(guessed({60, 44, 41}), (Tokens{42, 45, 46})) << "the longest";
  EXPECT_EQ(guessed({60, 45, 46}), Tokens{}) << "its end";
}

TEST_F(DrafterTest, WhatTheFormHas) {
  make_guesses_free();
  const std::vector<std::string> texts = {"", "a", "b", "c", "ab", "abc", "bc", "x"};
  const auto trie = std::make_shared<const TokenTrie>(
      static_cast<int>(texts.size()), [&](TokenId token) -> std::string_view { return texts[static_cast<std::size_t>(token)]; });
  GrammarBuilder builder;
  const Fragment whole = builder.sequence({builder.text("xabcab"), builder.bytes({{'b', 'c'}}), builder.text("x")});
  request_.request.sampling.constraint = std::make_shared<const Constraint>(builder.finish(whole), trie);
  sequence_.constrained.emplace(request_.request.sampling.constraint->grammar);
  EXPECT_TRUE(sequence_.constrained->push('x'));
  begin({60, 61, 7});
  EXPECT_EQ(guesses(), (Tokens{5, 4})) << "up to a choice";
}

TEST_F(DrafterTest, NotWhereItTakesLonger) {
  const Tokens tokens = {9, 1, 2, 3, 1, 2, 3, 1, 2};
  begin(tokens);
  int num_tried = 0;
  for (int i = 0; i < 200; ++i) {
    const auto num_guesses = static_cast<int>(guesses().size());
    num_tried += num_guesses > 0;
    // All come true, but each takes longer than a step of its own.
    observe(num_guesses, 1'000'000 + 1'500'000 * num_guesses);
  }
  EXPECT_GT(num_tried, 0);
  EXPECT_LT(num_tried, 30);
  // Not much longer: nearly always, but for steps that are to tell how long one without takes.
  num_tried = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto num_guesses = static_cast<int>(guesses().size());
    num_tried += num_guesses == 8;
    observe(num_guesses, 1'000'000 + 50'000 * num_guesses);
  }
  EXPECT_GT(num_tried, 1000);
}

// One step that was slow for another reason.
TEST_F(DrafterTest, ASlowStepIsForgivenSoon) {
  begin({9, 1, 2, 3, 1, 2, 3, 1, 2});
  ASSERT_GT(guesses().size(), 0u);
  const auto num_first = static_cast<int>(sequence_.draft.tokens.size());
  observe(num_first, 50'000'000);
  int num_without = 0;
  while (guesses().empty() && ++num_without < 1000) drafter_.observe_step(1, 0, 1'000'000);
  EXPECT_LT(num_without, 200);
}

// What a guess costs beside many is found out, too, sooner or later.
TEST_F(DrafterTest, TriedBesideManyInTime) {
  begin({9, 1, 2, 3, 1, 2, 3, 1, 2});
  int num_without = 0;
  for (; num_without < 3000 && sequence_.draft.tokens.empty(); ++num_without) {
    drafter_.observe_step(16, 0, 1'000'000);
    Sequence* one = &sequence_;
    std::vector<std::unique_ptr<Sequence>> others;
    std::vector<Sequence*> all = {one};
    for (int i = 1; i < 16; ++i) {
      others.push_back(std::make_unique<Sequence>());
      others.back()->request = &request_;
      others.back()->tokens = {1, 2, 3, 4};
      (void)cache_.match(others.back()->table, others.back()->tokens, "nobody's", 0);
      all.push_back(others.back().get());
    }
    drafter_.draft(all, {.num_tokens = 8, .num_per_draft = 8}, end_tokens_);
    for (const auto& other : others) cache_.release(other->table);
  }
  EXPECT_GT(num_without, 10);
  EXPECT_LT(num_without, 2000);
}

TEST_F(DrafterTest, NotWhatNeverComesTrue) {
  begin({1, 2, 3, 4, 5, 1, 2});
  int num_tried = 0;
  for (int i = 0; i < 200; ++i) {
    const auto num_guesses = static_cast<int>(guesses().size());
    num_tried += num_guesses > 0;
    observe(0, 1'000'000 + 150'000 * num_guesses);
  }
  EXPECT_GT(num_tried, 0);
  EXPECT_LT(num_tried, 40);
  EXPECT_EQ(drafter_.stats().num_drafts, static_cast<std::uint64_t>(num_tried));
  EXPECT_EQ(drafter_.stats().num_accepted, 0);
}

// While the batch has room in the same time, the likeliest ones of all sequences.
TEST_F(DrafterTest, OfSeveralSequencesTheLikeliest) {
  drafter_.observe_step(2, 0, 1'000'000);
  drafter_.observe_step(2, 1, 1'010'000);
  begin({9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8});
  Sequence other;
  ActiveRequest of_other;
  of_other.request.sampling.max_tokens = 100;
  other.request = &of_other;
  other.tokens = {30, 31, 32, 30};
  (void)cache_.match(other.table, other.tokens, "", 3);
  ASSERT_TRUE(cache_.extend(other.table, 4));
  cache_.publish(other.table, other.tokens, 3);
  std::vector<Sequence*> both = {&other, &sequence_};
  drafter_.draft(both, {.num_tokens = 2, .num_per_draft = 8}, end_tokens_);
  EXPECT_TRUE(other.draft.tokens.empty());
  ASSERT_EQ(sequence_.draft.tokens.size(), 2);
  EXPECT_EQ(sequence_.draft.tokens[0].token, 9);
  cache_.release(other.table);
}

// Through the scheduler: what requests hear does not depend on guesses, but for the number of steps.
TEST(SchedulerDraftTest, AnAnswerComesInFewerSteps) {
  TinyModel model("tiny_llama");
  const auto answer = [&](int max_draft_tokens, std::int64_t guess_ns) {
    auto rig = std::make_unique<Rig>(model, RigConfig{.max_draft_tokens = max_draft_tokens, .guess_ns = guess_ns});
    rig->add(random_tokens(40, 5), greedy(150));
    rig->run();
    return rig;
  };
  const auto plain = answer(0, 0);
  const auto guessed = answer(8, 0);
  const Heard& expected = plain->heard.at({1, 0});
  const Heard& heard = guessed->heard.at({1, 0});
  EXPECT_TRUE(same_bits(heard, expected));
  EXPECT_EQ(heard.num_updates, 150);
  EXPECT_EQ(plain->num_steps, 150);
  EXPECT_LT(guessed->num_steps, 120);
  EXPECT_EQ(heard.usage.num_draft_tokens, guessed->num_guesses);
  EXPECT_EQ(guessed->num_steps + heard.usage.num_accepted_tokens, 150);
  EXPECT_EQ(guessed->cache.stats().num_cached, plain->cache.stats().num_cached);
  EXPECT_EQ(guessed->cache.stats().num_slots_used, plain->cache.stats().num_slots_used);
}

// What comes behind the answer's end did not come true.
TEST(SchedulerDraftTest, NothingBehindTheEndCounts) {
  TinyModel model("tiny_llama");
  for (TokenId stop = 0; stop < 120; ++stop) {
    Rig rig(model, {.max_draft_tokens = 8});
    SamplingParams params = greedy(150);
    params.stop_token_ids = {stop};
    for (int i = 0; i < 2; ++i) rig.add(random_tokens(40, 5), params);
    rig.run();
    for (const auto& [id, heard] : rig.heard)
      EXPECT_LE(heard.usage.num_accepted_tokens, static_cast<int>(heard.tokens.size())) << stop;
    EXPECT_EQ(rig.heard.at({1, 0}).tokens, rig.heard.at({2, 0}).tokens);
  }
}

// A guess takes nobody's blocks.
TEST(SchedulerDraftTest, NobodyIsPreemptedForAGuess) {
  TinyModel model("tiny_llama");
  for (int num_blocks = 15; num_blocks < 24; ++num_blocks) {
    const auto preemptions = [&](int max_draft_tokens) {
      Rig rig(model, {.num_blocks = num_blocks, .max_draft_tokens = max_draft_tokens});
      rig.add(random_tokens(40, 5), greedy(100));
      rig.add(random_tokens(40, 6), greedy(100));
      rig.run();
      return std::pair(rig.scheduler.stats().num_preemptions, rig.heard.at({2, 0}).tokens);
    };
    EXPECT_LE(preemptions(8).first, preemptions(0).first) << num_blocks;
    EXPECT_EQ(preemptions(8).second, preemptions(0).second) << num_blocks;
  }
}

}  // namespace
}  // namespace larder
