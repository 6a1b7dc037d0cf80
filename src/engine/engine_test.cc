#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <future>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/engine_test_support.h"

namespace larder {
namespace {

using namespace std::chrono_literals;

// Collects what one request's choices hear, for the thread that waits.
struct Listener {
  explicit Listener(int num_choices) : num_open(num_choices) {}
  UpdateCallback callback() {
    return [this](RequestUpdate&& update) {
      for (const OutputToken& token : update.tokens) tokens.push_back(token.token);
      num_tokens += static_cast<int>(update.tokens.size());
      if (update.finish == FinishReason::kNone) return;
      finish = update.finish;
      times = update.times;
      if (--num_open == 0) done.set_value();
    };
  }
  // False after a time that no test should take.
  bool wait() { return done.get_future().wait_for(60s) == std::future_status::ready; }

  int num_open;
  std::vector<TokenId> tokens;
  std::atomic<int> num_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  RequestTimes times;
  std::promise<void> done;
};

class EngineTest : public ::testing::Test {
 protected:
  static constexpr int kNumBlocks = 200;
  static constexpr int kMaxModelLen = 400;

  EngineTest()
      : storage_(model_.layout, kNumBlocks),
        transformer_(model_.config, model_.weights, model_.layout, select_kernels(), model_.pool,
                     {.max_batch_tokens = 128, .max_logit_rows = 64, .max_context_len = 512}),
        end_tokens_{1},
        engine_(config(), transformer_, storage_, model_.layout, end_tokens_, clock_) {}

  static EngineConfig config() {
    EngineConfig config;
    config.num_blocks = kNumBlocks;
    config.max_model_len = kMaxModelLen;
    config.max_batch_tokens = 128;
    config.max_prefill_tokens = 64;
    config.max_step_slowdown = 0;  // no step depends on how long others took
    config.max_sequences = 64;
    config.max_waiting = 100;
    return config;
  }

  static Request request(std::vector<TokenId> prompt, int max_tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sampling.seed = 3;
    return request;
  }

  std::uint64_t submit(Listener& listener, std::vector<TokenId> prompt, int max_tokens, int n = 1) {
    Request made = request(std::move(prompt), max_tokens);
    made.n = n;
    made.on_update = listener.callback();
    return engine_.submit(std::move(made));
  }

  void expect_refused(Request refused, ErrorKind kind, const std::string& param) {
    try {
      engine_.submit(std::move(refused));
      ADD_FAILURE() << "accepted: " << param;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_EQ(error.param(), param) << error.what();
    }
  }

