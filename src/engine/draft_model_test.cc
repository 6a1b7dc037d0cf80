// What a small model has computed of a sequence, and what it guesses behind it.
#include "engine/draft_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_test_support.h"
#include "grammar/grammar_builder.h"

namespace larder {
namespace {

using Tokens = std::vector<TokenId>;

// A sequence that somebody else decodes; num_prompt of its tokens were asked.
struct Decoding {
  Decoding(Tokens tokens, int num_prompt, SamplingParams params = greedy(1000)) {
    request.request.sampling = std::move(params);
    request.seed = request.request.sampling.seed.value_or(0);
    request.num_prompt = num_prompt;
    request.is_forked = true;
    sequence.request = &request;
    sequence.tokens = std::move(tokens);
    if (Sampler::penalizes(request.request.sampling)) {
      const std::span<const TokenId> all(sequence.tokens);
      const auto prompt = static_cast<std::size_t>(num_prompt);
      sequence.seen.emplace(all.first(prompt), all.subspan(prompt));
    }
  }
  ActiveRequest request;
  Sequence sequence;
};

class DraftModelTest : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<DraftRig> rig(int num_blocks = 400, int vocab_size = 0, int max_context_len = 400) {
    return std::make_unique<DraftRig>(model_, num_blocks, clock_, vocab_size, max_context_len);
  }
  // Tokens that it guesses for each, one after the other, having caught up; what it gives the last ones.
  static std::vector<ModelGuess> guess(DraftRig& rig, const std::vector<Sequence*>& sequences, int num_passes = 1) {
    for (Sequence* sequence : sequences) {
      sequence->draft.tokens.clear();
      rig.model.settle(*sequence);
      if (rig.model.num_missing(*sequence) == 0) rig.model.release(*sequence);  // asked before
      while (rig.model.num_missing(*sequence) > GuessingModel::kMostMissing) rig.model.compute(*sequence, 20);
    }
    std::vector<ModelGuess> guesses(sequences.size());
    for (int pass = 0; pass < num_passes; ++pass) {
      rig.model.guess(sequences, guesses);
      if (sequences.size() == 1 && guesses[0].token < 0) break;
      for (std::size_t i = 0; i < sequences.size(); ++i)
        if (guesses[i].token >= 0) sequences[i]->draft.tokens.push_back({guesses[i].token, DraftKind::kModel});
    }
    return guesses;
  }
  static Tokens guessed(const Sequence& sequence) {
    Tokens tokens;
    for (const DraftToken& token : sequence.draft.tokens) tokens.push_back(token.token);
    return tokens;
  }
  // By a model that has computed nothing before.
  ModelGuess fresh(const Decoding& like, AttentionSpan span = {}) {
    const auto alone = rig();
    Decoding copy(like.sequence.tokens, like.request.num_prompt, like.request.request.sampling);
    copy.request.request.attention_window = span.window;
    copy.request.request.attention_sinks = span.num_sinks;
    const ModelGuess guess = DraftModelTest::guess(*alone, {&copy.sequence}).front();
    alone->model.release(copy.sequence);
    return guess;
  }

