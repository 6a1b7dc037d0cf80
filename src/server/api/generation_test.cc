// A stream's events that take long to write are left for a thread that nobody else waits for, and its reader may be slow.
#include "server/api/generation.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "server/server_test_support.h"

namespace larder {
namespace {

constexpr int kNumPrompt = 1500;

class LargeEvents : public ::testing::Test {
 protected:
  static EngineConfig long_contexts() {
    EngineConfig config = TestServer::default_engine();
    config.max_model_len = 3000;
    config.num_blocks = 600;
    return config;
  }

  // Of a prompt with 1,499 times 21 logprobs.
  std::unique_ptr<Generation> start() {
    GenerationJob job;
    job.options.stream = true;
    job.options.has_max_tokens = true;
    job.options.sampling.max_tokens = 1;
    job.options.sampling.num_logprobs = job.options.sampling.num_prompt_logprobs = 20;
    job.max_waiting_bytes = 1 << 20;
    PreparedPrompt& prompt = job.prompts.emplace_back();
    prompt.tokens = random_tokens(kNumPrompt, 1);
    prompt.max_tokens = 1;
    EchoedPrompt echo{.text = std::string(kNumPrompt, 'x'), .offsets = std::vector<std::uint32_t>(kNumPrompt)};
    std::iota(echo.offsets.begin(), echo.offsets.end(), 0U);
    job.writer = make_completion_writer("tiny", server_.model().tokenizer, {echo});
    job.writer->set_prompts({prompt.tokens});
    return Generation::start(server_.model(), std::move(job), metrics_, [] {});
  }

  // "" = nothing of it is written yet.
  static std::string advance_to_large_event(Generation& generation) {
    std::string out;
    EXPECT_TRUE(eventually([&] {
      out += generation.advance(1 << 16);
      return generation.has_large_reply();
    }));
    return out + generation.advance(1 << 16);
  }

  TestServer server_{{}, long_contexts()};
  ServerMetrics metrics_{"tiny", 3000};
};

TEST_F(LargeEvents, AreWrittenByWhoeverIsAsked) {
  const auto generation = start();
  EXPECT_EQ(advance_to_large_event(*generation), "");
  EXPECT_FALSE(generation->done());
  std::string event;
  std::thread other([&] { event = generation->write_reply(); });
  other.join();
  EXPECT_FALSE(generation->has_large_reply());
  event += generation->advance(1 << 16);
  EXPECT_TRUE(generation->done());
  ASSERT_TRUE(event.starts_with("data: ") && event.ends_with("[DONE]\n\n"));
  const Json told = parse_json(event.substr(6, event.find("\n\n") - 6), {});
  EXPECT_EQ(told["choices"][0]["logprobs"]["top_logprobs"].size(), kNumPrompt + 1U);
}

TEST_F(LargeEvents, AreNotWrittenWhereThereIsNoRoom) {
  const auto generation = start();
  EXPECT_EQ(advance_to_large_event(*generation), "");
  EXPECT_GT(generation->held_bytes(), 1'000'000U);
  const std::string end = generation->break_off({.status = 503, .code = "reply_memory", .message = "no room"});
  EXPECT_TRUE(generation->done());
  EXPECT_FALSE(generation->has_large_reply());
  EXPECT_NE(end.find("no room"), std::string::npos);
  EXPECT_EQ(end.find("logprobs"), std::string::npos) << end.substr(0, 200);
}

// As a body tells the same.
TEST_F(LargeEvents, ReachTheClientWhole) {
  Json ask = {{"max_tokens", 1}, {"echo", true}, {"logprobs", 20}, {"temperature", 0}, {"n", 2}};
  ask["prompt"] = random_tokens(kNumPrompt, 2);
  const Json body = server_.post("/v1/completions", ask.dump()).json();
  ask["stream"] = true;
  const std::string stream = server_.post("/v1/completions", ask.dump()).body;
  std::size_t num_events = 0;
  for (std::size_t at = 0; (at = stream.find("data: {", at)) != std::string::npos; ++at, ++num_events) {
    const Json choice = parse_json(stream.substr(at + 6, stream.find("\n\n", at) - at - 6), {})["choices"][0];
    const Json& same = body["choices"][choice["index"].get<std::size_t>()];
    EXPECT_EQ(choice["text"], same["text"]);
    EXPECT_TRUE(choice["logprobs"] == same["logprobs"]);
  }
  EXPECT_EQ(num_events, 2U);
}

class SlowReaders : public ::testing::Test {
 protected:
  static constexpr std::size_t kMostWaiting = 8 << 10;

  // Of an answer that takes longer than any reader here. window: 0 = none.
  std::unique_ptr<Generation> start(int window) {
    GenerationJob job;
    job.options.stream = true;
    job.options.has_max_tokens = true;
    job.options.sampling.max_tokens = window > 0 ? 10'000'000 : 15'000;
    job.options.sampling.ignore_eos = true;
    job.options.attention = {.window = window, .num_sinks = window > 0 ? 16 : 0};
    job.max_waiting_bytes = kMostWaiting;
    PreparedPrompt& prompt = job.prompts.emplace_back();
    prompt.tokens = random_tokens(20, 1);
    prompt.max_tokens = job.options.sampling.max_tokens;
    job.writer = make_completion_writer("tiny", server_.model().tokenizer, {});
    return Generation::start(server_.model(), std::move(job), metrics_, [] {});
  }
  int num_paused() { return server_.engine().stats().num_paused; }

  TestServer server_{{}, {.num_blocks = 1300, .max_model_len = 20'000, .max_batch_tokens = 128}};
  ServerMetrics metrics_{"tiny", 20'000};
};

TEST_F(SlowReaders, AreWaitedForUntilTheyHaveReadHalf) {
  const auto generation = start(0);
  EXPECT_TRUE(eventually([&] {
    generation->keep_pace();
    return num_paused() == 1;
  }));
  const auto num_generated = [&] { return server_.engine().stats().num_generated_tokens; };
  const auto num_before = num_generated();
  EXPECT_NE(generation->advance(1), "");
  generation->keep_pace();
  EXPECT_EQ(num_paused(), 1) << "one event is less than half";
  EXPECT_FALSE(generation->is_behind());
  while (!generation->advance(1 << 16).empty()) {}
  generation->keep_pace();
  EXPECT_TRUE(eventually([&] { return num_paused() == 0 && num_generated() > num_before; }));
}

// An endless context would be lost.
TEST_F(SlowReaders, AreBehindOfWhatCannotPause) {
  const auto generation = start(32);
  EXPECT_FALSE(generation->is_behind(1'000'000));
  EXPECT_TRUE(eventually([&] {
    generation->keep_pace();
    return generation->is_behind(16);
  }));
  EXPECT_TRUE(generation->is_behind());
  EXPECT_EQ(num_paused(), 0);
  EXPECT_TRUE(eventually([&] {
    while (!generation->advance(1 << 16).empty()) {}
    return !generation->is_behind();
  }));
}

}  // namespace
}  // namespace larder