  TinyModel model_{"tiny_llama", 2};
  SteadyClock clock_;
  KvStorage storage_;
  Transformer transformer_;
  std::vector<TokenId> end_tokens_;
  Engine engine_;
};

// A list of its own for each would take as many times the memory.
TEST_F(EngineTest, ChoicesAreToldOneListOfThePromptsLogprobs) {
  std::map<int, SharedTokens> told;
  Request asked = request(random_tokens(50, 1), 3);
  asked.n = 5;
  asked.sampling.num_prompt_logprobs = 2;
  asked.on_update = [&](RequestUpdate&& update) {
    if (update.prompt_logprobs == nullptr) return;
    EXPECT_TRUE(told.emplace(update.choice, update.prompt_logprobs).second);
  };
  engine_.submit(std::move(asked));
  while (engine_.step()) {
  }
  ASSERT_EQ(told.size(), 5u);
  EXPECT_EQ(told[0]->size(), 49u);
  for (const auto& [choice, list] : told) EXPECT_EQ(list, told[0]) << choice;
}

TEST_F(EngineTest, APromptsLogprobsAreKeptUntilTheyAreToldOnly) {
  std::weak_ptr<const std::vector<OutputToken>> told;
  int num_tokens = 0;
  Request asked = request(random_tokens(50, 1), 100);
  asked.n = 3;
  asked.sampling.num_prompt_logprobs = 2;
  asked.on_update = [&](RequestUpdate&& update) {
    if (update.prompt_logprobs != nullptr) told = update.prompt_logprobs;
    num_tokens += static_cast<int>(update.tokens.size());
  };
  engine_.submit(std::move(asked));
  while (num_tokens < 6) ASSERT_TRUE(engine_.step());
  EXPECT_TRUE(told.expired());
  while (engine_.step()) {
  }
  EXPECT_EQ(num_tokens, 3 * 100);
}

TEST_F(EngineTest, TellsOnceBehindAStepsUpdates) {
  int num_updates = 0;
  std::vector<int> known;  // at each call
  engine_.set_after_updates([&] { known.push_back(num_updates); });
  for (int i = 0; i < 3; ++i) {
    Request one = request({i + 5, 6, 7}, 4);
    one.on_update = [&](RequestUpdate&&) { ++num_updates; };
    engine_.submit(std::move(one));
  }
  int num_steps = 0;
  while (engine_.step()) ++num_steps;
  EXPECT_EQ(num_updates, 3 * 4);
  ASSERT_LE(static_cast<int>(known.size()), num_steps);
  EXPECT_EQ(known.back(), num_updates);
  EXPECT_EQ(std::ranges::adjacent_find(known, std::greater_equal{}), known.end());
  const std::size_t num_calls = known.size();
  EXPECT_FALSE(engine_.step());  // nothing to tell
  EXPECT_EQ(known.size(), num_calls);
  engine_.set_after_updates({});
  Request last = request({8, 9}, 2);
  engine_.submit(std::move(last));
  while (engine_.step()) {
  }
  EXPECT_EQ(known.size(), num_calls);
}

TEST_F(EngineTest, WhoHearsOfATokenFindsItCounted) {
  Request made = request(random_tokens(20, 1), 3);
  std::vector<std::int64_t> counted;
  int num_running_at_the_end = -1;
  made.on_update = [&](RequestUpdate&& update) {
    const EngineStats stats = engine_.stats();
    counted.push_back(static_cast<std::int64_t>(stats.num_generated_tokens));
    if (update.finish != FinishReason::kNone) num_running_at_the_end = stats.num_running;
  };
  engine_.submit(std::move(made));
  while (engine_.step()) {
  }
  EXPECT_EQ(counted, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(num_running_at_the_end, 0);
}

TEST_F(EngineTest, RunsRequestsOfManyThreads) {
  engine_.start();
  constexpr int kNumThreads = 4, kNumRequests = 12;
  std::vector<std::vector<std::vector<TokenId>>> heard(kNumThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kNumThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint32_t i = 0; i < kNumRequests; ++i) {
        Listener listener(1);
        submit(listener, random_tokens(20 + static_cast<int>(i), i), 10);
        EXPECT_TRUE(listener.wait());
        EXPECT_EQ(listener.finish, FinishReason::kLength);
        EXPECT_LE(listener.times.arrived_ns, listener.times.scheduled_ns);
        EXPECT_LE(listener.times.scheduled_ns, listener.times.first_token_ns);
        EXPECT_LT(listener.times.first_token_ns, listener.times.last_token_ns);
        heard[static_cast<std::size_t>(thread)].push_back(listener.tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : heard) EXPECT_EQ(each, heard[0]);
  engine_.stop(true);
  const EngineStats stats = engine_.stats();
  EXPECT_EQ(stats.kv.num_held, 0);
  EXPECT_EQ(stats.num_generated_tokens, 10u * kNumThreads * kNumRequests);
  EXPECT_GT(stats.num_prefix_hits, 0u);
  EXPECT_LE(stats.num_prefix_hits, stats.num_prefix_queries);
  EXPECT_FALSE(engine_.alive());
}

TEST_F(EngineTest, CancelFreesTheBlocksSoon) {
  engine_.start();
  Listener listener(3);
  std::atomic<bool> is_cancelled = false;
  Request made = request(random_tokens(50, 1), 300);
  made.n = 3;
  made.on_update = [&, hear = listener.callback()](RequestUpdate&& update) {
    hear(std::move(update));
    if (listener.num_tokens >= 6) is_cancelled.wait(false);  // lest it end before
  };
  const std::uint64_t id = engine_.submit(std::move(made));
  while (listener.num_tokens < 6) std::this_thread::sleep_for(1ms);
  EXPECT_GT(engine_.stats().kv.num_held, 0);
  engine_.cancel(id);
  is_cancelled = true;
  is_cancelled.notify_all();
  EXPECT_TRUE(listener.wait());
  EXPECT_EQ(listener.finish, FinishReason::kCancelled);
  while (engine_.stats().kv.num_held > 0) std::this_thread::sleep_for(1ms);  // ctest ends what goes on for ever
  EXPECT_LT(engine_.stats().num_generated_tokens, 3u * 300) << "it came to its end";
  engine_.cancel(id);
  engine_.cancel(123456);
  Listener next(1);
  submit(next, random_tokens(50, 2), 5);
  EXPECT_TRUE(next.wait());
}

TEST_F(EngineTest, AChoiceIsCancelledWithoutTheOthers) {
  Listener listener(2);
  const std::uint64_t id = submit(listener, random_tokens(50, 1), 100, 2);
  while (listener.num_tokens < 4) ASSERT_TRUE(engine_.step());
  engine_.cancel_choice(id, 1);
  while (engine_.step()) {
  }
  EXPECT_EQ(listener.num_open, 0);
  EXPECT_EQ(listener.num_tokens, 2 + 100);
}

TEST_F(EngineTest, StopDrainsOrCancels) {
  engine_.start();
  Listener listener(1);
  submit(listener, random_tokens(50, 1), 40);
  engine_.stop(true);
  EXPECT_EQ(listener.finish, FinishReason::kLength);
  EXPECT_EQ(listener.tokens.size(), 40u);
  expect_refused(request({2}, 1), ErrorKind::kStopped, "");
}

TEST_F(EngineTest, StopWithoutDrainCancels) {
  Listener listener(2), other(1);
  const auto stops = [&] {
    try {
      submit(other, {2}, 1);
    } catch (const Error& error) {
      return std::string(error.what()) == "the engine is stopping";
    }
    return false;
  };
  Request made = request(random_tokens(300, 1), 90);
  made.n = 2;
  made.on_update = [&, hear = listener.callback()](RequestUpdate&& update) {
    hear(std::move(update));
    while (!stops()) std::this_thread::sleep_for(1ms);  // lest it end before
  };
  engine_.submit(std::move(made));
  engine_.start();
  engine_.stop(false);
  EXPECT_EQ(listener.finish, FinishReason::kCancelled);
  EXPECT_EQ(listener.num_open, 0);
  EXPECT_EQ(engine_.stats().kv.num_held, 0);
}

// Those that run, one that comes meanwhile, and the process goes on.
TEST_F(EngineTest, AFailureIsToldToAllAndEndsTheEngineOnly) {
  Listener running(2), late(1);
  Request endless = request(random_tokens(50, 1), 1'000'000);
  endless.n = 2;
  endless.attention_window = 32;
  endless.on_update = running.callback();
  engine_.submit(std::move(endless));
  Request bad = request(random_tokens(20, 2), 5);
  bad.on_update = [&](RequestUpdate&&) {
    submit(late, random_tokens(10, 3), 5);
    throw std::bad_alloc();
  };
  engine_.submit(std::move(bad));
  engine_.start();
  EXPECT_TRUE(running.wait());
  EXPECT_TRUE(late.wait());
  EXPECT_EQ(running.finish, FinishReason::kCancelled);
  EXPECT_GT(running.num_tokens, 0);
  EXPECT_EQ(late.finish, FinishReason::kCancelled);
  EXPECT_FALSE(engine_.alive());
  expect_refused(request({2}, 1), ErrorKind::kStopped, "");
  const EngineStats stats = engine_.stats();
  EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
}

TEST_F(EngineTest, SleepsWhenIdle) {
  engine_.start();
  Listener listener(1);
  submit(listener, random_tokens(10, 1), 3);
  EXPECT_TRUE(listener.wait());
  const auto spent = [] {
    const std::clock_t begin = std::clock();
    std::this_thread::sleep_for(200ms);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  // The pool's workers spin for a while.
  double seconds = spent();
  for (int i = 0; i < 20 && seconds >= 0.05; ++i) seconds = spent();
  EXPECT_LT(seconds, 0.05);
}

TEST_F(EngineTest, APinsEndIsSeenThoughNobodyAsks) {
  engine_.start();
  Listener listener(1);
  Request made = request(random_tokens(20, 1), 1);
  made.pins = {{.num_tokens = 20, .ttl_s = 1}};
  made.on_update = listener.callback();
  engine_.submit(std::move(made));
  EXPECT_TRUE(listener.wait());
  EXPECT_EQ(engine_.stats().kv.num_pinned, 2);
  const auto begin = std::chrono::steady_clock::now();
  while (engine_.stats().kv.num_pinned > 0) {
    ASSERT_LT(std::chrono::steady_clock::now() - begin, 20s);
    std::this_thread::sleep_for(10ms);
  }
}

TEST_F(EngineTest, ResetForgetsThePrefixes) {
  const auto cached = [&] { return engine_.stats().num_prompt_tokens_cached; };
  for (const bool resets : {false, true}) {
    const std::uint64_t before = cached();
    Listener first(1), second(1);
    submit(first, random_tokens(60, resets), 2);
    while (engine_.step()) {
    }
    if (resets) engine_.reset_prefix_cache();
    submit(second, random_tokens(60, resets), 2);
    while (engine_.step()) {
    }
    EXPECT_EQ(cached() - before, resets ? 0u : 59u);
  }
}

TEST_F(EngineTest, RefusesWhatCannotRun) {
  const auto invalid = [&](const char* param, auto change) {
    Request made = request({2, 3}, 5);
    change(made);
    expect_refused(std::move(made), ErrorKind::kInvalidArgument, param);
  };
  invalid("prompt", [](Request& r) { r.prompt.clear(); });
  invalid("prompt", [](Request& r) { r.prompt.assign(kMaxModelLen, 1); });
  invalid("prompt", [](Request& r) { r.prompt = {128}; });
  invalid("prompt", [](Request& r) { r.prompt = {-1}; });
  invalid("n", [](Request& r) { r.n = 0; });
  invalid("n", [](Request& r) { r.n = 2147483647; });
  invalid("temperature", [](Request& r) { r.sampling.temperature = -1; });
  invalid("temperature", [](Request& r) { r.sampling.temperature = std::nanf(""); });
  invalid("top_p", [](Request& r) { r.sampling.top_p = 0; });
  invalid("top_p", [](Request& r) { r.sampling.top_p = 1.5f; });
  invalid("min_p", [](Request& r) { r.sampling.min_p = -0.1f; });
  invalid("top_k", [](Request& r) { r.sampling.top_k = -2; });
  invalid("repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0; });
  invalid("frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = 3; });
  invalid("presence_penalty", [](Request& r) { r.sampling.presence_penalty = -3; });
  invalid("max_tokens", [](Request& r) { r.sampling.max_tokens = -1; });
  invalid("min_tokens", [](Request& r) { r.sampling.min_tokens = 6; });
  invalid("logit_bias", [](Request& r) { r.sampling.logit_bias = {{128, 1.0f}}; });
  invalid("stop_token_ids", [](Request& r) { r.sampling.stop_token_ids = {-5}; });
  for (int i = 0; i < 100; ++i) engine_.submit(request({2, 3}, 1));
  expect_refused(request({2, 3}, 1), ErrorKind::kUnavailable, "");
  EXPECT_EQ(engine_.stats().num_waiting, 100);
  while (engine_.step()) {
  }
  EXPECT_EQ(engine_.stats().num_waiting, 0);
}

TEST_F(EngineTest, TheLineIsBoundedInTokensToo) {
  EngineConfig made = config();
  made.max_waiting_tokens = 250;
  Engine engine(made, transformer_, storage_, model_.layout, end_tokens_, clock_);
  const auto is_taken = [&](int num_tokens) {
    try {
      engine.submit(request(random_tokens(num_tokens, 1), 1));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      EXPECT_NE(std::string(error.what()).find("the 250 that may wait"), std::string::npos)
          << error.what();
      return false;
    }
    return true;
  };
  const auto run = [&] {
    while (engine.step()) {
    }
    EXPECT_EQ(engine.stats().num_waiting_tokens, 0);
  };
  EXPECT_TRUE(is_taken(300)) << "alone in line";
  EXPECT_FALSE(is_taken(1));
  run();
  EXPECT_TRUE(is_taken(200));
  EXPECT_FALSE(is_taken(51));
  EXPECT_TRUE(is_taken(50));
  EXPECT_FALSE(is_taken(1));
  EXPECT_EQ(engine.stats().num_waiting_tokens, 250);
  run();
  EXPECT_TRUE(is_taken(250));
  run();
}

TEST_F(EngineTest, TheLastQuarterOfTheLineIsKeptForOtherTenants) {
  EngineConfig made = config();
  made.max_waiting = 100;
  made.max_waiting_tokens = 10'000;
  Engine engine(made, transformer_, storage_, model_.layout, end_tokens_, clock_);
  std::uint32_t seed = 0;  // nobody finds his prompt in the cache
  const auto take = [&](std::uint64_t tenant, int num_requests, int num_tokens, int num_predicted = 0) {
    for (int i = 0; i < num_requests; ++i) {
      try {
        Request asked = request(random_tokens(num_tokens, ++seed), 1);
        asked.tenant = tenant;
        if (num_predicted > 0) asked.prediction = std::make_shared<const std::vector<TokenId>>(random_tokens(num_predicted, 1));
        engine.submit(std::move(asked));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
        return std::string(error.what());
      }
    }
    return std::string();
  };
  const auto run = [&] {
    while (engine.step()) {
    }
  };
  EXPECT_EQ(take(0, 100, 2), "") << "nobody in particular has it all";
  run();
  EXPECT_EQ(take(1, 75, 2), "");
  EXPECT_EQ(take(1, 1, 2), "75 requests of 150 tokens are waiting under this key already, and the last quarter of the "
                           "line is kept for others; try again later");
  EXPECT_EQ(take(2, 25, 2), "");
  EXPECT_NE(take(3, 1, 2).find("100 requests are waiting already"), std::string::npos);
  run();
  EXPECT_EQ(take(1, 75, 100), "");
  EXPECT_NE(take(1, 1, 100).find("kept for others"), std::string::npos);
  run();
  EXPECT_EQ(take(1, 50, 150), "");
  EXPECT_NE(take(1, 1, 150).find("50 requests of 7500 tokens"), std::string::npos) << "in tokens, too";
  EXPECT_EQ(take(2, 16, 150), "");
  run();
  // What an answer is to be in part lies in line, too, also once the engine has looked at it.
  EXPECT_EQ(take(1, 46, 20, 140), "");
  engine.step();
  const std::int64_t num_waiting = engine.stats().num_waiting_tokens;
  EXPECT_GT(num_waiting, 5000);
  EXPECT_EQ(take(1, static_cast<int>(7500 - num_waiting) / 160, 20, 140), "");
  EXPECT_NE(take(1, 1, 20, 140).find("kept for others"), std::string::npos);
  run();
}

// A chunk's layers stop for it at once, except in the chunk's own turn.
TEST_F(EngineTest, AnArrivalIsSeenBetweenALongPromptsLayers) {
  EngineConfig paced = config();
  paced.max_step_slowdown = 2;
  for (const bool arrives : {true, false}) {
    const TickingClock clock;
    Engine engine(paced, transformer_, storage_, model_.layout, end_tokens_, clock);
    Listener first(1), book(1), other(1);
    const auto submit = [&](Listener& listener, int num_tokens, std::uint32_t seed) {
      Request asked = request(random_tokens(num_tokens, seed), 1);
      asked.on_update = listener.callback();
      engine.submit(std::move(asked));
    };
    submit(first, 100, 1);  // tells what a token costs
    while (engine.step()) {
    }
    submit(book, 380, 2);
    if (arrives)
      clock.on_look = [&, num_looks = 0]() mutable {
        if (++num_looks < 2) return false;  // the step's first is before it takes what has come
        submit(other, 10, 3);
        return true;
      };
    const auto num_in_step = [&] {
      const double before = engine.stats().step_tokens.sum();
      engine.step();
      return engine.stats().step_tokens.sum() - before;
    };
    EXPECT_EQ(num_in_step(), arrives ? 0 : 128) << "a chunk's tokens count at its end";
    if (arrives) {
      EXPECT_EQ(num_in_step(), 10);
      EXPECT_EQ(other.num_tokens, 1);
      EXPECT_EQ(num_in_step(), 128);
    }
    while (engine.step()) {
    }
    EXPECT_EQ(book.num_tokens, 1);
  }
}

// Those who decode wait meanwhile.
TEST_F(EngineTest, AStepAdmitsNoLongerThanItsTime) {
  for (const bool passes : {true, false}) {  // time, whenever it is looked at
    const TickingClock ticking;
    const ManualClock still;
    const Clock& clock = passes ? static_cast<const Clock&>(ticking) : still;
    Engine engine(config(), transformer_, storage_, model_.layout, end_tokens_, clock);
    std::vector<std::unique_ptr<Listener>> listeners;
    for (unsigned seed = 1; seed <= 3; ++seed) {
      listeners.push_back(std::make_unique<Listener>(1));
      Request asked = request(random_tokens(20, seed), 4);
      asked.on_update = listeners.back()->callback();
      engine.submit(std::move(asked));
    }
    engine.step();
    EXPECT_EQ(engine.stats().num_running, passes ? 1 : 3);
    while (engine.step()) {
    }
    for (const auto& listener : listeners) EXPECT_EQ(listener->num_tokens, 4);
  }
}

TEST_F(EngineTest, RefusesSizesThatDoNotFit) {
  const auto refused = [&](auto change) {
    EngineConfig made = config();
    change(made);
    EXPECT_THROW(Engine(made, transformer_, storage_, model_.layout, end_tokens_, clock_), Error);
  };
  refused([](EngineConfig& c) { c.max_batch_tokens = 129; });
  refused([](EngineConfig& c) { c.max_batch_tokens = 0; });
  refused([](EngineConfig& c) { c.max_model_len = 513; });
  refused([](EngineConfig& c) { c.num_blocks = 24; });
  refused([](EngineConfig& c) { c.max_sequences = 0; });
}

TEST_F(EngineTest, CutsMaxTokensToTheModelsLength) {
  Listener listener(1);
  submit(listener, random_tokens(kMaxModelLen - 4, 1), 1000000);
  while (engine_.step()) {
  }
  EXPECT_EQ(listener.tokens.size(), 4u);
}

// A record, not a limit: what a step costs beside the model and the sampler.
TEST_F(EngineTest, StepOverhead) {
  std::vector<std::unique_ptr<Listener>> listeners;
  for (std::uint32_t i = 0; i < 63; ++i) {
    listeners.push_back(std::make_unique<Listener>(1));
    submit(*listeners.back(), random_tokens(4, i), 30);
  }
  for (int i = 0; i < 6; ++i) engine_.step();
  double least_us = 1e9;
  for (int i = 0; i < 20; ++i) {
    const std::int64_t before = engine_.stats().schedule_ns;
    engine_.step();
    least_us = std::min(least_us, static_cast<double>(engine_.stats().schedule_ns - before) * 1e-3);
  }
  EXPECT_EQ(engine_.stats().num_running, 63);
  std::printf("step of 63 sequences: %.1f us beside model and sampler\n", least_us);
  while (engine_.step()) {
  }
}

}  // namespace
}  // namespace larder