  ManualClock clock_;
  TinyModel model_{GetParam(), 2};
};

SamplingParams drawn(std::uint64_t seed) {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.9f;
  params.repetition_penalty = 1.2f;
  params.frequency_penalty = 0.3f;
  params.seed = seed;
  params.max_tokens = 1000;
  return params;
}

// It draws as the sequence would.
TEST_P(DraftModelTest, GuessesWhatTheSameModelGenerates) {
  for (const SamplingParams& params : {greedy(30), drawn(3), drawn(4)}) {
    Rig alone(model_, {});
    SamplingParams cut = params;
    cut.max_tokens = 30;
    alone.add(random_tokens(50, 1), cut);
    alone.run();
    const Tokens& answer = alone.heard.at({1, 0}).tokens;
    const auto rig = this->rig();
    Decoding one(random_tokens(50, 1), 50, params);
    one.sequence.push(answer[0]);
    guess(*rig, {&one.sequence}, 10);
    EXPECT_EQ(guessed(one.sequence), Tokens(answer.begin() + 1, answer.begin() + 11));
    rig->model.release(one.sequence);
    EXPECT_EQ(rig->model.kv_stats().num_held, 0);
  }
}

// Accepted guesses are computed but for the last one, what was drawn instead of others overwrites them.
TEST_P(DraftModelTest, WhatComesTrueIsNotComputedAgain) {
  const auto rig = this->rig();
  Decoding one(random_tokens(60, 2), 60, drawn(7));
  for (int step = 0; step < 30; ++step) {
    guess(*rig, {&one.sequence}, 5);
    const Tokens tokens = guessed(one.sequence);
    ASSERT_EQ(tokens.size(), 5u);
    const int num_true = step % 6;
    one.sequence.draft.tokens.clear();
    for (int i = 0; i < num_true; ++i) one.sequence.push(tokens[static_cast<std::size_t>(i)]);
    one.sequence.push(num_true == 5 ? 3 : (tokens[static_cast<std::size_t>(num_true)] + 1) % 100);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(rig->model.num_missing(one.sequence), num_true + 1) << "asking keeps nothing";
    rig->model.settle(one.sequence);
    EXPECT_EQ(rig->model.num_missing(one.sequence), num_true == 5 ? 2 : 1) << step;
    const ModelGuess next = guess(*rig, {&one.sequence}).front();
    const ModelGuess expected = fresh(one);
    EXPECT_EQ(next.token, expected.token) << step;
    EXPECT_EQ(next.probability, expected.probability) << step;
  }
  rig->model.release(one.sequence);
}

TEST_P(DraftModelTest, ABatchGuessesAsEachAlone) {
  const auto rig = this->rig(2000);
  std::vector<std::unique_ptr<Decoding>> all;
  std::vector<Sequence*> sequences;
  for (int i = 0; i < GuessingModel::kMostSequences; ++i) {
    all.push_back(std::make_unique<Decoding>(random_tokens(1 + 3 * i, static_cast<std::uint32_t>(i)), 1 + 3 * i,
                                             drawn(static_cast<std::uint64_t>(i))));
    sequences.push_back(&all.back()->sequence);
  }
  const std::vector<ModelGuess> together = guess(*rig, sequences);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(together[i].token, fresh(*all[i]).token) << i;
    EXPECT_EQ(together[i].probability, fresh(*all[i]).probability) << i;
    rig->model.release(*sequences[i]);
  }
}

TEST_P(DraftModelTest, APrefixIsComputedOnce) {
  const auto rig = this->rig();
  Decoding one(random_tokens(100, 3), 100), same(random_tokens(100, 3), 100), stranger(random_tokens(100, 3), 100);
  stranger.request.request.salt = "somebody else";
  guess(*rig, {&one.sequence});
  EXPECT_EQ(rig->model.num_missing(same.sequence), 100);
  rig->model.compute(same.sequence, 1);
  EXPECT_EQ(rig->model.num_missing(same.sequence), 1);
  rig->model.compute(stranger.sequence, 1);
  EXPECT_EQ(rig->model.num_missing(stranger.sequence), 99);
  EXPECT_EQ(guess(*rig, {&same.sequence}).front().probability, guess(*rig, {&one.sequence}).front().probability);
  for (Decoding* decoding : {&one, &same, &stranger}) rig->model.release(decoding->sequence);
}

