// Requests whose reader is behind: they hold nothing, and go on as if nothing had been.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_test_support.h"

namespace larder {
namespace {

constexpr int kNumTokens = 60;

SamplingParams drawn() {
  SamplingParams params = greedy(kNumTokens);
  params.temperature = 1;
  params.seed = 3;
  params.ignore_eos = true;
  return params;
}

// tiny_gemma3 has windows.
class Pauses : public testing::TestWithParam<const char*> {
 protected:
  static const Heard& heard_of(Rig& rig, std::uint64_t id, int choice) { return rig.heard[std::pair(id, choice)]; }
  // Of three choices.
  std::vector<Heard> undisturbed(int num_prompt) {
    Rig rig(model_, {});
    const std::uint64_t id = rig.add(random_tokens(num_prompt, 5), drawn(), 3);
    rig.run();
    return {heard_of(rig, id, 0), heard_of(rig, id, 1), heard_of(rig, id, 2)};
  }

  TinyModel model_{GetParam()};
};

TEST_P(Pauses, ChangeNoBitOfAnAnswer) {
  const std::vector<Heard> expected = undisturbed(70);
  std::mt19937 random(1);
  Rig rig(model_, {.num_blocks = 100, .max_step_slowdown = 2});
  const std::uint64_t id = rig.add(random_tokens(70, 5), drawn(), 3);
  bool is_paused = false;
  int num_pauses = 0;
  std::uint64_t num_others = 0;
  for (int step = 0; step < 5000 && (rig.scheduler.has_work() || is_paused); ++step) {
    // Others take its blocks meanwhile.
    if (rig.scheduler.num_running() + rig.scheduler.num_waiting() < 3 && num_others < 60)
      rig.add(random_tokens(100, static_cast<std::uint32_t>(100 + num_others++)), greedy(4));
    if (random() % 4 == 0) {
      is_paused = !is_paused;
      is_paused ? rig.scheduler.pause(id) : rig.scheduler.resume(id);
      num_pauses += rig.scheduler.num_paused() > 0 ? 1 : 0;
    }
    rig.step();
  }
  EXPECT_GT(num_pauses, 10);
  EXPECT_FALSE(rig.scheduler.has_work());
  EXPECT_EQ(rig.scheduler.num_paused(), 0);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  for (int choice = 0; choice < 3; ++choice) {
    const Heard& heard = heard_of(rig, id, choice);
    EXPECT_EQ(heard.tokens, expected[static_cast<std::size_t>(choice)].tokens);
    EXPECT_EQ(heard.logits, expected[static_cast<std::size_t>(choice)].logits);
    EXPECT_EQ(heard.finish, FinishReason::kLength);
  }
}

TEST_P(Pauses, HoldNeitherBlocksNorAPlace) {
  Rig rig(model_, {.max_sequences = 3});
  const std::uint64_t id = rig.add(random_tokens(40, 1), drawn(), 3);
  for (int i = 0; i < 5; ++i) rig.step();
  rig.scheduler.pause(id);
  EXPECT_EQ(rig.scheduler.num_paused(), 3);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  const std::uint64_t other = rig.add(random_tokens(30, 2), drawn(), 3);
  rig.run();
  EXPECT_EQ(heard_of(rig, other, 2).finish, FinishReason::kLength);
  EXPECT_EQ(heard_of(rig, id, 0).finish, FinishReason::kNone);
  EXPECT_TRUE(rig.scheduler.has_work());
  rig.scheduler.pause(id);  // no more than once
  EXPECT_EQ(rig.scheduler.num_paused(), 3);
  rig.scheduler.resume(id);
  rig.scheduler.resume(id);
  rig.run();
  EXPECT_EQ(heard_of(rig, id, 0).finish, FinishReason::kLength);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

// Else all that one request asks for would be generated, a few prompts at a time, while nobody reads.
TEST_P(Pauses, KeepAPromptFromItsBeginning) {
  const std::vector<Heard> expected = undisturbed(70);
  Rig rig(model_, {.max_sequences = 3});
  const std::uint64_t first = rig.add(random_tokens(40, 1), drawn(), 3);
  rig.step();
  const std::uint64_t id = rig.add(random_tokens(70, 5), drawn(), 3);
  rig.step();
  ASSERT_EQ(rig.scheduler.num_waiting(), 1);
  rig.scheduler.pause(id);
  EXPECT_EQ(rig.scheduler.num_paused(), 1);
  EXPECT_EQ(rig.scheduler.num_waiting(), 0);
  EXPECT_EQ(rig.scheduler.num_waiting_tokens(), 0);
  const std::uint64_t last = rig.add(random_tokens(30, 2), drawn(), 3);
  rig.run();
  EXPECT_EQ(heard_of(rig, first, 2).finish, FinishReason::kLength);
  EXPECT_EQ(heard_of(rig, last, 2).finish, FinishReason::kLength);
  EXPECT_EQ(heard_of(rig, id, 0).num_updates, 0);
  EXPECT_TRUE(rig.scheduler.has_work());
  EXPECT_FALSE(rig.scheduler.has_runnable_work());
  rig.scheduler.resume(id);
  EXPECT_EQ(rig.scheduler.num_waiting(), 1);
  rig.run();
  for (int choice = 0; choice < 3; ++choice)
    EXPECT_TRUE(same_bits(heard_of(rig, id, choice), expected[static_cast<std::size_t>(choice)]));
  EXPECT_FALSE(rig.scheduler.has_work());
}

TEST_P(Pauses, OfAPromptUnderWayBeginWithItsFirstTokens) {
  const std::vector<Heard> expected = undisturbed(70);
  Rig rig(model_, {.max_batch_tokens = 16});
  const std::uint64_t id = rig.add(random_tokens(70, 5), drawn(), 3);
  rig.step();
  rig.scheduler.pause(id);
  EXPECT_EQ(rig.scheduler.num_paused(), 0);
  rig.run();
  EXPECT_EQ(rig.scheduler.num_paused(), 3);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(heard_of(rig, id, choice).tokens.size(), 1u);
  rig.scheduler.resume(id);
  rig.run();
  for (int choice = 0; choice < 3; ++choice)
    EXPECT_TRUE(same_bits(heard_of(rig, id, choice), expected[static_cast<std::size_t>(choice)]));
}

// One that is not wanted any more before it could be leaves no trace.
TEST_P(Pauses, MayBeTakenBack) {
  Rig rig(model_, {.max_batch_tokens = 16});
  const std::uint64_t id = rig.add(random_tokens(70, 5), drawn(), 3);
  rig.step();
  rig.scheduler.pause(id);
  rig.scheduler.resume(id);
  rig.run();
  EXPECT_EQ(heard_of(rig, id, 2).finish, FinishReason::kLength);
  const std::uint64_t brief = rig.add(random_tokens(70, 6), greedy(1), 3);
  rig.step();
  rig.scheduler.pause(brief);  // it ends with what it would pause with
  rig.run();
  EXPECT_EQ(heard_of(rig, brief, 2).finish, FinishReason::kLength);
  EXPECT_FALSE(rig.scheduler.has_work());
  EXPECT_EQ(rig.scheduler.num_paused(), 0);
}

TEST_P(Pauses, EndWithTheirRequest) {
  Rig rig(model_, {});
  const std::uint64_t unbegun = rig.add(random_tokens(40, 1), drawn(), 3);
  rig.scheduler.pause(unbegun);
  EXPECT_EQ(rig.scheduler.num_paused(), 1);
  rig.scheduler.cancel(unbegun);
  EXPECT_EQ(rig.scheduler.num_paused(), 0);
  EXPECT_FALSE(rig.scheduler.has_work());
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(heard_of(rig, unbegun, choice).finish, FinishReason::kCancelled);
  const std::uint64_t id = rig.add(random_tokens(40, 1), drawn(), 3);
  for (int i = 0; i < 5; ++i) rig.step();
  rig.scheduler.pause(id);
  rig.scheduler.pause(12345);
  rig.scheduler.cancel_choice(id, 1);
  EXPECT_EQ(rig.scheduler.num_paused(), 2);
  rig.scheduler.cancel(id);
  EXPECT_EQ(rig.scheduler.num_paused(), 0);
  EXPECT_FALSE(rig.scheduler.has_work());
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(heard_of(rig, id, choice).finish, FinishReason::kCancelled);
  rig.scheduler.resume(id);
  rig.run();
}

// A prompt that gives up its blocks while it is to pause does not come back for them.
TEST(SchedulerPauses, OfWhatIsPreemptedBeginAtOnce) {
  TinyModel model("tiny_llama");
  Rig rig(model, {.num_blocks = 16, .max_batch_tokens = 16});
  const std::uint64_t first = rig.add(random_tokens(127, 1), drawn());
  while (rig.heard[{first, 0}].tokens.empty()) rig.step();
  const std::uint64_t id = rig.add(random_tokens(127, 2), drawn());
  rig.step();
  ASSERT_EQ(rig.scheduler.num_running(), 2);
  rig.scheduler.pause(id);
  rig.run();
  EXPECT_EQ(rig.scheduler.stats().num_preemptions, 1u);
  EXPECT_EQ(rig.scheduler.num_paused(), 1);
  EXPECT_EQ(rig.heard[std::pair(id, 0)].num_updates, 0);
  rig.scheduler.resume(id);
  rig.run();
  EXPECT_EQ(rig.heard[std::pair(id, 0)].finish, FinishReason::kLength);
  EXPECT_EQ(rig.cache.stats().num_held, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, Pauses, testing::Values("tiny_llama", "tiny_gemma3"));

// An engine that its owner drives.
class PausingEngine {
 public:
  explicit PausingEngine(EngineConfig config = {})
      : engine(with_sizes(config), transformer_, storage_, model_.layout, {}, clock) {
    clock.advance_ns(kNsPerSecond);
  }

  struct Answer {
    std::uint64_t id = 0;
    int num_tokens = 0;
    FinishReason finish = FinishReason::kNone;
    RequestTimes times;                 // as of its last update
    std::vector<int> behind_a_pause;  // numbers of tokens
  };
  // Throws what submit() does.
  Answer* ask(int num_prompt, std::uint64_t tenant = 0) {
    Answer* const answer = &answers_.emplace_back();
    Request request;
    request.prompt = random_tokens(num_prompt, 1);
    request.sampling = drawn();
    request.tenant = tenant;
    request.on_update = [told = answer](RequestUpdate&& update) {
      if (update.follows_pause) told->behind_a_pause.push_back(told->num_tokens);
      told->num_tokens += static_cast<int>(update.tokens.size());
      told->finish = update.finish;
      told->times = update.times;
    };
    answer->id = engine.submit(std::move(request));
    return answer;
  }
  // One of five tokens, which waits for its reader then.
  Answer* ask_and_pause(int num_prompt, std::uint64_t tenant = 0) {
    Answer* const answer = ask(num_prompt, tenant);
    while (answer->num_tokens < 5) EXPECT_TRUE(engine.step());
    engine.pause(answer->id, true);
    EXPECT_FALSE(engine.step());
    return answer;
  }
  void run() {
    while (engine.step()) {
    }
  }

 private:
  static EngineConfig with_sizes(EngineConfig config) {
    config.num_blocks = 400;
    config.max_model_len = 240;
    config.max_batch_tokens = 64;
    config.max_step_slowdown = 0;
    return config;
  }

  std::deque<Answer> answers_;  // whose ends the engine tells in its destructor, if not before
  TinyModel model_{"tiny_llama"};
  KvStorage storage_{model_.layout, 400};
  Transformer transformer_{model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                           {.max_batch_tokens = 64, .max_logit_rows = 16, .max_context_len = 240}};

 public:
  ManualClock clock;
  Engine engine;
};

TEST(EnginePauses, TheEngineSleepsAndGoesOn) {
  PausingEngine pausing;
  const auto answer = pausing.ask_and_pause(20);
  EXPECT_FALSE(pausing.engine.step());
  EXPECT_EQ(answer->num_tokens, 5);
  const EngineStats stats = pausing.engine.stats();
  EXPECT_EQ(stats.num_paused, 1);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.kv.num_held, 0);
  pausing.engine.pause(answer->id, false);
  pausing.run();
  EXPECT_EQ(answer->num_tokens, kNumTokens);
  EXPECT_EQ(answer->finish, FinishReason::kLength);
  EXPECT_EQ(pausing.engine.stats().num_paused, 0);
}

// Of statistics. Each step lasts a second, and the reader is away for an hour each time.
TEST(EnginePauses, TakeNoTime) {
  PausingEngine pausing;
  const auto step = [&] {
    pausing.clock.advance_ns(kNsPerSecond);
    return pausing.engine.step();
  };
  const auto go_away = [&](std::uint64_t id) {
    pausing.engine.pause(id, true);
    EXPECT_FALSE(step());
    pausing.clock.advance_ns(3600 * kNsPerSecond);
    pausing.engine.pause(id, false);
  };
  const auto answer = pausing.ask(20);
  go_away(answer->id);  // before it has begun
  while (answer->num_tokens < 10) ASSERT_TRUE(step());
  const RequestTimes before = answer->times;
  EXPECT_LT(before.first_token_ns - before.arrived_ns, 10 * kNsPerSecond);
  go_away(answer->id);
  while (answer->num_tokens < 20) ASSERT_TRUE(step());
  go_away(answer->id);
  while (step()) {
  }
  EXPECT_EQ(answer->finish, FinishReason::kLength);
  EXPECT_EQ(answer->behind_a_pause, (std::vector<int>{0, 10, 20}));
  const RequestTimes& times = answer->times;
  EXPECT_EQ(times.first_token_ns, before.first_token_ns);  // as those know it that have ended before
  EXPECT_LE(times.arrived_ns, times.scheduled_ns);
  EXPECT_LE(times.scheduled_ns, times.first_token_ns);
  const std::int64_t decode_ns = times.last_token_ns - times.first_token_ns;
  EXPECT_GE(decode_ns, (kNumTokens - 1) * kNsPerSecond);
  EXPECT_LT(decode_ns, 2 * kNumTokens * kNsPerSecond);
}

// Else there would be as many as there are connections.
TEST(EnginePauses, HavePlacesInLine) {
  PausingEngine pausing({.max_sequences = 2, .max_waiting = 3});
  std::vector<PausingEngine::Answer*> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(pausing.ask_and_pause(20));
  const EngineStats stats = pausing.engine.stats();
  EXPECT_EQ(stats.num_paused, 3);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_waiting_tokens, 3 * 25);
  EXPECT_THROW((void)pausing.ask(20), Error);
  pausing.engine.pause(answers[0]->id, false);
  ASSERT_TRUE(pausing.engine.step());
  answers.push_back(pausing.ask(20));
  EXPECT_THROW((void)pausing.ask(20), Error);
  pausing.engine.cancel(answers[1]->id);
  pausing.run();
  EXPECT_EQ(answers[3]->num_tokens, kNumTokens);
  EXPECT_EQ(pausing.engine.stats().num_waiting_tokens, 25);
  pausing.engine.pause(answers[2]->id, false);
  pausing.run();
  EXPECT_EQ(answers[2]->num_tokens, kNumTokens);
  EXPECT_EQ(pausing.engine.stats().num_waiting_tokens, 0);
}

TEST(EnginePauses, HoldTokensInLine) {
  PausingEngine pausing({.max_waiting_tokens = 100});
  pausing.ask_and_pause(55);
  EXPECT_THROW((void)pausing.ask(41), Error);
  const auto waiting = pausing.ask(40);
  pausing.run();
  EXPECT_EQ(waiting->num_tokens, kNumTokens);
}

TEST(EnginePauses, OfOneTenantLeaveOthersTheirRoom) {
  PausingEngine pausing({.max_waiting = 8});
  std::vector<PausingEngine::Answer*> answers;
  for (int i = 0; i < 6; ++i) answers.push_back(pausing.ask_and_pause(20, 1));
  EXPECT_THROW((void)pausing.ask(20, 1), Error);
  const auto others = pausing.ask(20, 2);
  pausing.run();
  EXPECT_EQ(others->num_tokens, kNumTokens);
  for (const auto& answer : answers) pausing.engine.cancel(answer->id);
  pausing.run();
  const auto own = pausing.ask(20, 1);
  pausing.run();
  EXPECT_EQ(own->num_tokens, kNumTokens);
}

}  // namespace
}  // namespace larder