TEST_P(DraftModelTest, SinksAndAWindow) {
  const AttentionSpan span{.window = 32, .num_sinks = 16};
  const auto rig = this->rig();
  Decoding one(random_tokens(40, 4), 40, drawn(1));
  one.request.request.attention_window = span.window;
  one.request.request.attention_sinks = span.num_sinks;
  while (one.sequence.num_tokens() < 600) {  // beyond what it takes without
    guess(*rig, {&one.sequence}, 4);
    ASSERT_EQ(one.sequence.draft.tokens.size(), 4u);
    for (const TokenId token : guessed(one.sequence)) one.sequence.push(token);
    if (one.sequence.num_tokens() % 100 < 4) {
      EXPECT_EQ(guess(*rig, {&one.sequence}).front().probability, fresh(one, span).probability);
    }
    one.sequence.draft.tokens.clear();
  }
  rig->model.release(one.sequence);
}

TEST_P(DraftModelTest, NothingBeyondItsContext) {
  const auto rig = this->rig(400, 0, 100);
  Decoding one(random_tokens(84, 5), 84);
  EXPECT_GE(guess(*rig, {&one.sequence}).front().token, 0);
  one.sequence.draft.tokens.clear();
  one.sequence.push(1);
  rig->model.settle(one.sequence);
  EXPECT_EQ(rig->model.num_missing(one.sequence), -1);
  EXPECT_EQ(rig->model.kv_stats().num_held, 0) << "what it does not need is free";
  rig->model.release(one.sequence);
}

// There is room for one of them. The other goes without, and the one goes on.
TEST_P(DraftModelTest, NothingWithoutRoom) {
  Decoding one(random_tokens(100, 6), 100), other(random_tokens(100, 7), 100);
  const auto large = this->rig();
  guess(*large, {&one.sequence}, 4);
  const auto rig = this->rig(large->model.kv_stats().num_held + 2 * model_.layout.num_groups());
  large->model.release(one.sequence);
  EXPECT_GE(guess(*rig, {&one.sequence}).front().token, 0);
  EXPECT_EQ(guess(*rig, {&other.sequence}).front().token, -1);
  EXPECT_EQ(rig->model.num_missing(other.sequence), -1);
  EXPECT_GE(guess(*rig, {&one.sequence}, 3).front().token, 0);
  rig->model.release(one.sequence);
  rig->model.release(other.sequence);
  EXPECT_GE(guess(*rig, {&other.sequence}).front().token, 0) << "once it begins anew";
  rig->model.release(other.sequence);
}

// Tokens that it has not are neither guessed nor computed, those that it has beyond are cut.
TEST_P(DraftModelTest, VocabulariesOfOtherSizes) {
  const int size = model_.config.vocab_size;
  const auto rig = this->rig(), padded = this->rig(400, size + 40), cut = this->rig(400, 20);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Tokens tokens = random_tokens(30, static_cast<std::uint32_t>(seed));
    for (TokenId& token : tokens) token %= 20;
    Decoding one(tokens, 30);
    const ModelGuess expected = guess(*rig, {&one.sequence}).front();
    rig->model.release(one.sequence);
    const ModelGuess same = guess(*padded, {&one.sequence}).front();
    EXPECT_EQ(same.token, expected.token);
    EXPECT_DOUBLE_EQ(same.probability, expected.probability);
    padded->model.release(one.sequence);
    EXPECT_LT(guess(*cut, {&one.sequence}).front().token, 20);
    cut->model.release(one.sequence);
  }
  Decoding unknown({1, 2, size + 3, 4}, 4);
  EXPECT_EQ(guess(*padded, {&unknown.sequence}).front().token, -1);
  EXPECT_EQ(padded->model.num_missing(unknown.sequence), -1);
  padded->model.release(unknown.sequence);
}

// Within a form, nothing that it forbids, and nothing behind its end.
TEST_P(DraftModelTest, WhatTheFormAllows) {
  std::vector<std::string> texts(static_cast<std::size_t>(model_.config.vocab_size));
  for (std::size_t i = 1; i < texts.size(); ++i) texts[i] = std::string(1, static_cast<char>('!' + i % 90));
  const auto trie = std::make_shared<const TokenTrie>(
      model_.config.vocab_size, [&](TokenId token) -> std::string_view { return texts[static_cast<std::size_t>(token)]; });
  GrammarBuilder builder;
  const auto digit = [&] { return builder.bytes({{'0', '9'}}); };
  SamplingParams params = drawn(5);
  params.constraint = std::make_shared<const Constraint>(builder.finish(builder.sequence({digit(), digit(), digit()})), trie);
  const auto rig = this->rig();
  Decoding one(random_tokens(20, 8), 20, params);
  EXPECT_EQ(guess(*rig, {&one.sequence}, 5).front().token, -1);
  const Tokens tokens = guessed(one.sequence);
  EXPECT_EQ(tokens.size(), 3u);
  for (const TokenId token : tokens) {
    const char byte = texts[static_cast<std::size_t>(token)].at(0);
    EXPECT_TRUE(byte >= '0' && byte <= '9') << byte;
  }
  EXPECT_FALSE(one.sequence.constrained) << "nobody sees what was tried";
  EXPECT_EQ(one.sequence.num_tokens(), 20);
  rig->model.release(one.sequence);
}

// Requests of an engine, some of which are cancelled, with and without one.
TEST_P(DraftModelTest, AnEnginesAnswersAreTheSame) {
  struct Answer {
    Tokens tokens;
    FinishReason finish = FinishReason::kNone;
  };
  SteadyClock clock;
  const auto answers = [&](bool has_draft_model) {
    EngineConfig config;
    config.num_blocks = 4000;
    config.max_model_len = 300;
    config.max_batch_tokens = 128;
    config.max_draft_tokens = has_draft_model ? 6 : 0;
    KvStorage storage(model_.layout, config.num_blocks), draft_storage(model_.layout, 600);
    Transformer transformer(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                            {.max_batch_tokens = 128, .max_logit_rows = 64, .max_context_len = 300});
    Transformer small(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                      {.max_batch_tokens = DraftModel::kMaxBatchTokens, .max_logit_rows = DraftModel::kMaxLogitRows,
                       .max_context_len = 300});
    const DraftModelParts parts{small, draft_storage, model_.layout};
    std::vector<Answer> heard(12);
    {
      Engine engine(config, transformer, storage, model_.layout, {}, clock, nullptr, has_draft_model ? &parts : nullptr);
      std::uint64_t cancelled = 0;
      for (std::size_t i = 0; i < heard.size(); ++i) {
        Request request;
        request.prompt = random_tokens(30 + static_cast<int>(i % 3), static_cast<std::uint32_t>(i % 4));
        request.sampling = i % 2 == 0 ? greedy(60) : drawn(i);
        request.sampling.max_tokens = 60;
        request.on_update = [&answer = heard[i]](RequestUpdate&& update) {
          for (const OutputToken& token : update.tokens) answer.tokens.push_back(token.token);
          answer.finish = update.finish;
        };
        const std::uint64_t id = engine.submit(std::move(request));
        if (i == 5) cancelled = id;
        for (int step = 0; step < 7; ++step) engine.step();
        if (i == 6) engine.cancel(cancelled);
        if (i == 7) engine.reset_prefix_cache();
      }
      while (engine.step()) {
      }
      EXPECT_EQ(engine.stats().drafts.model_ns > 0, has_draft_model);
      EXPECT_EQ(engine.stats().kv.num_held, 0);
    }
    return heard;
  };
  const std::vector<Answer> expected = answers(false), heard = answers(true);
  for (std::size_t i = 0; i < heard.size(); ++i) {
    if (i == 5) continue;
    EXPECT_EQ(heard[i].tokens, expected[i].tokens) << i;
    EXPECT_EQ(heard[i].finish, FinishReason::kLength);
  }
  EXPECT_EQ(heard[5].finish, FinishReason::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(Models, DraftModelTest,
                         ::testing::Values("tiny_llama", "tiny_gemma3", "tiny_qwen3moe", "tiny_deepseek2"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace larder
